//! What somebody else has written into the store between two stages.

use anyhow::{Context, Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::service::Service;
use serde_json::json;

/// A stream that is fed by the store, into which events are published by hand.
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

/// An event that cannot be read is a dead letter with its bytes; those behind it take effect.
#[test]
fn an_event_that_waits() -> Result<()> {
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
    let origins: Vec<&str> = letters.iter().filter_map(|it| it["origin"].as_str()).collect();
    ensure!(origins.len() == 2 && origins.iter().any(|it| it.contains("number 2 of the queue")));
    ensure!(letters.iter().all(|it| it["cause"] == "unreadable"), "{letters:?}");
    Ok(())
}

/// A count that is no count stops the numbering of what is for it, and is named; once it is mended
/// all goes on.
#[test]
fn a_count() -> Result<()> {
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
    // Another type in the place of all of it.
    redis.command(&["RENAME", log, "aside"])?;
    redis.command(&["SET", log, "something else"])?;
    let failed = home.output(&["publish", "orders", "--key", "c", "--type", "transaction"])?;
    let words = String::from_utf8_lossy(&failed.stderr);
    ensure!(!failed.status.success() && words.contains("is a string"), "{words}");
    redis.command(&["DEL", log])?;
    redis.command(&["RENAME", "aside", log])?;
    let mut service = Service::start(&home, &["run"])?;
    ordain_servers::wait_for_command("all that waited", || {
        let rows = home.rows(&["keys", "list", "orders", "--json"])?;
        let next = |key: &str| rows.iter().find(|it| it["key"] == key).map(|it| it["next"].clone());
        Ok(next("a") == Some(json!(2)) && next("b") == Some(json!(3)))
    })
    .context("after it was mended")?;
    service.end()
}
