//! Tests of refusals at a start. A refused stream or sink waits, and delays no other stream. If a refusal concerns the
//! whole process, the start fails with an exit code that depends on the cause.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use lapin::ExchangeKind;
use lapin::types::FieldTable;
use ordain_servers::{Rabbit, RabbitOptions, Redis, wait_for_command};
use ordain_tests::amqp::from_line;
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, admin, get, ingress, metric, post, ready};
use ordain_tests::log::{in_turn, line};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use serde_json::{Value, json};

use super::support::{
    ADMIN, FIFO, Halves, declare_exchange_and_queue, declare_queue, log_in, rig_of_user,
};

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

/// Starts a host whose new stream `cases` the broker refuses. The host must log the refusal with each of `parts`, and
/// must not be ready. Returns the host and the address of its admin listener.
fn start_refused(home: &Home, parts: &[&str]) -> Result<(Service, SocketAddr)> {
    let mut service = Service::start(home, &RUN_WITH_SHORT_WAITS)?;
    let line = [&["new stream not consumed", "stream=\"cases\""], parts].concat();
    service.until_lines(1, &line)?;
    let address = admin(&mut service)?;
    service.until("unreadiness because of the stream", || {
        get(address, "/readyz")
            .is_ok_and(|page| page.body.contains("stream cases: no events have arrived"))
    })?;
    ensure!(
        metric(address, "ordain_stream_consuming{stream=\"cases\",partition=\"0\"}")? == Some(0)
    );
    Ok((service, address))
}

#[test]
fn new_stream_without_its_plugin_waits() -> Result<()> {
    let rabbit = Rabbit::with(&RabbitOptions::new().without_plugins())?;
    let rig = Rig::on(rabbit, ADMIN, "", "partitions = 4")?;
    if rig.rabbit.has_hash_exchange()? {
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        return service.end();
    }
    let parts = ["rabbitmq-plugins enable rabbitmq_sharding", "exchange \"cases\""];
    start_refused(&rig.home, &parts)?.0.end()
}

/// The broker refuses a new stream, because a queue or an exchange exists in another form. The log must describe the
/// form that the stream needs.
#[test]
fn new_stream_with_mismatched_objects_waits() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    rig.client.queue_with("cases", FieldTable::default())?;
    rig.client.exchange("other", ExchangeKind::Fanout)?;
    let url = rig.rabbit.url();
    let other = config(&url, ADMIN, "", "partitions = 4");
    let other = other
        .replace("exchange = \"cases\", queue = \"cases\"", "exchange = \"other\", queue = \"q\"");
    let hashed = other.replace("partitions = 4", "partitions = 4, key = \"header:case\"");
    let form = "type x-consistent-hash with the argument hash-header = \"case\"";
    let without_sink = config(&url, ADMIN, "", "").replace("\"out\"", "\"none\"");
    for (text, parts) in [
        (config(&url, ADMIN, "", ""), ["queue \"cases\"", "declare = false"]),
        (other, ["exchange \"other\"", "declare = false"]),
        (hashed, ["exchange \"other\"", form]),
        (without_sink, ["queue \"cases\"", "declare = false"]),
    ] {
        rig.home.write("ordain.toml", text)?;
        let parts = [&parts[..], &["inequivalent arg"]].concat();
        start_refused(&rig.home, &parts)?.0.end()?;
    }
    Ok(())
}

/// The metric that is 0 while the broker refuses the exchange of the sink `tally`.
const SINK_ACCEPTED: &str = "ordain_sink_accepted{sink=\"tally\"}";

/// Waits until the host is not ready because the broker refuses the exchange of the sink `tally`. The metric of the
/// sink must then be 0.
fn until_sink_refused(service: &mut Service, address: SocketAddr) -> Result<()> {
    let reason = "stream cases: the broker has refused the exchange of the sink tally since";
    service.until("unreadiness because of the sink", || {
        get(address, "/readyz").is_ok_and(|page| page.body.contains(reason))
    })?;
    ensure!(metric(address, SINK_ACCEPTED)? == Some(0), "{}", service.stderr());
    Ok(())
}

