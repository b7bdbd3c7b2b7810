//! Conversions from values of AMQP headers to the types that Ordain uses.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lapin::types::{AMQPType, AMQPValue, DecimalValue, FieldTable, ShortString};
use serde_json::{Value, json};

use ordain_util::text::{latin1_text, truncated};

/// Size limit, in bytes, of a value that an error quotes.
pub(super) const EXCERPT_LIMIT: usize = 60;
/// Maximum size of the name of a header or field, in bytes: the maximum size of a short string of AMQP.
pub(super) const NAME_LIMIT: usize = 255;

/// The first character of the parser's text for a short string of AMQP that is not UTF-8. The bytes of the short string
/// follow, in hexadecimal digits.
const NOT_UTF8: char = '\u{fffd}';

/// Returns the bytes, in hexadecimal digits, of a short string that was not UTF-8. `text` is the text that the AMQP
/// parser returned for the short string. Returns `None` for a short string that was UTF-8. There is one exception: a
/// short string in UTF-8 may itself consist of U+FFFD and hexadecimal digits of bytes that are not UTF-8. The AMQP
/// parser returns the same text for this short string and for these bytes. This function cannot distinguish the two
/// cases, and returns the digits in both.
pub(super) fn not_utf8(text: &str) -> Option<&str> {
    let digits = text.strip_prefix(NOT_UTF8)?;
    let bytes = decode_hex(digits)?;
    std::str::from_utf8(&bytes).is_err().then_some(digits)
}

/// Returns a short string of AMQP as text. Decodes a short string that was not UTF-8 as Latin-1. `text` is the text
/// that the AMQP parser returned for the short string.
pub(super) fn short_text(text: Cow<'_, str>) -> Cow<'_, str> {
    match not_utf8(&text).and_then(decode_hex) {
        Some(bytes) => Cow::Owned(latin1_text(&bytes)),
        None => text,
    }
}

/// Decodes pairs of lowercase hexadecimal digits.
fn decode_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? * 16 + digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

/// Returns whether a header has a value. A header of AMQP's type void has no value, and counts as missing. An array
/// that contains only values of the type void also counts as missing. Celery writes such an array for a task without
/// time limits, and a Celery worker would end with an error if it received this header as a text.
pub(super) fn has_value(value: &AMQPValue) -> bool {
    match value {
        AMQPValue::Void => false,
        AMQPValue::FieldArray(values) => {
            let values = values.as_slice();
            values.is_empty() || values.iter().any(|value| !matches!(value, AMQPValue::Void))
        }
        _ => true,
    }
}

/// Returns a text value, the digits of a number, or `true` or `false`. Decodes a text that is not UTF-8 as Latin-1,
/// because some clients write Latin-1. Returns `None` for a byte array that is not UTF-8, and for a value of any other
/// type. In AMQP, the value of a header is never a short string, so this function need not call [`not_utf8`].
pub(super) fn as_text(value: &AMQPValue) -> Option<Cow<'_, str>> {
    match value {
        AMQPValue::LongString(text) => Some(match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(latin1_text(text.as_bytes())),
        }),
        AMQPValue::ShortString(text) => Some(Cow::Borrowed(text.as_str())),
        AMQPValue::ByteArray(bytes) => {
            std::str::from_utf8(bytes.as_slice()).ok().map(Cow::Borrowed)
        }
        AMQPValue::Boolean(value) => Some(Cow::Borrowed(if *value { "true" } else { "false" })),
        AMQPValue::DecimalValue(decimal) => Some(Cow::Owned(decimal_text(*decimal))),
        AMQPValue::Float(number) => number.is_finite().then(|| format!("{number:?}").into()),
        AMQPValue::Double(number) => number.is_finite().then(|| format!("{number:?}").into()),
        value => number(value).map(|number| Cow::Owned(number.to_string())),
    }
}

/// Returns the digits of a decimal number. The text of a whole number contains no decimal point, even if the number has
/// a scale.
fn decimal_text(decimal: DecimalValue) -> String {
    // AMQP defines this number without a sign, but the clients of RabbitMQ write it as a signed integer.
    let value = decimal.value.cast_signed();
    let scale = usize::from(decimal.scale);
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if value < 0 { "-" } else { "" };
    if fraction.bytes().all(|digit| digit == b'0') {
        format!("{sign}{whole}")
    } else {
        format!("{sign}{whole}.{fraction}")
    }
}

