//! `decode`: measures the conversion of messages of RabbitMQ into events, in this process. For each message size, two
//! sides decode the same message. The first side has default settings, which read the key from the routing key. The
//! second side has settings that read the key from the JSON body.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use ordain_amqp::DeliveryDecoder;
use ordain_config::{EventLocations, JsonPointer, Place};
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

/// A decoder, and the message that the decoder decodes again and again.
struct Side {
    name: String,
    decoder: DeliveryDecoder,
    message: Delivery,
    events: u32,
}

pub(crate) fn bench(common: &CommonArgs) -> Result<Report> {
    let pointer = JsonPointer::parse(KEY_POINTER).context("a JSON pointer")?;
    let in_body =
        EventLocations { key: Some(Place::Data(pointer).into()), ..EventLocations::DEFAULT };
    let mut sides = Vec::new();
    for (size, events) in SIZES {
        for (name, locations) in
            [(plain_name(size), EventLocations::DEFAULT), (pointer_name(size), in_body.clone())]
        {
            let source = "/ordain/bench".to_owned();
            let ordering = OrderingMode::Sequenced;
            let decoder =
                DeliveryDecoder::new(source, ordering, EVENT_SIZE_LIMIT, locations, false);
            sides.push(Side { name, decoder, message: message(size), events });
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
    let report = SIZES.iter().fold(Report::new("decode", rows), |report, (size, _)| {
        let over = pointer_name(*size);
        let under = plain_name(*size);
        report.ratio_of(format!("{over} / default"), (over.as_str(), ns), (under.as_str(), ns))
    });
    Ok(report)
}

fn plain_name(size: usize) -> String {
    format!("{size} B, default")
}

fn pointer_name(size: usize) -> String {
    format!("{size} B, data:{KEY_POINTER}")
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
}
