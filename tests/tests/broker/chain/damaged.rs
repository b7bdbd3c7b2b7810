//! Tests of events that wait in the store for a stream. Another program damages these events, or the counters with
//! which the store numbers events.

use anyhow::{Context, Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::log::line;
use ordain_tests::service::{Service, wait_until};
use serde_json::json;

/// Returns the configuration of a stream whose events wait in the store. The tests publish these events.
fn config(redis: &Redis) -> String {
    format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 1\n[streams.orders]\nhandler = \"ledger\"\n\
         source = {{ kind = \"stream\" }}\n[sinks]\n\
         transactions = {{ kind = \"stream\", stream = \"orders\", sequenced = true }}\n\
         postings = {{ kind = \"file\", path = \"-\" }}\n",
        redis.url()
    )
}

fn publish(home: &Home, key: &str) -> Result<()> {
    let data = json!({"month": "2026-01", "cents": 5}).to_string();
    let args = ["publish", "orders", "--key", key, "--type", "transaction", "--data", &data];
    home.rows(&[&args[..], &["--json"]].concat()).map(drop)
}

/// Another program overwrites a waiting event and removes another waiting event. Both of these events must become dead
/// letters, and the other events must take effect.
#[test]
fn damaged_queued_events_become_dead_letters() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(&["ledger"], &config(&redis))?;
    for key in ["a", "b", "c", "d"] {
        publish(&home, key)?;
    }
    let log = "ordain:{0}:log:stream/orders";
    redis.command(&["HSET", log, "n0:2", "garbage"])?;
    redis.command(&["HDEL", log, "n0:3"])?;
    let report = home.run_once_to("out")?;
    ensure!(report["settled"] == 2 && report["dead_total"] == 2, "{report}");
    let letters = home.rows(&["dead", "list", "orders", "--json"])?;
    let origins: Vec<&str> =
        letters.iter().filter_map(|letter| letter["origin"].as_str()).collect();
    ensure!(
        origins.len() == 2 && origins.iter().any(|origin| origin.contains("number 2 of the queue"))
    );
    ensure!(letters.iter().all(|letter| letter["cause"] == "unreadable"), "{letters:?}");
    Ok(())
}

/// If the counter of a key is damaged, the store must assign no numbers to events of the key, and the error must name
/// the counter. Other keys must not be affected. After the repair, all waiting events must take effect.
#[test]
fn damaged_counter_stops_numbering_until_repaired() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(&["ledger"], &config(&redis))?;
    publish(&home, "a")?;
    let log = "ordain:{0}:log:stream/orders";
    let right = redis.command(&["HEXISTS", log, "ca"])?;
    ensure!(right.int() == Some(1), "{right:?}");
    redis.command(&["HSET", log, "ca", "garbage"])?;
    let failed = home.output(&["publish", "orders", "--key", "a", "--type", "transaction"])?;
    let words = String::from_utf8_lossy(&failed.stderr);
    ensure!(failed.status.code() == Some(1) && words.contains("field ca of"), "{words}");
    publish(&home, "b")?;
    redis.command(&["HDEL", log, "ca"])?;
    publish(&home, "b")?;
    // Another program renames the Redis hash that contains the queues and the counters of the stream, and puts a string
    // in its place.
    redis.command(&["RENAME", log, "aside"])?;
    redis.command(&["SET", log, "something else"])?;
    let failed = home.output(&["publish", "orders", "--key", "c", "--type", "transaction"])?;
    let words = String::from_utf8_lossy(&failed.stderr);
    ensure!(!failed.status.success() && words.contains("is a string"), "{words}");
    redis.command(&["DEL", log])?;
    redis.command(&["RENAME", "aside", log])?;
    let mut service = Service::start(&home, &["run"])?;
    ordain_servers::wait_for_command("the effects of all waiting events", || {
        let rows = home.rows(&["keys", "list", "orders", "--json"])?;
        let next =
            |key: &str| rows.iter().find(|row| row["key"] == key).map(|row| row["next"].clone());
        Ok(next("a") == Some(json!(2)) && next("b") == Some(json!(3)))
    })
    .context("after the repair")?;
    service.end()
}

/// The counter of a key is damaged while a host numbers messages of the key. The host must keep the message, and must
/// log the failure. After the repair, the host must log the recovery.
#[test]
fn numbering_that_continues_after_a_repair_is_reported() -> Result<()> {
    let redis = Redis::start(&[])?;
    let config = format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 1\n\
         [streams]\n\
         cases = {{ handler = \"faulty\", source = {{ kind = \"file\", path = \"cases.ndjson\" }} }}\n\
         next = {{ handler = \"tally\", source = {{ kind = \"stream\" }} }}\n\
         [sinks]\n\
         faulty = {{ kind = \"stream\", stream = \"next\", sequenced = true }}\n\
         tally = {{ kind = \"file\", path = \"-\" }}\n",
        redis.url()
    );
    let home = Home::new(&["faulty", "tally"], &config)?;
    let event = |sequence| line("a", sequence, &json!({ "do": "emit" })) + "\n";
    home.write("cases.ndjson", event(1))?;
    let mut service = Service::start(&home, &["run"])?;
    let effects = |count| {
        let effects = wait_until("effects", || Ok(service.stdout().lines().count() >= count));
        effects.with_context(|| service.stderr())
    };
    effects(1)?;
    let counter = |script: &str| {
        redis.command(&["EVAL", script, "2", "ordain:{0}:log:stream/next", "aside:{0}"])
    };
    counter(
        "redis.call('SET', KEYS[2], redis.call('HGET', KEYS[1], 'ca'))
         redis.call('HSET', KEYS[1], 'ca', 'garbage')",
    )?;
    home.append("cases.ndjson", event(2))?;
    let failed = "messages not numbered; they wait in the outbox";
    wait_until(failed, || Ok(service.stderr().contains(failed)))?;
    let recovered = "numbering of messages works again: ";
    ensure!(!service.stderr().contains(recovered), "{}", service.stderr());
    ensure!(service.stdout().lines().count() == 1, "{}", service.stdout());
    counter("redis.call('HSET', KEYS[1], 'ca', redis.call('GET', KEYS[2]))")?;
    wait_until(recovered, || Ok(service.stderr().contains(recovered)))?;
    effects(2)?;
    let log = service.stderr();
    ensure!(log.matches(recovered).count() == 1, "{log}");
    service.end()
}
