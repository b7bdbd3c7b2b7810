//! Tests of starts that fail. Each start must report its reason, and end with the exit code for this kind of cause.

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use lapin::types::FieldTable;
use ordain_servers::{Rabbit, RabbitOptions};
use ordain_tests::amqp::from_line;
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, line};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use ordain_tests::tally;
use serde_json::json;

/// Starts a host. Checks that the start fails with the exit code `code`, and that the log contains each of `parts`.
/// Returns the log.
fn ensure_refused(home: &Home, code: i32, parts: &[&str]) -> Result<String> {
    let output = home.output(&RUN_WITH_SHORT_WAITS)?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(code), "{:?}: {stderr}", output.status);
    for part in parts {
        ensure!(stderr.contains(part), "no {part:?} in {stderr}");
    }
    Ok(stderr)
}

#[test]
fn missing_plugin_is_refused() -> Result<()> {
    let rabbit = Rabbit::with(&RabbitOptions::new().without_plugins())?;
    let rig = Rig::on(rabbit, "", "", "partitions = 4")?;
    if rig.rabbit.has_hash_exchange()? {
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        return service.end();
    }
    ensure_refused(
        &rig.home,
        78,
        &["rabbitmq-plugins enable rabbitmq_sharding", "exchange \"cases\""],
    )
    .map(drop)
}

#[test]
fn mismatched_objects_are_refused() -> Result<()> {
    let rig = Rig::new()?;
    rig.client.queue_with("cases", FieldTable::default())?;
    ensure_refused(&rig.home, 78, &["queue \"cases\"", "inequivalent arg", "declare = false"])?;
    rig.client.exchange("other", ExchangeKind::Fanout)?;
    let url = rig.rabbit.url();
    let other = config(&url, "", "", "partitions = 4");
    let other = other
        .replace("exchange = \"cases\", queue = \"cases\"", "exchange = \"other\", queue = \"q\"");
    rig.home.write("ordain.toml", &other)?;
    ensure_refused(&rig.home, 78, &["exchange \"other\"", "inequivalent arg", "declare = false"])?;
    let hashed = other.replace("partitions = 4", "partitions = 4, key = \"header:case\"");
    rig.home.write("ordain.toml", hashed)?;
    let form = "type x-consistent-hash with the argument hash-header = \"case\"";
    ensure_refused(&rig.home, 78, &["exchange \"other\"", "inequivalent arg", form])?;

    // A start must fail with exit code 78 if the form of a queue differs from the configuration, even if the exchange
    // of a sink is missing too.
    let other = config(&url, "", "", "").replace("exchange = \"out\"", "exchange = \"none\"");
    rig.home.write("ordain.toml", other)?;
    ensure_refused(&rig.home, 78, &["queue \"cases\"", "inequivalent arg"]).map(drop)
}

/// The exchange of a sink belongs to another program, which may declare the exchange later. A start therefore waits for
/// the exchange, and then ends with exit code 75, after which a supervisor starts the host again.
#[test]
fn missing_exchange_of_a_sink_is_a_temporary_failure() -> Result<()> {
    let words = ["exchange \"none\"", "sink tally", "no exchange", "Declare it first"];
    for (ordering, sink) in [
        ("", "[sinks.undelivered]\nkind = \"amqp\"\nexchange = \"out\"\n"),
        (
            "ordering = \"fifo\"\ndead_letter = \"undelivered\"",
            "[sinks.undelivered]\nkind = \"amqp\"\nexchange = \"more\"\n",
        ),
    ] {
        let rig = Rig::new()?;
        let text = config(&rig.rabbit.url(), "", ordering, "") + sink;
        rig.home.write("ordain.toml", text.replace("exchange = \"out\"", "exchange = \"none\""))?;
        let stderr = ensure_refused(&rig.home, 75, &words)?;
        ensure!(stderr.contains("request refused by the broker"), "{stderr}");
        // The start succeeds as soon as the exchanges exist.
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        service.until_says("sink tally cannot be used")?;
        for exchange in ["none", "more"] {
            rig.client.exchange(exchange, ExchangeKind::Topic)?;
            rig.client.bind("out", exchange, "#")?;
        }
        let lines = in_turn(3, 5);
        rig.until_declared()?;
        rig.publish(&lines)?;
        rig.check(&lines)?;
        service.end()?;
    }
    Ok(())
}

