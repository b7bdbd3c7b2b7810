//! Tests of publishers with a store that loses its latest data. The publishers must publish the lost events again, and
//! the store must contain each event once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use ordain_core::shard_of;
use ordain_publisher::{Error, Event, Publisher};
use ordain_servers::{Cluster, Mode, Proxy, Redis, Takeover};
use ordain_tests::host::{Home, copy_folder};
use ordain_tests::incident::records;
use ordain_tests::log::{by_key, in_turn, text, unnumbered};
use ordain_tests::queue::{redis_key, waiting_events};
use ordain_tests::service::{Service, wait_until};
use ordain_tests::tally;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const SHARDS: u32 = 8;

fn home(url: &str) -> Result<Home> {
    home_with(&format!("kind = \"redis\"\nurl = \"{url}\"\nshards = {SHARDS}"))
}

fn changed_home(url: &str, part: &str, replacement: &str) -> Result<Home> {
    let home = home(url)?;
    home.write("ordain.toml", home.read("ordain.toml").replace(part, replacement))?;
    Ok(home)
}

/// Makes a home as [`home`] does. The queue of the stream has room for `limit` events.
fn home_with_queue(url: &str, limit: u64) -> Result<Home> {
    changed_home(url, "\"stream\" }", &format!("\"stream\", queue = {limit} }}"))
}

fn home_with(store: &str) -> Result<Home> {
    let config = format!(
        "[store]\n{store}\n\
         [streams.cases]\nhandler = \"tally\"\nsource = {{ kind = \"stream\" }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"-\"\n"
    );
    Home::new(&["tally"], &config)
}

/// Writes a file with events 1 to `events` of each of `keys` keys, and publishes the file. Returns the summary of the
/// command.
fn publish_file(home: &Home, keys: usize, events: u64) -> Result<Value> {
    home.write("events.ndjson", text(&unnumbered(&in_turn(keys, events))?))?;
    let rows = home.rows(&["publish", "cases", "events.ndjson", "--json"])?;
    rows.into_iter().next().context("a row")
}

/// Runs the stream until it has executed all events of `keys`, which contains the number of events of each key. Returns
/// the standard output.
fn run(home: &Home, keys: &BTreeMap<String, u64>) -> Result<String> {
    let mut service = Service::start(home, &["run"])?;
    let done = wait_until("all events", || {
        let rows = home.rows(&["keys", "list", "cases", "--json"])?;
        let next: BTreeMap<String, u64> = rows
            .iter()
            .filter_map(|row| Some((row["key"].as_str()?.to_owned(), row["next"].as_u64()?)))
            .collect();
        Ok(keys.iter().all(|(key, events)| next.get(key) == Some(&(events + 1))))
    });
    done.with_context(|| service.stderr())?;
    service.end()?;
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty(), "there are dead letters");
    Ok(service.stdout())
}

/// One master of a Redis Cluster loses the events of a run of `ordain publish`, and the newest checkpoints in its
/// shards. The master of shard 0 loses nothing, and keeps a newer checkpoint. The next run must publish the lost events
/// again.
#[test]
fn next_run_publishes_events_lost_by_a_shard() -> Result<()> {
    const KEYS: usize = 40;
    let mut cluster = Cluster::start(3)?;
    cluster.add_replicas()?;
    let home = home(&cluster.urls().swap_remove(0))?;
    let publish = |events| publish_file(&home, KEYS, events);
    let done = publish(50)?;
    ensure!(done == json!({"published": 2_000, "known": 0, "lines_before": 0}), "{done}");

    let of_shard_0 = cluster.owner(cluster.slot("ordain:{0}:marks")?)?;
    let other = (of_shard_0 + 1) % 3;
    cluster.let_replica_lag(other)?;
    let done = publish(90)?;
    ensure!(done == json!({"published": 1_600, "known": 0, "lines_before": 2_000}), "{done}");
    cluster.take_over(other, Takeover::Takeover)?;
    cluster.until_ready()?;

    let done = publish(100)?;
    let [published, known] = ["published", "known"].map(|name| done[name].as_u64().unwrap_or(0));
    ensure!(done["lines_before"] == 2_000 && published + known == 2_000, "{done}");
    ensure!(
        published > 400 && known > 0,
        "one shard must have lost events, and the other shards none: {done}"
    );
    let lines = in_turn(KEYS, 100);
    let all = by_key(&lines)?;
    let keys = all.keys().map(|key| (key.clone(), 100)).collect();
    tally::check(&all, &run(&home, &keys)?)
}

