//! Tests of sinks whose connection the broker closes or refuses. The log must state the reason in the words of the
//! broker.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use ordain_tests::amqp::{Outgoing, from_line};
use ordain_tests::http::{admin, metric};
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service, wait_until};
use ordain_tests::tally;

use super::support::rig_of_user;

const SINK: &str = "ordain sink tally";
const NOT_PUBLISHED: &str = "messages not published";
/// Parts of log lines that the host must not write in these tests. The first two texts are errors of the client
/// library, which would hide the reason of the broker. The third text belongs to a report that the broker is unusable.
/// This report would be wrong, because the host still consumes its queue.
const MISLEADING_WORDS: [&str; 3] =
    ["invalid channel state", "invalid connection state", "longer than the lease"];

fn is_open(rig: &Rig, name: &str) -> Result<bool> {
    Ok(rig.rabbit.open_connections()?.iter().any(|open| open == name))
}

fn close(rig: &Rig, name: &str) -> Result<()> {
    rig.rabbit.close_connection(name)?;
    wait_until(&format!("the end of the connection {name:?}"), || Ok(!is_open(rig, name)?))
}

fn ensure_not_misleading(service: &Service) -> Result<()> {
    let log = service.stderr();
    for words in MISLEADING_WORDS {
        ensure!(!log.contains(words), "{words:?} in {log}");
    }
    Ok(())
}

/// The right to write is withdrawn while the sink publishes, on its open connection, and is given back later.
#[test]
fn messages_wait_while_the_right_to_write_is_withdrawn() -> Result<()> {
    let rig = rig_of_user("unwriting-sink", "", "")?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let lines = in_turn(3, 10);
    let (first, second) = lines.split_at(lines.len() / 2);
    let mut out = Vec::new();
    rig.publish(first)?;
    rig.take(&mut out, first.len())?;
    rig.rabbit.set_rights("unwriting-sink", [".*", "^cases", ".*"])?;
    // A channel remembers a right for some time. A new connection queries the broker again.
    close(&rig, SINK)?;
    rig.publish(second)?;
    service.until_lines(1, &["message refused by the broker", "ACCESS_REFUSED"])?;
    rig.until_empty()?;
    let page = admin(&mut service)?;
    wait_until("the report of the refused sink", || {
        Ok(metric(page, "ordain_sink_accepted")? == Some(0))
    })?;
    rig.rabbit.set_rights("unwriting-sink", [".*"; 3])?;
    rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    ensure_not_misleading(&service)?;
    service.end()
}

/// The broker refuses a message of the sink, then closes the connection of the sink, and then refuses the next
/// connections of the sink. Each time, the log must state the present reason, and not an earlier reason. The broker
/// also refuses the connection of the host's health check, and the metric must report this. But the host still consumes
/// its queue, so the host must not log that the broker is unusable.
#[test]
fn sink_reports_each_reason_in_the_words_of_the_broker() -> Result<()> {
    let rig = rig_of_user("sinker", "", "")?;
    rig.rabbit.set_rights("sinker", [".*", "^cases", ".*"])?;
    let mut service = Service::start(&rig.home, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let lines = in_turn(4, 1);
    let mut out = Vec::new();
    rig.publish(&lines[..1])?;
    service.until_lines(1, &["message refused by the broker", "ACCESS_REFUSED"])?;
    rig.rabbit.set_rights("sinker", [".*"; 3])?;
    rig.publish(&lines[1..2])?;
    rig.take(&mut out, 1)?;

    // The sink detects the end of its connection only when it publishes the next message.
    close(&rig, SINK)?;
    rig.publish(&lines[2..3])?;
    service.until_lines(1, &[NOT_PUBLISHED, "CONNECTION_FORCED"])?;
    wait_until("a new connection of the sink", || is_open(&rig, SINK))?;

    // The consumer keeps its connection. The limit allows no additional connection. The test waits until the host has
    // logged the refusal twice. The two log lines are more than ten seconds apart, so the health check has then failed
    // for longer than the lease.
    rig.rabbit.limit_connections("sinker", Some(1))?;
    for name in ["ordain watch", SINK] {
        close(&rig, name)?;
    }
    rig.publish(&lines[3..])?;
    service.until_lines(2, &[NOT_PUBLISHED, "NOT_ALLOWED"])?;
    // The sink has published nothing for longer than a reconnection takes.
    service.until_lines(1, &["ERROR", NOT_PUBLISHED, "NOT_ALLOWED"])?;
    ensure!(metric(admin(&mut service)?, "ordain_broker_connected")? == Some(0));
    rig.rabbit.limit_connections("sinker", None)?;
    rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    ensure_not_misleading(&service)?;
    service.end()
}

/// The broker repeatedly closes the connection of the sink while many messages wait for their confirms.
#[test]
fn busy_sink_reports_the_reason_in_the_words_of_the_broker() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(20, 100);
    let messages: Vec<Outgoing> =
        lines.iter().map(|line| from_line(line)).collect::<Result<_>>()?;
    let producer = rig.connect()?;
    thread::scope(|scope| -> Result<()> {
        let publishing = scope.spawn(|| {
            messages.chunks(50).try_for_each(|messages| producer.publish("cases", messages))
        });
        while !publishing.is_finished() {
            rig.rabbit.close_connection(SINK)?;
            thread::sleep(Duration::from_millis(50));
        }
        publishing.join().expect("a producer that does not panic")
    })?;
    rig.check(&lines)?;
    // A lost connection that the sink replaces immediately is no error.
    service.until_lines(1, &["WARN", NOT_PUBLISHED, "CONNECTION_FORCED"])?;
    ensure_not_misleading(&service)?;
    service.end()
}
