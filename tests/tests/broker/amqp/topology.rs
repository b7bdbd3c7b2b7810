//! Tests of exchanges and queues that other programs remove or replace while a stream runs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};
use ordain_servers::{Mode, Proxy};
use ordain_tests::alerts;
use ordain_tests::amqp::from_line;
use ordain_tests::http::{admin, get, metric, ready};
use ordain_tests::log::{by_key, in_turn, line};
use ordain_tests::printed::run_all;
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};
use ordain_tests::tally;
use serde_json::json;

/// Returns how many changes of exchanges, queues and bindings the host has found.
fn changes(service: &mut Service) -> Result<u64> {
    Ok(metric(admin(service)?, "ordain_topology_changes_total")?.unwrap_or(0))
}

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";
const FIFO: &str = "ordering = \"fifo\"";

/// If a producer declares a deleted exchange again, the new exchange has no bindings, and the broker does not report
/// this to the host. The host must declare the bindings again.
#[test]
fn bindings_of_a_replaced_exchange_are_declared_again() -> Result<()> {
    for stream in ["", FIFO] {
        let rig = Rig::with("", stream, "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let lines = in_turn(5, 20);
        let (first, second) = lines.split_at(50);
        rig.publish(first)?;
        rig.until_empty()?;
        rig.until_marked("cases")?;
        // The test pauses the host, because a check between the two steps would find the exchange missing.
        service.pause()?;
        rig.client.delete_exchange("cases")?;
        rig.client.exchange("cases", ExchangeKind::Fanout)?;
        service.resume()?;
        // For a moment, RabbitMQ 4.3 still lists the bindings of the deleted exchange.
        service.until_says("exchange removed and declared again by another program:")?;
        rig.until_declared()?;
        rig.publish(second)?;
        rig.check(&lines)?;
        service.end()?;
    }
    Ok(())
}

/// The host is killed as soon as the new exchange has its marker. When the new marker exists, no check can detect the
/// replacement any more. The host must therefore log the replacement before it declares the new marker. The link to the
/// broker is slow, so each further step of the check takes longer than the test needs to kill the host.
#[test]
fn replaced_exchange_is_logged_before_it_gets_a_marker() -> Result<()> {
    let rig = Rig::new()?;
    let proxy = Proxy::start(rig.rabbit.port())?;
    rig.home.write("ordain.toml", config(&rig.rabbit.url_at(proxy.port()), "", "", ""))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.until_marked("cases")?;
    service.pause()?;
    rig.client.delete_exchange("cases")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    let has_marker = || anyhow::Ok(!rig.rabbit.bound_to_exchange("cases")?.is_empty());
    // For a moment, RabbitMQ 4.3 still lists the bindings of the deleted exchange.
    wait_until("an exchange without a marker", || Ok(!has_marker()?))?;
    proxy.set(Mode::Delay(Duration::from_millis(60)))?;
    service.resume()?;
    wait_until("the new marker", has_marker)?;
    service.kill()?;
    let log = service.stderr();
    ensure!(log.contains("exchange removed and declared again by another program:"), "{log}");
    Ok(())
}

/// While the exchange is missing, producers get an error. The host must declare the exchange again.
#[test]
fn missing_exchange_is_declared_again_and_reported() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "partitions = 4")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let address = ready(&mut service)?;
    let earlier = get(address, "/metrics")?.body;
    rig.client.delete_exchange("cases")?;
    service.until_says("exchange missing: declared again")?;
    rig.until_declared()?;
    let lines = in_turn(20, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    ensure!(changes(&mut service)? > 0);
    let firing = alerts::firing(&earlier, &get(address, "/metrics")?.body)?;
    ensure!(firing.contains("OrdainTopologyChanged"), "{firing:?}");
    service.end()
}

/// Returns how many errors about a difference of the topology the log of the host has.
fn reported_differences(service: &Service) -> u64 {
    service.stderr().matches("topology not as configured").count() as u64
}

/// A `sequenced` stream consumes a queue that another program declared again in another form, because the stream
/// detects lost events by their sequences. The host reports the difference in form, and continues. The host counts each
/// difference, even if the log does not repeat the error. A start also uses the queue, because the store has data of
/// the stream.
#[test]
fn queue_in_another_form_is_reported() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let lines = in_turn(3, 20);
    let (first, rest) = lines.split_at(30);
    rig.publish(first)?;
    let mut out = Vec::new();
    rig.take(&mut out, first.len())?;
    rig.until_empty()?;
    // The test pauses the host, because a running host would declare the queue at once after the deletion.
    service.pause()?;
    for queue in ["cases", "cases.dropped"] {
        rig.client.delete_queue(queue)?;
        rig.client.queue_with(queue, FieldTable::default())?;
    }
    service.resume()?;
    service.until_says("topology not as configured")?;
    service.until_says("inequivalent arg")?;
    // Each check counts two differences but logs only one error. The replacement of the queue counts as one further
    // change.
    wait_until("a counted change", || {
        let counted = changes(&mut service)?;
        Ok(counted > 1 + reported_differences(&service))
    })?;
    service.end()?;

    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let starts = "the stream starts, and its consumers retry";
    service.until_lines(1, &["topology not as configured", "inequivalent arg", starts])?;
    rig.publish(rest)?;
    rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    service.end()
}