/// An earlier copy replaces the folder of an embedded store. The store then lacks the events of the last run of `ordain
/// publish`, and has the checkpoint of the previous run. The next run must publish the lost events again, and each
/// event must take effect once.
#[test]
fn next_run_publishes_events_lost_with_a_restored_folder() -> Result<()> {
    const KEYS: usize = 10;
    let home = home_with("kind = \"embedded\"\npath = \"store\"")?;
    let publish = |events| publish_file(&home, KEYS, events);
    let done = publish(50)?;
    ensure!(done == json!({"published": 500, "known": 0, "lines_before": 0}), "{done}");
    let [store, copy] = ["store", "copy"].map(|name| home.path(name));
    copy_folder(&store, &copy)?;
    let done = publish(90)?;
    ensure!(done == json!({"published": 400, "known": 0, "lines_before": 500}), "{done}");
    fs::remove_dir_all(&store)?;
    fs::rename(&copy, &store)?;

    let done = publish(100)?;
    ensure!(done == json!({"published": 500, "known": 0, "lines_before": 500}), "{done}");
    let lines = in_turn(KEYS, 100);
    let mut service = Service::start(&home, &["run"])?;
    wait_until("all messages", || Ok(service.stdout().lines().count() >= lines.len()))
        .with_context(|| service.stderr())?;
    service.end()?;
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty(), "there are dead letters");
    tally::check(&by_key(&lines)?, &service.stdout())
}

/// Redis goes back in time while no process runs. The next publisher's events get the numbers of the lost events. The
/// messages of the new events must have ids that no earlier message had.
#[test]
fn events_with_reused_numbers_have_new_message_ids() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = home(&redis.url())?;
    let lines = unnumbered(&in_turn(1, 6))?;
    let key = by_key(&in_turn(1, 1))?.into_keys().next().context("a key")?;
    let ids_of = |file: &str, some: &[String], events: u64| -> Result<BTreeSet<String>> {
        home.write(file, text(some))?;
        home.rows(&["publish", "cases", file, "--json"])?;
        let messages = run(&home, &BTreeMap::from([(key.clone(), events)]))?;
        let id = |line: &str| -> Result<String> {
            let message: Value = serde_json::from_str(line)?;
            Ok(message["id"].as_str().context("an id")?.to_owned())
        };
        messages.lines().map(id).collect()
    };
    ids_of("kept.ndjson", &lines[..2], 2)?;
    let early = redis.snapshot()?;
    let lost = ids_of("lost.ndjson", &lines[2..4], 4)?;
    redis.go_back(&early)?;
    let other = ids_of("other.ndjson", &lines[4..], 4)?;
    ensure!((lost.len(), other.len()) == (2, 2), "{lost:?} {other:?}");
    ensure!(lost.is_disjoint(&other), "two messages have the same id: {lost:?} {other:?}");
    Ok(())
}

/// One master loses the newest events of a run that still publishes. The run must detect the loss, and publish the file
/// again from the oldest checkpoint of all shards.
#[test]
fn running_publisher_publishes_events_lost_by_a_shard() -> Result<()> {
    const KEYS: usize = 40;
    const EVENTS: u64 = 4_000;
    let mut cluster = Cluster::start(3)?;
    cluster.add_replicas()?;
    let home = home_with_queue(&cluster.urls().swap_remove(0), 1_000_000)?;
    let lines = in_turn(KEYS, EVENTS);
    let all = by_key(&lines)?;
    home.write("events.ndjson", text(&unnumbered(&lines)?))?;
    let shard = shard_of(all.keys().next().context("a key")?, SHARDS);
    let number = cluster.owner(cluster.slot(&redis_key("cases", shard))?)?;
    let waiting = || waiting_events(cluster.master(number), "cases", shard);

    let mut service = Service::start(&home, &["publish", "cases", "events.ndjson", "--json"])?;
    let shard_events =
        EVENTS * all.keys().filter(|key| shard_of(key, SHARDS) == shard).count() as u64;
    wait_until("a part of the file", || Ok(waiting()? > shard_events / 10))?;
    cluster.let_replica_lag(number)?;
    wait_until("a larger part of the file", || Ok(waiting()? > shard_events / 3))?;
    cluster.take_over(number, Takeover::Takeover)?;
    ensure!(service.is_running()?, "the run ended before the loss");
    service.wait().with_context(|| service.stderr())?;
    let log = service.stderr();
    ensure!(log.contains("publishing the file again from the oldest position"), "{log}");
    let done: Value = serde_json::from_str(&service.stdout()).with_context(|| log.clone())?;
    let count = |name: &str| done[name].as_u64().unwrap_or(0);
    ensure!(count("published") >= KEYS as u64 * EVENTS, "{done}");
    // The run had itself published the first lines, and then published the file again from a position after these
    // lines. The field `lines_before` must not count these lines, because it counts only the lines of earlier runs.
    ensure!(done["lines_before"] == 0, "{done}");

    let keys = all.keys().map(|key| (key.clone(), EVENTS)).collect();
    tally::check(&all, &run(&home, &keys)?)
}