/// The exchange of a sink belongs to another program, which may declare the exchange later. The missing exchange must
/// not end a start: the stream consumes its queue, its messages wait in the store, and the stream is not ready. When
/// the exchange exists, the host must publish all messages without a new start.
#[test]
fn sink_without_its_exchange_waits() -> Result<()> {
    let words = ["exchange \"none\"", "sink tally", "no exchange", "Declare it first"];
    for (ordering, sink) in [
        ("", "[sinks.undelivered]\nkind = \"amqp\"\nexchange = \"out\"\n"),
        (
            "ordering = \"fifo\"\ndead_letter = \"undelivered\"",
            "[sinks.undelivered]\nkind = \"amqp\"\nexchange = \"more\"\n",
        ),
    ] {
        let rig = Rig::new()?;
        let text = config(&rig.rabbit.url(), ADMIN, ordering, "") + sink;
        rig.home.write("ordain.toml", text.replace("exchange = \"out\"", "exchange = \"none\""))?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        service.until_lines(1, &words)?;
        rig.until_declared()?;
        let lines = in_turn(3, 5);
        rig.publish(&lines)?;
        // The stream consumes its queue.
        rig.until_empty()?;
        let address = admin(&mut service)?;
        until_sink_refused(&mut service, address)?;

        for exchange in ["none", "more"] {
            rig.client.exchange(exchange, ExchangeKind::Topic)?;
            rig.client.bind("out", exchange, "#")?;
        }
        rig.check(&lines)?;
        ready(&mut service)?;
        ensure!(metric(address, SINK_ACCEPTED)? == Some(1), "{}", service.stderr());

        // The exchange can also disappear while the host runs, even without a message.
        rig.client.delete_exchange("none")?;
        rig.publish(&[line("z", 1, &json!({ "n": 1 }))])?;
        until_sink_refused(&mut service, address)?;
        rig.client.exchange("none", ExchangeKind::Topic)?;
        rig.client.bind("out", "none", "#")?;
        rig.client.take("out", 1)?;
        ready(&mut service)?;
        service.end()?;
    }
    Ok(())
}

/// The user of a sink loses the right to write to the exchange. The stream must not be ready until the broker accepts
/// the messages.
#[test]
fn sink_without_the_right_to_write_is_not_ready() -> Result<()> {
    let rig = rig_of_user("unwriting", ADMIN, "")?;
    rig.rabbit.set_rights("unwriting", [".*", "^cases", ".*"])?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let lines = in_turn(3, 2);
    rig.publish(&lines)?;
    service.until_lines(1, &["message refused by the broker", "ACCESS_REFUSED"])?;
    let address = admin(&mut service)?;
    until_sink_refused(&mut service, address)?;
    rig.rabbit.set_rights("unwriting", [".*"; 3])?;
    rig.check(&lines)?;
    ready(&mut service)?;
    ensure!(metric(address, SINK_ACCEPTED)? == Some(1), "{}", service.stderr());
    service.end()
}

/// After an upgrade of the broker, the plugin of the type of a sink's exchange is missing, so the broker refuses each
/// message. The stream must not be ready until the broker supports the type again.
#[test]
fn sink_with_an_unsupported_exchange_type_is_not_ready() -> Result<()> {
    let rig = Rig::with_private_broker(ADMIN, "", "")?;
    rig.client.exchange("hashed", ExchangeKind::Custom("x-modulus-hash".to_owned()))?;
    rig.client.bind("out", "hashed", "")?;
    let text = config(&rig.rabbit.url(), ADMIN, "", "");
    rig.home.write("ordain.toml", text.replace("exchange = \"out\"", "exchange = \"hashed\""))?;
    rig.rabbit.support_modulus_hash(false)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let lines = in_turn(3, 2);
    rig.publish(&lines)?;
    service.until_lines(1, &["message refused by the broker", "exchange type x-modulus-hash"])?;
    let address = admin(&mut service)?;
    until_sink_refused(&mut service, address)?;
    rig.rabbit.support_modulus_hash(true)?;
    rig.check(&lines)?;
    ready(&mut service)?;
    service.end()
}

/// A run with `--once` ends when all messages are published. A missing exchange must therefore end the run, because the
/// run would otherwise never end.
#[test]
fn missing_exchange_of_a_sink_ends_a_run_with_once() -> Result<()> {
    let rig = Rig::new()?;
    let text = format!(
        "[broker]\nurl = \"{}\"\n[streams.cases]\nhandler = \"tally\"\n\
         source = {{ kind = \"file\", path = \"lines.ndjson\" }}\n\
         [sinks.tally]\nkind = \"amqp\"\nexchange = \"none\"\n",
        rig.rabbit.url()
    );
    rig.home.write("ordain.toml", text)?;
    rig.home.write("lines.ndjson", line("a", 1, &json!({ "n": 1 })) + "\n")?;
    let output = rig.home.output(&[&RUN_WITH_SHORT_WAITS[..], &["--once"]].concat())?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(75), "{}: {log}", output.status);
    ensure!(log.contains("exchange \"none\" of the sink tally cannot be used"), "{log}");
    Ok(())
}

