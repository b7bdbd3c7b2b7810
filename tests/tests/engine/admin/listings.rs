//! Tests of streams, keys, dead letters and handlers over HTTP. The responses must show the same data as the commands.

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::{Answer, get, ready};
use ordain_tests::service::{Service, wait_until};
use serde_json::{Value, json};

use super::support::{GOOD_KEYS, ODD_KEY, at_rest, home};

/// Returns all rows of a listing. Reads them in pages of three rows.
fn pages(path: &str, list: &str, get: impl Fn(&str) -> Result<Answer>) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    let mut cursor = None::<String>;
    loop {
        let from = cursor.map(|cursor| format!("&cursor={}", encoded(&cursor))).unwrap_or_default();
        let page = get(&format!("{path}&limit=3{from}"))?.json()?;
        let found = page[list].as_array().with_context(|| page.to_string())?;
        ensure!(found.len() <= 3, "a page has {} rows", found.len());
        rows.extend(found.iter().cloned());
        cursor = page["cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            return Ok(rows);
        }
    }
}

fn encoded(text: &str) -> String {
    let bytes: Vec<String> = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
    bytes.concat()
}

#[test]
fn pages_show_the_same_data_as_the_command_line() -> Result<()> {
    let home = home()?;
    let (mut service, address) = at_rest(&home)?;
    let request = |path: &str| get(address, path);
    let keys = pages("/v1/streams/cases/keys?prefix=", "keys", request)?;
    let parked = pages("/v1/streams/cases/keys?status=parked", "keys", request)?;
    let prefixed = pages("/v1/streams/cases/keys?prefix=k1", "keys", request)?;
    let dead = pages("/v1/dead?stream=cases", "dead", request)?;
    let one = request(&format!("/v1/streams/cases/keys/{}", encoded(ODD_KEY)))?.json()?;
    let of_key = request("/v1/dead?stream=cases&key=rejected")?.json()?;
    let id = of_key["dead"][0]["id"].as_str().context("the dead letter has no id")?.to_owned();
    let letter = request(&format!("/v1/dead?stream=cases&key=rejected&id={id}"))?.json()?;
    let mut streams = request("/v1/streams")?.json()?;
    let plugins = request("/v1/plugins")?.json()?;
    service.end()?;

    assert_eq!(keys.len(), GOOD_KEYS + 4);
    assert_eq!(keys, home.rows(&["keys", "list", "cases", "--json"])?);
    assert_eq!(parked, home.rows(&["keys", "list", "cases", "--status", "parked", "--json"])?);
    assert_eq!(prefixed, home.rows(&["keys", "list", "cases", "--prefix", "k1", "--json"])?);
    assert_eq!(dead, home.rows(&["dead", "list", "cases", "--json"])?);
    assert_eq!(vec![one.clone()], home.rows(&["keys", "show", "cases", ODD_KEY, "--json"])?);
    assert_eq!((&one["key"], &one["state_size"]), (&ODD_KEY.into(), &100.into()));
    let shown = home.rows(&["dead", "show", "cases", &id, "--key", "rejected", "--json"])?;
    assert_eq!(letter, json!({ "dead": shown, "cursor": null }));
    assert_eq!(of_key, letter);
    assert_eq!(
        streams["streams"][0]["generation"].take(),
        1,
        "only the running process knows the rollout, because `check` does not read the store"
    );
    assert_eq!(streams["streams"], home.rows(&["check", "--json"])?[0]["streams"]);
    let mut here = home.rows(&["plugins", "list", "--json"])?;
    assert_eq!(
        here[0]["handlers"][0]["running"].take(),
        Value::Null,
        "`plugins list` does not contact a process"
    );
    here[0]["handlers"][0]["running"] = json!(["cases"]);
    assert_eq!(vec![plugins], here);
    Ok(())
}