/// The store goes back in time five times while a run publishes. After each of the first four times, the run must
/// publish the file again. After the fifth time, the run must fail, and must not log that it publishes the file again.
#[test]
fn run_fails_when_the_store_goes_back_for_the_fifth_time() -> Result<()> {
    const KEYS: usize = 40;
    const EVENTS: u64 = 4_000;
    const ROLLBACKS: usize = 5;
    const RESUME_WORDS: &str = "publishing the file again from the oldest position";
    let redis = Redis::start(&[])?;
    let home = home_with_queue(&redis.url(), 1_000_000)?;
    // Another run creates the store, so the store is older than the snapshot.
    let first = in_turn(1, 1);
    let key = by_key(&first)?.into_keys().next().context("a key")?;
    home.write("first.ndjson", text(&unnumbered(&first)?))?;
    home.rows(&["publish", "cases", "first.ndjson", "--json"])?;
    let early = redis.snapshot()?;
    home.write("events.ndjson", text(&unnumbered(&in_turn(KEYS, EVENTS))?))?;
    let waiting = || waiting_events(&redis, "cases", shard_of(&key, SHARDS));

    let mut service = Service::start(&home, &["publish", "cases", "events.ndjson"])?;
    let starts = |service: &Service| service.stderr().matches(RESUME_WORDS).count();
    for number in 0..ROLLBACKS {
        let published = wait_until("events that the run has published", || {
            Ok(starts(&service) >= number && waiting()? > 1)
        });
        published.with_context(|| service.stderr())?;
        redis.go_back(&early)?;
    }
    let status = service.wait()?;
    let log = service.stderr();
    ensure!(!status.success(), "the run has not failed: {log}");
    ensure!(
        starts(&service) == ROLLBACKS - 1,
        "the run started again {} times: {log}",
        starts(&service)
    );
    Ok(())
}

/// A publisher must write its lost events again, but the queue is full, so the publisher's call fails. The publisher
/// must keep the lost events: its next call must write them, and then the event of this next call.
#[tokio::test]
async fn lost_events_are_kept_when_republishing_fails() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = home_with_queue(&redis.url(), 800)?;
    let is_beside = |key: &String| shard_of(key, SHARDS) == shard_of("a", SHARDS);
    let beside = (0..1_000).map(|number| format!("b{number}")).find(is_beside).context("a key")?;
    let event = |key: &str, number: u64| -> Result<Event> {
        Ok(Event::json(key, "test", &json!({ "n": number }))?.id(format!("{key}-{number}")))
    };
    let open = async || Publisher::open(home.path("ordain.toml"), "cases").await;
    let mut publisher = open().await?;
    let mut snapshot = None;
    for number in 1..=50 {
        publisher.publish(&[event("a", number)?]).await?;
        if number == 20 {
            snapshot = Some(redis.snapshot()?);
        }
    }
    redis.go_back(&snapshot.context("a snapshot")?)?;
    let mut other = open().await?;
    let many = (1..=100).map(|number| event(&beside, number)).collect::<Result<Vec<_>>>()?;
    other.publish(&many).await?;
    other.close().await?;
    let failed = publisher.publish(&[event("a", 51)?]).await;
    ensure!(matches!(failed, Err(Error::Away(_))), "the queue was not full: {failed:?}");

    run(&home, &BTreeMap::from([("a".to_owned(), 20), (beside, 100)]))?;
    let receipts = publisher.publish(&[event("a", 51)?]).await?;
    ensure!(receipts[0].sequence == Some(51), "{receipts:?}");
    publisher.close().await?;
    run(&home, &BTreeMap::from([("a".to_owned(), 51)])).map(drop)
}