/// Another program replaces the exchange by an exchange of another type. The new exchange routes no event to the queue,
/// because the binding of the queue matches only an empty routing key. The host must report the difference repeatedly,
/// and must not be ready. After an operator has deleted the exchange, the host declares it again and continues.
#[test]
fn exchange_of_another_type_is_reported_repeatedly() -> Result<()> {
    for ordering in ["", FIFO] {
        let rig = Rig::with(ADMIN, ordering, "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        rig.until_marked("cases")?;
        let lines = in_turn(3, 10);
        let (first, rest) = lines.split_at(15);
        rig.publish(first)?;
        let mut out = Vec::new();
        rig.take(&mut out, first.len())?;
        rig.until_empty()?;
        // The test pauses the host, because a check between the two steps would find the exchange missing.
        service.pause()?;
        rig.client.delete_exchange("cases")?;
        rig.client.exchange("cases", ExchangeKind::Topic)?;
        service.resume()?;
        let difference = "inequivalent arg 'type' for exchange 'cases'";
        service.until_lines(2, &["topology not as configured", difference])?;
        let lost = rest.iter().map(|line| from_line(line)).collect::<Result<Vec<_>>>()?;
        ensure!(!rig.client.try_publish("cases", &lost)?, "a queue has received each event");

        until_not_ready(&mut service)?;
        let address = admin(&mut service)?;
        let reason = "stream cases: the exchange in the broker has another type";
        let page = get(address, "/readyz")?;
        ensure!(page.problem()?.contains(reason), "{page:?}");
        let metrics = get(address, "/metrics")?.body;
        let row = "ordain_stream_consuming{stream=\"cases\",partition=\"0\"} 0";
        ensure!(metrics.contains(row), "{metrics}");
        ensure!(changes(&mut service)? >= 2);
        let url = format!("http://{address}");
        let listed = rig.home.printed(&["streams", "list", "--admin", &url])?;
        ensure!(listed.contains(difference), "{listed}");

        rig.client.delete_exchange("cases")?;
        service.until_says("exchange missing: declared again")?;
        service
            .until("readiness", || get(address, "/readyz").is_ok_and(|page| page.status == 200))?;
        rig.until_declared()?;
        rig.publish(rest)?;
        rig.take(&mut out, lines.len())?;
        tally::check(&by_key(&lines)?, &out.join("\n"))?;
        service.end()?;
    }
    Ok(())
}

/// With `declare = false`, the exchange is missing at the start of a stream that has run before. The start must report
/// an error, because Ordain does not declare the exchange.
#[test]
fn exchange_that_stays_away_without_declarations_is_an_error() -> Result<()> {
    let rig = Rig::with("", "", "declare = false")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    rig.client.queue("cases")?;
    rig.client.bind("cases", "cases", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()?;
    rig.client.delete_exchange("cases")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let words = ["topology not as configured", "the exchange \"cases\" is required"];
    service.until_lines(1, &words)?;
    service.end()
}

/// The user has reached the limit of connections, so the host cannot check the exchange. The host must nevertheless
/// continue to report that the queue has another form.
#[test]
fn difference_is_reported_despite_a_connection_limit() -> Result<()> {
    let rig = Rig::new()?;
    rig.rabbit.add_user("three-links-form", "guest", ".*")?;
    let url = rig.rabbit.url().replace("guest:guest", "three-links-form:guest");
    rig.home.write("ordain.toml", config(&url, ADMIN, "", ""))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("cases.marker", &["cases"])?;
    wait_until("the watch", || Ok(rig.rabbit.opened_connections("ordain watch") > 0))?;
    service.pause()?;
    rig.client.delete_queue("cases")?;
    rig.client.queue_with("cases", FieldTable::default())?;
    service.resume()?;
    service.until_says("topology not as configured")?;
    // The host keeps three connections: the consumer, the sink, and the watch of the broker.
    rig.rabbit.limit_connections("three-links-form", Some(3))?;
    service.until_says("topology not checked")?;
    let before = reported_differences(&service);
    wait_until("a further error", || Ok(reported_differences(&service) > before))?;
    service.end()
}

/// The reason why the broker refuses the connections of a user.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// The password of the user has changed.
    Password,
    /// The user has no rights to the virtual host.
    Rights,
}

impl Refusal {
    /// Makes the broker refuse the connections of a user, or makes it accept them again. Open connections remain.
    fn set(self, rig: &Rig, user: &str, is_refused: bool) -> Result<()> {
        match self {
            Self::Password => {
                rig.rabbit.change_password(user, if is_refused { "rotated" } else { "guest" })
            }
            Self::Rights => rig.rabbit.set_access(user, !is_refused),
        }
    }

    /// Returns the broker's own word for the refusal.
    fn word(self) -> &'static str {
        match self {
            Self::Password => "ACCESS_REFUSED",
            Self::Rights => "NOT_ALLOWED",
        }
    }
}