/// Other programs declare the exchanges that `bind` names and, with `declare = false`, the queues and the exchange of a
/// stream. If such a queue or exchange is missing, a new stream waits for it.
#[test]
fn new_stream_waits_for_objects_of_other_programs() -> Result<()> {
    const FOREIGN_SETTING: &str = "declare = false";
    for (source, has_queue, words) in [
        ("bind = [{ exchange = \"feed\" }]", false, "no exchange 'feed'"),
        (FOREIGN_SETTING, false, "the queue \"cases\" is required"),
        (FOREIGN_SETTING, true, "the exchange \"cases\" is required"),
    ] {
        let rig = Rig::with(ADMIN, "", source)?;
        if has_queue {
            rig.client.queue("cases")?;
        }
        let (mut service, _) = start_refused(&rig.home, &[words])?;
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
        ready(&mut service)?;
        service.end()?;
    }
    Ok(())
}

/// A change in the broker. After the change, the broker refuses the stream `cases` to a host that logs in as this user,
/// or accepts the stream again.
type Change = fn(&Rig, &str) -> Result<()>;

/// Leaves the user only the rights to the queues and exchanges of the stream `other` and of the sink.
fn take_rights(rig: &Rig, user: &str) -> Result<()> {
    rig.rabbit.set_rights(user, ["^other", "^(other|out$)", "^other"])
}

fn give_rights(rig: &Rig, user: &str) -> Result<()> {
    rig.rabbit.set_rights(user, [".*"; 3])
}

/// Replaces the exchange of the stream `cases` by an exchange of another type.
fn replace_exchange(rig: &Rig, _user: &str) -> Result<()> {
    rig.client.delete_exchange("cases")?;
    rig.client.exchange("cases", ExchangeKind::Topic)
}

fn delete_exchange(rig: &Rig, _user: &str) -> Result<()> {
    rig.client.delete_exchange("cases")
}

/// The broker refuses a stream at a start. The store has data of this stream, so the process must not end. The other
/// stream must run, and the refused stream must continue as soon as the broker accepts it again.
#[test]
fn known_stream_that_is_refused_delays_no_other_stream() -> Result<()> {
    let by_rights: [Change; 2] = [take_rights, give_rights];
    let by_type: [Change; 2] = [replace_exchange, delete_exchange];
    for (user, ordering, [refuse, accept]) in [
        ("denied", "", by_rights),
        ("denied-fifo", FIFO, by_rights),
        ("retyped", "", by_type),
        ("retyped-fifo", FIFO, by_type),
    ] {
        let rig = rig_of_user(user, "", ordering)?;
        let other = "[streams.other]\nhandler = \"tally\"\n\
                     source = { kind = \"amqp\", exchange = \"other\", queue = \"other\" }\n";
        rig.home.write("ordain.toml", rig.home.read("ordain.toml") + other)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let halves = Halves::begin(&rig, in_turn(3, 10))?;
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
        halves.end(&rig)?;
        service.end()?;
    }
    Ok(())
}

fn declare_other_queue(rig: &Rig, _user: &str) -> Result<()> {
    rig.client.queue_with("cases", FieldTable::default())?;
    rig.client.exchange("foreign", ExchangeKind::Fanout)?;
    rig.client.bind("cases", "foreign", "")?;
    rig.client.publish("foreign", &[from_line(&line("foreign", 1, &json!({ "n": 1 })))?])
}

fn delete_queue(rig: &Rig, _user: &str) -> Result<()> {
    rig.client.delete_queue("cases")
}

fn declare_other_exchange(rig: &Rig, _user: &str) -> Result<()> {
    rig.client.exchange("cases", ExchangeKind::Topic)
}

