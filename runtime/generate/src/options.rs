//! The options of a load, and how they are written on a command line.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::Serialize;

use ordain_config::Size;

/// The largest number of keys: each takes some tens of bytes.
const KEYS_LIMIT: u64 = 10_000_000;

/// The largest reorder distance: so many lines are held.
const REORDER_LIMIT: u64 = 1_000_000;

/// The largest payload.
const PAYLOAD_LIMIT: u64 = 64 << 20;

/// Bytes of lines that are held for the reorder distance: what a small machine has to spare.
const HELD_LIMIT: u64 = 1 << 30;

/// The longest time that events may span: a century.
const SECONDS_LIMIT: f64 = 100.0 * 365.25 * 86_400.0;

/// What to generate: a function from these options to bytes.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct Load {
    /// Another seed gives other keys, times, payloads and faults.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Events to generate, lost ones included.
    #[arg(long, default_value_t = 10_000)]
    pub events: u64,
    /// Keys; of orders: how many are open at a time, since a new one begins when one has ended.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=KEYS_LIMIT))]
    pub keys: u64,
    /// How often which key comes: uniform, or `zipf` (`zipf:1.2`) for a few hot ones.
    #[arg(long, default_value = "uniform")]
    pub key_choice: KeyChoice,
    /// How events follow each other in time: poisson, bursty or steady.
    #[arg(long, default_value = "poisson")]
    pub arrivals: Arrivals,
    /// Events a second on average, by the times that they carry.
    #[arg(long, default_value_t = 1_000.0, value_parser = rate)]
    pub rate: f64,
    /// Bytes of each event's data: 256, 4KiB, or a range such as 64..1024. Left out: 256 for
    /// opaque ones, and what the content takes for orders.
    #[arg(long, value_name = "SIZE")]
    pub payload: Option<Payload>,
    /// Probability that an event is never written.
    #[arg(long, value_name = "P", default_value = "0")]
    pub loss: Probability,
    /// Probability that an event is written a second time, some events later.
    #[arg(long, value_name = "P", default_value = "0")]
    pub duplicates: Probability,
    /// How many later events may come before an event; 0 keeps the order.
    #[arg(long, value_name = "DISTANCE", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(0..=REORDER_LIMIT))]
    pub reorder: u64,
    /// Mark the last event of each key.
    #[arg(long)]
    pub end_of_sequence: bool,
    /// What the events say: orders (lives of orders) or opaque (random text).
    #[arg(long, default_value = "orders")]
    pub shape: Shape,
    /// Probability that a step of an order is one that its handler must refuse.
    #[arg(long, value_name = "P", default_value = "0")]
    pub impossible: Probability,
}

impl Load {
    /// What concerns several options at once.
    pub(super) fn check(&self) -> Result<(), String> {
        let largest = self.payload.as_ref().map_or(0, |payload| *payload.0.end());
        if self.reorder.saturating_mul(largest) > HELD_LIMIT {
            return Err(format!(
                "--reorder times --payload is what is held in memory: up to {HELD_LIMIT} bytes are right"
            ));
        }
        if self.events as f64 / self.rate > SECONDS_LIMIT {
            return Err(
                "--events at this --rate take more than a century: a higher rate is right".into()
            );
        }
        if self.shape == Shape::Opaque && self.impossible.0 > 0.0 {
            return Err("--impossible is for orders: opaque events have no steps".into());
        }
        Ok(())
    }
}

impl Default for Load {
    /// The defaults of the command line.
    fn default() -> Self {
        Self {
            seed: 1,
            events: 10_000,
            keys: 100,
            key_choice: KeyChoice::Uniform,
            arrivals: Arrivals::Poisson,
            rate: 1_000.0,
            payload: None,
            loss: Probability(0.0),
            duplicates: Probability(0.0),
            reorder: 0,
            end_of_sequence: false,
            shape: Shape::Orders,
            impossible: Probability(0.0),
        }
    }
}

/// Slower than one event in a day, or faster than the times can tell, is a mistake.
fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "a number is right, such as 1000".to_owned())?;
    if (1e-5..=1e9).contains(&rate) {
        Ok(rate)
    } else {
        Err("events a second, from 0.00001 to 1000000000, are right".to_owned())
    }
}

/// From 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probability(pub f64);

impl FromStr for Probability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = text.parse().ok().filter(|value| (0.0..=1.0).contains(value));
        value.map(Self).ok_or_else(|| "a probability from 0 to 1 is right, such as 0.01".to_owned())
    }
}

/// How often which key comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KeyChoice {
    /// Each as often as any other.
    Uniform,
    /// The n-th one with a weight of n to the minus exponent.
    Zipf(f64),
}

/// The exponent of `zipf` without one: the n-th key comes a n-th as often as the first.
const ZIPF: f64 = 1.0;

impl FromStr for KeyChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let exponent = match text {
            "uniform" => return Ok(Self::Uniform),
            "zipf" => Some(ZIPF),
            _ => text.strip_prefix("zipf:").and_then(|exponent| exponent.parse().ok()),
        };
        match exponent {
            Some(exponent) if (0.0..=10.0).contains(&exponent) => Ok(Self::Zipf(exponent)),
            _ => Err("uniform, zipf or zipf:EXPONENT (0 to 10) is right".to_owned()),
        }
    }
}

impl fmt::Display for KeyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

/// How events follow each other in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Independent of each other.
    Poisson,
    /// In bursts of ten times the rate, with pauses between.
    Bursty,
    /// At equal distances.
    Steady,
}

/// What the events say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Lives of orders, as the handler `orders` knows them.
    Orders,
    /// A random text.
    Opaque,
}

/// Bytes of an event's data, as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(pub RangeInclusive<u64>);

impl FromStr for Payload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (low, high) = text.split_once("..").unwrap_or((text, text));
        let (Size(low), Size(high)) = (low.parse()?, high.parse()?);
        if low > high || high > PAYLOAD_LIMIT {
            return Err(format!(
                "a size up to {PAYLOAD_LIMIT}, or a range from low to high, is right"
            ));
        }
        Ok(Self(low..=high))
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.0.start(), self.0.end())
    }
}

macro_rules! serialize_as_text {
    ($($type:ty),+) => {$(
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
}

serialize_as_text!(KeyChoice, Payload);