/// The broker refuses a connection until an operator corrects the password or the rights of the user. The host repeats
/// its warning, because a single log line is easily overlooked. Afterwards the host continues.
#[test]
fn refused_subscription_is_reported_repeatedly() -> Result<()> {
    for (user, ordering, refusal) in [
        ("other", "", Refusal::Password),
        ("another", FIFO, Refusal::Password),
        ("barred", "", Refusal::Rights),
        ("barred-too", FIFO, Refusal::Rights),
    ] {
        let rig = Rig::new()?;
        rig.rabbit.add_user(user, "guest", ".*")?;
        let url = rig.rabbit.url().replace("guest:guest", &format!("{user}:guest"));
        rig.home.write("ordain.toml", config(&url, ADMIN, ordering, ""))?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let lines = in_turn(3, 10);
        let (first, rest) = lines.split_at(15);
        rig.publish(first)?;
        let mut out = Vec::new();
        rig.take(&mut out, first.len())?;
        refusal.set(&rig, user, true)?;
        rig.rabbit.close_connections()?;
        service.until_lines(2, &["queue not consumed", refusal.word()])?;
        let address = admin(&mut service)?;
        let not_ready = get(address, "/readyz")?;
        ensure!(not_ready.status == 503, "{not_ready:?}");
        ensure!(not_ready.problem()?.contains("stream cases: no events arrive from its source"));
        let metrics = get(address, "/metrics")?.body;
        for row in [
            "ordain_stream_consuming{stream=\"cases\",partition=\"0\"} 0",
            "ordain_broker_connected 0",
        ] {
            ensure!(metrics.contains(row), "{row}: {metrics}");
        }
        let firing = alerts::firing(&metrics, &metrics)?;
        for alert in ["OrdainBrokerDisconnected", "OrdainStreamNotConsuming"] {
            ensure!(firing.contains(alert), "{alert} is not in {firing:?}");
        }
        refusal.set(&rig, user, false)?;
        service.until_says("queue consumed again")?;
        service
            .until("readiness", || get(address, "/readyz").is_ok_and(|page| page.status == 200))?;
        let rig = Rig { client: rig.connect()?, ..rig };
        rig.publish(rest)?;
        rig.take(&mut out, lines.len())?;
        tally::check(&by_key(&lines)?, &out.join("\n"))?;
        service.end()?;
    }
    Ok(())
}

/// The host checks the topology over a further connection, which the broker refuses because the user has reached the
/// limit of connections. The topology itself is as configured, so the host must not report a wrong topology.
#[test]
fn refused_connection_is_no_difference_of_the_topology() -> Result<()> {
    for (user, ordering) in [("three-links", ""), ("three-links-fifo", "ordering = \"fifo\"")] {
        let rig = Rig::new()?;
        rig.rabbit.add_user(user, "guest", ".*")?;
        let url = rig.rabbit.url().replace("guest:guest", &format!("{user}:guest"));
        rig.home.write("ordain.toml", config(&url, ADMIN, ordering, ""))?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        wait_until("the marker", || Ok(!rig.rabbit.bound_to_exchange("cases")?.is_empty()))?;
        // The host keeps three connections: the consumer, the sink, and the watch of the broker.
        rig.rabbit.limit_connections(user, Some(3))?;
        service.until_says("topology not checked")?;
        service.until_says("connection limit (3) is reached")?;
        let lines = in_turn(3, 10);
        rig.publish(&lines)?;
        rig.check(&lines)?;
        ensure!(changes(&mut service)? == 0 && !service.stderr().contains("not as configured"));
        // The next check detects a difference again.
        rig.rabbit.limit_connections(user, None)?;
        rig.client.delete_exchange("cases")?;
        service.until_says("exchange missing: declared again")?;
        wait_until("a counted change", || Ok(changes(&mut service)? > 0))?;
        service.end()?;
    }
    Ok(())
}

/// The exchange is removed while no host runs. The next start declares it again, and reports the loss.
#[test]
fn exchange_removed_before_a_start_is_reported() -> Result<()> {
    for source in ["", "partitions = 2"] {
        let rig = Rig::with("", "", source)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_marked("cases")?;
        service.end()?;
        rig.client.delete_exchange("cases")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        service.until_says("exchange missing at this start")?;
        service.end()?;
    }
    Ok(())
}

/// The user of the host has no right to declare markers. The log must report that the broker refused the marker of the
/// exchange, and must name the rights that the marker needs.
#[test]
fn refused_marker_of_the_exchange_is_reported() -> Result<()> {
    let rig = Rig::new()?;
    rig.rabbit.add_narrow_user("markerless")?;
    let url = rig.rabbit.url().replace("guest:guest", "markerless:guest");
    rig.home.write("ordain.toml", config(&url, ADMIN, "", ""))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("exchange without a marker: the broker refused the marker")?;
    service.until_says("ACCESS_REFUSED")?;
    service.until_says(
        "to configure and read exchanges whose names begin with the name of the queue",
    )?;
    service.until_says("and to write to the exchange \"cases\"")?;
    ensure!(changes(&mut service)? == 0);
    service.end()
}

