//! Tests of `fifo` streams that lose their queue. Such a stream stops until an operator resumes it, while other streams
//! continue.

use anyhow::{Context, Result, ensure};
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::Rabbit;
use ordain_tests::amqp::to_line;
use ordain_tests::http::{admin, get, metric, ready};
use ordain_tests::log::{in_turn, line};
use ordain_tests::printed::run_all;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use serde_json::json;

use super::rebuilt::declare_out;
use super::support::{ADMIN, FIFO, log_in, rig_of_user};

const STOPPED_WORDS: &str = "stream stopped: the queue \"cases\" was removed";

fn rig() -> Result<Rig> {
    Rig::with(ADMIN, FIFO, "")
}

fn start(rig: &Rig) -> Result<Service> {
    Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)
}

/// Resumes the stream with the command in the log line about the stop. The command sends the request to the running
/// process.
fn resume(rig: &Rig, service: &mut Service) -> Result<()> {
    let log = service.stderr();
    let stopped = log.lines().find(|line| line.contains(STOPPED_WORDS)).context("the stop")?;
    let outputs = run_all(&rig.home, stopped)?;
    let resumes = |(command, printed): &(String, String)| {
        command.starts_with("ordain streams resume cases")
            && printed.contains("partition 0 resumed")
    };
    ensure!(outputs.iter().any(resumes), "{outputs:?}");
    service.until_says("stream resumed by an operator")
}

/// Publishes all events of `lines` after the first 30, which must take effect only after the stream is resumed. Ends
/// the host.
fn check_stopped_until_resumed(rig: &Rig, mut service: Service, lines: &[String]) -> Result<()> {
    let (before, later) = lines.split_at(30);
    rig.publish(later)?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    ensure!(
        rig.client.take_all("out")?.is_empty(),
        "an event took effect before the stream was resumed: {}",
        service.stderr()
    );
    resume(rig, &mut service)?;
    let mut out = Vec::new();
    rig.take(&mut out, lines.len() - before.len())?;
    service.end()
}

/// Publishes the first 30 of 60 events, and waits until they have taken effect. Returns all 60 events.
fn execute_first(rig: &Rig) -> Result<Vec<String>> {
    let lines = in_turn(3, 20);
    rig.publish(&lines[..30])?;
    rig.client.take("out", 30)?;
    rig.until_empty()?;
    Ok(lines)
}

/// Another program deletes the queue of one of two `fifo` streams. Only this stream must stop. The log, `/readyz`, the
/// metrics and `ordain streams list` must report the stopped stream.
#[test]
fn fifo_stream_stops_alone_without_its_queue() -> Result<()> {
    let rig = rig()?;
    let other = "[streams.other]\nhandler = \"tally\"\nordering = \"fifo\"\n\
                 source = { kind = \"amqp\", exchange = \"other\", queue = \"other\" }\n";
    let both = format!("{}{other}", config(&rig.rabbit.url(), ADMIN, FIFO, ""));
    rig.home.write("ordain.toml", both)?;
    let mut service = start(&rig)?;
    rig.until_declared()?;
    let lines = execute_first(&rig)?;
    rig.client.delete_queue("cases")?;
    service.until_says(STOPPED_WORDS)?;
    service.until_says("`ordain streams resume cases`")?;

    let address = admin(&mut service)?;
    let page = get(address, "/readyz")?;
    let reason = page.problem()?;
    ensure!(page.status == 503 && reason.contains("stream cases: stopped"), "{reason}");
    let streams = page.json()?["streams"].clone();
    ensure!(streams[0]["stream"] == "cases" && streams.as_array().map(Vec::len) == Some(1));
    let metrics = get(address, "/metrics")?.body;
    for (stream, consuming) in [("cases", 0), ("other", 1)] {
        let row =
            format!("ordain_stream_consuming{{stream=\"{stream}\",partition=\"0\"}} {consuming}");
        ensure!(metrics.contains(&row), "{row}: {metrics}");
    }
    let url = format!("http://{address}");
    let listed = rig.home.printed(&["streams", "list", "--json", "--admin", &url])?;
    ensure!(listed.contains("\"consuming\":false") && listed.contains("was removed"), "{listed}");
    let messages: Vec<_> = lines[..30]
        .iter()
        .map(|line| ordain_tests::amqp::from_line(line))
        .collect::<Result<_>>()?;
    rig.client.publish("other", &messages)?;
    rig.client.take("out", 30)?;

    // The stream stays stopped after a restart. Meanwhile, new events wait in the new queue.
    rig.until_declared()?;
    service.end()?;
    let mut service = start(&rig)?;
    service.until_says(STOPPED_WORDS)?;
    check_stopped_until_resumed(&rig, service, &lines)
}

