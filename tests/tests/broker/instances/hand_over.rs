//! Tests of instances that join and leave while events arrive.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{Mode, wait_until};
use ordain_tests::log::{disturb, in_turn};

use super::support::{Fleet, PARTITIONS, while_published};

const PUBLISH_INTERVAL: Duration = Duration::from_millis(20);
/// The number of times that a test breaks the connections of all hosts before the next change of the hosts.
const BREAK_COUNT: usize = 5;
/// The pause after the test has broken the connections of all hosts. The pause is longer than most reconnections.
const BREAK_INTERVAL: Duration = Duration::from_millis(200);

/// Two hosts join. Then one host leaves, and another host is killed. Each event must take effect once, and the logs
/// must state why the partitions had no owner.
#[test]
fn events_take_effect_once_while_instances_change() -> Result<()> {
    let fleet = Fleet::new("lease = \"2s\"", "")?;
    let mut first = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first])?;
    first.service.until_says("processing partitions: no process has owned them before")?;
    first.service.until_says("ready: stream cases receives events from queues \"cases.0\" to ")?;
    let lines = in_turn(100, 100);
    let _last = while_published(&fleet, &disturb(&lines, 100, 20, 7), PUBLISH_INTERVAL, || {
        let mut second = fleet.start()?;
        fleet.until_shared(&[&first, &second])?;
        second.service.until_says("processing partitions: their last owner released them")?;
        // The log quotes the name of the new owner, which ends with the process id.
        let new_owner = format!("/{}\"", second.service.id());
        let reason = "partition no longer assigned to this process: an instance has started";
        first.service.until_lines(1, &[reason, "new_owner=", &new_owner])?;
        let mut third = fleet.start()?;
        fleet.until_shared(&[&first, &second, &third])?;
        first.service.end()?;
        fleet.until_shared(&[&second, &third])?;
        // A process that started on the same machine after the kill would detect the death of the host immediately. But
        // no process starts after this kill, so the partitions change owners only after the lease has expired.
        second.service.kill()?;
        fleet.until_shared(&[&third])?;
        let owner = format!("/{}\"", second.service.id());
        let log = third.service.stderr_path();
        third.service.until("the line that names the killed host", || {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let words = ["processing partitions: their last owner ended", "last_owner=", &owner];
            log.lines().any(|line| words.iter().all(|words| line.contains(words)))
        })?;
        Ok(third)
    })?;
    fleet.rig.check(&lines)?;
    fleet.rig.until_empty()
}

/// Events of a `fifo` stream have no sequences, so the hosts must execute the events in the order of the queues, even
/// while partitions change owners.
#[test]
fn fifo_stream_keeps_order_when_handed_over() -> Result<()> {
    let fleet = Fleet::new("lease = \"2s\"", "ordering = \"fifo\"")?;
    let mut first = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first])?;
    let numbered = in_turn(60, 60);
    let lines = without_sequences(&numbered)?;
    let _last = while_published(&fleet, &lines, 2 * PUBLISH_INTERVAL, || {
        let mut second = fleet.start()?;
        fleet.until_shared(&[&first, &second])?;
        first.service.end()?;
        let third = fleet.start()?;
        fleet.until_shared(&[&second, &third])?;
        second.service.kill()?;
        fleet.until_shared(&[&third])?;
        Ok(third)
    })?;
    fleet.rig.check(&numbered)?;
    fleet.rig.until_empty()
}

fn without_sequences(lines: &[String]) -> Result<Vec<String>> {
    let without_sequence = |line: &String| -> Result<String> {
        let mut event: serde_json::Value = serde_json::from_str(line)?;
        event.as_object_mut().context("an object")?.remove("sequence");
        Ok(event.to_string())
    };
    lines.iter().map(without_sequence).collect()
}

/// Repeatedly closes the connections through which the hosts consume their queues. Each time, some deliveries are
/// unacknowledged, and RabbitMQ returns them to their queues.
fn break_connections(fleet: &Fleet) -> Result<()> {
    for _ in 0..BREAK_COUNT {
        for partition in 0..PARTITIONS {
            fleet.rig.rabbit.close_connection(&format!("ordain cases {partition}"))?;
        }
        std::thread::sleep(BREAK_INTERVAL);
    }
    Ok(())
}