/// A password changes in the broker and in the file that the URL names. The running host logs in with the new password.
#[test]
fn rotated_password_in_a_file_is_used() -> Result<()> {
    for (user, ordering) in [("rotating", ""), ("rotating-fifo", "ordering = \"fifo\"")] {
        let rig = Rig::new()?;
        rig.rabbit.add_user(user, "old", ".*")?;
        rig.home.write("password", "old\n")?;
        let file = rig.home.path("password");
        let login = format!("{user}:${{file:{}}}", file.display());
        let url = rig.rabbit.url().replace("guest:guest", &login);
        rig.home.write("ordain.toml", config(&url, ADMIN, ordering, ""))?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let lines = in_turn(3, 20);
        let (first, second) = lines.split_at(30);
        rig.publish(first)?;
        let mut out = Vec::new();
        rig.take(&mut out, first.len())?;
        rig.rabbit.change_password(user, "new")?;
        rig.home.write("password", "new\n")?;
        rig.rabbit.close_connections()?;
        service.until_says("queue consumed again")?;
        let rig = Rig { client: rig.connect()?, ..rig };
        rig.publish(second)?;
        rig.take(&mut out, lines.len())?;
        tally::check(&by_key(&lines)?, &out.join("\n"))?;
        service.end()?;
    }
    Ok(())
}

/// A password changes in the broker, and the URL names an environment variable. The running host cannot read the new
/// value, so its log must advise a restart. After the restart with the new value, the host must continue.
#[test]
fn password_in_the_environment_needs_a_restart() -> Result<()> {
    for (user, ordering) in [("environment", ""), ("environment-fifo", FIFO)] {
        let rig = Rig::new()?;
        rig.rabbit.add_user(user, "old", ".*")?;
        let login = format!("{user}:${{BROKER_PASSWORD}}");
        let url = rig.rabbit.url().replace("guest:guest", &login);
        rig.home.write("ordain.toml", config(&url, ADMIN, ordering, ""))?;
        let start = |password: &str| {
            let environment = [("BROKER_PASSWORD", PathBuf::from(password))];
            Service::start_with(&rig.home, &RUN_WITH_SHORT_WAITS, &environment)
        };
        let mut service = start("old")?;
        service.until_says("ready: stream cases receives events")?;
        rig.rabbit.change_password(user, "new")?;
        rig.rabbit.close_connections()?;
        let advice = "if the login in `broker.url` has changed, restart the process";
        service.until_lines(1, &["queue not consumed", "ACCESS_REFUSED", advice])?;
        service.end()?;
        let mut service = start("new")?;
        let rig = Rig { client: rig.connect()?, ..rig };
        let lines = in_turn(3, 10);
        rig.publish(&lines)?;
        rig.check(&lines)?;
        service.end()?;
    }
    Ok(())
}

/// A part of the warning about a message with a priority.
const HAS_PRIORITY: &str = "message with a priority";

/// RabbitMQ 4 delivers messages with a higher priority first. So a `fifo` stream may execute a message with a priority
/// before messages that were published earlier. The host must report such a message, also if the message waited in the
/// queue when the host started. The priority 0 is the default, so the host must not report it. A `sequenced` stream
/// restores the order, so the host must not report its messages.
#[test]
fn priorities_in_a_fifo_stream_are_reported() -> Result<()> {
    for (ordering, priority, is_backlog, is_reported) in [
        (FIFO, 9, false, true),
        (FIFO, 9, true, true),
        (FIFO, 0, true, false),
        ("", 9, true, false),
    ] {
        let rig = Rig::with("", ordering, "")?;
        let mut service = Service::start(&rig.home, &["run"])?;
        rig.until_declared()?;
        if is_backlog {
            service.end()?;
        }
        let lines = in_turn(1, 2);
        let mut messages = lines.iter().map(|line| from_line(line)).collect::<Result<Vec<_>>>()?;
        let later = messages.last_mut().context("a later message")?;
        later.properties = std::mem::take(&mut later.properties).with_priority(priority);
        rig.client.publish("cases", &messages)?;
        if is_backlog {
            service = Service::start(&rig.home, &["run"])?;
        }
        if is_reported {
            service.until_says(HAS_PRIORITY)?;
            rig.client.take("out", 2)?;
        } else {
            rig.check(&lines)?;
        }
        service.end()?;
        let log = service.stderr();
        ensure!(log.contains(HAS_PRIORITY) == is_reported, "{ordering} {priority}: {log}");
    }
    Ok(())
}

/// Each subscription reports only its first message with a priority.
#[test]
fn priority_is_reported_once_for_each_subscription() -> Result<()> {
    let mut rig = Rig::with("", FIFO, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    for (subscriptions, lines) in (1..).zip(in_turn(2, 20).chunks(20)) {
        if subscriptions > 1 {
            rig.rabbit.close_connections()?;
            service.until_says("queue consumed again")?;
            rig.reconnect()?;
        }
        let mut messages = lines.iter().map(|line| from_line(line)).collect::<Result<Vec<_>>>()?;
        for message in &mut messages {
            message.properties = std::mem::take(&mut message.properties).with_priority(9);
        }
        rig.client.publish("cases", &messages)?;
        rig.until_empty()?;
        let log = service.stderr();
        ensure!(log.matches(HAS_PRIORITY).count() == subscriptions, "{log}");
    }
    service.end()
}

/// A part of the error about a queue of type stream.
const STREAM_REFUSED: &str = "is of type stream, which keeps acknowledged messages";

/// Declares a queue of type stream. `max_age` is the value of the argument `x-max-age`, which only this type can have.
fn declare_stream_queue(rig: &Rig, name: &str, max_age: Option<&str>) -> Result<()> {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("stream"));
    if let Some(max_age) = max_age {
        arguments.insert("x-max-age".into(), text(max_age));
    }
    rig.client.queue_with(name, arguments)
}

