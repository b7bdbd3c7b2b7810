//! Tests of `first = "any"`: a key without a record begins at the sequence of the first event that arrives.

use anyhow::{Context, Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, ingress, post};
use ordain_tests::log::{by_key, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

/// A number that counts microseconds since 1970, far beyond `gap.max_width`.
const TIME: u64 = 1_764_072_000_000_000;

/// Returns the configuration of a stream with this `first`. `store` contains the section `[store]`.
fn config(first: &str, store: &str) -> String {
    format!(
        "[streams.cases]\nhandler = \"tally\"\nsource = {{ kind = \"http\" }}\nfirst = {first}\n\
         gap = {{ timeout = \"20ms\", attempts = 1 }}\n[ingress]\nlisten = \"127.0.0.1:0\"\n\
         [sinks.tally]\nkind = \"file\"\npath = \"-\"\n{store}"
    )
}

fn event(key: &str, sequence: u64) -> String {
    line(key, sequence, &json!({ "n": sequence }))
}

/// Starts the host, posts the events one after the other, and waits for `effects` effects. All events are in one queue,
/// so the host takes the earlier events before it takes the last event. Returns the output of the host.
fn run(home: &Home, events: &[String], effects: usize) -> Result<String> {
    let mut service = Service::start(home, &["run"])?;
    let address = ingress(&mut service)?;
    for event in events {
        let answer = post(address, LINES_TYPE, &text(std::slice::from_ref(event)))?;
        ensure!(answer.status == 202, "{event}: {answer:?}");
    }
    service.until("all effects", || home.lines("stdout") == effects)?;
    service.end()?;
    Ok(home.read("stdout"))
}

fn row(home: &Home, key: &str) -> Result<Value> {
    home.rows(&["keys", "show", "cases", key, "--json"])?.pop().context("a row")
}

/// Two keys begin at the first events that arrive. After a restart, the keys continue. An event with a lower sequence
/// becomes a dead letter `late`, and its repeat produces no second dead letter. A missing event after the beginning is
/// a gap as usual. If the configuration later names a first sequence, the keys in the store continue, and new keys
/// begin at this sequence.
fn expect_keys_to_begin_anywhere(store: &str) -> Result<()> {
    let home = Home::new(&["tally"], &config("\"any\"", store))?;
    let mut right = vec![event("k", 500), event("k", 501), event("time", TIME)];
    let mut output = run(&home, &right, 3)?;
    ensure!(row(&home, "k")?["next"] == 502, "{}", row(&home, "k")?);
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty());

    right.extend([event("k", 502), event("time", TIME + 1)]);
    let events = [event("k", 499), event("k", 499), event("k", 502), event("time", TIME + 1)];
    output += &run(&home, &events, 2)?;
    let letters = home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 1, "{letters:?}");
    ensure!(letters[0]["cause"] == "late" && letters[0]["sequence"] == 499, "{letters:?}");
    ensure!(
        letters[0]["error"].as_str().is_some_and(|error| error.contains("begun at a later")),
        "{letters:?}"
    );

    // Event 503 is missing, so the key waits for this event.
    right.push(event("time", TIME + 2));
    output += &run(&home, &[event("k", 504), event("time", TIME + 2)], 1)?;
    ensure!(row(&home, "k")?["next"] == 503, "{}", row(&home, "k")?);

    home.write("ordain.toml", config("1", store))?;
    right.extend([event("k", 503), event("k", 504), event("new", 1)]);
    output += &run(&home, &[event("k", 503), event("new", 2), event("new", 1)], 4)?;
    right.push(event("new", 2));
    tally::check(&by_key(&right)?, &output)?;

    // The store has data under `first = 1` now, so this value must not become 0.
    home.write("ordain.toml", config("\"any\"", store))?;
    run(&home, &[], 0)?;
    home.write("ordain.toml", config("0", store))?;
    let refused = home.output(&["run"])?;
    let log = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(78) && log.contains("written with first = 1"), "{log}");
    Ok(())
}

#[test]
fn keys_begin_at_their_first_events() -> Result<()> {
    expect_keys_to_begin_anywhere("")
}

#[test]
fn keys_begin_at_their_first_events_over_redis() -> Result<()> {
    let redis = Redis::start(&[])?;
    expect_keys_to_begin_anywhere(&format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\n",
        redis.url()
    ))
}
