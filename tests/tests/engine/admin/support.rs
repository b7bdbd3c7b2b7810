//! A stream with active keys, parked keys and dead letters, for the tests of the admin listener.

use std::net::SocketAddr;

use anyhow::Result;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{line, text};
use ordain_tests::service::Service;
use serde_json::json;

pub(crate) const CONFIG: &str = r#"
[streams.cases]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }
gap = { timeout = "1ms", attempts = 1 }

[sinks.faulty]
kind = "file"
path = "out.ndjson"
"#;

/// The number of keys for whose events the handler only emits messages.
pub(crate) const GOOD_KEYS: usize = 20;
pub(crate) const EVENTS: u64 = 10;
/// A key with characters that must be percent-encoded in a URL.
pub(crate) const ODD_KEY: &str = "a/b?c=d&e%2f#ü +%";

/// Returns a home whose input contains [`GOOD_KEYS`] keys without failures, and a key with special characters. The
/// input also contains a key that is parked because of a gap, a key that is parked because its handler traps, a
/// rejected event, and an invalid line.
pub(crate) fn home() -> Result<Home> {
    let home = Home::new(&["faulty"], CONFIG)?;
    home.write("events.ndjson", text(&events()))?;
    Ok(home)
}

fn events() -> Vec<String> {
    let emit = json!({ "do": "emit" });
    let good =
        (1..=EVENTS).flat_map(|event| (0..GOOD_KEYS).map(move |key| (format!("k{key}"), event)));
    let mut events: Vec<String> = good.map(|(key, event)| line(&key, event, &emit)).collect();
    events.extend([
        line(ODD_KEY, 1, &json!({ "do": "put", "bytes": 100 })),
        line("gap", 2, &emit),
        line("trap", 1, &json!({ "do": "trap" })),
        line("trap", 2, &emit),
        line("rejected", 1, &json!({ "do": "reject", "reason": "no \u{7} good" })),
        "no event".to_owned(),
    ]);
    events
}

pub(crate) fn at_rest(home: &Home) -> Result<(Service, SocketAddr)> {
    let mut service = Service::start(home, &["run"])?;
    let address = http::ready(&mut service)?;
    service.until("all messages, parked keys and dead letters", || {
        let rows = |path: &str, list: &str| {
            let page = http::get(address, path).and_then(|response| response.json());
            page.is_ok_and(|page| page[list].as_array().is_some_and(|rows| rows.len() == 2))
        };
        let messages = home.lines("out.ndjson") as u64 == GOOD_KEYS as u64 * EVENTS;
        messages
            && rows("/v1/streams/cases/keys?status=parked", "keys")
            && rows("/v1/dead?stream=cases", "dead")
    })?;
    Ok((service, address))
}
