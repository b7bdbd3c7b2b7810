//! Tests of the warnings about policies and arguments of queues. The host reads them from the broker's management API.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::{Rabbit, RabbitOptions};
use ordain_tests::host::Home;
use ordain_tests::http::{self, get, ready};
use ordain_tests::log::line;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{Service, wait_until};
use serde_json::json;

/// The arguments of a host that repeats its checks every three seconds.
const RUN_ARGUMENTS: [&str; 2] = ["--wait-divisor=100", "run"];
const WARNING: &str = "broker may lose events: the queue ";

/// Starts a rig whose host reads the management API at `management`, or at the broker if this is `None`.
pub(super) fn rig(stream: &str, source: &str, management: Option<&str>) -> Result<Rig> {
    let rabbit = Rabbit::shared_with(&RabbitOptions::new().management())?;
    let own = rabbit.management_url()?;
    let rig = Rig::on(rabbit, "", stream, source)?;
    write_config(&rig, &rig.rabbit.url(), management.unwrap_or(&own), stream, source)?;
    Ok(rig)
}

fn write_config(rig: &Rig, url: &str, management: &str, stream: &str, source: &str) -> Result<()> {
    let broker = format!("[broker]\nmanagement = \"{management}\"\n");
    rig.home.write("ordain.toml", config(url, "", stream, source).replace("[broker]\n", &broker))
}

/// Runs `ordain check --connect`, which must succeed. Returns its standard output.
pub(super) fn check(home: &Home) -> Result<String> {
    home.printed(&["check", "--connect"])
}

