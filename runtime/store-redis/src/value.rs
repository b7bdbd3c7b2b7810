//! Taking the server's answers apart. Must answer for any shape: what came may be of another
//! program.

use bytes::Bytes;
use redis::Value;

use ordain_store::StoreError;

/// That an answer is not of the shape that was asked for.
pub(super) fn strange(what: &str) -> StoreError {
    StoreError::Corrupt(format!("an answer of the server to {what} has another form"))
}

/// Bytes; `None` for nil.
pub(super) fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        Value::SimpleString(text) => Some(text.into()),
        _ => None,
    }
}

/// A text; `None` for nil.
pub(super) fn text(value: Value) -> Option<String> {
    String::from_utf8(bytes(value)?.into()).ok()
}

/// A number, written as one or as text.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        Value::SimpleString(text) => text.parse().ok(),
        _ => None,
    }
}

/// The parts of an array.
pub(super) fn array(value: Value, what: &str) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(values) | Value::Set(values) => Ok(values),
        _ => Err(strange(what)),
    }
}

/// The parts of an array of so many.
pub(super) fn parts<const N: usize>(value: Value, what: &str) -> Result<[Value; N], StoreError> {
    array(value, what)?.try_into().map_err(|_| strange(what))
}
