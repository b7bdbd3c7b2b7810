//! Tests of streams from a file and over HTTP whose settings name the places of the key and the id of their events.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::{LINES_TYPE, ingress, post};
use ordain_tests::service::Service;
use serde_json::{Value, json};

/// Returns the configuration of a `fifo` stream with this source, which is in line 4.
fn config(source: &str) -> String {
    format!(
        "[streams.cases]\nhandler = \"tally\"\nordering = \"fifo\"\nsource = {{ {source} }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"out.ndjson\"\n"
    )
}

fn event(id: &str, data: &Value) -> String {
    let event = json!({
        "specversion": "1.0", "id": id, "source": "/s", "type": "t", "customer": "anna", "data": data,
    });
    format!("{event}\n")
}

fn messages(home: &Home) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for line in home.read("out.ndjson").lines() {
        let message: Value = serde_json::from_str(line)?;
        let key = message["subject"].as_str().context("a key")?;
        *counts.entry(key.to_owned()).or_default() += 1;
    }
    Ok(counts)
}

#[test]
fn file_has_composite_keys_and_ids_from_the_content() -> Result<()> {
    let source = "kind = \"file\", path = \"events.ndjson\", id = \"content\", \
                  key = \"{attribute:customer}/{data:/order}\"";
    let home = Home::new(&["tally"], &config(source))?;
    let [first, second] = [1, 2].map(|n| json!({ "order": "o-1", "n": n }));
    // All events have the same id, which has no meaning here. The third event repeats the first event.
    let events = [
        event("same", &first),
        event("same", &second),
        event("same", &first),
        event("same", &json!({ "order": 2 })),
        event("same", &json!({ "order": null })),
    ];
    home.write("events.ndjson", events.concat())?;
    let report = home.run_once()?;
    ensure!(report["settled"] == 3 && report["duplicates"] == 1, "{report}");
    let expected = [("anna/o-1".to_owned(), 2), ("anna/2".to_owned(), 1)];
    ensure!(messages(&home)? == BTreeMap::from(expected), "{}", home.read("out.ndjson"));
    let letters = home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.len() == 1 && letters[0]["cause"] == "no-key", "{letters:?}");
    let error = "there is no key: the data at \"/order\" must contain a part of the key";
    ensure!(letters[0]["error"] == error, "{letters:?}");
    Ok(())
}

#[test]
fn events_over_http_are_spread_by_the_located_key() -> Result<()> {
    let source = "kind = \"http\", partitions = 4, key = \"data:/order\", id = \"none\"";
    let ingress_listener = "[ingress]\nlisten = \"127.0.0.1:0\"\n";
    let home = Home::new(&["tally"], &(config(source) + ingress_listener))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    // With `id = "none"`, no event counts as a repeat.
    let lines: String = (0..40).map(|n| event("same", &json!({ "order": n % 8 }))).collect();
    let answer = post(address, LINES_TYPE, &lines)?;
    ensure!(answer.status == 202, "{answer:?}");
    let answer = post(address, LINES_TYPE, &event("same", &json!({})))?;
    let words = "there is no key: the data at \\\"/order\\\" must contain the key";
    ensure!(answer.status == 400 && answer.body.contains(words), "{answer:?}");
    service.until("all messages", || home.lines("out.ndjson") >= 40)?;
    service.end()?;
    let expected: BTreeMap<String, usize> = (0..8).map(|key| (key.to_string(), 5)).collect();
    ensure!(messages(&home)? == expected, "{}", home.read("out.ndjson"));
    Ok(())
}

#[test]
fn foreign_location_ends_the_start_with_the_right_form() -> Result<()> {
    let source = "kind = \"file\", path = \"events.ndjson\", key = \"header:order\"";
    let home = Home::new(&["tally"], &config(source))?;
    let output = home.output(&["run", "--once"])?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(78), "{:?}: {errors}", output.status);
    ensure!(errors.contains("ordain.toml:4: streams.cases.source.key: "), "{errors}");
    ensure!(errors.contains("use \"attribute:NAME\""), "{errors}");
    Ok(())
}
