//! Dead letters that are published to an exchange.

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::message::Delivery;
use lapin::types::{FieldTable, ShortString};
use ordain_tests::amqp::{from_line, header};
use ordain_tests::log::line;
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use serde_json::json;

fn has(letter: &Delivery, headers: &[(&str, &str)]) -> Result<()> {
    for (name, value) in headers {
        let found = header(letter, name);
        ensure!(found.as_deref() == Some(*value), "{name} is {found:?} in {letter:?}");
    }
    Ok(())
}

#[test]
fn an_exchange_gets_dead_letters_with_their_reason() -> Result<()> {
    let rig = Rig::with("", "dead_letter = \"dead\"", "")?;
    rig.client.exchange("graves", ExchangeKind::Topic)?;
    rig.client.queue("graves")?;
    rig.client.bind("graves", "graves", "grave.#")?;
    let sink =
        "[sinks.dead]\nkind = \"amqp\"\nexchange = \"graves\"\nrouting_key = \"grave.{key}\"\n";
    let config = rig.home.read("ordain.toml").replace("\"tally\"", "\"faulty\"");
    rig.home.write("ordain.toml", config + sink)?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;

    let why = "no, thank you. ".repeat(30);
    let rejected = from_line(&line("a", 1, &json!({ "do": "reject", "reason": why })))?;
    let mut unnumbered = from_line(&line("b", 1, &json!({ "do": "ok" })))?;
    unnumbered.properties = unnumbered.properties.with_headers(FieldTable::default());
    let mut keyless = from_line(&line("", 1, &json!("no key")))?;
    keyless.body = b"\xff\xfe".to_vec();
    rig.client.publish("cases", &[rejected, unnumbered, keyless])?;

    let taken = rig.client.take("graves", 3)?;
    let letter = |cause: &str, routing_key: &str| {
        let found = taken.iter().find(|it| header(it, "deadcause").as_deref() == Some(cause));
        let found = found.filter(|it| it.routing_key.as_str() == routing_key);
        found.with_context(|| format!("no letter {cause} under {routing_key} in {taken:?}"))
    };
    let rejected = letter("rejected", "grave.a")?;
    has(
        rejected,
        &[
            ("deaderror", &why),
            ("deadsequence", "1"),
            ("deadid", "a-1"),
            ("X-Sequence-ID", "1"),
            ("X-Key", "a"),
            ("cloudEvents:source", "/ordain/cases"),
        ],
    )?;
    ensure!(header(rejected, "deadversion").is_some_and(|it| it.starts_with("faulty+")));
    let properties = &rejected.properties;
    let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
    ensure!(text(properties.message_id()).is_some_and(|it| it.starts_with("cases/a/dead/1/")));
    ensure!(text(properties.kind()).as_deref() == Some("test"), "{properties:?}");
    ensure!(text(properties.content_type()).as_deref() == Some("application/json"));
    let data: serde_json::Value = serde_json::from_slice(&rejected.data)?;
    ensure!(data == json!({ "do": "reject", "reason": why }), "{data}");

    let unnumbered = letter("no-sequence", "grave.b")?;
    has(unnumbered, &[("X-Key", "b"), ("deadid", "b-1")])?;
    ensure!(header(unnumbered, "X-Sequence-ID").is_none(), "{unnumbered:?}");
    let keyless = letter("no-key", "grave.")?;
    has(keyless, &[("deadorigin", "queue cases")])?;
    ensure!(text(keyless.properties.kind()).as_deref() == Some("ordain.dead-letter"));
    let whole: serde_json::Value = serde_json::from_slice(&keyless.data)?;
    ensure!(whole["body"] == "//4=" && whole["properties"]["message_id"] == "-1", "{whole}");

    rig.until_empty()?;
    service.end()?;
    let stored = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(stored.len() == 3, "{stored:?}");
    Ok(())
}
