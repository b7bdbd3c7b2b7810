//! Tests of missing events. Depending on the test, the host finds them by replay in the store or on a server over HTTP,
//! or does not find them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ordain_servers::{Redis, wait_for_command, wait_until};
use ordain_tests::archive::Archive;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{by_key, in_turn, text};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::Value;

/// The value of the header `Authorization` that the replay server requires.
const TOKEN: &str = "Bearer a secret token";

fn show_key(home: &Home, key: &str) -> Result<Value> {
    let mut rows = home.rows(&["keys", "show", "cases", key, "--json"])?;
    rows.pop().context("a row")
}

/// Returns all entries of the gap histories of these keys. Checks that no gap has the end `passed`, which means that
/// another owner settled the missing sequences or that the key ended.
fn gaps<'a>(home: &Home, keys: impl IntoIterator<Item = &'a String>) -> Result<Vec<Value>> {
    let mut gaps = Vec::new();
    for key in keys {
        let of_key = show_key(home, key)?["gaps"].as_array().cloned().context("gaps")?;
        ensure!(of_key.iter().all(|gap| gap["end"] != "passed"), "{key}: {of_key:?}");
        gaps.extend(of_key);
    }
    Ok(gaps)
}

/// Returns the total number of events that replay sources have found for these gaps. Counts only replay sources whose
/// names begin with `source`.
fn found_events(gaps: &[Value], source: &str) -> u64 {
    let answers = gaps.iter().filter_map(|gap| gap["answers"].as_array()).flatten();
    let of_source = answers
        .filter(|answer| answer["source"].as_str().is_some_and(|name| name.starts_with(source)));
    of_source.filter_map(|answer| answer["found"].as_u64()).sum()
}

/// Removes one of every `nth` lines, except in the last tenth of the lines, so that the last event of each key remains.
/// Returns the remaining lines and the removed lines.
fn split_lost(lines: &[String], nth: usize) -> (Vec<String>, Vec<String>) {
    let end = lines.len() * 9 / 10;
    let enumerated = lines.iter().cloned().enumerate();
    let (lost, left): (Vec<_>, Vec<_>) =
        enumerated.partition(|(at, _)| *at < end && is_lost(*at, nth));
    (
        left.into_iter().map(|(_, line)| line).collect(),
        lost.into_iter().map(|(_, line)| line).collect(),
    )
}

/// Returns whether [`split_lost`] removes the line at index `at`. The formula selects one of every `nth` lines, each
/// time at another position, so the lines belong to different keys.
fn is_lost(at: usize, nth: usize) -> bool {
    at % nth == at / nth * 37 % nth
}

fn keys(lines: &[String]) -> Result<BTreeSet<String>> {
    Ok(by_key(lines)?.into_keys().collect())
}

