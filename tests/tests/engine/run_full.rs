//! A test of `overflow = "pause"` with a stopped key that has reached its limit of spilled events. The run must report
//! the key and end.

use anyhow::Result;
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, line};
use ordain_tests::tally;
use serde_json::json;

fn config(on_exhausted: &str, spill_limit: u32) -> String {
    format!(
        r#"
[streams.cases]
handler = "tally"
source = {{ kind = "file", path = "events.ndjson", prefetch = 4 }}
spill_limit = {spill_limit}
lane_buffer = 1
spill_after = "1ms"
gap = {{ timeout = "10ms", attempts = 1, on_exhausted = "{on_exhausted}" }}

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#
    )
}

#[test]
fn full_key_ends_the_run() -> Result<()> {
    for on_exhausted in ["park", "wait"] {
        let home = Home::new(&["tally"], &config(on_exhausted, 2))?;
        // Event 1 of `a` arrives after more events than the store may hold for the key.
        let order = (2..=9).map(|sequence| ("a", sequence)).chain([("b", 1), ("a", 1)]);
        let lines: Vec<String> = order.map(|(key, n)| line(key, n, &json!({ "n": n }))).collect();
        home.write("events.ndjson", lines.join("\n") + "\n")?;

        let run = home.output(&["run", "--once"])?;
        let stderr = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{on_exhausted}: {stderr}");
        for words in ["\"a\" is stopped at event 1", "`spill_limit`", "`overflow = \"pause\"`"] {
            assert!(stderr.contains(words), "{on_exhausted}: {words:?} in {stderr}");
        }

        home.write("ordain.toml", config(on_exhausted, 100))?;
        home.run_once()?;
        tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    }
    Ok(())
}
