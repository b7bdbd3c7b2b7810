//! Runs the example `orders` of each language. The messages and the dead letters must be those of the handler in Rust.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::{Result, ensure};
use ordain_generate::{EventShape, LoadOptions, Probability, generate_to};
use serde_json::{Value, json};

use super::language::{C, GO, JAVASCRIPT, Language, PYTHON, RUST, SPIDERMONKEY, ZIG};
use super::output::{Output, SeenLetter, SeenMessage, run};

/// Number of generated events.
const EVENTS: u64 = 5_000;

/// The beginning of the part of a reason that the JSON library of a language writes.
const DECODE_ERROR: &str = "cannot be decoded";

#[test]
fn javascript_on_quickjs_handles_orders_as_rust_does() -> Result<()> {
    handles_orders(JAVASCRIPT)
}

#[test]
fn javascript_on_spidermonkey_handles_orders_as_rust_does() -> Result<()> {
    handles_orders(SPIDERMONKEY)
}

#[test]
fn python_handles_orders_as_rust_does() -> Result<()> {
    handles_orders(PYTHON)
}

#[test]
fn go_handles_orders_as_rust_does() -> Result<()> {
    handles_orders(GO)
}

#[test]
fn c_handles_orders_as_rust_does() -> Result<()> {
    handles_orders(C)
}

#[test]
fn zig_handles_orders_as_rust_does() -> Result<()> {
    handles_orders(ZIG)
}

/// The effects of a run, by key.
struct Effects {
    messages: BTreeMap<String, Vec<SeenMessage>>,
    /// The dead letters of events that the handler refused, in the order of the key.
    refused: BTreeMap<String, Vec<SeenLetter>>,
    /// The dead letters of events that the host could not read. They have no place in the order of the key.
    unreadable: BTreeMap<String, Vec<SeenLetter>>,
}

fn handles_orders(language: Language) -> Result<()> {
    static EXPECTED: OnceLock<Result<Effects, String>> = OnceLock::new();
    let expected = EXPECTED.get_or_init(|| effects(RUST).map_err(|error| format!("{error:#}")));
    let expected = expected.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(
        expected.messages.len() > 100
            && expected.refused.len() > 50
            && expected.unreadable.len() == 1,
        "the events show too little"
    );
    let found = effects(language)?;
    compare(language, &expected.messages, &found.messages)?;
    compare(language, &expected.refused, &found.refused)?;
    compare(language, &expected.unreadable, &found.unreadable)
}

fn compare<T: PartialEq + std::fmt::Debug>(
    language: Language,
    expected: &BTreeMap<String, T>,
    found: &BTreeMap<String, T>,
) -> Result<()> {
    for key in expected.keys().chain(found.keys()) {
        let [expected, found] = [expected.get(key), found.get(key)];
        ensure!(expected == found, "{}: order {key:?}: {found:?}, not {expected:?}", language.name);
    }
    Ok(())
}

fn effects(language: Language) -> Result<Effects> {
    let Output { messages, letters, .. } = run(language, "orders", "receipts", events()?)?;
    let mut effects = Effects { messages, refused: BTreeMap::new(), unreadable: BTreeMap::new() };
    for (key, letters) in letters {
        for mut letter in letters {
            if let Some(at) = letter.reason.find(DECODE_ERROR) {
                letter.reason.truncate(at + DECODE_ERROR.len());
            }
            let letters = match letter.cause.as_str() {
                "unreadable" => &mut effects.unreadable,
                _ => &mut effects.refused,
            };
            letters.entry(key.clone()).or_default().push(letter);
        }
    }
    Ok(effects)
}

/// Generated orders, with impossible steps, and an order with unusual data.
fn events() -> Result<Vec<u8>> {
    let load = LoadOptions {
        seed: 7,
        events: EVENTS,
        keys: 100,
        end_of_sequence: true,
        shape: EventShape::Orders,
        impossible: Probability(0.05),
        ..LoadOptions::default()
    };
    let mut events = Vec::new();
    generate_to(&load, &mut events, None, &mut ())?;
    for (sequence, (kind, data)) in (1..).zip(unusual()) {
        let event = json!({
            "specversion": "1.0", "id": format!("unusual-{sequence}"), "source": "/tests", "type": kind,
            "subject": "ünusual ☃", "sequence": sequence, "data": data,
        });
        events.extend(format!("{event}\n").bytes());
    }
    Ok(events)
}

/// The types and the data of the events of an order.
fn unusual() -> Vec<(&'static str, Value)> {
    vec![
        ("order.created", json!({ "amount_cents": -1 })),
        ("order.created", json!({ "amount_cents": 1.5 })),
        ("order.created", json!({ "amount_cents": "12" })),
        ("order.created", json!([])),
        ("order.created", json!("text")),
        ("order.created", json!({})),
        ("order.created", Value::Null),
        ("order.created", json!({ "amount_cents": null })),
        ("order.forgotten", json!({})),
        ("", json!({})),
        ("created", json!({ "amount_cents": 9_007_199_254_740_991_u64, "other": "☃" })),
        ("order.updated", json!({ "amount_cents": 0 })),
        ("order.updated", json!({ "amount_cents": 0 })),
        ("order.updated", json!({})),
        ("order.created", json!({ "amount_cents": 1 })),
        ("order.paid", json!({ "amount_cents": 5 })),
        ("order.updated", json!({ "amount_cents": 7 })),
        ("order.packed", json!({ "amount_cents": false })),
        ("order.cancelled", Value::Null),
        ("order.refunded", Value::Null),
        ("order.created", json!({ "amount_cents": 3 })),
    ]
}