/// An operator sets a policy before the start, and another policy while the host runs. The host must log one line for
/// each setting that loses events, with the queue, the value and the name of the policy.
#[test]
fn policies_that_lose_events_are_logged() -> Result<()> {
    let rig = rig("spill_after = \"10s\"", "partitions = 2", None)?;
    let definition = r#"{"message-ttl": 60000, "max-length": 5, "delivery-limit": 3}"#;
    rig.rabbit.set_policy(r"^cases\.0$", definition)?;
    let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
    for setting in ["message-ttl = 60000", "max-length = 5", "delivery-limit = 3"] {
        service.until_says(&format!("{WARNING}\"cases.0\" has {setting} (policy \"tests\")"))?;
    }
    rig.rabbit
        .set_operator_policy(r"^cases\.1$", r#"{"expires": 900000, "max-length-bytes": 1000}"#)?;
    for setting in ["expires = 900000", "max-length-bytes = 1000"] {
        let words = format!("{WARNING}\"cases.1\" has {setting} (operator policy \"tests\")");
        service.until_says(&words)?;
    }
    // The second check has found the first policy again, and must not have logged it again.
    let log = service.stderr();
    ensure!(log.matches(WARNING).count() == 5, "{log}");

    let printed = check(&rig.home)?;
    ensure!(printed.matches("warning: broker: the queue \"cases.").count() == 5, "{printed}");
    rig.rabbit.clear_policy()?;
    // The broker replies before it has removed the policy from its queues.
    wait_until("only the operator policy", || {
        Ok(check(&rig.home)?.matches("warning: broker: the queue \"cases.").count() == 2)
    })?;
    service.end()
}

/// A policy can have a name of up to 255 bytes, which may contain line breaks. The host must log one line, which
/// contains only the beginning of a long name.
#[test]
fn name_of_a_policy_is_escaped_and_truncated() -> Result<()> {
    let rig = rig("", "", None)?;
    let name = format!("one\ntwo{}", "ä".repeat(124));
    ensure!(name.len() == 255, "{}", name.len());
    rig.rabbit.set_named_policy(&name, "^cases$", r#"{"max-length": 5}"#)?;
    let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
    let shown = format!(r"one\ntwo{}…", "ä".repeat(46));
    let words = format!("\"cases\" has max-length = 5 (policy \"{shown}\"): when the queue");
    service.until_says(&format!("{WARNING}{words}"))?;
    let printed = check(&rig.home)?;
    ensure!(printed.contains(&words), "{printed}");
    service.end()
}

/// A policy limits the deliveries, and the host is killed several times while it has unacknowledged events. The broker
/// drops these events. The host must report the policy and the dropped messages. After the policy was removed and the
/// messages were moved back, each event must take effect.
#[test]
fn events_dropped_by_a_delivery_limit_are_reported() -> Result<()> {
    const KILLS: usize = 5;
    for stream in ["", "ordering = \"fifo\""] {
        let rig = rig(stream, "", None)?;
        let config = rig.home.read("ordain.toml");
        // The first event executes for longer than the test, and the host moves no event into the store, so the host
        // acknowledges no event.
        let slow = "handler = \"faulty\"\nspill_after = \"10m\"";
        let slow = config.replace("handler = \"tally\"", slow);
        rig.home.write("ordain.toml", format!("[plugins]\ntimeout = \"2m\"\n{slow}"))?;
        rig.rabbit.set_policy("^cases$", r#"{"delivery-limit": 1}"#)?;
        let lines = [1, 2, 3].map(|number| line("a", number, &json!({ "do": "loop" })));
        let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
        rig.until_declared()?;
        rig.publish(&lines)?;
        for _ in 0..KILLS {
            service.until_says(&format!("{WARNING}\"cases\" has delivery-limit = 1"))?;
            wait_until("the delivery of all events", || {
                let queues = rig.rabbit.queues()?;
                let (dropped, _) = queues.get("cases.dropped").copied().unwrap_or_default();
                let (waiting, delivered) = queues.get("cases").copied().unwrap_or_default();
                Ok(waiting == 0 && dropped + delivered == 3)
            })?;
            service.kill()?;
            service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
        }
        service.until_says("broker has dropped messages of this stream")?;
        let address = http::admin(&mut service)?;
        service.until("the number of dropped messages", || {
            http::metric(address, "ordain_dropped_messages").is_ok_and(|count| count == Some(3))
        })?;
        service.kill()?;

        rig.rabbit.clear_policy()?;
        rig.home.write("ordain.toml", &config)?;
        let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
        ready(&mut service)?;
        rig.client.lose("cases.dropped", "cases", 3, |_| false)?;
        rig.check(&lines)?;
        rig.until_empty()?;
        service.end()?;
    }
    Ok(())
}

/// The queue belongs to another program, and has arguments that lose or repeat events.
#[test]
fn arguments_that_lose_or_repeat_events_are_reported() -> Result<()> {
    let rig = rig("", "declare = false", None)?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    arguments.insert("x-expires".into(), AMQPValue::LongInt(900_000));
    arguments.insert("x-consumer-timeout".into(), AMQPValue::LongInt(1_000));
    rig.client.exchange("cases", lapin::ExchangeKind::Fanout)?;
    rig.client.queue_with("cases", arguments)?;
    rig.client.bind("cases", "cases", "#")?;
    let expected = "the queue \"cases\" has x-expires = 900000 (arguments of the queue): if no process consumes";
    let printed = check(&rig.home)?;
    ensure!(printed.contains(&format!("warning: broker: {expected}")), "{printed}");
    let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
    service.until_says(&format!("broker may lose events: {expected}"))?;
    // With this timeout, RabbitMQ delivers events again.
    let timeout = "the queue \"cases\" has x-consumer-timeout = 1000 (arguments of the queue): RabbitMQ can end";
    ensure!(printed.contains(&format!("warning: broker: {timeout}")), "{printed}");
    service.until_says(&format!("broker may repeat events: {timeout}"))?;
    service.end()
}

/// Another program removes the binding of a queue that Ordain does not declare. The host must repeatedly log and count
/// that no binding leads from the exchange to the queue. Meanwhile, it must not be ready. It must not log that it
/// cannot read the bindings.
#[test]
fn missing_binding_of_another_program_is_reported() -> Result<()> {
    const MISSING_WORDS: &str =
        "no binding leads from the exchange \"cases\" to the queue \"cases\": the queue does not";
    let rig = rig("", "declare = false", None)?;
    rig.client.exchange("cases", lapin::ExchangeKind::Fanout)?;
    rig.client.queue_with("cases", FieldTable::default())?;
    rig.client.bind("cases", "cases", "")?;
    let printed = check(&rig.home)?;
    ensure!(!printed.contains(MISSING_WORDS), "{printed}");
    let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
    let lines = [1, 2].map(|number| line("a", number, &json!({ "n": number })));
    rig.publish(&lines[..1])?;
    let mut out = Vec::new();
    rig.take(&mut out, 1)?;
    ensure!(!service.stderr().contains(MISSING_WORDS), "{}", service.stderr());
    let address = ready(&mut service)?;
    rig.client.unbind("cases", "cases", "")?;
    service.until_lines(
        2,
        &["stream=\"cases\"", &format!("broker may lose events: {MISSING_WORDS}")],
    )?;
    service
        .until("unreadiness", || get(address, "/readyz").is_ok_and(|page| page.status == 503))?;
    let page = get(address, "/readyz")?;
    let reason = "stream cases: no binding in the broker leads from the exchange to a queue";
    ensure!(page.problem()?.contains(reason), "{page:?}");
    ensure!(http::metric(address, "ordain_topology_changes_total")? >= Some(2));
    ensure!(http::metric(address, "ordain_stream_consuming")? == Some(0));
    let url = format!("http://{address}");
    let listed = rig.home.printed(&["streams", "list", "--admin", &url])?;
    ensure!(listed.contains(MISSING_WORDS), "{listed}");
    let printed = check(&rig.home)?;
    ensure!(printed.contains(&format!("warning: broker: {MISSING_WORDS}")), "{printed}");
    rig.client.bind("cases", "cases", "")?;
    ready(&mut service)?;
    rig.publish(&lines[1..])?;
    rig.take(&mut out, 2)?;
    service.end()?;
    ensure!(!service.stderr().contains("bindings not checked"), "{}", service.stderr());
    Ok(())
}

/// A queue delays the events. Another exchange routes the expired messages of this queue to the queue of the stream.
/// The host must be ready, and must not report a missing binding.
#[test]
fn queue_behind_a_delay_queue_has_no_missing_binding() -> Result<()> {
    let rig = rig("", "declare = false", None)?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(100));
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("late".into()));
    for exchange in ["cases", "late"] {
        rig.client.exchange(exchange, lapin::ExchangeKind::Fanout)?;
    }
    rig.client.queue_with("delay", arguments)?;
    rig.client.bind("delay", "cases", "")?;
    rig.client.queue_with("cases", FieldTable::default())?;
    let missing = "no binding leads from the exchange";
    let printed = check(&rig.home)?;
    ensure!(printed.contains(missing), "{printed}");
    rig.client.bind("cases", "late", "")?;
    let printed = check(&rig.home)?;
    ensure!(!printed.contains(missing), "{printed}");
    let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
    ready(&mut service)?;
    let lines = [line("a", 1, &json!({ "n": 1 }))];
    rig.publish(&lines)?;
    rig.take(&mut Vec::new(), 1)?;
    service.end()?;
    ensure!(!service.stderr().contains(missing), "{}", service.stderr());
    Ok(())
}

/// Only one of two queues has a binding, so only the partition of the other queue receives no events. The exchange also
/// routes unroutable messages to an alternate exchange, so a binding from the alternate exchange is sufficient.
#[test]
fn missing_binding_concerns_only_its_partition() -> Result<()> {
    let rig = rig("", "partitions = 2, declare = false", None)?;
    let mut arguments = FieldTable::default();
    arguments.insert("alternate-exchange".into(), AMQPValue::LongString("rest".into()));
    rig.client.exchange("rest", lapin::ExchangeKind::Fanout)?;
    rig.client.exchange_with("cases", lapin::ExchangeKind::Topic, arguments)?;
    for queue in ["cases.0", "cases.1"] {
        rig.client.queue_with(queue, FieldTable::default())?;
    }
    rig.client.bind("cases.0", "cases", "a.#")?;
    let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
    service.until_lines(
        2,
        &["no binding leads from the exchange \"cases\" to the queue \"cases.1\""],
    )?;
    let address = http::admin(&mut service)?;
    let row = |partition: u32, value: u32| {
        format!("ordain_stream_consuming{{stream=\"cases\",partition=\"{partition}\"}} {value}\n")
    };
    service.until("one partition without events", || {
        let metrics = get(address, "/metrics").map(|page| page.body).unwrap_or_default();
        metrics.contains(&row(0, 1)) && metrics.contains(&row(1, 0))
    })?;
    rig.client.bind("cases.1", "rest", "")?;
    ready(&mut service)?;
    wait_until("two partitions with a source", || {
        Ok(http::metric(address, "ordain_stream_consuming")? == Some(2))
    })?;
    service.end()
}

/// The management API refuses the user, the URL leads to another part of the server, nothing listens at the URL, or the
/// server never answers. The host must report this, and must process events meanwhile.
#[test]
fn refused_and_missing_management_is_reported() -> Result<()> {
    let rig = rig("", "", None)?;
    let user = "untagged";
    rig.rabbit.add_user(user, "guest", ".*")?;
    let url = rig.rabbit.url().replace("guest:guest", &format!("{user}:guest"));
    let unused = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    // The system accepts connections to this listener, but the listener never answers.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let cases = [
        (
            rig.rabbit.management_url()?,
            "refuses the user \"untagged\": check the password in `broker.url`, and give the user the tag `management`",
        ),
        (
            format!("{}/other", rig.rabbit.management_url()?),
            "must be the management API of this broker, without `/api`",
        ),
        (format!("http://{unused}"), "onnection refused"),
        (format!("http://{}", silent.local_addr()?), "timeout"),
    ];
    for (number, (management, reason)) in (1..).zip(cases) {
        write_config(&rig, &url, &management, "", "")?;
        let printed = check(&rig.home)?;
        ensure!(
            printed.contains("warning: broker: the policies of the queues are unknown"),
            "{printed}"
        );
        ensure!(printed.contains(reason) && !printed.contains("untagged:guest"), "{printed}");
        let mut service = Service::start(&rig.home, &RUN_ARGUMENTS)?;
        service.until_says("policies of the broker's queues not checked: ")?;
        service.until_says(reason)?;
        rig.until_declared()?;
        rig.publish(&[line("a", number, &json!({ "n": number }))])?;
        rig.client.take("out", 1)?;
        service.end()?;
    }
    Ok(())
}