/// The broker refuses a stream at its first start. The process must not end, and the other stream must run. The refused
/// stream must consume nothing, not even a queue that belongs to another program. When the broker accepts the refused
/// stream, the stream must begin without a new start.
#[test]
fn new_stream_that_is_refused_delays_no_other_stream() -> Result<()> {
    let cases: [(&str, &str, [Change; 2]); 4] = [
        ("new-denied", "", [take_rights, give_rights]),
        ("new-denied-fifo", "ordering = \"fifo\"", [take_rights, give_rights]),
        ("new-queue", "ordering = \"fifo\"", [declare_other_queue, delete_queue]),
        ("new-exchange", "", [declare_other_exchange, delete_exchange]),
    ];
    for (user, ordering, [refuse, accept]) in cases {
        let rig = Rig::new()?;
        rig.rabbit.add_user(user, "guest", ".*")?;
        let url = rig.rabbit.url().replace("guest:guest", &format!("{user}:guest"));
        let other = "[streams.other]\nhandler = \"tally\"\n\
                     source = { kind = \"amqp\", exchange = \"other\", queue = \"other\" }\n";
        rig.home.write("ordain.toml", config(&url, ADMIN, ordering, "") + other)?;
        refuse(&rig, user)?;
        let (mut service, address) = start_refused(&rig.home, &[])?;
        let other = from_line(&line("a", 1, &json!({ "n": 1 })))?;
        rig.client.publish("other", &[other])?;
        rig.client.take("out", 1)?;
        let queue = rig.rabbit.queues()?.get("cases").copied();
        ensure!(user != "new-queue" || queue == Some((1, 0)), "{queue:?}: {}", service.stderr());
        accept(&rig, user)?;
        service.until_says("new stream accepted by the broker")?;
        rig.until_declared()?;
        let lines = in_turn(3, 5);
        rig.publish(&lines)?;
        rig.check(&lines)?;
        service
            .until("readiness", || get(address, "/readyz").is_ok_and(|page| page.status == 200))?;
        service.end()?;
    }
    Ok(())
}

/// The virtual host has as many queues as its limit allows, so the broker refuses a new stream. The log must not advise
/// to delete a queue of the stream, because the stream has no queue in another form. When the limit is removed, the
/// stream must begin without a new start.
#[test]
fn new_stream_waits_for_a_limit_of_queues() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    rig.rabbit.limit_queues(Some(1))?;
    let parts = ["queue limit in vhost", "(1) is reached", "raise the limit"];
    let (mut service, _) = start_refused(&rig.home, &parts)?;
    ensure!(!service.stderr().contains("choose another name"), "{}", service.stderr());
    rig.rabbit.limit_queues(None)?;
    service.until_says("new stream accepted by the broker")?;
    rig.until_declared()?;
    let lines = in_turn(3, 5);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()
}