/// Another program removes the queue and declares a classic queue of the same name. The stream stops, and the log
/// reports the form of the new queue. After an operator has resumed the stream, the stream consumes the new queue.
#[test]
fn fifo_stream_stops_if_its_queue_is_replaced() -> Result<()> {
    let rig = rig()?;
    let mut service = start(&rig)?;
    rig.until_declared()?;
    let lines = execute_first(&rig)?;
    // A running host could declare the queue immediately after the deletion.
    service.pause()?;
    rig.client.delete_queue("cases")?;
    rig.client.queue_with("cases", FieldTable::default())?;
    service.resume()?;
    service.until_says(STOPPED_WORDS)?;
    service.until_lines(1, &["topology not as configured", "inequivalent arg"])?;
    rig.until_declared()?;
    check_stopped_until_resumed(&rig, service, &lines)
}

fn new_client(rabbit: &Rabbit) -> Result<ordain_tests::amqp::Client> {
    ordain_tests::amqp::Client::connect(&rabbit.url_at(rabbit.port()))
}

/// The queue is replaced while the host does not run. The host must detect the replacement at its next start.
#[test]
fn fifo_stream_whose_queue_was_replaced_before_its_start_stops() -> Result<()> {
    let rig = rig()?;
    let mut service = start(&rig)?;
    rig.until_declared()?;
    let lines = execute_first(&rig)?;
    service.end()?;
    rig.client.delete_queue("cases")?;
    rig.client.queue_with("cases", FieldTable::default())?;
    rig.client.bind("cases", "cases", "")?;
    let mut service = start(&rig)?;
    service.until_says(STOPPED_WORDS)?;
    service.end()?;

    // No process runs, so the commands read and write the store themselves.
    let listed = rig.home.printed(&["streams", "list"])?;
    ensure!(listed.contains("was removed"), "{listed}");
    ensure!(listed.contains("the number of these messages is unknown"), "{listed}");
    let printed = rig.home.printed(&["streams", "resume", "cases"])?;
    ensure!(printed.contains("partition 0 resumed"), "{printed}");
    let printed = rig.home.printed(&["streams", "resume", "cases"])?;
    ensure!(printed.contains("nothing to resume"), "{printed}");
    rig.publish(&lines[30..])?;
    let mut service = start(&rig)?;
    let mut out = Vec::new();
    rig.take(&mut out, 30)?;
    service.end()
}

/// The queue is removed while the host does not run. Either the queue alone is removed, or the whole virtual host,
/// which an operator then creates again. The next start must succeed, and the stream must be stopped until an operator
/// resumes it.
#[test]
fn fifo_stream_whose_queue_was_removed_before_its_start_stops() -> Result<()> {
    for is_rebuilt in [false, true] {
        let mut rig = rig()?;
        let mut service = start(&rig)?;
        rig.until_declared()?;
        let lines = execute_first(&rig)?;
        service.end()?;
        if is_rebuilt {
            rig.rabbit.recreate_virtual_host()?;
            declare_out(&mut rig)?;
        } else {
            rig.client.delete_queue("cases")?;
        }
        let mut service = start(&rig)?;
        service.until_says(STOPPED_WORDS)?;
        rig.until_declared()?;
        check_stopped_until_resumed(&rig, service, &lines)?;
    }
    Ok(())
}

/// A queue is removed while 20 messages wait in it. The log and the commands must name this number. A handler that does
/// not end, and a prefetch of one message, keep the messages in the queue.
#[test]
fn loss_of_a_queue_names_the_number_of_its_messages() -> Result<()> {
    const LOSS: &str = "at the last check, 20 messages waited in the queue";
    let sections = format!("{ADMIN}[plugins]\ntimeout = \"20s\"\n");
    let rig = Rig::with(&sections, FIFO, "prefetch = 1")?;
    let config = rig.home.read("ordain.toml").replace("\"tally\"", "\"faulty\"");
    rig.home.write("ordain.toml", config)?;
    let mut service = start(&rig)?;
    rig.until_declared()?;
    rig.publish(&[line("a", 1, &json!({ "do": "loop" }))])?;
    rig.publish(&in_turn(1, 20))?;
    let address = admin(&mut service)?;
    service.until("20 waiting messages", || {
        metric(address, "ordain_partition_lag_events").is_ok_and(|waiting| waiting == Some(20))
    })?;
    rig.client.delete_queue("cases")?;
    service.until_lines(1, &[STOPPED_WORDS, LOSS])?;
    let url = format!("http://{address}");
    for command in [&["streams", "list"][..], &["streams", "resume", "cases"]] {
        let printed = rig.home.printed(&[command, &["--admin", &url]].concat())?;
        ensure!(printed.contains(LOSS), "{printed}");
    }
    service.kill()
}

