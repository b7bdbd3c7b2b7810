//! Estimates the memory that a delivery takes.

use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use ordain_cloudevents::DecodedDelivery;

/// Approximate memory, in bytes, that each header and each value inside a header takes in addition to its texts.
const HEADER_BYTES: usize = 64;

/// Returns the approximate memory of a delivery, or of its decoded form if this form takes more memory, in bytes. The
/// event of a compressed message can be much larger than the message.
pub(super) fn memory(delivery: &Delivery, decoded: &DecodedDelivery) -> usize {
    decoded_memory(decoded).max(delivery.data.len() + headers_memory(delivery))
}

pub(super) fn decoded_memory(decoded: &DecodedDelivery) -> usize {
    match decoded {
        Ok(event) => event.memory(),
        Err(letter) => letter.memory(),
    }
}

pub(super) fn headers_memory(delivery: &Delivery) -> usize {
    delivery.properties.headers().as_ref().map_or(0, weight)
}

fn weight(table: &FieldTable) -> usize {
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use lapin::BasicProperties;
    use ordain_config::EventLocations;
    use ordain_core::OrderingMode;

    use super::*;
    use crate::decode::DeliveryDecoder;
    use crate::unreadable::decode_or_letter;

    #[test]
    fn compressed_message_counts_with_the_size_of_its_event() {
        const SIZE_BYTES: usize = 100_000;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&vec![b'x'; SIZE_BYTES]).expect("memory");
        let body = encoder.finish().expect("memory");
        assert!(body.len() < SIZE_BYTES / 100);
        let decoder = DeliveryDecoder::new(
            "/ordain/s".to_owned(),
            OrderingMode::Fifo,
            1 << 20,
            EventLocations::DEFAULT,
            false,
        );
        let mut delivery = Delivery::mock(1, "x".into(), "k".into(), false, body);
        let counted =
            |delivery: &Delivery| memory(delivery, &decode_or_letter(&decoder, "q", delivery));
        assert!(counted(&delivery) < SIZE_BYTES / 10, "the body remains compressed");
        delivery.properties = BasicProperties::default()
            .with_message_id("1".into())
            .with_content_encoding("gzip".into());
        assert!(counted(&delivery) >= SIZE_BYTES);
    }
}
