//! A test of two streams (stages) in one process with the embedded store. The second stage executes no events, so its
//! queue becomes full, and the first stage must wait.

use anyhow::{Context, Result, ensure};
use ordain_store::ASSIGN_LIMIT;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{line, text, unnumbered};
use ordain_tests::service::Service;
use serde_json::json;

/// Two stages. All events have the same key. The first event of the second stage makes the state exceed
/// `plugins.state_size`, so the key is parked in the second stage. With this `run_ahead`, the outbox of the first stage
/// is full at [`OUTBOX`] messages.
const BLOCKED_CHAIN_CONFIG: &str = r#"
[runtime]
run_ahead = 8
[plugins]
state_size = "1KiB"
[streams.first]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }
[streams.second]
handler = "faulty"
spill_limit = 10
source = { kind = "stream", queue = 100, prefetch = 50 }
[sinks.faulty]
kind = "stream"
stream = "second"
sequenced = true
"#;
/// The setting `run_ahead` in [`BLOCKED_CHAIN_CONFIG`]: the maximum number of executed events of the first stage that
/// wait for their commits.
const RUN_AHEAD: u64 = 8;
/// The number of unpublished messages at which the first stage of [`BLOCKED_CHAIN_CONFIG`] executes no more events: 16
/// times `run_ahead`.
const OUTBOX: u64 = 16 * RUN_AHEAD;
/// The settings `queue` and `spill_limit` in [`BLOCKED_CHAIN_CONFIG`].
const QUEUE: u64 = 100;
const SPILL_LIMIT: u64 = 10;

/// The second stage executes nothing, so its queue becomes full. The queue and the outbox of the first stage must stay
/// within their limits, and the first stage must wait. When the second stage continues, it must receive every message.
#[test]
fn stage_waits_while_next_queue_is_full() -> Result<()> {
    const EVENTS: u64 = 500;
    const MESSAGES: u64 = 10;
    let home = Home::new(&["faulty"], BLOCKED_CHAIN_CONFIG)?;
    let large_state = line("k", 1, &json!({ "do": "put", "bytes": 1_025 }));
    home.write("blocked.ndjson", text(&unnumbered(&[large_state])?))?;
    home.rows(&["publish", "second", "blocked.ndjson", "--json"])?;
    let emit = json!({ "do": "emit", "messages": MESSAGES });
    let lines: Vec<String> = (1..=EVENTS).map(|number| line("k", number, &emit)).collect();
    home.write("events.ndjson", text(&lines))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = http::admin(&mut service)?;
    let outbox = r#"ordain_outbox_pending{stream="first",partition="0"}"#;
    service.until("a full outbox", || {
        http::metric(address, outbox).is_ok_and(|messages| messages >= Some(OUTBOX))
    })?;
    // The host logs this warning only after the queue has been full for ten seconds.
    service.until_says("the queue of stream/second has reached its limit")?;
    let executed =
        http::metric(address, r#"ordain_events_total{stream="first",outcome="effect"}"#)?
            .context("executed events")?;
    let unpublished = http::metric(address, outbox)?.context("unpublished messages")?;
    ensure!(executed < EVENTS, "the first stage executed all events");
    ensure!(
        (OUTBOX..OUTBOX + RUN_AHEAD * MESSAGES).contains(&unpublished),
        "the outbox has {unpublished} messages"
    );
    // The last call before the limit may add ASSIGN_LIMIT messages to the queue. The second stage may have moved
    // SPILL_LIMIT events from the queue into the spill area.
    let limit = QUEUE + ASSIGN_LIMIT as u64 + SPILL_LIMIT;
    let published = executed * MESSAGES - unpublished;
    ensure!(published <= limit, "{published} messages are in the full queue");

    service.kill()?;
    let config = home.read("ordain.toml");
    let config = config.replace("state_size = \"1KiB\"", "state_size = \"2KiB\"");
    home.write(
        "ordain.toml",
        config.replace("run_ahead = 8\n", "").replace("spill_limit = 10\n", ""),
    )?;
    let report = home.run_once()?;
    // The messages are empty, so the handler rejects them in the second stage.
    ensure!(report["dead"]["rejected"] == EVENTS * MESSAGES, "{report}");
    ensure!(report["held"]["events"] == 0, "{report}");
    for (stream, next) in [("first", EVENTS + 1), ("second", EVENTS * MESSAGES + 2)] {
        let rows = home.rows(&["keys", "list", stream, "--json"])?;
        ensure!(rows.len() == 1 && rows[0]["next"] == next, "{stream}: {rows:?}");
    }
    Ok(())
}
