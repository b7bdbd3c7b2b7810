//! Decodes the server's answers. The functions must not panic for an answer of any form, because another program may
//! have written the data.

use bytes::Bytes;
use redis::Value;

use ordain_store::StoreError;

pub(super) fn unexpected_reply(what: &str) -> StoreError {
    StoreError::Corrupt(format!("the server's answer to {what} has an unexpected form"))
}

/// Returns the bytes of a value; `None` for nil, and for any other value that is not a string.
pub(super) fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        Value::SimpleString(text) => Some(text.into()),
        _ => None,
    }
}

/// Returns the text of a value; `None` for a value that is not a string (such as nil), and for bytes that are not
/// UTF-8.
pub(super) fn text(value: Value) -> Option<String> {
    String::from_utf8(bytes(value)?.into()).ok()
}

/// Returns the number of a value that is an integer or a string of digits; `None` for any other value.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        Value::SimpleString(text) => text.parse().ok(),
        _ => None,
    }
}

pub(super) fn array(value: Value, what: &str) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(values) | Value::Set(values) => Ok(values),
        _ => Err(unexpected_reply(what)),
    }
}

pub(super) fn parts<const N: usize>(value: Value, what: &str) -> Result<[Value; N], StoreError> {
    array(value, what)?.try_into().map_err(|_| unexpected_reply(what))
}