/// Waits until the host is not ready.
fn until_not_ready(service: &mut Service) -> Result<()> {
    let address = admin(service)?;
    service.until("unreadiness", || get(address, "/readyz").is_ok_and(|page| page.status == 503))
}

/// A queue of type stream would deliver only messages that are published after the start of the host, so the host must
/// refuse such a queue.
#[test]
fn queue_of_type_stream_is_refused() -> Result<()> {
    for (ordering, max_age) in [("", Some("1D")), ("", None), (FIFO, Some("1D")), (FIFO, None)] {
        let rig = Rig::with(ADMIN, ordering, "declare = false")?;
        rig.client.exchange("cases", ExchangeKind::Fanout)?;
        declare_stream_queue(&rig, "cases", max_age)?;
        rig.client.bind("cases", "cases", "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        service.until_says(STREAM_REFUSED)?;
        until_not_ready(&mut service)?;
        rig.publish(&in_turn(3, 10))?;
        std::thread::sleep(std::time::Duration::from_secs(2));
        ensure!(rig.client.take_all("out")?.is_empty(), "an event took effect");
        service.end()?;
    }
    Ok(())
}

/// Starts a rig without declarations. The user of the host may only read the queue and write to the sink's exchange, so
/// the broker does not show the form of the queue to the host.
fn rig_of_reader(user: &str) -> Result<Rig> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    rig.rabbit.add_user(user, "guest", "^$")?;
    rig.rabbit.set_rights(user, ["^$", "^out$", "^cases$"])?;
    let url = rig.rabbit.url().replace("guest:guest", &format!("{user}:guest"));
    rig.home.write("ordain.toml", config(&url, ADMIN, "", "declare = false"))?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    Ok(rig)
}

/// The broker does not show the type of the queue to the host. The host must nevertheless recognise a queue of type
/// stream, either by its first message, or because the queue has messages and delivers none of them. No event may take
/// effect.
#[test]
fn queue_of_type_stream_is_refused_without_the_right_to_declare() -> Result<()> {
    for (user, has_backlog) in [("reader", false), ("late-reader", true)] {
        let rig = rig_of_reader(user)?;
        declare_stream_queue(&rig, "cases", None)?;
        rig.client.bind("cases", "cases", "")?;
        let lines = in_turn(3, 10);
        if has_backlog {
            rig.publish(&lines)?;
        }
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        let log = service.stderr_path();
        service.until("the refusal of the queue", || {
            // The queue delivers only messages that arrive after the subscription.
            if !has_backlog {
                rig.publish(&lines[..1]).expect("a confirm");
            }
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains(STREAM_REFUSED))
        })?;
        until_not_ready(&mut service)?;
        ensure!(rig.client.take_all("out")?.is_empty(), "an event took effect");
        service.end()?;
    }
    Ok(())
}

/// A shovel has moved messages from a queue of type stream to another queue, and the messages keep the header of their
/// former queue. The host must consume them, although the broker does not show the type of the new queue.
#[test]
fn messages_from_a_queue_of_type_stream_are_consumed() -> Result<()> {
    for (user, kind) in [("mover", "classic"), ("quorum-mover", "quorum")] {
        let rig = rig_of_reader(user)?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        rig.client.queue_with("cases", arguments)?;
        rig.client.bind("cases", "cases", "")?;
        let lines = in_turn(3, 10);
        let mut messages = Vec::new();
        for (offset, line) in (0..).zip(&lines) {
            let mut message = from_line(line)?;
            let mut headers = message.properties.headers().clone().unwrap_or_default();
            headers.insert("x-stream-offset".into(), AMQPValue::LongLongInt(offset));
            message.properties = message.properties.with_headers(headers);
            messages.push(message);
        }
        rig.client.publish("cases", &messages)?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.check(&lines)?;
        rig.until_empty()?;
        ensure!(!service.stderr().contains(STREAM_REFUSED), "{}", service.stderr());
        service.end()?;
    }
    Ok(())
}

/// The broker truncates the texts of its errors about a queue with a long name. The host must nevertheless recognise
/// that the queue is of type stream.
#[test]
fn queue_of_type_stream_with_a_long_name_is_refused() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    let name = "q".repeat(200);
    let text = config(&rig.rabbit.url(), ADMIN, "", "declare = false");
    rig.home
        .write("ordain.toml", text.replace("queue = \"cases\"", &format!("queue = \"{name}\"")))?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    declare_stream_queue(&rig, &name, Some("1D"))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says(STREAM_REFUSED)?;
    service.end()
}