/// For a while, a proxy closes each connection instead of passing a reply of Redis. The publisher must wait, and open
/// its store when the proxy passes replies again.
#[test]
fn publisher_waits_for_its_store() -> Result<()> {
    let redis = Redis::start(&[])?;
    let proxy = Proxy::start(redis.port())?;
    let home = home(&redis.url_at(proxy.port()))?;
    proxy.set(Mode::CutReplies)?;
    let config = home.path("ordain.toml");
    thread::scope(|scope| -> Result<()> {
        let opening = scope.spawn(|| -> Result<()> {
            Runtime::new()?.block_on(async {
                let mut publisher = Publisher::open(&config, "cases").await?;
                let event = Event::json("a", "test", &json!({ "n": 1 }))?.id("a-1");
                publisher.publish(&[event]).await?;
                Ok(publisher.close().await?)
            })
        });
        wait_until("several attempts", || Ok(proxy.counts().replies_lost >= 3))?;
        ensure!(!opening.is_finished(), "the publisher did not wait");
        proxy.set(Mode::Pass)?;
        opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    run(&home, &BTreeMap::from([("a".to_owned(), 1)])).map(drop)
}

/// If a publisher continues to publish after a loss, it publishes the lost events again before new events.
#[tokio::test]
async fn publisher_publishes_its_lost_events_again() -> Result<()> {
    const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
    let redis = Redis::start(&[])?;
    let home = home(&redis.url())?;
    let event = |key: &str, number: u64| -> Result<Event> {
        Ok(Event::json(key, "test", &json!({ "n": number }))?.id(format!("{key}-{number}")))
    };
    let mut publisher = Publisher::open(home.path("ordain.toml"), "cases").await?;
    let mut snapshot = None;
    for number in 1..=20 {
        let events = KEYS.iter().map(|key| event(key, number)).collect::<Result<Vec<_>>>()?;
        let receipts = publisher.publish(&events).await?;
        for receipt in receipts {
            ensure!(receipt.sequence == Some(number) && receipt.is_new, "{number}: {receipt:?}");
        }
        match number {
            5 => snapshot = Some(redis.snapshot()?),
            15 => redis.go_back(&snapshot.take().context("a snapshot")?)?,
            _ => {}
        }
    }
    // The server loses the event of the last call. `close` must publish it again.
    let snapshot = redis.snapshot()?;
    publisher.publish(&[event("a", 21)?]).await?;
    redis.go_back(&snapshot)?;
    publisher.close().await?;
    let keys = KEYS.iter().map(|key| ((*key).to_owned(), if *key == "a" { 21 } else { 20 }));
    tokio::task::spawn_blocking(move || run(&home, &keys.collect())).await??;
    Ok(())
}

/// Two publishers number their events, and the store keeps only one event of a key. So the event of the second
/// publisher removes the event of the first publisher from the store. The first publisher must not conclude that its
/// event is lost, and must still detect a real loss.
#[tokio::test]
async fn event_that_another_publisher_removed_is_not_lost() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = changed_home(&redis.url(), "handler = ", "retain_events = 1\nhandler = ")?;
    let event = |number: u64| -> Result<Event> {
        Ok(Event::json("a", "test", &json!({ "n": number }))?.sequence(number))
    };
    let waiting = || waiting_events(&redis, "cases", shard_of("a", SHARDS));
    let open = async || Publisher::open(home.path("ordain.toml"), "cases").await;
    let mut publisher = open().await?;
    let mut other = open().await?;
    publisher.publish(&[event(1)?]).await?;
    other.publish(&[event(2)?]).await?;
    let snapshot = redis.snapshot()?;
    publisher.publish(&[event(3)?]).await?;
    ensure!(waiting()? == 3, "the first event was published again: {}", waiting()?);

    redis.go_back(&snapshot)?;
    publisher.publish(&[event(4)?]).await?;
    publisher.close().await?;
    other.close().await?;
    // The stream executes the fourth event only after the third event, which the publisher has published again.
    run(&home, &BTreeMap::from([("a".to_owned(), 4)])).map(drop)
}

/// For a `fifo` stream, the store assigns no sequences to events. The store loses an event of one publisher. An event
/// of another publisher gets the number of the lost event in the queue, and the stream reads and removes this other
/// event. The first publisher must still detect the loss, and publish its event again.
#[tokio::test]
async fn loss_in_fifo_stream_is_detected_although_its_number_was_reused() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = changed_home(&redis.url(), "handler = ", "ordering = \"fifo\"\nhandler = ")?;
    let event = |id: &str| -> Result<Event> {
        Ok(Event::json("a", "test", &json!({ "n": 1 }))?.id(id.to_owned()))
    };
    let open = async || Publisher::open(home.path("ordain.toml"), "cases").await;
    let mut publisher = open().await?;
    publisher.publish(&[event("1")?]).await?;
    let snapshot = redis.snapshot()?;
    publisher.publish(&[event("lost")?]).await?;
    redis.go_back(&snapshot)?;
    let mut other = open().await?;
    other.publish(&[event("other 1")?, event("other 2")?]).await?;
    other.close().await?;
    let events = |count: u64| BTreeMap::from([("a".to_owned(), count)]);
    run(&home, &events(3))?;
    let log = redis_key("cases", shard_of("a", SHARDS));
    let waiting = redis.command(&["HGET", &log, "w"])?;
    ensure!(waiting.text() == Some("0"), "the stream has not removed the events: {waiting:?}");

    publisher.publish(&[event("2")?]).await?;
    publisher.close().await?;
    run(&home, &events(5)).map(drop)
}