#[test]
fn running_version_is_distinguished_from_the_file() -> Result<()> {
    let home = home()?;
    let (_service, address) = at_rest(&home)?;
    let handlers = || -> Result<Vec<(String, String, Value)>> {
        let plugins = get(address, "/v1/plugins")?.json()?;
        let rows = plugins["handlers"].as_array().context("handlers")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let row = |handler: &Value| {
            (text(&handler["digest"]), text(&handler["state"]), handler["running"].clone())
        };
        Ok(rows.iter().map(row).collect())
    };
    let streams = get(address, "/v1/streams")?.json()?;
    let digest = streams["streams"][0]["digest"].as_str().context("a digest")?.to_owned();
    let row = |state: &str, running: Value| (digest.clone(), state.to_owned(), running);
    assert_eq!(handlers()?, [row("active", json!(["cases"]))]);

    let tally = Home::new(&["tally"], "")?;
    home.replace("plugins/faulty.wasm", std::fs::read(tally.path("plugins/tally.wasm"))?)?;
    // The stream must run the new version.
    wait_until("the new version", || {
        let [other] = &handlers()?[..] else { return Ok(false) };
        Ok(other.0 != digest && (&*other.1, &other.2) == ("active", &json!(["cases"])))
    })?;
    let other = handlers()?.remove(0).0;
    std::fs::remove_file(home.path("plugins/faulty.wasm"))?;
    let gone = [(other, "gone".to_owned(), json!(["cases"]))];
    wait_until("the state \"gone\"", || Ok(handlers()? == gone))
}

#[test]
fn page_is_valid_json_with_invalid_lines_of_all_kinds() -> Result<()> {
    let home = home()?;
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    let lines = [deep.as_bytes(), b"[1e999]", b" {\"a\": [1.0]}", b"text", b"\xff"];
    home.write("events.ndjson", lines.join(&b'\n'))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    let dead = || Some(get(address, "/v1/dead?stream=cases").ok()?.json().ok()?["dead"].take());
    service.until("the dead letters", || dead().is_some_and(|letters| letters[3].is_object()))?;
    let dead = dead().context("letters")?;
    let mut raw: Vec<&Value> =
        dead.as_array().context("a list")?.iter().map(|letter| &letter["raw"]).collect();
    for right in [
        json!({ "text": deep }),
        json!({ "text": "[1e999]" }),
        json!({ "a": [1.0] }),
        json!("text"),
    ] {
        let at =
            raw.iter().position(|value| **value == right).with_context(|| right.to_string())?;
        raw.remove(at);
    }
    Ok(())
}

#[test]
fn invalid_request_is_rejected_with_its_remedy() -> Result<()> {
    let home = home()?;
    home.write("events.ndjson", "")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    for (path, status, words) in [
        ("/", 404, "There are: /metrics"),
        ("/v1/scale/nothing", 404, "no stream \"nothing\" is configured"),
        ("/v1/nothing", 404, "there is no such page"),
        ("/v1/streams/odd/keys", 404, "there is no stream \"odd\"; existing streams: cases"),
        ("/v1/streams/odd/keys/k", 404, "there is no stream \"odd\""),
        ("/v1/dead?stream=odd", 404, "there is no stream \"odd\""),
        ("/v1/streams/cases/keys/absent", 404, "key \"absent\" of stream cases was never"),
        ("/v1/streams/cases/keys/%ff", 400, "the path cannot be read"),
        ("/v1/streams/cases/keys?status=odd", 400, "one of active, waiting, retrying, parked"),
        ("/v1/streams/cases/keys?limit=0", 400, "from 1 to 1000"),
        ("/v1/streams/cases/keys?limit=1001", 400, "from 1 to 1000"),
        ("/v1/streams/cases/keys?limit=-1", 400, "limit"),
        ("/v1/streams/cases/keys?limit=x", 400, "limit"),
        ("/v1/streams/cases/keys?cursor=odd", 400, "the cursor \"odd\" does not belong to this"),
        ("/v1/streams/cases/keys?cursor=k1:x&prefix=y", 400, "does not belong to this listing"),
        ("/v1/streams/cases/keys?odd=1", 400, "unknown field `odd`"),
        ("/v1/dead", 400, "the query names no stream: add `stream`, as in /v1/dead?stream="),
        ("/v1/dead?stream=cases&cursor=odd", 400, "does not belong to this listing"),
        ("/v1/dead?stream=cases&id=odd", 400, "9b83, see `ordain dead list cases`"),
    ] {
        let answer = get(address, path)?;
        let problem = answer.problem()?;
        ensure!(answer.status == status && problem.contains(words), "{path}: {answer:?}");
    }
    let none = get(address, "/v1/dead?stream=cases&id=1-1")?.json()?;
    assert_eq!(none, json!({ "dead": [], "cursor": null }));
    for request in ["POST /v1/streams", "DELETE /v1/streams/cases/keys/k", "PUT /healthz"] {
        let request = format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = ordain_tests::http::send(address, request.as_bytes())?;
        ensure!(answer.status == 405 && answer.problem()?.contains("use GET"), "{answer:?}");
    }
    Ok(())
}