/// Events over HTTP leave data of a refused new stream in the store. After a new start, the stream must nevertheless
/// consume nothing, because its queue belongs to another program. When the broker accepts the stream, the events over
/// HTTP must take effect.
#[test]
fn events_over_http_do_not_open_a_refused_stream() -> Result<()> {
    let sections = format!("{ADMIN}[ingress]\nlisten = \"127.0.0.1:0\"\n");
    let rig = Rig::with(&sections, "", "")?;
    declare_other_queue(&rig, "")?;
    for sequence in 1..=2 {
        let (mut service, _) = start_refused(&rig.home, &[])?;
        let events = ingress(&mut service)?;
        let event = line("a", sequence, &json!({ "n": sequence })) + "\n";
        ensure!(post(events, LINES_TYPE, &event)?.status == 202, "{}", service.stderr());
        let queue = rig.rabbit.queues()?.get("cases").copied();
        ensure!(queue == Some((1, 0)), "{queue:?}: {}", service.stderr());
        service.end()?;
    }
    let (mut service, _) = start_refused(&rig.home, &[])?;
    delete_queue(&rig, "")?;
    service.until_says("new stream accepted by the broker")?;
    rig.take(&mut Vec::new(), 2)?;
    service.end()?;

    // The broker has accepted the stream, so a later refusal stops only the declaration.
    delete_exchange(&rig, "")?;
    declare_other_exchange(&rig, "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_lines(1, &["topology not as configured", "the stream starts"])?;
    service.end()
}

/// The queue and the exchange of a refused new stream belong to another program, as does the binding between them. An
/// operator then gives the stream another queue. Ordain has never declared the binding of the other program, so it must
/// not advise to remove this binding.
#[test]
fn binding_of_another_program_is_no_former_binding() -> Result<()> {
    for ordering in ["", FIFO] {
        let rig = Rig::with(ADMIN, ordering, "")?;
        declare_exchange_and_queue(&rig, FieldTable::default())?;
        start_refused(&rig.home, &[])?.0.end()?;
        let text = rig.home.read("ordain.toml");
        rig.home.write("ordain.toml", text.replace("queue = \"cases\"", "queue = \"cases.3\""))?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        ready(&mut service)?;
        let bound = rig.rabbit.bound("cases")?;
        ensure!(bound.contains(&"cases.3".to_owned()), "{bound:?}");
        let rows = rig.home.rows(&[
            "streams",
            "unbind",
            "cases",
            "--json",
            "--admin",
            &format!("http://{}", admin(&mut service)?),
        ])?;
        ensure!(rows.is_empty(), "{rows:?}");
        let log = service.stderr();
        ensure!(!log.contains("binding of an earlier configuration"), "{log}");
        ensure!(rig.rabbit.bound("cases")?.contains(&"cases".to_owned()));
        service.end()?;
    }
    Ok(())
}

/// While one process runs, a second process starts. The broker refuses a sink or a new stream of the second process.
/// The second process must end without taking partitions: it could not publish the messages of these partitions.
#[test]
fn refused_process_takes_no_partitions_from_others() -> Result<()> {
    let redis = Redis::start(&[])?;
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let rig = Rig::with(&store, "", "partitions = 4")?;
    rig.client.queue_with("more", FieldTable::default())?;
    let text = rig.home.read("ordain.toml");
    let without_sink = text.replace("exchange = \"out\"", "exchange = \"none\"");
    let new_stream = text
        + "[streams.more]\nhandler = \"tally\"\n\
           source = { kind = \"amqp\", exchange = \"more\", queue = \"more\" }\n";
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    // The process is a member when its events take effect.
    let halves = Halves::begin(&rig, in_turn(10, 6))?;
    let other = Home::new(&["tally"], "")?;
    for (text, words) in [(without_sink, "sink tally"), (new_stream, "queue \"more\"")] {
        other.write("ordain.toml", text)?;
        let log = ensure_refused(&other, 75, &[words, "Other processes run with the same store"])?;
        ensure!(!log.contains("new stream not consumed"), "{log}");
    }
    halves.end(&rig)?;
    service.end()?;
    // Without the other process, only the new stream waits.
    let mut service = Service::start(&other, &RUN_WITH_SHORT_WAITS)?;
    service.until_lines(1, &["new stream not consumed", "stream=\"more\""])?;
    let more = [line("new", 1, &json!({ "n": 1 }))];
    rig.publish(&more)?;
    rig.check(&more)?;
    service.end()
}

fn until_shared(home: &Home, hosts: [&Service; 2], shares: [u64; 2]) -> Result<()> {
    let mut rows = Vec::new();
    let found = wait_for_command("the shares of the hosts", || {
        rows = home.rows(&["instances", "--json"])?;
        let owned = hosts.map(|host| {
            let end = format!("/{}", host.id());
            let is_host =
                |row: &&Value| row["name"].as_str().is_some_and(|name| name.ends_with(&end));
            rows.iter().find(is_host).and_then(|row| row["owns"].as_u64())
        });
        Ok(owned == shares.map(Some))
    });
    found.with_context(|| format!("{rows:?}"))
}

/// The broker refuses the new stream of a process, which waits alone and owns all partitions. The broker then accepts
/// the stream for a second process, which has another login. The first process must hand all partitions over to the
/// second process, and must take part again as soon as the broker accepts the stream for it too. Until then, a new
/// start of the first process must succeed, before and after the stream has its first event.
#[test]
fn refused_process_leaves_its_partitions_to_an_accepted_process() -> Result<()> {
    let user = "waiting-denied";
    let redis = Redis::start(&[])?;
    let sections = format!("{ADMIN}[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let source = "partitions = 4";
    let rig = rig_of_user(user, "", "")?;
    log_in(&rig, user, &sections, "", source)?;
    take_rights(&rig, user)?;
    let (mut refused, _) = start_refused(&rig.home, &[])?;
    let other = Home::new(&["tally"], &config(&rig.rabbit.url(), &sections, "", source))?;
    let mut accepted = Service::start(&other, &RUN_WITH_SHORT_WAITS)?;
    until_shared(&other, [&refused, &accepted], [0, 4])?;
    refused.until_lines(1, &["partition no longer assigned", "the broker refuses this stream"])?;
    refused.end()?;
    let mut refused = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    refused.until_lines(1, &["new stream not consumed", "stream=\"cases\""])?;
    until_shared(&other, [&refused, &accepted], [0, 4])?;
    let halves = Halves::begin(&rig, in_turn(20, 4))?;
    ready(&mut refused)?;
    refused.end()?;
    let mut refused = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    refused.until_lines(1, &["topology not as configured", "stream=\"cases\""])?;
    until_shared(&other, [&refused, &accepted], [0, 4])?;
    ready(&mut refused)?;

    give_rights(&rig, user)?;
    refused.until_says("stream accepted by the broker")?;
    until_shared(&other, [&refused, &accepted], [2, 2])?;
    halves.end(&rig)?;
    refused.end()?;
    accepted.end()
}

/// The broker refuses a known stream to one of two processes, first at a start of this process, and later while the
/// process runs. Each time, the other process must own and consume all partitions, and both processes must share them
/// again as soon as the broker accepts the stream for both.
#[test]
fn refused_known_stream_is_left_to_an_accepted_process() -> Result<()> {
    let user = "known-denied";
    let redis = Redis::start(&[])?;
    let sections = format!(
        "{ADMIN}[runtime]\nlease = \"2s\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\n",
        redis.url()
    );
    let source = "partitions = 4";
    let mut rig = rig_of_user(user, "", "")?;
    log_in(&rig, user, &sections, "", source)?;
    let other = Home::new(&["tally"], &config(&rig.rabbit.url(), &sections, "", source))?;
    let mut denied = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let mut accepted = Service::start(&other, &RUN_WITH_SHORT_WAITS)?;
    until_shared(&other, [&denied, &accepted], [2, 2])?;
    let halves = Halves::begin(&rig, in_turn(20, 4))?;

    denied.end()?;
    take_rights(&rig, user)?;
    let mut denied = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    denied.until_lines(1, &["stream refused to this process by the broker", "ACCESS_REFUSED"])?;
    until_shared(&other, [&denied, &accepted], [0, 4])?;
    ready(&mut denied)?;
    halves.end(&rig)?;
    give_rights(&rig, user)?;
    denied.until_says("stream accepted by the broker")?;
    until_shared(&other, [&denied, &accepted], [2, 2])?;

    // RabbitMQ does not end the subscriptions of a user who loses a right. Only the next subscription is refused.
    take_rights(&rig, user)?;
    rig.rabbit.close_connections()?;
    rig.reconnect()?;
    denied.until_lines(2, &["partition no longer assigned", "the broker refuses this stream"])?;
    until_shared(&other, [&denied, &accepted], [0, 4])?;
    let more: Vec<String> =
        (0..20).map(|key| line(&format!("more{key}"), 1, &json!({ "n": 1 }))).collect();
    rig.publish(&more)?;
    rig.check(&more)?;
    give_rights(&rig, user)?;
    until_shared(&other, [&denied, &accepted], [2, 2])?;
    denied.end()?;
    accepted.end()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueFault {
    /// The broker refuses every use of a classic queue whose process has stopped.
    Stopped,
    /// The process of a quorum queue does not respond.
    Unresponsive,
}

impl QueueFault {
    fn begin(self, rig: &Rig) -> Result<()> {
        match self {
            Self::Stopped => rig.rabbit.stop_classic_queue("cases"),
            Self::Unresponsive => rig.rabbit.suspend("cases", true),
        }
    }

    fn end(self, rig: &Rig) -> Result<()> {
        match self {
            Self::Stopped => {
                rig.client.delete_queue("cases")?;
                declare_queue(rig, FieldTable::default())
            }
            Self::Unresponsive => rig.rabbit.suspend("cases", false),
        }
    }
}

/// The broker responds at a start, but the queue of one stream cannot be used. The store has data of this stream, so
/// the process must not end. The other stream must run, and the stream must continue as soon as its queue can be used.
#[test]
fn known_stream_whose_queue_cannot_be_used_delays_no_other_stream() -> Result<()> {
    for (fault, ordering) in
        [(QueueFault::Stopped, ""), (QueueFault::Stopped, FIFO), (QueueFault::Unresponsive, "")]
    {
        let is_foreign = fault == QueueFault::Stopped;
        let rig = Rig::with("", ordering, if is_foreign { "declare = false" } else { "" })?;
        if is_foreign {
            declare_exchange_and_queue(&rig, FieldTable::default())?;
        }
        let other = "[streams.other]\nhandler = \"tally\"\n\
                     source = { kind = \"amqp\", exchange = \"other\", queue = \"other\" }\n";
        rig.home.write("ordain.toml", rig.home.read("ordain.toml") + other)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let halves = Halves::begin(&rig, in_turn(3, 10))?;
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
        halves.end(&rig)?;
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
/// also declare an exchange whose type shows the host the version of the broker.
#[test]
fn user_with_narrow_rights_can_run() -> Result<()> {
    let rig = Rig::new()?;
    rig.rabbit.add_narrow_user("narrow")?;
    log_in(&rig, "narrow", "", "", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.end()
}
