//! The expected messages of the handler `plugins/tally`. The tests compute them from the input alone.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::log::Line;

/// The configuration of a stream that reads a file, executes the handler `tally`, and writes its messages to another
/// file.
pub const CONFIG: &str = r#"
[streams.cases]
handler = "tally"
source = { kind = "file", path = "events.ndjson" }

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

/// The hash before the first event of a key.
pub const FIRST_HASH: u64 = 0xcbf2_9ce4_8422_2325;

/// Returns the hash after one more event, by the rule that `plugins/tally` documents.
pub fn hash(mut hash: u64, line: &Line) -> u64 {
    let mut take = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    take(&line.sequence.to_le_bytes());
    take(&(line.kind.len() as u64).to_le_bytes());
    take(line.kind.as_bytes());
    take(&(line.data.len() as u64).to_le_bytes());
    take(line.data.as_bytes());
    hash
}

/// Checks the messages of a file sink against the input: each key must have one message for each event, in order, with
/// the right count and hash. No id may occur twice.
pub fn check(input: &BTreeMap<String, BTreeMap<u64, Line>>, output: &str) -> Result<()> {
    let mut ids = HashSet::new();
    let mut got: BTreeMap<String, Vec<(u64, u64, String)>> = BTreeMap::new();
    for line in output.lines() {
        let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let id = message["id"].as_str().context("an id")?;
        ensure!(ids.insert(id.to_owned()), "the message {id} occurs twice");
        let data = &message["data"];
        let key = data["key"].as_str().context("a key")?;
        ensure!(message["subject"] == *key, "a message of another key: {line}");
        let hash = data["hash"].as_str().context("a hash")?.to_owned();
        let sequence = data["sequence"].as_u64().context("a sequence")?;
        let count = data["count"].as_u64().context("a count")?;
        got.entry(key.to_owned()).or_default().push((sequence, count, hash));
    }
    for (key, events) in input {
        let mut so_far = FIRST_HASH;
        let expected: Vec<(u64, u64, String)> = (1..)
            .zip(events.values())
            .map(|(count, line)| {
                so_far = hash(so_far, line);
                (line.sequence, count, format!("{so_far:016x}"))
            })
            .collect();
        let got = got.remove(key).unwrap_or_default();
        let same = got.iter().zip(&expected).take_while(|(got, expected)| got == expected).count();
        ensure!(
            got == expected,
            "key {key}: {} messages instead of {}; after {same} right messages, {:?} follows instead of {:?}",
            got.len(),
            expected.len(),
            got.get(same),
            expected.get(same)
        );
    }
    ensure!(got.is_empty(), "messages of unknown keys: {:?}", got.keys());
    Ok(())
}
