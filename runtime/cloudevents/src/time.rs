//! Parses the time of an event.

use std::borrow::Cow;

use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use jiff::fmt::temporal::Pieces;

const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

/// Maximum number of digits of a fraction of a second that the parser accepts.
const FRACTION_DIGITS: usize = 9;

/// The end of the year 9999: the number of the year's final µs, counted from the Unix epoch.
const LAST_US: u64 = 253_402_300_799_999_999;

/// The lowest number that counts as a time in ms; a lower number counts as a time in seconds. In seconds, this number
/// is a time in the year 5138; in ms, it is a time in the year 1973. The same is true for the two constants below: each
/// is a time in the year 5138 in its lower unit, and in the year 1973 in its higher unit.
const MS_START: u64 = 100_000_000_000;
/// The lowest number that counts as a time in µs; a lower number, from `MS_START` on, counts as a time in ms.
const MICROSECONDS_START: u64 = 1_000 * MS_START;
/// The lowest number that counts as a time in ns; a lower number, from `MICROSECONDS_START` on, counts as a time in µs.
const NANOSECONDS_START: u64 = 1_000 * MICROSECONDS_START;

/// Reads the time of an event: a time as in RFC 3339, a time as NServiceBus writes it, or a number since the Unix
/// epoch. The number is in seconds, ms, µs or ns, and can have a fraction. Returns the time in µs since the Unix epoch.
/// Returns `None` if the text is not a time, or if the time is before 1970 or after the year 9999.
pub fn event_time(text: &str) -> Option<u64> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if is_number(whole) && is_number(fraction) {
        let number = whole.parse().ok()?;
        let digits = match number {
            0..MS_START => 6,
            MS_START..MICROSECONDS_START => 3,
            MICROSECONDS_START.. => 0,
        };
        return Some(number_time(number) + leading_digits(fraction, digits));
    }
    parse_time(text).or_else(|| parse_time(&standard_form(text)?)).and_then(in_calendar)
}

/// Converts a time that NServiceBus writes, such as `2026-01-31 12:00:00:125000 Z`, to the form of RFC 3339. Returns
/// `None` for any other text.
fn standard_form(text: &str) -> Option<String> {
    let (seconds, fraction) = text.strip_suffix(" Z")?.rsplit_once(':')?;
    let is_fraction = fraction.len() == 6 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    is_fraction.then(|| format!("{seconds}.{fraction}Z"))
}

/// Returns the value of the first digits of a fraction.
fn leading_digits(fraction: &str, digits: usize) -> u64 {
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(digits);
    digits.fold(0, |value, digit| value * 10 + u64::from(digit - b'0'))
}

/// Converts a whole number of seconds, ms, µs or ns since the Unix epoch to µs. The unit follows from the magnitude of
/// the number.
pub fn number_time(number: u64) -> u64 {
    match number {
        0..MS_START => number * 1_000_000,
        MS_START..MICROSECONDS_START => number * 1_000,
        MICROSECONDS_START..NANOSECONDS_START => number,
        NANOSECONDS_START.. => number / 1_000,
    }
}

/// Returns a time in µs since the Unix epoch; `None` for a time before 1970 or after the year 9999.
pub fn in_calendar(us: impl TryInto<u64>) -> Option<u64> {
    us.try_into().ok().filter(|us| *us <= LAST_US)
}

/// Returns a time in µs since the Unix epoch as text, as in RFC 3339; `None` if the time is outside the range of the
/// calendar.
pub fn time_text(us: u64) -> Option<String> {
    let time = jiff::Timestamp::from_microsecond(i64::try_from(us).ok()?).ok()?;
    Some(time.to_string())
}

/// Parses a time as in RFC 3339, in any year that RFC 3339 allows. Also accepts a comma before the fraction of a
/// second. Returns the time in µs since the Unix epoch; negative for a time before 1970. Returns `None` if the text is
/// not such a time.
pub fn parse_time(text: &str) -> Option<i64> {
    let text = without_small_digits(text);
    // Do not use `jiff::Timestamp`: its range ends before the end of the year 9999.
    let pieces = Pieces::parse(&*text).ok()?;
    let local = pieces.date().to_datetime(pieces.time()?).duration_since(EPOCH);
    let offset = SignedDuration::from_secs(pieces.to_numeric_offset()?.seconds().into());
    i64::try_from((local - offset).as_micros()).ok()
}