/// Returns the integer that a value represents: a whole number from 0 on, or a text of decimal digits.
pub(super) fn as_integer(value: &AMQPValue) -> Option<u64> {
    if let Some(number) = number(value) {
        return u64::try_from(number).ok();
    }
    let text = as_text(value)?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns the Boolean that a value represents. Such a value is a Boolean, the text `true` or `false` in upper or lower
/// case, or the text or number `1` or `0`.
pub(super) fn as_bool(value: &AMQPValue) -> Option<bool> {
    match value {
        AMQPValue::Boolean(value) => Some(*value),
        value => match &*as_text(value)? {
            "1" => Some(true),
            "0" => Some(false),
            text if text.eq_ignore_ascii_case("true") => Some(true),
            text if text.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        },
    }
}

/// Returns a number as an integer; `None` for a number with a fraction, and for a value of any other type.
fn number(value: &AMQPValue) -> Option<i128> {
    Some(match value {
        AMQPValue::ShortShortInt(number) => (*number).into(),
        AMQPValue::ShortShortUInt(number) => (*number).into(),
        AMQPValue::ShortInt(number) => (*number).into(),
        AMQPValue::ShortUInt(number) => (*number).into(),
        AMQPValue::LongInt(number) => (*number).into(),
        AMQPValue::LongUInt(number) => (*number).into(),
        AMQPValue::LongLongInt(number) => (*number).into(),
        AMQPValue::Timestamp(number) => (*number).into(),
        AMQPValue::DecimalValue(decimal) => return decimal_text(*decimal).parse().ok(),
        _ => return None,
    })
}

/// Returns a value as JSON. If the JSON is longer than `limit` bytes, returns its first `limit` bytes, with an ellipsis
/// at the end.
pub(super) fn json(value: &AMQPValue, limit: usize) -> String {
    truncated(to_json(value).to_string(), limit)
}

pub(super) fn excerpt(value: &AMQPValue) -> String {
    match value {
        // As JSON, a decimal number is a text in quotation marks.
        AMQPValue::DecimalValue(decimal) => decimal_text(*decimal),
        value => json(value, EXCERPT_LIMIT),
    }
}

pub(super) fn table(table: &FieldTable) -> Value {
    table.inner().iter().map(|(name, value)| (name.to_string(), to_json(value))).collect()
}

/// Converts a value to JSON. A decimal number with a fraction, and an integer above the range of `i64`, become texts.
/// Bytes that are not UTF-8 become base64.
fn to_json(value: &AMQPValue) -> Value {
    if let Some(number) = number(value) {
        return i64::try_from(number).map_or_else(|_| number.to_string().into(), Value::from);
    }
    match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::Float(number) => f64::from(*number).into(),
        AMQPValue::Double(number) => (*number).into(),
        AMQPValue::DecimalValue(decimal) => decimal_text(*decimal).into(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(to_json).collect(),
        AMQPValue::FieldTable(values) => table(values),
        AMQPValue::LongString(bytes) => bytes_to_json(bytes.as_bytes()),
        AMQPValue::ByteArray(bytes) => bytes_to_json(bytes.as_slice()),
        AMQPValue::ShortString(text) => text.as_str().into(),
        _ => Value::Null,
    }
}

fn bytes_to_json(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| STANDARD.encode(bytes).into(), Value::from)
}

/// Returns whether [`from_json`] restores a value from the result of [`to_json`].
pub(super) fn has_evident_type(value: &AMQPValue) -> bool {
    match value {
        AMQPValue::Boolean(_) | AMQPValue::LongInt(_) | AMQPValue::Void => true,
        AMQPValue::LongLongInt(number) => i32::try_from(*number).is_err(),
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).is_ok(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().all(has_evident_type),
        AMQPValue::FieldTable(table) => table.inner().values().all(has_evident_type),
        _ => false,
    }
}