/// Publishes 10,000 events of 1,000 keys with `ordain publish`. The test removes 90 of these events from the broker's
/// queue. The store still has the removed events, so the host must find them by replay.
fn check_replay_from_store(sections: &str) -> Result<()> {
    let stream = "gap = { timeout = \"200ms\", backoff = \"10ms..50ms\" }";
    let rig = Rig::with(sections, stream, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.end()?;
    let lines = in_turn(1_000, 10);
    rig.home.write("events.ndjson", text(&lines))?;
    let output = rig.home.output(&["publish", "cases", "events.ndjson"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lost =
        rig.client.lose("cases", "cases", lines.len(), |at| at < 9_000 && is_lost(at, 100))?;
    ensure!(lost == 90);
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()?;
    let gaps = gaps(&rig.home, &keys(&split_lost(&lines, 100).1)?)?;
    ensure!(gaps.len() == 90, "{} gaps: {:?}", gaps.len(), gaps.first());
    ensure!(gaps.iter().all(|gap| gap["end"] == "replayed" && gap["rounds"] == 1), "{gaps:?}");
    ensure!(found_events(&gaps, "store") == 90);
    Ok(())
}

#[test]
fn lost_event_is_replayed_from_embedded_store() -> Result<()> {
    check_replay_from_store("")
}

#[test]
fn lost_event_is_replayed_from_redis() -> Result<()> {
    let redis = Redis::start(&[])?;
    check_replay_from_store(&format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url()))
}

/// Only a replay server has the lost events, and on average one in three requests to this server fails. The host must
/// find the lost events, keep the limit of concurrent requests, and write no token into the gap histories.
#[test]
fn lost_event_is_replayed_from_server() -> Result<()> {
    let lines = in_turn(1_000, 10);
    let archive = Archive::start(&lines, 333, Some(TOKEN))?;
    let stream = format!(
        "gap = {{ timeout = \"200ms\", attempts = 40, backoff = \"10ms..50ms\", replay = [\"store\", \
         {{ url = \"{}\", authorization = \"Bearer ${{REPLAY_TOKEN:-a secret token}}\", concurrency = 3 }}] }}",
        archive.url()
    );
    let redis = Redis::start(&[])?;
    let sections = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let rig = Rig::with(&sections, &stream, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let (left, lost) = split_lost(&lines, 100);
    rig.publish(&left)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()?;
    let gaps = gaps(&rig.home, &keys(&lost)?)?;
    let of_lost: Vec<&Value> = gaps.iter().filter(|gap| gap["end"] == "replayed").collect();
    ensure!(of_lost.len() == lost.len(), "{} of {}", of_lost.len(), lost.len());
    ensure!(found_events(&gaps, "http://127.0.0.1") == lost.len() as u64);
    let failed = gaps.iter().filter_map(|gap| gap["answers"][1]["failed"].as_u64()).sum::<u64>();
    ensure!(failed > 10, "only {failed} of {} requests failed", archive.requests());
    let errors: BTreeSet<&str> =
        gaps.iter().filter_map(|gap| gap["answers"][1]["error"].as_str()).collect();
    ensure!(errors.iter().any(|error| error.contains("503")), "{errors:?}");
    ensure!(errors.iter().all(|error| !error.contains(TOKEN)), "{errors:?}");
    ensure!(
        archive.unauthorized_requests() == 0 && archive.max_concurrency() <= 3,
        "{} concurrent requests",
        archive.max_concurrency()
    );
    Ok(())
}

/// Nine of 10,000 events are lost, and no replay source has them. Depending on `gap.on_exhausted`, the key of a lost
/// event must be parked, continue without the event, or wait. The events of all other keys must take effect. In a
/// parked or waiting key, a lost event that arrives late must fill the gap.
#[test]
fn permanently_lost_event_parks_skips_or_waits() -> Result<()> {
    let lines = in_turn(500, 20);
    let archive = Archive::start(&[], 0, None)?;
    let (left, lost) = split_lost(&lines, 1_000);
    let of_lost = keys(&lost)?;
    let of_key = by_key(&lines)?;
    for (on_exhausted, end) in [("park", "parked"), ("skip", "skipped"), ("wait", "waiting")] {
        let stream = format!(
            "gap = {{ timeout = \"50ms\", attempts = 2, backoff = \"10ms..20ms\", \
             on_exhausted = \"{on_exhausted}\", replay = [\"store\", \"{}\"] }}",
            archive.url()
        );
        let rig = Rig::with("", &stream, "")?;
        let mut service = Service::start(&rig.home, &["run"])?;
        rig.until_declared()?;
        rig.publish(&left)?;
        rig.until_empty()?;
        let right = by_key(&left)?;
        let ends = |events: &BTreeMap<u64, _>| events.len();
        let reached =
            right.iter().map(|(key, events)| match (on_exhausted, of_lost.contains(key)) {
                ("skip", _) | (_, false) => ends(events),
                _ => events.keys().zip(1..).take_while(|(at, right)| *at == right).count(),
            });
        let mut out = Vec::new();
        rig.take(&mut out, reached.sum())?;
        wait_for_command("a reported gap for each lost event", || {
            let admin = format!("http://{}", http::admin(&mut service)?);
            let show = |key: &String| {
                let row =
                    rig.home.rows(&["keys", "show", "cases", key, "--admin", &admin, "--json"])?;
                anyhow::Ok(row[0]["gaps"][0]["end"] == end && row[0]["gaps"][0]["rounds"] == 2)
            };
            Ok(of_lost
                .iter()
                .map(show)
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .all(|is_shown| is_shown))
        })?;
        if on_exhausted == "wait" {
            check_reports_of_waiting_keys(&rig.home, &mut service, &of_lost)?;
        }
        if on_exhausted == "skip" {
            tally::check(&right, &out.join("\n"))?;
        } else {
            // The lost events arrive late, and must fill the gaps.
            rig.publish(&lost)?;
            rig.take(&mut out, lines.len())?;
            tally::check(&of_key, &out.join("\n"))?;
        }
        service.end()?;
        let gaps = gaps(&rig.home, &of_lost)?;
        let end = if on_exhausted == "skip" { "skipped" } else { "arrived" };
        ensure!(gaps.len() == lost.len() && gaps.iter().all(|gap| gap["end"] == end), "{gaps:?}");
        if on_exhausted == "skip" {
            let dead = rig.home.rows(&["dead", "list", "cases", "--json"])?;
            ensure!(dead.len() == lost.len() && dead.iter().all(|letter| letter["cause"] == "gap"));
        }
    }
    Ok(())
}

/// Checks that the log reports each of the waiting keys exactly once, and that `ordain keys why` explains why the key
/// waits.
fn check_reports_of_waiting_keys(
    home: &Home,
    service: &mut Service,
    keys: &BTreeSet<String>,
) -> Result<()> {
    let admin = format!("http://{}", http::admin(service)?);
    // The log may also report other keys: under load, an event may arrive only after the two replay rounds of its gap.
    let lines = |key: &String| {
        let words = "missing events not received: Ordain has made all its replay requests, and the key still \
                     waits for the events; see `ordain keys why cases";
        service.stderr().matches(&format!("{words} {key}`")).count()
    };
    let complete =
        wait_until("a log line about each key", || Ok(keys.iter().all(|key| lines(key) == 1)));
    complete.with_context(|| service.stderr())?;
    for key in keys {
        let why = home.output(&["keys", "why", "cases", key, "--admin", &admin])?;
        let why = String::from_utf8(why.stdout)?;
        ensure!(
            why.contains("in 2 rounds; the gap was found at") && why.contains("requested 2 times"),
            "{why}"
        );
    }
    Ok(())
}

/// A later event of a key has arrived, and the missing event is in the broker's queue when the broker is killed. While
/// the broker is unavailable, the host must not skip the missing event, whether or not the stream accepts events over
/// HTTP. When the broker is available again, the missing event must take effect.
#[test]
fn event_in_the_queue_of_an_unavailable_broker_is_not_skipped() -> Result<()> {
    const ROUNDS: u64 = 4;
    let stream = format!(
        "spill_after = \"100ms\"\ngap = {{ timeout = \"5s\", attempts = {ROUNDS}, \
         backoff = \"500ms..500ms\", on_exhausted = \"skip\" }}"
    );
    for ingress in ["", "[ingress]\nlisten = \"127.0.0.1:0\"\n"] {
        let rig = Rig::with_private_broker("", "", "")?;
        let text = config(&rig.rabbit.url(), ingress, &stream, "prefetch = 1").replace(
            "kind = \"amqp\"\nexchange = \"out\"",
            "kind = \"file\"\npath = \"out.ndjson\"",
        );
        rig.home.write("ordain.toml", text)?;
        let mut service = Service::start(&rig.home, &["run"])?;
        rig.until_declared()?;
        let lines = in_turn(2, 2);
        let [missing, other, later, _] = &lines[..] else { bail!("{lines:?}") };
        // The host spills the later event into the store, and acknowledges its delivery.
        rig.publish(std::slice::from_ref(later))?;
        rig.until_empty()?;
        // Because of the prefetch, the broker sends the paused host only the event of the other key.
        service.pause()?;
        rig.publish(&[other.clone(), missing.clone()])?;
        wait_until("a delivery to the host", || {
            Ok(rig.rabbit.queues()?.get("cases") == Some(&(1, 1)))
        })?;
        rig.rabbit.kill()?;
        service.resume()?;
        let rounds =
            "ordain_gap_rounds_total{stream=\"cases\",source=\"store\",result=\"missing\"}";
        let address = http::admin(&mut service)?;
        wait_until("the end of all rounds", || {
            Ok(http::metric(address, rounds)?.is_some_and(|count| count >= ROUNDS))
        })?;
        rig.rabbit.restart()?;
        let all = [missing, other, later].map(Clone::clone);
        wait_until("all effects", || Ok(rig.home.lines("out.ndjson") >= all.len()))?;
        service.end()?;
        tally::check(&by_key(&all)?, &rig.home.read("out.ndjson"))?;
        let dead = rig.home.rows(&["dead", "list", "cases", "--json"])?;
        ensure!(dead.is_empty(), "{dead:?}");
    }
    Ok(())
}

/// If the last event of a key is lost, no later event shows the gap. If no event of a key has arrived for the time
/// `gap.tail`, the host must request the next event of the key from the replay sources.
#[test]
fn lost_last_event_is_replayed() -> Result<()> {
    let lines = in_turn(20, 5);
    let archive = Archive::start(&lines, 0, None)?;
    let stream = format!("gap = {{ tail = \"5s\", replay = [\"store\", \"{}\"] }}", archive.url());
    let rig = Rig::with("", &stream, "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    rig.publish(&lines[..80])?;
    rig.check(&lines)?;
    service.end()?;
    let gaps = gaps(&rig.home, &keys(&lines)?)?;
    let is_found = |gap: &Value| gap["end"] == "replayed" && gap["first"] == 5 && gap["last"] == 5;
    ensure!(gaps.len() == 20 && gaps.iter().all(is_found), "{gaps:?}");
    Ok(())
}

/// Events are missing from a file. One run over the file must find them by replay. The gap history must state how long
/// each gap lasted.
#[test]
fn events_missing_from_file_are_replayed() -> Result<()> {
    let lines = in_turn(50, 20);
    let archive = Archive::start(&lines, 333, None)?;
    let (left, lost) = split_lost(&lines, 50);
    let gap = format!(
        "gap = {{ attempts = 40, backoff = \"1ms..5ms\", replay = [\"store\", \"{}\"] }}\n[sinks",
        archive.url()
    );
    let home = Home::new(&["tally"], &tally::CONFIG.replacen("[sinks", &gap, 1))?;
    home.write("events.ndjson", text(&left))?;
    home.run_once()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    let gaps = gaps(&home, &keys(&lines)?)?;
    ensure!(gaps.iter().filter(|gap| gap["end"] == "replayed").count() >= lost.len() / 2);
    for gap in &gaps {
        let since = gap["since"].as_str();
        let until = gap["until"].as_str();
        ensure!(since.is_some() && since <= until && gap["lasted_ms"].is_u64(), "{gap}");
    }
    Ok(())
}

/// A replay server refuses the requests for the first five missing events. The host must nevertheless request the later
/// events from this server, and must find them.
#[test]
fn events_after_refused_requests_are_found() -> Result<()> {
    let lines = in_turn(1, 60);
    for status in ["403 Forbidden", "500 Internal Server Error"] {
        let archive = Archive::refusing(&lines[6..], status)?;
        let gap = format!(
            "gap = {{ attempts = 2, backoff = \"1ms..2ms\", on_exhausted = \"skip\", \
             replay = [\"store\", {{ url = \"{}\", concurrency = 1 }}] }}\n[sinks",
            archive.url()
        );
        let home = Home::new(&["tally"], &tally::CONFIG.replacen("[sinks", &gap, 1))?;
        home.write("events.ndjson", text(&[lines[0].clone(), lines[59].clone()]))?;
        home.run_once()?;
        let left = [&lines[..1], &lines[6..]].concat();
        tally::check(&by_key(&left)?, &home.read("out.ndjson"))?;
        let gaps = gaps(&home, &keys(&lines)?)?;
        let skipped = gaps.iter().filter(|gap| gap["end"] == "skipped");
        let skipped =
            skipped.filter_map(|gap| Some((gap["first"].as_u64()?, gap["last"].as_u64()?)));
        ensure!(skipped.map(|(first, last)| last + 1 - first).sum::<u64>() == 5, "{gaps:?}");
    }
    Ok(())
}

/// Depending on the request, a replay server does not answer, announces a huge body, or sends endless headers or an
/// endless body. The host must count each such answer as failed, within a time limit, and must use less than 300 MiB of
/// memory.
#[test]
fn hostile_server_counts_as_failed() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            // When the host closes the connection, a write fails and ends the thread. Ignore this error.
            thread::spawn(move || drop(send_hostile_answer(number, stream)));
        }
    });
    let gap = format!(
        "gap = {{ attempts = 8, backoff = \"1ms..2ms\", replay = [\"store\", \
         {{ url = \"http://{address}/{{key}}/{{sequence}}\", timeout = \"300ms\" }}] }}\n[sinks"
    );
    let home = Home::new(&["tally"], &tally::CONFIG.replacen("[sinks", &gap, 1))?;
    let lines = in_turn(1, 3);
    home.write("events.ndjson", text(&[lines[0].clone(), lines[2].clone()]))?;
    let mut service = Service::start(&home, &["run", "--once"])?;
    let peak = service.peak_memory()?;
    let key = show_key(&home, "k0")?;
    ensure!(key["status"] == "parked" && key["next"] == 2, "{key}");
    let why = key["trouble"]["error"].as_str().unwrap_or_default();
    ensure!(why.contains(&format!("http://{address} failed ")), "{why}");
    let gap = &key["gaps"][0];
    ensure!(gap["end"] == "parked" && gap["rounds"] == 8, "{gap}");
    let answers = &gap["answers"][1];
    ensure!(answers["failed"] == 8 && answers["found"] == 0, "{answers}");
    ensure!(peak < 300 << 10, "{peak} KiB");
    Ok(())
}

/// Sends a hostile answer to the request `number`. The requests get four kinds of answers in turn.
fn send_hostile_answer(number: usize, mut stream: TcpStream) -> Result<()> {
    let mut request = [0; 4 << 10];
    let _ = stream.read(&mut request)?;
    let ok = "HTTP/1.1 200 OK\r\ncontent-type: application/cloudevents+json\r\n";
    match number % 4 {
        0 => thread::sleep(Duration::from_secs(5)),
        1 => loop {
            write!(stream, "{ok}x-more: {}\r\n", "y".repeat(1 << 10))?;
        },
        // Announces a huge body, and sends it as fast as possible.
        2 => {
            write!(stream, "{ok}content-length: 99999999999\r\n\r\n")?;
            loop {
                stream.write_all(&[b' '; 4 << 10])?;
            }
        }
        // Sends an endless body, a few bytes at a time.
        _ => {
            write!(stream, "{ok}transfer-encoding: chunked\r\n\r\n")?;
            loop {
                stream.write_all(b"1\r\n \r\n")?;
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
    Ok(())
}