/// Other programs declare the exchanges that `bind` names and, with `declare = false`, the queues and the exchange of a
/// stream. If such a queue or exchange is missing, a start therefore waits in the same way as for the exchange of a
/// sink.
#[test]
fn missing_objects_of_other_programs_are_a_temporary_failure() -> Result<()> {
    const FOREIGN_SETTING: &str = "declare = false";
    for (source, has_queue, words) in [
        ("bind = [{ exchange = \"feed\" }]", false, "no exchange 'feed'"),
        (FOREIGN_SETTING, false, "the queue \"cases\" is required"),
        (FOREIGN_SETTING, true, "the exchange \"cases\" is required"),
    ] {
        let rig = Rig::with("", "", source)?;
        if has_queue {
            rig.client.queue("cases")?;
        }
        ensure_refused(&rig.home, 75, &[words])?;
        // The start succeeds as soon as the queue and the exchanges exist.
        let mut service = Service::start(&rig.home, &["run"])?;
        service.until_says("request refused by the broker")?;
        rig.client.exchange("feed", ExchangeKind::Topic)?;
        if source == FOREIGN_SETTING {
            rig.client.queue("cases")?;
            rig.client.exchange("cases", ExchangeKind::Fanout)?;
            rig.client.bind("cases", "cases", "")?;
        } else {
            rig.until_bound("feed", &["cases"])?;
        }
        let lines = in_turn(3, 5);
        rig.until_declared()?;
        rig.publish(&lines)?;
        rig.check(&lines)?;
        service.end()?;
    }
    Ok(())
}

/// A change after which the broker refuses the stream `cases` of a user, or accepts the stream again.
type Change = fn(&Rig, &str) -> Result<()>;

/// Leaves the user only the rights to the queues and exchanges of the stream `other` and of the sink.
fn take_rights(rig: &Rig, user: &str) -> Result<()> {
    rig.rabbit.set_rights(user, ["^other", "^(other|out$)", "^other"])
}

fn give_rights(rig: &Rig, user: &str) -> Result<()> {
    rig.rabbit.set_rights(user, [".*"; 3])
}

/// Another program replaces the exchange of the stream `cases` by an exchange of another type.
fn replace_exchange(rig: &Rig, _user: &str) -> Result<()> {
    rig.client.delete_exchange("cases")?;
    rig.client.exchange("cases", ExchangeKind::Topic)
}

fn delete_exchange(rig: &Rig, _user: &str) -> Result<()> {
    rig.client.delete_exchange("cases")
}

/// The broker refuses a stream at a start. The store has data of this stream, so the process must not end: the other
/// stream must run, and the refused stream must continue as soon as the broker accepts it again.
#[test]
fn known_stream_that_is_refused_delays_no_other_stream() -> Result<()> {
    const FIFO: &str = "ordering = \"fifo\"";
    let by_rights: [Change; 2] = [take_rights, give_rights];
    let by_type: [Change; 2] = [replace_exchange, delete_exchange];
    for (user, ordering, [refuse, accept]) in [
        ("denied", "", by_rights),
        ("denied-fifo", FIFO, by_rights),
        ("retyped", "", by_type),
        ("retyped-fifo", FIFO, by_type),
    ] {
        let rig = Rig::new()?;
        rig.rabbit.add_user(user, "guest", ".*")?;
        let url = rig.rabbit.url().replace("guest:guest", &format!("{user}:guest"));
        let other = "[streams.other]\nhandler = \"tally\"\n\
                     source = { kind = \"amqp\", exchange = \"other\", queue = \"other\" }\n";
        rig.home.write("ordain.toml", config(&url, "", ordering, "") + other)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let lines = in_turn(3, 10);
        let (first, rest) = lines.split_at(15);
        rig.publish(first)?;
        let mut out = Vec::new();
        rig.take(&mut out, first.len())?;
        rig.until_empty()?;
        service.end()?;

        refuse(&rig, user)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        let refused = "topology not as configured";
        service.until_lines(1, &[refused, "stream=\"cases\"", "the stream starts"])?;
        rig.client.publish("other", &[from_line(&line("a", 1, &json!({ "n": 1 })))?])?;
        rig.client.take("out", 1)?;
        accept(&rig, user)?;
        rig.until_declared()?;
        rig.publish(rest)?;
        rig.take(&mut out, lines.len())?;
        tally::check(&by_key(&lines)?, &out.join("\n"))?;
        service.end()?;
    }
    Ok(())
}