/// Converts JSON to a value. Each JSON type becomes the AMQP type that clients usually write for it.
pub(super) fn from_json(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => {
                i32::try_from(number).map_or(AMQPValue::LongLongInt(number), AMQPValue::LongInt)
            }
            None => AMQPValue::Double(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Array(values) => {
            AMQPValue::FieldArray(values.iter().map(from_json).collect::<Vec<_>>().into())
        }
        Value::Object(members) => {
            let mut table = FieldTable::default();
            for (name, value) in members {
                table.insert(field_name(name), from_json(value));
            }
            AMQPValue::FieldTable(table)
        }
    }
}

/// Converts a value and its type to a JSON array with two elements: the letter that stands for the type in AMQP, and
/// the value. Texts and bytes become base64, and floating-point numbers become texts.
pub(super) fn to_typed_json(value: &AMQPValue) -> Value {
    let content: Value = match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::Timestamp(seconds) => (*seconds).into(),
        AMQPValue::Float(number) => format!("{number:?}").into(),
        AMQPValue::Double(number) => format!("{number:?}").into(),
        AMQPValue::DecimalValue(decimal) => json!([decimal.scale, decimal.value]),
        AMQPValue::ShortString(text) => STANDARD.encode(text.as_str()).into(),
        AMQPValue::LongString(text) => STANDARD.encode(text.as_bytes()).into(),
        AMQPValue::ByteArray(bytes) => STANDARD.encode(bytes.as_slice()).into(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(to_typed_json).collect(),
        AMQPValue::FieldTable(table) => {
            let members = table.inner().iter();
            members.map(|(name, value)| (name.to_string(), to_typed_json(value))).collect()
        }
        value => number(value).and_then(|number| i64::try_from(number).ok()).into(),
    };
    let kind = match value.get_type() {
        // AMQP has no type for a short string as the value of a header.
        AMQPType::ShortString => AMQPType::LongString,
        kind => kind,
    };
    json!([kind.get_id().to_string(), content])
}

/// Converts a result of [`to_typed_json`] back to a value.
pub(super) fn from_typed_json(typed: &Value) -> Option<AMQPValue> {
    let [Value::String(kind), content] = typed.as_array()?.as_slice() else { return None };
    let kind = kind.chars().next().and_then(AMQPType::from_id)?;
    let integer = || content.as_i64();
    let bytes = || STANDARD.decode(content.as_str()?).ok();
    Some(match kind {
        AMQPType::Boolean => AMQPValue::Boolean(content.as_bool()?),
        AMQPType::ShortShortInt => AMQPValue::ShortShortInt(integer()?.try_into().ok()?),
        AMQPType::ShortShortUInt => AMQPValue::ShortShortUInt(integer()?.try_into().ok()?),
        AMQPType::ShortInt => AMQPValue::ShortInt(integer()?.try_into().ok()?),
        AMQPType::ShortUInt => AMQPValue::ShortUInt(integer()?.try_into().ok()?),
        AMQPType::LongInt => AMQPValue::LongInt(integer()?.try_into().ok()?),
        AMQPType::LongUInt => AMQPValue::LongUInt(integer()?.try_into().ok()?),
        AMQPType::LongLongInt | AMQPType::LongLongUInt => AMQPValue::LongLongInt(integer()?),
        AMQPType::Float => AMQPValue::Float(content.as_str()?.parse().ok()?),
        AMQPType::Double => AMQPValue::Double(content.as_str()?.parse().ok()?),
        AMQPType::DecimalValue => {
            let [scale, value] = content.as_array()?.as_slice() else { return None };
            let scale = scale.as_u64()?.try_into().ok()?;
            AMQPValue::DecimalValue(DecimalValue { scale, value: value.as_u64()?.try_into().ok()? })
        }
        AMQPType::ShortString | AMQPType::LongString => AMQPValue::LongString(bytes()?.into()),
        AMQPType::ByteArray => AMQPValue::ByteArray(bytes()?.into()),
        AMQPType::Timestamp => AMQPValue::Timestamp(content.as_u64()?),
        AMQPType::FieldArray => {
            let values: Option<Vec<_>> = content.as_array()?.iter().map(from_typed_json).collect();
            AMQPValue::FieldArray(values?.into())
        }
        AMQPType::FieldTable => {
            let mut table = FieldTable::default();
            for (name, value) in content.as_object()? {
                table.insert(field_name(name), from_typed_json(value)?);
            }
            AMQPValue::FieldTable(table)
        }
        AMQPType::Void => AMQPValue::Void,
    })
}

