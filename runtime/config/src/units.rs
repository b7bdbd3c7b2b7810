//! Values with a unit: durations, ranges of durations, sizes, percentages.

use std::time::Duration;

use ordain_core::BackoffBounds;

use super::scalar::Scalar;

/// A duration in ms, written with its unit: `"200ms"`, `"5s"`, `"10m"`, `"24h"`, `"7d"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// Returns the duration as a [`Duration`], for example for a timer.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// Units of time, each with its length in ms.
const TIME_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Scalar for Millis {
    const FORM: &'static str = "a duration such as \"200ms\", \"5s\", \"10m\", \"24h\" or \"7d\"";

    fn parse(text: &str) -> Result<Self, String> {
        parse_with_unit(text, &TIME_UNITS).map(Self).ok_or_else(String::new)
    }

    fn within(&self, low: &Self, high: &Self) -> bool {
        (low..=high).contains(&self)
    }
}

/// A value that `"off"` disables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffOr<T>(pub Option<T>);

impl Scalar for OffOr<Millis> {
    const FORM: &'static str = "\"off\" or a duration such as \"5s\", \"10m\", \"24h\" or \"7d\"";

    fn parse(text: &str) -> Result<Self, String> {
        if text == "off" {
            Ok(Self(None))
        } else {
            Millis::parse(text).map(|value| Self(Some(value)))
        }
    }

    fn within(&self, low: &Self, high: &Self) -> bool {
        match (self.0, low.0, high.0) {
            (Some(value), Some(low), Some(high)) => Scalar::within(&value, &low, &high),
            _ => true,
        }
    }
}

/// A size in bytes: `65536`, `"64KiB"`, `"64MiB"`, `"1GiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Returns the size as a `usize`. The conversion loses nothing, because a `usize` has 64 bits.
    pub fn bytes(self) -> usize {
        self.0 as usize
    }
}

const SIZE_UNITS: [(&str, u64); 4] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)];

impl Scalar for ByteSize {
    const FORM: &'static str = "a size such as \"64KiB\", \"64MiB\", \"1GiB\" or a number of bytes";
    const ALLOWS_BARE: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        parse_with_unit(text, &SIZE_UNITS).map(Self).ok_or_else(|| {
            let decimal = ["kb", "mb", "gb"].iter().any(|unit| text.to_lowercase().ends_with(unit));
            if decimal { "units of size are powers of 1024".to_owned() } else { String::new() }
        })
    }

    fn within(&self, low: &Self, high: &Self) -> bool {
        (low..=high).contains(&self)
    }
}

impl std::str::FromStr for ByteSize {
    type Err = String;

    /// Parses a size on a command line, in the form of the file.
    fn from_str(text: &str) -> Result<Self, String> {
        <Self as Scalar>::parse(text).map_err(|_| format!("expected {}", <Self as Scalar>::FORM))
    }
}

impl Scalar for BackoffBounds {
    const FORM: &'static str = "a range of durations such as \"200ms..5s\"";

    fn parse(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").ok_or_else(String::new)?;
        let Millis(min) = Millis::parse(min.trim())?;
        let Millis(max) = Millis::parse(max.trim())?;
        match (min, max) {
            (0, _) => {
                Err("the lower bound must be above 0, so that there is a pause between attempts"
                    .into())
            }
            _ if min > max => Err("write the lower bound first".into()),
            _ => Ok(Self { min, max }),
        }
    }

    /// Returns whether the lower bound is at least the lowest allowed value, and the upper bound is at most the highest
    /// allowed value.
    fn within(&self, low: &Self, high: &Self) -> bool {
        self.min >= low.min && self.max <= high.max
    }
}

/// A share of the keys, in percent: `"5%"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percent(pub u32);

impl Scalar for Percent {
    const FORM: &'static str = "a share such as \"5%\", from \"1%\" to \"100%\"";

    fn parse(text: &str) -> Result<Self, String> {
        let number: u32 =
            text.strip_suffix('%').and_then(|digits| digits.parse().ok()).unwrap_or(0);
        if (1..=100).contains(&number) { Ok(Self(number)) } else { Err(String::new()) }
    }
}

/// Parses digits followed by one of the units. Returns the value in the smallest unit.
fn parse_with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_need_a_known_unit() {
        for (text, expected) in [
            ("200ms", Some(200)),
            ("5s", Some(5_000)),
            ("10m", Some(600_000)),
            ("24h", Some(86_400_000)),
            ("7d", Some(604_800_000)),
            ("0s", Some(0)),
            ("5", None),
            ("s", None),
            ("-5s", None),
            ("1.5s", None),
            ("5 weeks", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(Millis::parse(text).ok(), expected.map(Millis), "{text}");
        }
        for (text, expected) in [
            ("65536", Some(65_536)),
            ("64KiB", Some(65_536)),
            ("64 MiB", Some(64 << 20)),
            ("1GiB", Some(1 << 30)),
            ("64MB", None),
            ("MiB", None),
            ("", None),
        ] {
            assert_eq!(ByteSize::parse(text).ok(), expected.map(ByteSize), "{text}");
        }
        for (text, expected) in [
            ("200ms..5s", Some(BackoffBounds { min: 200, max: 5_000 })),
            ("1s .. 1s", Some(BackoffBounds { min: 1_000, max: 1_000 })),
            ("5s..200ms", None),
            ("0ms..5s", None),
            ("5s", None),
            ("5s..", None),
        ] {
            assert_eq!(BackoffBounds::parse(text).ok(), expected, "{text}");
        }
    }
}
