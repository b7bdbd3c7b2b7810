//! Events for the handler `orders`. The first event of each key creates an order, and all later events update the
//! order. The handler emits a message for each event with an even sequence: half of all events, if each key has an even
//! number of events.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Result;

/// Size of the data of each event that [`write()`] writes, in bytes.
const DATA_BYTES: usize = 256;

/// Writes `events` events. The events of the `keys` keys alternate.
pub(crate) fn write(path: &Path, keys: u64, events: u64) -> Result<()> {
    write_with(path, keys, events, |data, number, amount_cents| {
        *data += &format!("{{\"amount_cents\":{amount_cents},\"note\":\"");
        let pad = DATA_BYTES - data.len() - 2;
        (0..pad).for_each(|at| data.push(char::from(b'a' + ((number as usize + at) % 26) as u8)));
        data.push_str("\"}");
    })
}

/// Writes `events` events. The events of the `keys` keys alternate. `write_data` gets the number of an event and its
/// amount, and writes the data of the event.
pub(crate) fn write_with(
    path: &Path,
    keys: u64,
    events: u64,
    write_data: impl Fn(&mut String, u64, u64),
) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut data = String::new();
    for number in 0..events {
        let key = number % keys;
        let sequence = number / keys + 1;
        data.clear();
        write_data(&mut data, number, amount_cents(sequence));
        writeln!(
            out,
            "{{\"specversion\":\"1.0\",\"id\":\"{number:x}\",\"source\":\"/bench\",\
             \"type\":\"{}\",\"subject\":\"order-{key}\",\"sequence\":{sequence},\
             \"datacontenttype\":\"application/json\",\"data\":{data}}}",
            kind(sequence)
        )?;
    }
    Ok(out.flush()?)
}

/// Returns the type of an event.
pub(crate) fn kind(sequence: u64) -> &'static str {
    if sequence == 1 { "order.created" } else { "order.updated" }
}

/// Returns the amount in an event. The amount changes with every second event of a key. The handler emits a message for
/// an event that changes the amount.
pub(crate) fn amount_cents(sequence: u64) -> u64 {
    1_000 + sequence / 2
}