/// The queue disappears while the host has no connection to the broker. The host reconnects to an empty virtual host.
#[test]
fn fifo_stream_of_a_rebuilt_broker_stops_and_resumes() -> Result<()> {
    let mut rig = rig()?;
    let mut service = start(&rig)?;
    rig.until_declared()?;
    let lines = execute_first(&rig)?;
    rig.rabbit.recreate_virtual_host()?;
    service.until_says(STOPPED_WORDS)?;
    ensure!(service.is_running()?, "{}", service.stderr());
    rig.reconnect()?;
    rig.client.exchange("out", lapin::ExchangeKind::Topic)?;
    rig.client.queue("out")?;
    rig.client.bind("out", "out", "#")?;
    rig.until_declared()?;
    check_stopped_until_resumed(&rig, service, &lines)
}

#[test]
fn other_partitions_of_a_fifo_stream_continue() -> Result<()> {
    let rig = Rig::with(ADMIN, FIFO, "partitions = 2")?;
    let mut service = start(&rig)?;
    rig.until_bound("cases", &["cases.1"])?;
    rig.rabbit.sync()?;
    execute_first(&rig)?;
    rig.client.delete_queue("cases.1")?;
    service.until_says("the queue \"cases.1\" was removed")?;
    let address = admin(&mut service)?;
    let metrics = get(address, "/metrics")?.body;
    for (partition, consuming) in [(0, 1), (1, 0)] {
        let row = format!(
            "ordain_stream_consuming{{stream=\"cases\",partition=\"{partition}\"}} {consuming}"
        );
        ensure!(metrics.contains(&row), "{row}: {metrics}");
    }
    let url = format!("http://{address}");
    let printed = rig.home.printed(&["streams", "resume", "cases", "--admin", &url])?;
    ensure!(
        printed.contains("partition 1 resumed") && !printed.contains("partition 0"),
        "{printed}"
    );
    service.until("readiness", || {
        get(address, "/readyz").is_ok_and(|response| response.status == 200)
    })?;
    service.end()
}

/// A process without the right to declare the marker must run nevertheless. The process must log that it cannot detect
/// a replaced queue.
#[test]
fn fifo_stream_without_right_to_a_marker_runs() -> Result<()> {
    let rig = rig()?;
    rig.rabbit.add_narrow_user("unmarked")?;
    log_in(&rig, "unmarked", ADMIN, FIFO, "")?;
    let mut service = start(&rig)?;
    rig.until_declared()?;
    execute_first(&rig)?;
    service.until_says("queue without a marker")?;
    // Without a marker, the process must still detect that a queue is missing.
    rig.client.delete_queue("cases")?;
    service.until_says(STOPPED_WORDS)?;
    service.end()
}

/// An operator grants the right to declare the marker. At its next subscription, the process must declare the marker,
/// without a restart.
#[test]
fn fifo_stream_declares_its_marker_when_the_right_is_granted() -> Result<()> {
    let rig = rig()?;
    rig.rabbit.add_narrow_user("marked-later")?;
    log_in(&rig, "marked-later", ADMIN, FIFO, "")?;
    let mut service = start(&rig)?;
    service.until_says("queue without a marker")?;
    rig.rabbit.limit_declarations("marked-later", ".*")?;
    rig.rabbit.close_connections()?;
    rig.until_bound("cases.marker", &["cases"])?;
    service.end()
}

/// A `sequenced` stream must also run if the process has no right to declare the marker. The process must declare a
/// deleted queue again.
#[test]
fn sequenced_stream_without_right_to_a_marker_runs() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    rig.rabbit.add_narrow_user("unmarked-too")?;
    log_in(&rig, "unmarked-too", ADMIN, "", "")?;
    let mut service = start(&rig)?;
    rig.until_declared()?;
    let lines = execute_first(&rig)?;
    service.until_says("queue without a marker")?;
    rig.client.delete_queue("cases")?;
    service.until_says("queue consumed again")?;
    rig.publish(&lines[30..])?;
    rig.take(&mut Vec::new(), 30)?;
    service.end()
}