/// Returns the name of a field, truncated to the size limit of AMQP. A name that was not UTF-8 has the longer form that
/// [`not_utf8`] describes.
pub(super) fn field_name(name: &str) -> ShortString {
    name[..name.floor_char_boundary(NAME_LIMIT)].into()
}

/// Returns the size of a value in a message, in bytes, without the letter of its type.
fn encoded_size(value: &AMQPValue) -> usize {
    const LENGTH_SIZE: usize = 4;
    match value {
        AMQPValue::LongString(text) => LENGTH_SIZE + text.len(),
        AMQPValue::ByteArray(bytes) => LENGTH_SIZE + bytes.len(),
        AMQPValue::FieldArray(values) => {
            let sizes = values.as_slice().iter().map(|value| 1 + encoded_size(value));
            LENGTH_SIZE + sizes.sum::<usize>()
        }
        AMQPValue::FieldTable(table) => LENGTH_SIZE + table_size(table),
        // A value of any other type has at most eight bytes.
        _ => size_of::<u64>(),
    }
}

pub(super) fn table_size(table: &FieldTable) -> usize {
    let fields = table.inner().iter();
    fields.map(|(name, value)| 2 + name.as_str().len() + encoded_size(value)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_was_not_utf8_is_recognised() {
        assert_eq!(not_utf8("\u{fffd}fffe0061"), Some("fffe0061"));
        assert_eq!(not_utf8("\u{fffd}c3"), Some("c3"));
        // `41` and `c3a9` are the bytes of valid texts.
        for rest in ["", "41", "c3a9", "c", "C3", "c3 ", " c3", "é"] {
            let valid = format!("{NOT_UTF8}{rest}");
            assert_eq!(not_utf8(&valid), None, "{valid:?}");
        }
        assert_eq!(not_utf8("c3"), None);
    }

    #[test]
    fn decimal_numbers_are_read_as_written() {
        for (value, scale, text, number) in [
            (1, 0, "1", Some(1)),
            (100, 2, "1", Some(1)),
            (150, 2, "1.50", None),
            (15, 1, "1.5", None),
            (5, 3, "0.005", None),
            (0, 2, "0", Some(0)),
            (-150, 2, "-1.50", None),
            (-200, 2, "-2", None),
        ] {
            let value =
                AMQPValue::DecimalValue(DecimalValue { scale, value: i32::cast_unsigned(value) });
            assert_eq!(as_text(&value).as_deref(), Some(text));
            assert_eq!(as_integer(&value), number, "{text}");
            let in_json = if text.contains('.') { format!("\"{text}\"") } else { text.to_owned() };
            assert_eq!(json(&value, 100), in_json);
            assert_eq!(excerpt(&value), text);
        }
    }

    #[test]
    fn values_are_texts() {
        for (value, text) in [
            (AMQPValue::Boolean(true), Some("true")),
            (AMQPValue::Double(1.5), Some("1.5")),
            (AMQPValue::Double(1.0), Some("1.0")),
            (AMQPValue::Float(0.1), Some("0.1")),
            (AMQPValue::Double(f64::NAN), None),
            (AMQPValue::ShortShortInt(-1), Some("-1")),
            (AMQPValue::Timestamp(7), Some("7")),
            (AMQPValue::LongString("Köln".into()), Some("Köln")),
            (AMQPValue::LongString(b"K\xf6ln".to_vec().into()), Some("Köln")),
            (AMQPValue::ByteArray(b"K\xf6ln".to_vec().into()), None),
            (AMQPValue::Void, None),
            (AMQPValue::FieldTable(FieldTable::default()), None),
        ] {
            assert_eq!(as_text(&value).as_deref(), text, "{value:?}");
        }
    }

    #[test]
    fn truncated_value_ends_with_one_ellipsis() {
        let value = AMQPValue::LongString("abcdef".into());
        assert_eq!(json(&value, 4), "\"abc…");
        assert_eq!(json(&value, 8), "\"abcdef\"");
    }
}