/// While the host runs, another program replaces a queue by a queue of type stream. The host must check the type again.
#[test]
fn queue_replaced_by_a_stream_is_refused() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    rig.client.queue_with("cases", FieldTable::default())?;
    rig.client.bind("cases", "cases", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    rig.client.delete_queue("cases")?;
    declare_stream_queue(&rig, "cases", Some("1D"))?;
    service.until_says(STREAM_REFUSED)?;
    service.end()
}

/// With `declare = false`, another program deletes the queue, and declares it again later. The host must report the
/// loss, and must not state that it declares the queue.
#[test]
fn missing_queue_is_reported_without_a_declaration() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    let declare = || {
        rig.client.queue_with("cases", FieldTable::default())?;
        rig.client.bind("cases", "cases", "")
    };
    declare()?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let lines = in_turn(3, 10);
    let (first, second) = lines.split_at(15);
    rig.publish(first)?;
    let mut out = Vec::new();
    rig.take(&mut out, first.len())?;
    let opened = || rig.rabbit.opened_connections("ordain cases 0");
    let before = opened();
    rig.client.delete_queue("cases")?;
    // Each subscription opens a connection, so the second connection follows a subscription that has found no queue.
    wait_until("two further connections", || Ok(opened() >= before + 2))?;
    declare()?;
    service.until_says("queue was missing, and exists again: Ordain did not declare it")?;
    wait_until("a counted change", || Ok(changes(&mut service)? > 0))?;
    rig.publish(second)?;
    rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    let log = service.stderr();
    ensure!(!log.contains("Ordain declares it again"), "{log}");
    service.end()
}

/// A host with `declare = false`, while another program changes its queue or exchange.
struct ForeignRig {
    service: Service,
    rig: Rig,
    lines: Vec<String>,
    out: Vec<String>,
}

impl ForeignRig {
    /// Starts the host, and publishes the first half of the events, which must take effect.
    fn start(ordering: &str) -> Result<Self> {
        Self::start_with(ordering, "declare = false")
    }

    /// Starts the host as [`Self::start`] does, with other settings of the source.
    fn start_with(ordering: &str, source: &str) -> Result<Self> {
        let rig = Rig::with(ADMIN, ordering, source)?;
        rig.client.exchange("cases", ExchangeKind::Fanout)?;
        rig.client.queue_with("cases", FieldTable::default())?;
        rig.client.bind("cases", "cases", "")?;
        let service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        let lines = in_turn(3, 10);
        let mut out = Vec::new();
        let first = &lines[..lines.len() / 2];
        rig.publish(first)?;
        rig.take(&mut out, first.len())?;
        rig.until_empty()?;
        Ok(Self { service, rig, lines, out })
    }

    /// Publishes the second half of the events, checks that each event has taken effect once, and ends the host.
    fn end(mut self) -> Result<()> {
        self.rig.publish(&self.lines[self.lines.len() / 2..])?;
        self.rig.take(&mut self.out, self.lines.len())?;
        tally::check(&by_key(&self.lines)?, &self.out.join("\n"))?;
        self.service.end()
    }
}

/// With `declare = false`, another program deletes the queue and declares it again at once. The queue has no marker, so
/// the host cannot detect the replacement. But the broker has ended the subscription, so the host must report that the
/// events of the old queue may be lost.
#[test]
fn replaced_queue_is_reported_without_a_declaration() -> Result<()> {
    for ordering in ["", FIFO] {
        let mut foreign = ForeignRig::start(ordering)?;
        let ForeignRig { rig, service, .. } = &mut foreign;
        // The log must name the changes that the host cannot detect.
        let further =
            "With declare = false (cases), Ordain also cannot detect that another program removes";
        service.until_lines(1, &["bindings not checked", "streams=\"cases\"", further])?;
        // The test pauses the host, because a subscription between the two steps would find the queue missing.
        service.pause()?;
        rig.client.delete_queue("cases")?;
        rig.client.queue_with("cases", FieldTable::default())?;
        rig.client.bind("cases", "cases", "")?;
        service.resume()?;
        service.until_says(
            "cannot detect whether another program has removed the queue and declared it again",
        )?;
        wait_until("a counted change", || Ok(changes(service)? > 0))?;
        foreign.end()?;
    }
    Ok(())
}

/// With `declare = false`, another program deletes the exchange, and declares it again later. The host must report the
/// missing exchange, and must report its return, because its bindings may be missing. The host must declare nothing.
#[test]
fn missing_exchange_is_reported_without_a_declaration() -> Result<()> {
    for ordering in ["", FIFO] {
        let mut foreign = ForeignRig::start(ordering)?;
        let ForeignRig { rig, service, .. } = &mut foreign;
        rig.client.delete_exchange("cases")?;
        service.until_says("exchange missing: Ordain does not declare it")?;
        wait_until("a counted change", || Ok(changes(service)? > 0))?;
        rig.client.exchange("cases", ExchangeKind::Fanout)?;
        service.until_says("exchange was missing: events that were published")?;
        ensure!(rig.rabbit.bound("cases")?.is_empty(), "the host has bound the queue");
        rig.client.bind("cases", "cases", "")?;
        foreign.end()?;
    }
    Ok(())
}