/// The broker refuses new connections because of a connection limit. This condition is temporary: the limit must not
/// stop a stream, and a start must wait and then end with exit code 75. A running host must not be ready, and must log
/// the broker's words when the refusal lasts longer than the lease. No other instance can use its embedded store.
#[test]
fn connection_limit_stops_no_stream() -> Result<()> {
    for (user, ordering) in [("limited", FIFO), ("limited-too", "")] {
        let rig = rig_of_user(user, ADMIN, ordering)?;
        rig.rabbit.limit_connections(user, Some(0))?;
        let ended = rig.home.output(&RUN_WITH_SHORT_WAITS)?;
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(
            ended.status.code() == Some(75) && stderr.contains("limit (0) is reached"),
            "{stderr}"
        );
        rig.rabbit.limit_connections(user, None)?;
        let mut service = start(&rig)?;
        rig.until_declared()?;
        let lines = execute_first(&rig)?;
        rig.rabbit.limit_connections(user, Some(0))?;
        rig.rabbit.close_connections()?;
        service.until_says("limit (0) is reached")?;
        let address = admin(&mut service)?;
        service.until("unreadiness", || {
            get(address, "/readyz").is_ok_and(|page| page.status == 503)
        })?;
        let unusable = "broker unusable for longer than the lease";
        service.until_lines(1, &[unusable, "NOT_ALLOWED", "limit (0) is reached"])?;
        ensure!(!service.stderr().contains("other instances"), "{}", service.stderr());
        let rig = Rig { client: new_client(&rig.rabbit)?, ..rig };
        rig.publish(&lines[30..])?;
        ensure!(service.is_running()?, "{}", service.stderr());
        rig.rabbit.limit_connections(user, None)?;
        let mut out = Vec::new();
        rig.take(&mut out, 30)?;
        service.end()?;
    }
    Ok(())
}

/// A connection limit allows only some of the connections that a start opens. This condition is temporary too: the
/// start of a new stream with a limit of one connection must wait and then end with exit code 75. In the other cases,
/// the host must start, repeat its failed connection attempts, and consume the queue after the removal of the limit.
#[test]
fn connection_limit_reached_during_a_start_is_temporary() -> Result<()> {
    for (user, ordering, limit) in [
        ("one-link", "", 1),
        ("one-link-fifo", FIFO, 1),
        ("two-links", "", 2),
        ("two-links-fifo", FIFO, 2),
    ] {
        let rig = rig_of_user(user, ADMIN, ordering)?;
        let refusal = format!("limit ({limit}) is reached");
        rig.rabbit.limit_connections(user, Some(limit))?;
        let mut service = start(&rig)?;
        if limit == 1 {
            // The preparation of the topology needs two connections at the same time.
            let status = service.wait()?;
            let log = service.stderr();
            ensure!(status.code() == Some(75) && log.contains(&refusal), "{status}: {log}");
        } else {
            service.until_says(&refusal)?;
            service.kill()?;
        }
        rig.rabbit.limit_connections(user, None)?;
        let mut service = start(&rig)?;
        rig.until_declared()?;
        let lines = execute_first(&rig)?;
        service.end()?;

        // The stream has data in the store now.
        rig.rabbit.limit_connections(user, Some(limit))?;
        let mut service = start(&rig)?;
        service.until_says(&refusal)?;
        if limit == 1 {
            service.until_lines(1, &["queue not consumed; retrying", &refusal])?;
            ensure!(!service.stderr().contains("ready: stream"), "{}", service.stderr());
        }
        rig.rabbit.limit_connections(user, None)?;
        rig.publish(&lines[30..])?;
        rig.take(&mut Vec::new(), 30)?;
        service.end()?;
    }
    Ok(())
}

/// The configuration has `declare = false`, and the queue of a stream is missing at a start. Because the stream has run
/// before, the process must start nevertheless, and the stream must wait for the queue.
#[test]
fn known_stream_waits_for_its_queue_at_start() -> Result<()> {
    for ordering in ["", FIFO] {
        let rig = Rig::with(ADMIN, ordering, "")?;
        let mut service = start(&rig)?;
        rig.until_declared()?;
        let lines = execute_first(&rig)?;
        service.end()?;
        let foreign = config(&rig.rabbit.url(), ADMIN, ordering, "declare = false");
        rig.home.write("ordain.toml", foreign)?;
        rig.client.delete_queue("cases")?;
        let mut service = start(&rig)?;
        let stopped = if ordering == FIFO { STOPPED_WORDS } else { "queue not consumed" };
        service.until_says(stopped)?;
        if ordering == FIFO {
            service
                .until_says("topology of the stopped stream not restored: the queue \"cases\"")?;
        }
        rig.client.queue_with("cases", FieldTable::default())?;
        rig.client.bind("cases", "cases", "")?;
        rig.publish(&lines[30..])?;
        if ordering == FIFO {
            resume(&rig, &mut service)?;
        }
        let mut out = Vec::new();
        rig.take(&mut out, 30)?;
        service.end()?;
    }
    Ok(())
}