/// The broker repeatedly closes the connections of all hosts, while partitions of a `fifo` stream change owners.
/// RabbitMQ redelivers the unacknowledged events in their order, so the hosts must execute the events in the order of
/// the queues.
#[test]
fn fifo_stream_keeps_order_when_connections_break() -> Result<()> {
    let fleet = Fleet::new("lease = \"2s\"", "ordering = \"fifo\"")?;
    let mut first = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first])?;
    let opened = || fleet.rig.rabbit.opened_connections("ordain cases 0");
    let before = opened();
    let numbered = in_turn(60, 100);
    let lines = without_sequences(&numbered)?;
    let _last = while_published(&fleet, &lines, 2 * PUBLISH_INTERVAL, || {
        break_connections(&fleet)?;
        let mut second = fleet.start()?;
        fleet.until_shared(&[&first, &second])?;
        break_connections(&fleet)?;
        first.service.end()?;
        break_connections(&fleet)?;
        let third = fleet.start()?;
        fleet.until_shared(&[&second, &third])?;
        break_connections(&fleet)?;
        second.service.kill()?;
        fleet.until_shared(&[&third])?;
        Ok(third)
    })?;
    fleet.rig.check(&numbered)?;
    ensure!(opened() >= before + BREAK_COUNT, "the hosts have not reconnected");
    fleet.rig.until_empty()
}

/// The requests to the store are slow, or the replies of the store are lost, while partitions change owners. Each event
/// must nevertheless take effect once.
#[test]
fn handovers_survive_slow_requests_and_lost_replies() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let first = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first])?;
    let lines = in_turn(80, 60);
    while_published(&fleet, &disturb(&lines, 100, 20, 3), 2 * PUBLISH_INTERVAL, || {
        for _ in 0..2 {
            let mut second = fleet.start()?;
            for host in [&first, &second].into_iter().cycle().take(12) {
                host.to_redis.set(Mode::CutReplies)?;
                std::thread::sleep(Duration::from_millis(100));
                host.to_redis.set(Mode::Delay(Duration::from_millis(300)))?;
                std::thread::sleep(Duration::from_millis(200));
            }
            for host in [&first, &second] {
                host.to_redis.set(Mode::Pass)?;
            }
            fleet.until_shared(&[&first, &second])?;
            first.to_redis.set(Mode::CutReplies)?;
            second.service.end()?;
            first.to_redis.set(Mode::Pass)?;
            fleet.until_shared(&[&first])?;
        }
        Ok(())
    })?;
    fleet.rig.check(&lines)?;
    fleet.rig.until_empty()
}

/// The lease is much longer than the test. A host that starts on the machine of a killed host must detect its death,
/// and must release its leases.
#[test]
fn restarted_process_waits_for_no_lease() -> Result<()> {
    let fleet = Fleet::new("lease = \"10m\"", "")?;
    let mut host = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&host])?;
    let lines = in_turn(50, 40);
    while_published(&fleet, &lines, PUBLISH_INTERVAL, || {
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(100));
            host.service.kill()?;
            host = fleet.start()?;
            host.service.until_says("a process on this machine has ended: releasing its leases")?;
            fleet.until_shared(&[&host])?;
        }
        Ok(())
    })?;
    fleet.rig.check(&lines)
}