/// With `declare = false`, the exchange and an exchange of `bind` are missing at the same time. One line of the log
/// must name both.
#[test]
fn all_missing_exchanges_are_named_without_a_declaration() -> Result<()> {
    const MISSING_WORDS: &str = "exchange missing: Ordain does not declare it";
    let source = "declare = false, bind = [{ exchange = \"feed\" }]";
    let mut foreign = ForeignRig::start_with("", source)?;
    let ForeignRig { rig, service, .. } = &mut foreign;
    service.until_lines(1, &[MISSING_WORDS, "exchanges=\"feed\""])?;
    rig.client.delete_exchange("cases")?;
    service.until_lines(1, &[MISSING_WORDS, "exchanges=\"cases, feed\""])?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    rig.client.bind("cases", "cases", "")?;
    foreign.end()
}

/// With `declare = false`, the host uses a classic queue in the form in which another program has declared it.
#[test]
fn classic_queue_without_declarations_is_used() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "declare = false")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    rig.client.queue_with("cases", FieldTable::default())?;
    rig.client.bind("cases", "cases", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()
}

/// The host also uses a queue with unusual arguments as it is. The log names the arguments that make the queue lose
/// events.
#[test]
fn queue_with_arguments_and_without_declarations_is_used() -> Result<()> {
    for kind in ["classic", "quorum"] {
        let rig = Rig::with(ADMIN, "", "declare = false")?;
        rig.client.exchange("cases", ExchangeKind::Fanout)?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        arguments
            .insert("x-dead-letter-exchange".into(), AMQPValue::LongString("amq.fanout".into()));
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(1_000_000));
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        rig.client.queue_with("cases", arguments)?;
        rig.client.bind("cases", "cases", "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        let lines = in_turn(3, 10);
        rig.publish(&lines)?;
        rig.check(&lines)?;
        service
            .until_says("queue may lose events: the queue \"cases\" has x-max-length = 1000000")?;
        service.end()?;
    }
    Ok(())
}

