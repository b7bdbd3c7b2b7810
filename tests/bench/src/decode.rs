//! `decode`: measures the conversion of messages of RabbitMQ into events, in this process. For each message size, four
//! sides decode a message with the same data: with default settings, with a key from the JSON body, with an id from the
//! content, and with a compressed body.

use std::hint::black_box;
use std::io::Write as _;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use ordain_amqp::DeliveryDecoder;
use ordain_config::{EventLocations, IdLocation, IdPlace, JsonPointer, Place};
use ordain_core::OrderingMode;

use crate::CommonArgs;
use crate::report::{Figure, Report, Row};

/// The sizes of the bodies, in bytes, each with the number of measured events.
const SIZES: [(usize, u32); 3] = [(107, 1_000_000), (1_024, 300_000), (16_384, 30_000)];
/// The place of the key in the body, as in the setting `key = "data:/order/id"`.
const KEY_POINTER: &str = "/order/id";
/// The default of `runtime.event_size`.
const EVENT_SIZE_LIMIT: usize = 1 << 20;
/// The last member of a body, without the characters that fill the body up to its size.
const LAST_MEMBER: &str = ",\"pad\":\"\"}";

/// The difference between the sides for one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// The settings have their defaults: the key is the routing key.
    Default,
    /// The key comes from the body.
    BodyKey,
    /// The id is a digest of the content.
    ContentId,
    /// The settings have their defaults, and the body is compressed.
    Gzip,
}

impl Variant {
    const ALL: [Self; 4] = [Self::Default, Self::BodyKey, Self::ContentId, Self::Gzip];

    /// Returns the name of the side for bodies of `size` bytes.
    fn side(self, size: usize) -> String {
        let variant = match self {
            Self::Default => "default".to_owned(),
            Self::BodyKey => format!("data:{KEY_POINTER}"),
            Self::ContentId => "content".to_owned(),
            Self::Gzip => "gzip".to_owned(),
        };
        format!("{size} B, {variant}")
    }

    fn locations(self) -> Result<EventLocations> {
        let mut locations = EventLocations::DEFAULT;
        match self {
            Self::Default | Self::Gzip => {}
            Self::BodyKey => {
                let pointer = JsonPointer::parse(KEY_POINTER).context("a JSON pointer")?;
                locations.key = Some(Place::Data(pointer).into());
            }
            Self::ContentId => locations.id = Some(IdLocation(vec![IdPlace::Content])),
        }
        Ok(locations)
    }

    /// Returns a message with `size` bytes of data.
    fn message(self, size: usize) -> Result<Delivery> {
        let mut message = message(size);
        if self == Self::Gzip {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(&message.data)?;
            message.data = encoder.finish()?;
            let properties = std::mem::take(&mut message.properties);
            message.properties = properties.with_content_encoding("gzip".into());
        }
        Ok(message)
    }
}

/// A decoder, and the message that the decoder decodes repeatedly.
struct Side {
    name: String,
    decoder: DeliveryDecoder,
    message: Delivery,
    events: u32,
}

pub(crate) fn bench(common: &CommonArgs) -> Result<Report> {
    let mut sides = Vec::new();
    for (size, events) in SIZES {
        for variant in Variant::ALL {
            let source = "/ordain/bench".to_owned();
            let ordering = OrderingMode::Sequenced;
            let locations = variant.locations()?;
            let decoder =
                DeliveryDecoder::new(source, ordering, EVENT_SIZE_LIMIT, locations, false);
            let message = variant.message(size)?;
            sides.push(Side { name: variant.side(size), decoder, message, events });
        }
    }
    let mut runs: Vec<Vec<Row>> = vec![Vec::new(); sides.len()];
    for run in 1..=common.runs {
        eprintln!("run {run} of {}", common.runs);
        for (side, rows) in sides.iter().zip(&mut runs) {
            rows.push(side.measure()?);
        }
    }
    let rows = runs.iter().map(|rows| Row::median(rows)).collect();
    let ns: Figure = |row| row.ns_per_event;
    let mut report = Report::new("decode", rows);
    for (size, _) in SIZES {
        let under = Variant::Default.side(size);
        for variant in Variant::ALL.into_iter().filter(|variant| *variant != Variant::Default) {
            let over = variant.side(size);
            let name = format!("{over} / default");
            report = report.ratio_of(name, (over.as_str(), ns), (under.as_str(), ns));
        }
    }
    Ok(report)
}

impl Side {
    fn measure(&self) -> Result<Row> {
        let event = self.decoder.decode(&self.message);
        ensure!(event.is_ok_and(|event| event.key() == "17"), "{}: wrong event", self.name);
        let started = Instant::now();
        for _ in 0..self.events {
            drop(black_box(self.decoder.decode(black_box(&self.message))));
        }
        let took = started.elapsed();
        let events = f64::from(self.events);
        Ok(Row {
            side: self.name.clone(),
            events_per_s: events / took.as_secs_f64(),
            ns_per_event: Some(took.as_nanos() as f64 / events),
            ..Row::default()
        })
    }
}

/// Returns a message whose routing key and body contain the key 17. The body has `size` bytes.
fn message(size: usize) -> Delivery {
    let mut headers = FieldTable::default();
    headers.insert("X-Sequence-ID".into(), AMQPValue::LongLongInt(1));
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_message_id("order-17-1".into())
        .with_type("order.paid".into())
        .with_headers(headers);
    let mut message = Delivery::mock(1, "orders".into(), "17".into(), false, body(size));
    message.properties = properties;
    message
}

/// Returns a JSON object of `size` bytes with the key and further members.
fn body(size: usize) -> Vec<u8> {
    let mut text = String::from("{\"order\":{\"id\":17}");
    for number in 0.. {
        let member = format!(",\"field{number}\":\"value {number}\"");
        if text.len() + member.len() + LAST_MEMBER.len() > size {
            break;
        }
        text += &member;
    }
    let padding = "x".repeat(size - text.len() - LAST_MEMBER.len());
    text += &LAST_MEMBER.replace("\"\"", &format!("\"{padding}\""));
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_is_json_of_the_requested_size() -> Result<()> {
        for (size, _) in SIZES {
            let body = body(size);
            assert_eq!(body.len(), size);
            let value: serde_json::Value = serde_json::from_slice(&body)?;
            assert_eq!(value["order"]["id"], 17, "{value}");
        }
        Ok(())
    }

    #[test]
    fn all_sides_decode_the_same_data() -> Result<()> {
        for (size, _) in SIZES {
            for variant in Variant::ALL {
                let locations = variant.locations()?;
                let source = "/ordain/bench".to_owned();
                let ordering = OrderingMode::Sequenced;
                let decoder =
                    DeliveryDecoder::new(source, ordering, EVENT_SIZE_LIMIT, locations, false);
                let event = decoder.decode(&variant.message(size)?).expect("an event");
                assert_eq!((event.key(), event.data()), ("17", &*body(size)), "{variant:?}");
            }
        }
        Ok(())
    }
}
