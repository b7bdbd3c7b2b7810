//! Events for the handler `orders`. The first event of each key creates an order, and all later events update the
//! order. The handler emits a message for each event with an even sequence: half of all events, if each key has an even
//! number of events.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Result;

/// Size of the data of each event, in bytes.
const DATA_BYTES: usize = 256;

/// Writes `events` events. The events of the `keys` keys alternate.
pub(crate) fn write(path: &Path, keys: u64, events: u64) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut data = String::with_capacity(DATA_BYTES);
    for number in 0..events {
        let key = number % keys;
        let sequence = number / keys + 1;
        let step = if sequence == 1 { "created" } else { "updated" };
        // The amount changes with every second event of a key. The handler emits a message for an event that changes
        // the amount.
        data.clear();
        write!(data, "{{\"amount_cents\":{},\"note\":\"", 1_000 + sequence / 2)?;
        let pad = DATA_BYTES - data.len() - 2;
        (0..pad).for_each(|at| data.push(char::from(b'a' + ((number as usize + at) % 26) as u8)));
        data.push_str("\"}");
        writeln!(
            out,
            "{{\"specversion\":\"1.0\",\"id\":\"{number:x}\",\"source\":\"/bench\",\
             \"type\":\"order.{step}\",\"subject\":\"order-{key}\",\"sequence\":{sequence},\
             \"datacontenttype\":\"application/json\",\"data\":{data}}}"
        )?;
    }
    Ok(out.flush()?)
}