/// Events are lost if they are published after the exchange was replaced and before the host declares the bindings
/// again. The log warns of this.
#[test]
fn replaced_exchange_is_reported() -> Result<()> {
    let rig = Rig::with(ADMIN, "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    rig.until_marked("cases")?;
    // The test pauses the host, because a check between the two steps would find the exchange missing.
    service.pause()?;
    rig.client.delete_exchange("cases")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    service.resume()?;
    service.until_says("exchange removed and declared again by another program:")?;
    wait_until("a counted change", || Ok(changes(&mut service)? > 0))?;
    rig.until_marked("cases")?;
    service.end()?;
    // The exchange is replaced again, this time while no host runs.
    rig.client.delete_exchange("cases")?;
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    service.until_says("declared it again while no process of Ordain checked it")?;
    rig.until_declared()?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()
}

/// The bindings of an earlier configuration still route messages to the queue, although the present configuration does
/// not contain them. The host reports these bindings, and a command removes them.
#[test]
fn bindings_of_earlier_configurations_are_named_and_removed() -> Result<()> {
    let bind =
        |key: &str| format!("bind = [{{ exchange = \"amq.topic\", routing_key = \"{key}\" }}]");
    let rig = Rig::with(ADMIN, "", &bind("order.*"))?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("amq.topic", &["cases"])?;
    let lines = in_turn(3, 10);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    service.end()?;
    let url = rig.rabbit.url();
    let narrow = config(&url, ADMIN, "", &bind("order.paid"))
        .replace("exchange = \"cases\", queue", "exchange = \"cases2\", queue");
    rig.home.write("ordain.toml", narrow)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("cases2", &["cases"])?;
    for text in [
        "from exchange \"cases\" to queue \"cases\"",
        "from exchange \"amq.topic\" to exchange \"cases\" with routing key \"order.*\"",
        "`ordain streams unbind cases`",
    ] {
        service.until_says(text)?;
    }
    let address = format!("http://{}", admin(&mut service)?);
    let unbind = ["streams", "unbind", "cases", "--json", "--admin", &address];
    let removed = rig.home.rows(&unbind)?;
    ensure!(removed.len() == 2, "{removed:?}");
    ensure!(rig.rabbit.bound("cases")?.is_empty(), "{:?}", rig.rabbit.bound("cases")?);
    ensure!(rig.rabbit.bound("amq.topic")? == ["cases2"], "{:?}", rig.rabbit.bound("amq.topic")?);
    ensure!(rig.home.rows(&unbind)?.is_empty());
    service.end()?;

    // The configuration no longer has the stream `cases`, but the bindings still route messages to its queue.
    let other = config(&url, ADMIN, "", "").replace("streams.cases", "streams.other");
    let other =
        other.replace("queue = \"cases\"", "queue = \"other\"").replace("\"cases\"", "\"others\"");
    // The command in the log must name this configuration: the file `ordain.toml` still has the stream.
    rig.home.write("an other.toml", other)?;
    let args = [&RUN_WITH_SHORT_WAITS[..], &["an other.toml"]].concat();
    let mut service = Service::start(&rig.home, &args)?;
    service.until_says("still deliver messages to its queues")?;
    service.end()?;
    let outputs = run_all(&rig.home, &service.stderr())?;
    let [(_, removed)] = &outputs[..] else { bail!("{outputs:#?} of {}", service.stderr()) };
    ensure!(removed.matches("removed the binding ").count() == 2, "{removed}");
    ensure!(rig.rabbit.bound("cases2")?.is_empty() && rig.rabbit.bound("amq.topic")?.is_empty());
    Ok(())
}

/// An exchange divides its messages among four queues. It sends most keys to another queue if another program binds a
/// fifth queue, or if the messages have further routing keys in the header `CC`. The host must report that keys change
/// their partition.
#[test]
fn keys_that_change_their_partition_are_reported() -> Result<()> {
    for has_further_keys in [false, true] {
        let rig = Rig::with(ADMIN, "", "partitions = 4")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        let lines = in_turn(50, 4);
        let (first, rest) = lines.split_at(100);
        rig.publish(first)?;
        rig.client.take("out", first.len())?;
        let address = admin(&mut service)?;
        let earlier = get(address, "/metrics")?.body;
        if has_further_keys {
            let keys = AMQPValue::FieldArray(vec![AMQPValue::LongString("audit".into())].into());
            let mut messages = Vec::new();
            for line in rest {
                let mut message = from_line(line)?;
                let mut headers = message.properties.headers().clone().unwrap_or_default();
                headers.insert("CC".into(), keys.clone());
                message.properties = message.properties.with_headers(headers);
                messages.push(message);
            }
            rig.client.publish("cases", &messages)?;
        } else {
            rig.client.queue("audit")?;
            rig.client.bind("audit", "cases", "")?;
            rig.publish(rest)?;
        }
        service.until_says("keys moved here from another partition")?;
        service.until_says("expected only after a change of the routing keys")?;
        let moved = metric(address, "ordain_keys_moved_total")?;
        ensure!(moved > Some(0), "{moved:?}");
        let firing = alerts::firing(&earlier, &get(address, "/metrics")?.body)?;
        ensure!(firing.contains("OrdainKeysMoved"), "{firing:?}");
        service.end()?;
    }
    Ok(())
}

/// If a policy or an argument makes a queue drop messages, the broker moves them to the exchange `cases.dropped`. The
/// host must report them, because the stream never receives them.
#[test]
fn dropped_messages_are_reported() -> Result<()> {
    for ordering in ["", "ordering = \"fifo\""] {
        let rig = Rig::with(ADMIN, ordering, "")?;
        let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
        rig.until_declared()?;
        // The test publishes to `cases.dropped` itself, as the broker does with a dropped message.
        rig.publish(&in_turn(1, 1))?;
        rig.client.take("out", 1)?;
        let message = from_line(&line("a", 1, &json!({ "n": 1 })))?;
        rig.client.publish("cases.dropped", &[message])?;
        service.until_says("broker has dropped messages of this stream")?;
        let address = admin(&mut service)?;
        service.until("the metric", || {
            let page = get(address, "/metrics").map(|page| page.body).unwrap_or_default();
            page.contains("ordain_dropped_messages{stream=\"cases\",partition=\"0\"} 1")
        })?;
        let page = get(address, "/metrics")?.body;
        let firing = alerts::firing(&page, &page)?;
        ensure!(firing.contains("OrdainMessagesDropped"), "{firing:?}");
        service.end()?;
    }
    Ok(())
}

/// The queues of two streams are bound to the same exchange. Only the first stream configures the binding from another
/// exchange to this exchange. If the first stream is removed, the second stream still needs this binding.
#[test]
fn unbinding_keeps_bindings_that_another_stream_needs() -> Result<()> {
    let bind = "bind = [{ exchange = \"amq.topic\", routing_key = \"#\" }]";
    let rig = Rig::with(ADMIN, "", bind)?;
    let url = rig.rabbit.url();
    let other = "[streams.other]\nhandler = \"tally\"\n\
                 source = { kind = \"amqp\", exchange = \"cases\", queue = \"other\" }\n";
    rig.home.write("ordain.toml", config(&url, ADMIN, "", bind) + other)?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_bound("amq.topic", &["cases"])?;
    rig.until_bound("cases", &["other"])?;
    let message = from_line(&line("a", 1, &json!({ "n": 1 })))?;
    rig.client.publish("amq.topic", &[message])?;
    rig.client.take("out", 2)?;
    service.end()?;

    let alone = config(&url, ADMIN, "", "").replace("streams.cases", "streams.other");
    rig.home.write("ordain.toml", alone.replace("queue = \"cases\"", "queue = \"other\""))?;
    let removed = rig.home.rows(&["streams", "unbind", "cases", "--json"])?;
    ensure!(removed.len() == 1, "{removed:?}");
    ensure!(rig.rabbit.bound("amq.topic")? == ["cases"], "{:?}", rig.rabbit.bound("amq.topic")?);
    ensure!(rig.rabbit.bound("cases")? == ["other"], "{:?}", rig.rabbit.bound("cases")?);
    Ok(())
}