/// The reason why a queue cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueFault {
    /// The process of a classic queue has stopped. The broker refuses every use of the queue.
    Stopped,
    /// The process of a quorum queue does not respond.
    Unresponsive,
}

impl QueueFault {
    /// Makes the queue `cases` unusable.
    fn begin(self, rig: &Rig) -> Result<()> {
        match self {
            Self::Stopped => rig.rabbit.stop_classic_queue("cases"),
            Self::Unresponsive => rig.rabbit.suspend("cases", true),
        }
    }

    /// Makes the queue `cases` usable again.
    fn end(self, rig: &Rig) -> Result<()> {
        match self {
            Self::Stopped => {
                rig.client.delete_queue("cases")?;
                declare_classic_queue(rig)
            }
            Self::Unresponsive => rig.rabbit.suspend("cases", false),
        }
    }
}

/// Declares the classic queue `cases`, and binds it to the exchange `cases`.
fn declare_classic_queue(rig: &Rig) -> Result<()> {
    rig.client.queue_with("cases", FieldTable::default())?;
    rig.client.bind("cases", "cases", "")
}

/// The broker responds at a start, but the queue of one stream cannot be used. The store has data of this stream, so
/// the process must not end: the other stream must run, and the stream must continue as soon as its queue can be used.
#[test]
fn known_stream_whose_queue_cannot_be_used_delays_no_other_stream() -> Result<()> {
    for (fault, ordering) in [
        (QueueFault::Stopped, ""),
        (QueueFault::Stopped, "ordering = \"fifo\""),
        (QueueFault::Unresponsive, ""),
    ] {
        let is_foreign = fault == QueueFault::Stopped;
        let rig = Rig::with("", ordering, if is_foreign { "declare = false" } else { "" })?;
        if is_foreign {
            rig.client.exchange("cases", ExchangeKind::Fanout)?;
            declare_classic_queue(&rig)?;
        }
        let other = "[streams.other]\nhandler = \"tally\"\n\
                     source = { kind = \"amqp\", exchange = \"other\", queue = \"other\" }\n";
        rig.home.write("ordain.toml", rig.home.read("ordain.toml") + other)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let lines = in_turn(3, 10);
        let (first, rest) = lines.split_at(15);
        rig.publish(first)?;
        let mut out = Vec::new();
        rig.take(&mut out, first.len())?;
        rig.until_empty()?;
        service.end()?;

        fault.begin(&rig)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        if is_foreign {
            let words = ["topology not checked", "stream=\"cases\"", "the stream starts"];
            service.until_lines(1, &words)?;
        }
        rig.client.publish("other", &[from_line(&line("a", 1, &json!({ "n": 1 })))?])?;
        rig.client.take("out", 1)?;
        // The test pauses the host, because a `fifo` stream would stop if it found that its queue is missing.
        service.pause()?;
        fault.end(&rig)?;
        service.resume()?;
        rig.publish(rest)?;
        rig.take(&mut out, lines.len())?;
        tally::check(&by_key(&lines)?, &out.join("\n"))?;
        service.end()?;
    }
    Ok(())
}

#[test]
fn wrong_login_and_unreachable_broker_are_refused() -> Result<()> {
    let rig = Rig::new()?;
    let wrong = rig.rabbit.url().replace("guest:guest", "guest:secret");
    rig.home.write("ordain.toml", config(&wrong, "", "", ""))?;
    let stderr = ensure_refused(
        &rig.home,
        75,
        &["refused by the broker", "user \"guest\"", "ACCESS_REFUSED"],
    )?;
    ensure!(!stderr.contains("secret"), "the log contains the password: {stderr}");

    let closed_port = rig.rabbit.url().replace(&rig.rabbit.port().to_string(), "1");
    rig.home.write("ordain.toml", config(&closed_port, "", "", ""))?;
    ensure_refused(&rig.home, 75, &["broker unavailable", "127.0.0.1:1"]).map(drop)
}

/// The host can run as a user who may declare only the objects of the stream. On RabbitMQ 4.0 and later, the user may
/// also declare an exchange from whose type the host recognises the version.
#[test]
fn user_with_narrow_rights_can_run() -> Result<()> {
    let rig = Rig::new()?;
    rig.rabbit.add_narrow_user("narrow")?;
    let url = rig.rabbit.url().replace("guest:guest", "narrow:guest");
    rig.home.write("ordain.toml", config(&url, "", "", ""))?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.end()
}