/// The queue was declared under RabbitMQ 3, without the argument for its delivery limit. RabbitMQ 4 applies a default
/// limit to this queue, and the arguments of an existing queue cannot be changed. The stream must nevertheless use the
/// queue.
#[test]
fn queue_of_rabbitmq_3_is_used_under_rabbitmq_4() -> Result<()> {
    for ordering in ["", FIFO] {
        let rig = Rig::with(ADMIN, ordering, "")?;
        let mut arguments = FieldTable::default();
        let text = |text: &str| AMQPValue::LongString(text.into());
        arguments.insert("x-queue-type".into(), text("quorum"));
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        arguments.insert("x-dead-letter-exchange".into(), text("cases.dropped"));
        rig.client.queue_with("cases", arguments)?;
        let mut service = start(&rig)?;
        rig.until_declared()?;
        let lines = execute_first(&rig)?;
        let is_limited = service.stderr().contains("queue declared under RabbitMQ 3");
        ensure!(is_limited == (rig.rabbit.version()? >= (4, 0)), "{}", service.stderr());
        let policy = " ordain-no-delivery-limit-cases '^(cases)$' '{\"delivery-limit\": -1}' ";
        for words in ["delivers each message of the queue at most 20 times", policy] {
            ensure!(is_limited == service.stderr().contains(words), "{}", service.stderr());
        }
        // The next start must use the same queue too.
        service.end()?;
        let mut service = start(&rig)?;
        rig.publish(&lines[30..])?;
        let mut out = Vec::new();
        rig.take(&mut out, 30)?;
        service.end()?;
    }
    Ok(())
}

/// A process that does not reach its broker must not be ready, because it receives no events from the queue. The
/// process must nevertheless accept events over HTTP.
#[test]
fn process_without_its_broker_is_not_ready_but_accepts_events() -> Result<()> {
    let sections = format!("{ADMIN}[ingress]\nlisten = \"127.0.0.1:0\"\n");
    let rig = Rig::with_private_broker(&sections, "", "")?;
    let mut service = start(&rig)?;
    let mut address = ready(&mut service)?;
    let status =
        |address, path: &str| get(address, path).map(|page| page.status).unwrap_or_default();
    for is_running in [true, false] {
        if is_running {
            rig.rabbit.stop()?;
        } else {
            service.end()?;
            rig.rabbit.stop()?;
            service = start(&rig)?;
            address = admin(&mut service)?;
        }
        service.until("readiness for events over HTTP", || {
            status(address, "/readyz/ingress") == 200 && status(address, "/readyz") == 503
        })?;
        if is_running {
            service.until("the metric of a disconnected broker", || {
                let metrics = get(address, "/metrics").map(|page| page.body).unwrap_or_default();
                metrics.contains("\nordain_broker_connected 0\n")
            })?;
        }
        rig.rabbit.restart()?;
        service.until("readiness", || status(address, "/readyz") == 200)?;
    }
    service.end()
}

/// The test kills the host at different times after the removal of the queue. The host may or may not have recorded the
/// loss, and may or may not have declared the new queue. In each case, the next start must stop the stream.
#[test]
fn loss_of_the_queue_stops_the_stream_after_a_kill() -> Result<()> {
    let rig = rig()?;
    let mut service = start(&rig)?;
    rig.until_declared()?;
    execute_first(&rig)?;
    let mut round = 0;
    for milliseconds in [0, 20, 60, 120, 250, 500] {
        round += 1;
        let key = format!("round-{round}");
        rig.client.delete_queue("cases")?;
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        service.kill()?;
        let mut service_after = start(&rig)?;
        service_after.until_says(STOPPED_WORDS)?;
        rig.until_declared()?;
        rig.publish(&[line(&key, 1, &json!({ "n": 1 }))])?;
        std::thread::sleep(std::time::Duration::from_millis(300));
        // The host that was killed may have published the message of the previous round without recording the
        // publication. The next host then publishes this message again.
        let is_of_round = |delivery: &Delivery| Ok(to_line(delivery)?.contains(&key));
        for delivery in rig.client.take_all("out")? {
            ensure!(!is_of_round(&delivery)?, "{}", service_after.stderr());
        }
        resume(&rig, &mut service_after)?;
        rig.client.take_counted("out", 1, is_of_round)?;
        rig.until_empty()?;
        service = service_after;
    }
    service.end()
}
