//! Events of orders for the handler `orders`: each key is created once and then updated until its last event. Half of
//! all events emit a message, for any number of keys.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Result;

/// Bytes of each event's data.
const DATA_BYTES: usize = 256;

/// Writes `events` events. The `keys` keys take turns.
pub(crate) fn write(path: &Path, keys: u64, events: u64) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut data = String::with_capacity(DATA_BYTES);
    for number in 0..events {
        let key = number % keys;
        let sequence = number / keys + 1;
        let step = if sequence == 1 { "created" } else { "updated" };
        // The amount changes with every second event of a key. An event that changes the amount emits a message.
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
