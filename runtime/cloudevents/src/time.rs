//! Parses the time of an event.

use std::borrow::Cow;

use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use jiff::fmt::temporal::Pieces;

const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

/// Maximum number of digits of a fraction of a second that the parser accepts.
const FRACTION_DIGITS: usize = 9;

/// Parses a time as in RFC 3339, in any year that RFC 3339 allows. Also accepts a comma before the fraction of a
/// second. Returns the time in ms since the Unix epoch; negative for a time before 1970. Returns `None` if the text is
/// not such a time.
pub fn parse_time(text: &str) -> Option<i64> {
    let text = without_small_digits(text);
    // A `jiff::Timestamp` ends before the end of the year 9999.
    let pieces = Pieces::parse(&*text).ok()?;
    let local = pieces.date().to_datetime(pieces.time()?).duration_since(EPOCH);
    let offset = SignedDuration::from_secs(pieces.to_numeric_offset()?.seconds().into());
    i64::try_from((local - offset).as_millis()).ok()
}

/// Returns a text without the digits of a fraction of a second after the ninth digit (one nanosecond).
fn without_small_digits(text: &str) -> Cow<'_, str> {
    let Some(point) = text.find(['.', ',']) else { return Cow::Borrowed(text) };
    let (whole, fraction) = text.split_at(point + 1);
    let rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = fraction.len() - rest.len();
    if digits <= FRACTION_DIGITS {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{whole}{}{rest}", &fraction[..FRACTION_DIGITS]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_years_are_parsed() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T01:00:00.001+01:00", 1),
            ("1969-12-31T23:59:59Z", -1_000),
            ("0001-01-01T00:00:00Z", -62_135_596_800_000),
            ("2026-11-25T12:00:00.123456789123Z", 1_795_608_000_123),
            ("2026-11-25t12:00:00,1234567890123456789z", 1_795_608_000_123),
            ("2026-11-25 14:00:00.123+02:00", 1_795_608_000_123),
            ("9999-12-31T23:59:59.9999999Z", 253_402_300_799_999),
            ("9999-12-31T23:59:59.999-23:59", 253_402_387_139_999),
        ] {
            assert_eq!(parse_time(text), Some(ms), "{text}");
        }
    }

    #[test]
    fn text_in_another_form_is_no_time() {
        for text in [
            "",
            "yesterday",
            "1285996839",
            "2026-11-25",
            "2026-11-25T12:00:00",
            "2026-11-25T12:00:00.Z",
            "2026-02-30T12:00:00Z",
            "2026-11-25T24:00:00Z",
            " 2026-11-25T12:00:00Z",
            "2026-11-25T12:00:00.1234567890",
            "2026-11-25T12:00:00.1234567890.5Z",
            "10000-01-01T00:00:00Z",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
