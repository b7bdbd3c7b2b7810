//! Measures the creation of an event: the packing of its fields, and the digest of its content. The digest of JSON
//! takes longer than the digest of text, because the digest of JSON does not depend on the form of the JSON.

use std::hint::black_box;
use std::time::Instant;

use ordain_core::{Event, EventParts};

use crate::CommonArgs;
use crate::report::Row;

/// The approximate sizes of the data, in bytes, each with the number of events.
const SIZES: [(usize, u32); 3] = [(100, 2_000_000), (1_000, 500_000), (64_000, 10_000)];
/// The content types of the data, each with its name.
const CONTENT_TYPES: [(&str, &str); 2] = [("JSON", "application/json"), ("text", "text/plain")];

pub(crate) fn rows(common: &CommonArgs) -> Vec<Row> {
    let mut rows = Vec::new();
    for (size, events) in SIZES {
        let data = json(size);
        for (name, content_type) in CONTENT_TYPES {
            let side = format!("new event, {size} bytes of {name}");
            eprintln!("{side}");
            let run = |_| row(&side, content_type, &data, events);
            let runs: Vec<Row> = (0..common.runs).map(run).collect();
            rows.push(Row::median(&runs));
        }
    }
    rows
}

/// Returns an object of about `size` bytes.
fn json(size: usize) -> Vec<u8> {
    let mut text = String::from("{\"order\":17");
    for number in 0.. {
        if text.len() + 1 >= size {
            break;
        }
        text += &format!(",\"field{number}\":\"value {number}\"");
    }
    text.push('}');
    text.into_bytes()
}

fn row(side: &str, content_type: &str, data: &[u8], events: u32) -> Row {
    let parts = EventParts {
        key: "key",
        id: "1",
        kind: "bench",
        source: "/bench",
        content_type,
        sequence: Some(1),
        data,
        ..EventParts::default()
    };
    let started = Instant::now();
    for _ in 0..events {
        black_box(Event::new(black_box(&parts)));
    }
    let took = started.elapsed();
    let events = f64::from(events);
    Row {
        side: side.to_owned(),
        events_per_s: events / took.as_secs_f64(),
        ns_per_event: Some(took.as_nanos() as f64 / events),
        ..Row::default()
    }
}