/// Removes from a text all digits of a fraction of a second after the ninth digit (one nanosecond).
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
        for (text, us) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T01:00:00.001+01:00", 1_000),
            ("1969-12-31T23:59:59Z", -1_000_000),
            ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
            ("2026-11-25T12:00:00.123456789123Z", 1_795_608_000_123_456),
            ("2026-11-25t12:00:00,1234567890123456789z", 1_795_608_000_123_456),
            ("2026-11-25 14:00:00.123456+02:00", 1_795_608_000_123_456),
            ("9999-12-31T23:59:59.9999999Z", 253_402_300_799_999_999),
            ("9999-12-31T23:59:59.999-23:59", 253_402_387_139_999_000),
        ] {
            assert_eq!(parse_time(text), Some(us), "{text}");
        }
    }

    /// Some libraries write an offset without a colon, a leap second, lower case letters, or a space instead of the
    /// `T`. A leap second counts as the second before it.
    #[test]
    fn forms_of_common_libraries_are_parsed() {
        let noon = 1_795_608_000_000_000;
        for text in [
            "2026-11-25T12:00:00+0000",
            "2026-11-25T12:00:00+00:00",
            "2026-11-25T12:00:00-00:00",
            "2026-11-26T02:00:00+14:00",
            "2026-11-25t12:00:00z",
            "2026-11-25 12:00:00Z",
        ] {
            assert_eq!(parse_time(text), Some(noon), "{text}");
        }
        assert_eq!(parse_time("2026-11-25T11:59:60Z"), parse_time("2026-11-25T11:59:59Z"));
    }

    #[test]
    fn unit_of_a_number_follows_from_its_magnitude() {
        for (text, us) in [
            ("0", Some(0)),
            ("7", Some(7_000_000)),
            ("1764072000", Some(1_764_072_000_000_000)),
            ("1764072000123", Some(1_764_072_000_123_000)),
            ("1764072000123456", Some(1_764_072_000_123_456)),
            ("1764072000123456789", Some(1_764_072_000_123_456)),
            ("99999999999", Some(99_999_999_999_000_000)),
            ("100000000000", Some(100_000_000_000_000)),
            ("99999999999999", Some(99_999_999_999_999_000)),
            ("100000000000000", Some(100_000_000_000_000)),
            ("99999999999999999", Some(99_999_999_999_999_999)),
            ("100000000000000000", Some(100_000_000_000_000)),
            ("18446744073709551615", Some(18_446_744_073_709_551)),
            ("18446744073709551616", None),
            ("-1", None),
            ("1764072000.5", Some(1_764_072_000_500_000)),
            ("1764072000.1234567", Some(1_764_072_000_123_456)),
            ("1764072000.0", Some(1_764_072_000_000_000)),
            ("1764072000123.9", Some(1_764_072_000_123_900)),
            ("1764072000123456.9", Some(1_764_072_000_123_456)),
            ("1764072000.", None),
            (".5", None),
            ("1.2.3", None),
            ("-1.5", None),
            ("1764072000.1e3", None),
            ("", None),
            ("yesterday", None),
            ("1969-12-31T23:59:59Z", None),
            ("2026-11-25T12:00:00.1234567Z", Some(1_795_608_000_123_456)),
            ("9999-12-31T23:59:59.999999Z", Some(LAST_US)),
            ("9999-12-31T23:59:59.999-00:01", None),
            ("2026-11-25 12:00:00:123456 Z", Some(1_795_608_000_123_456)),
            ("2026-11-25 12:00:00:123 Z", None),
            ("2026-11-25 12:00 Z", None),
            (":123456 Z", None),
        ] {
            assert_eq!(event_time(text), us, "{text}");
        }
    }

    #[test]
    fn text_of_a_time_contains_its_microseconds() {
        for (us, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_795_608_000_500_000, "2026-11-25T12:00:00.5Z"),
            (1_795_608_000_123_456, "2026-11-25T12:00:00.123456Z"),
        ] {
            assert_eq!(time_text(us).as_deref(), Some(text));
        }
        assert_eq!(time_text(u64::MAX), None);
    }

    #[test]
    fn text_in_another_form_is_no_time() {
        for text in [
            "",
            "yesterday",
            "1285996839",
            "2026-11-25",
            "2026-11-25T12:00:00",
            "2026-11-25 12:00:00",
            "2026-11-25T12:00:00 GMT",
            "2026-11-25T12:00:00America/Los_Angeles",
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
