//! Estimates the memory that the headers of a delivery take.

use lapin::types::{AMQPValue, FieldTable};

/// Approximate memory, in bytes, that each header and each value inside a header takes in addition to its texts.
const HEADER_BYTES: usize = 64;

/// Returns the approximate size of a table in memory, in bytes.
pub(super) fn weight(table: &FieldTable) -> usize {
    table.inner().iter().map(|(name, value)| name.as_str().len() + value_weight(value)).sum()
}

fn value_weight(value: &AMQPValue) -> usize {
    HEADER_BYTES
        + match value {
            AMQPValue::FieldArray(values) => values.as_slice().iter().map(value_weight).sum(),
            AMQPValue::FieldTable(values) => weight(values),
            AMQPValue::LongString(bytes) => bytes.as_bytes().len(),
            AMQPValue::ByteArray(bytes) => bytes.len(),
            AMQPValue::ShortString(text) => text.as_str().len(),
            _ => 0,
        }
}