/// `ordain publish` reads standard input and publishes more events than it keeps in memory. Then the store loses all
/// these events. The command publishes again the events that it still has in memory. In the log, the command's record
/// of the loss must state how many other events are lost, in which shard, and since when.
#[test]
fn record_of_events_beyond_memory_states_their_number() -> Result<()> {
    const LOST_EVENTS: u64 = 60;
    const EVENT_BYTES: usize = 512 << 10;
    let redis = Redis::start(&[])?;
    let home = home(&redis.url())?;
    let line = |number: u64| {
        let event = json!({
            "specversion": "1.0", "id": format!("a-{number}"), "source": "/tests", "type": "test",
            "subject": "a", "data": "x".repeat(EVENT_BYTES),
        });
        format!("{event}\n")
    };
    let shard = shard_of("a", SHARDS);
    let waiting = || waiting_events(&redis, "cases", shard);
    // Another run of the command creates the store, so the store is older than the snapshot.
    home.write("first.ndjson", line(1))?;
    home.rows(&["publish", "cases", "first.ndjson", "--json"])?;
    let early = redis.snapshot()?;

    let began = jiff::Timestamp::now();
    let mut command = home.ordain(&["publish", "cases", "-"])?;
    command.stdin(Stdio::piped()).stderr(fs::File::create(home.path("err"))?);
    let mut publisher = command.spawn()?;
    let mut input = publisher.stdin.take().context("standard input is no pipe")?;
    for number in 2..2 + LOST_EVENTS {
        input.write_all(line(number).as_bytes())?;
    }
    wait_until("all events", || Ok(waiting()? == 1 + LOST_EVENTS))?;
    redis.go_back(&early)?;
    let lost_at = jiff::Timestamp::now();
    input.write_all(line(2 + LOST_EVENTS).as_bytes())?;
    drop(input);
    wait_until("the end of the publisher", || Ok(publisher.try_wait()?.is_some()))?;
    let ended = publisher.wait()?;
    let stderr = home.read("err");
    ensure!(ended.success(), "{stderr}");
    ensure!(
        stderr.contains(&format!("shards=[{shard}] events=")),
        "no line names the shard: {stderr}"
    );

    let again = waiting()?.checked_sub(2).context("the first and the last event wait")?;
    let all = records(&stderr)?;
    let [record] = &all[..] else { bail!("the log must contain exactly one record: {stderr}") };
    ensure!(
        record["type"] == "ordain.events.lost"
            && record["source"] == "/ordain/cases"
            && record["subject"] == "publisher",
        "{record}"
    );
    let mut data = record["data"].clone();
    let since: jiff::Timestamp = data["since"].take().as_str().context("a time")?.parse()?;
    let since = since.as_millisecond();
    let times = began.as_millisecond()..=lost_at.as_millisecond();
    ensure!(times.contains(&since), "{times:?}: {since}");
    let right = json!({ "shard": shard, "events": LOST_EVENTS - again, "since": null });
    ensure!(data == right && again < LOST_EVENTS, "the record states {data}, not {right}");
    Ok(())
}
