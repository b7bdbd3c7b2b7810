//! Tests of the check of a demo.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;

/// The steps of two orders, in the order of the file. The last two lines are a repeated event and an impossible step.
const EVENTS: [(&str, u64, &str); 6] = [
    ("a", 2, "paid"),
    ("a", 1, "created"),
    ("b", 1, "created"),
    ("b", 2, "cancelled"),
    ("a", 2, "paid"),
    ("a", 3, "refunded"),
];

/// The differences that the check finds between the output of [`EVENTS`] and these receipts and dead letters. A receipt
/// is an id, an order and a status.
fn differences(receipts: &[(&str, &str, &str)], letters: &[(&str, u64)]) -> Result<Vec<String>> {
    let folder = TempDir::new()?;
    let write = |name: &str, lines: Vec<Value>| {
        let path = folder.path().join(name);
        let text = lines.iter().map(|line| format!("{line}\n")).collect::<Vec<_>>().concat();
        fs::write(&path, text).map(|()| path)
    };
    let events = EVENTS.iter().map(|(key, sequence, step)| {
        json!({
            "subject": key,
            "sequence": sequence.to_string(),
            "type": format!("order.{step}"),
            "data": { "amount_cents": 5 },
        })
    });
    let receipts = receipts.iter().map(|(id, key, status)| {
        json!({ "id": id, "data": { "order": key, "status": status, "amount_cents": 5 } })
    });
    let letters: Vec<Value> =
        letters.iter().map(|(key, sequence)| json!({ "key": key, "sequence": sequence })).collect();
    let expected = Expectation::from_events(&write("events", events.collect())?)?;
    let counts = &expected.counts;
    assert_eq!((counts.lines, counts.orders, counts.repeated), (6, 2, 1));
    assert_eq!((counts.out_of_order, counts.with_effect, counts.rejected), (1, 4, 1));
    assert_eq!(counts.receipts, 2);
    expected.differences(&write("receipts", receipts.collect())?, &letters)
}

const PAID: (&str, &str, &str) = ("1", "a", "paid");
const CANCELLED: (&str, &str, &str) = ("2", "b", "cancelled");

#[test]
fn correct_output_has_no_differences() -> Result<()> {
    assert_eq!(differences(&[CANCELLED, PAID], &[("a", 3)])?, Vec::<String>::new());
    Ok(())
}

#[test]
fn missing_repeated_and_wrong_receipts_are_found() -> Result<()> {
    let missing = differences(&[PAID], &[("a", 3)])?;
    assert_eq!(missing, ["order b: the receipts must be [(\"cancelled\", 5)], but are []"]);
    let repeated = differences(&[PAID, PAID, CANCELLED], &[("a", 3)])?;
    assert_eq!(repeated[0], "receipt 1 was written twice");
    let wrong = differences(&[PAID, CANCELLED, ("3", "a", "refunded")], &[("a", 3)])?;
    assert_eq!(wrong.len(), 1);
    let unknown = differences(&[PAID, CANCELLED, ("3", "c", "paid")], &[("a", 3)])?;
    assert_eq!(unknown, ["order c: the receipts must be [], but are [(\"paid\", 5)]"]);
    Ok(())
}

#[test]
fn missing_and_wrong_dead_letters_are_found() -> Result<()> {
    let missing = differences(&[PAID, CANCELLED], &[])?;
    assert_eq!(missing, ["event 3 of order a must be a dead letter"]);
    let wrong = differences(&[PAID, CANCELLED], &[("a", 3), ("b", 2)])?;
    assert_eq!(wrong, ["event 2 of order b must not be a dead letter"]);
    Ok(())
}

#[test]
fn number_of_listed_differences_is_limited() -> Result<()> {
    let letters: Vec<(&str, u64)> = (10..30).map(|sequence| ("a", sequence)).collect();
    let found = differences(&[PAID, CANCELLED], &letters)?;
    assert_eq!(found.len(), LISTED_LIMIT + 1);
    assert_eq!(found[LISTED_LIMIT], "and 11 more differences");
    Ok(())
}