/// The commands, the HTTP endpoints and the metrics must report the instances, their partitions, and the wanted number
/// of instances.
#[test]
fn instances_and_wanted_count_are_reported() -> Result<()> {
    let fleet = Fleet::new("", "lag_per_instance = 10")?;
    let none = fleet.rig.home.rows(&["instances", "--json"])?;
    ensure!(none.len() == 1 && none[0]["instance"].is_null() && none[0]["owns"] == 4, "{none:?}");
    let mut host = fleet.start()?;
    fleet.until_shared(&[&host])?;
    let mut other = fleet.start()?;
    fleet.until_shared(&[&host, &other])?;
    for instance in [&mut host, &mut other] {
        ordain_tests::http::ready(&mut instance.service)?;
    }
    let seen = host.get("/v1/instances")?.json()?;
    let rows = seen["instances"].as_array().expect("instances");
    ensure!(rows.len() == 2, "{seen}");
    for row in rows {
        ensure!(row["owns"] == 2 && row["state"] == "runs", "{seen}");
        ensure!(row["expires_in_ms"].as_u64().is_some_and(|ms| ms <= 10_000), "{seen}");
        let partition = &row["partitions"][0];
        ensure!(partition["stream"] == "cases" && partition["since"].is_string(), "{seen}");
    }
    let text = fleet.rig.home.output(&["instances"])?;
    let text = String::from_utf8(text.stdout)?;
    ensure!(text.lines().count() == 1 + 2 + 1 + 1 + 4, "{text}");
    // Until the host knows the lengths of the queues, it reports the current number of instances as the wanted number.
    wait_until("the wanted number of instances", || {
        let scale = host.get("/v1/scale/cases")?.json()?;
        ensure!(scale["instances"] == 2 && scale["lag"] == 0, "{scale}");
        Ok(scale["wanted_instances"] == 1)
    })?;
    ensure!(host.get("/v1/scale/other")?.status == 404);
    let page = host.get("/metrics")?.body;
    ensure!(page.contains("# TYPE ordain_wanted_instances gauge"), "{page}");

    // Unroutable messages delay the shutdown for about five seconds, so that the test can observe the leaving instance.
    fleet.rig.client.delete_queue("out")?;
    fleet.rig.publish(&in_turn(20, 1))?;
    other.service.until_says("no queue takes")?;
    other.service.signal("TERM")?;
    let state = |state: &str| {
        let rows = fleet.rig.home.rows(&["instances", "--json"])?;
        Ok(rows.iter().any(|row| row["state"] == state))
    };
    wait_until("an instance in the state `leaves`", || state("leaves"))?;
    wait_until("an instance without its full share", || Ok(host.get("/readyz")?.status == 503))?;
    ensure!(other.service.wait()?.success());
    fleet.until_shared(&[&host])?;
    ordain_tests::http::ready(&mut host.service)?;
    Ok(())
}

/// Two instances with one store may run different streams. The store may even contain unpublished messages of a stream
/// that only one of the instances runs. But all instances of a stream must configure the same number of partitions.
#[test]
fn instances_may_run_different_streams() -> Result<()> {
    let fleet = Fleet::new("", "")?;
    let mut first = fleet.start()?;
    fleet.rig.until_declared()?;
    fleet.until_shared(&[&first])?;
    let check_refused = |code: i32, words: &str| {
        let mut host =
            fleet.start_with(|config| config.replace("partitions = 4", "partitions = 8"))?;
        let status = host.service.wait()?;
        let log = host.service.stderr();
        ensure!(status.code() == Some(code) && log.contains(words), "{status} {log}");
        Ok(())
    };
    // The first refusal is temporary (exit code 75), because its cause is another running instance. The second refusal
    // is permanent (exit code 78), because the data in the store was written with four partitions.
    check_refused(75, "runs stream cases with source.partitions = 4")?;
    fleet.rig.client.delete_queue("out")?;
    let lines = in_turn(5, 5);
    fleet.rig.publish(&lines)?;
    first.service.until_says("no queue takes")?;
    fleet.rig.until_empty()?;
    check_refused(78, "written with source.partitions = 4")?;

    let mut other = fleet.start_with(|config| config.replace("cases", "others"))?;
    ordain_tests::http::ready(&mut other.service)?;
    other
        .service
        .until_says("the store has unpublished messages of a stream that is not configured here")?;
    other.service.end()?;

    fleet.rig.client.queue("out")?;
    fleet.rig.client.bind("out", "out", "#")?;
    fleet.rig.check(&lines)?;
    first.service.until_says("publishing of messages works again")?;
    first.service.end()
}
