//! Reads the places of a message that the configuration can name.

use std::borrow::Cow;

use lapin::message::Delivery;
use lapin::types::{AMQPValue, ShortString};
use ordain_cloudevents::{NotJsonError, PlaceReader, PlaceValue, find_value, scalar_text};
use ordain_config::{MessageProperty, Place};

use crate::value::{EXCERPT_LIMIT, as_text, excerpt, has_value, not_utf8};
use ordain_util::text::truncated;

pub(super) struct MessageReader<'a> {
    pub(super) delivery: &'a Delivery,
    /// The body of the message, without its compression, and without the encoding of an AMQP value.
    pub(super) data: &'a [u8],
    /// The property `type`; `None` if the property only states that the body was the encoding of an AMQP value.
    pub(super) kind: Option<&'a ShortString>,
    /// The property `content_encoding`, without the name of the compression that the decoder has undone.
    pub(super) encoding: Option<&'a str>,
}

impl<'a> MessageReader<'a> {
    /// Returns the value of a header; `None` if the header is missing or has no value ([`has_value`]).
    fn header(&self, name: &str) -> Option<&'a AMQPValue> {
        let headers = self.delivery.properties.headers().as_ref()?;
        headers.inner().get(name).filter(|value| has_value(value))
    }

    pub(super) fn property(&self, property: MessageProperty) -> Option<Cow<'a, str>> {
        let properties = &self.delivery.properties;
        let text = match property {
            MessageProperty::MessageId => properties.message_id(),
            MessageProperty::CorrelationId => properties.correlation_id(),
            MessageProperty::Type => return self.kind.map(|kind| Cow::Borrowed(kind.as_str())),
            MessageProperty::AppId => properties.app_id(),
            MessageProperty::UserId => properties.user_id(),
            MessageProperty::ReplyTo => properties.reply_to(),
            MessageProperty::Expiration => properties.expiration(),
            MessageProperty::ContentType => properties.content_type(),
            MessageProperty::ContentEncoding => properties.content_encoding(),
            MessageProperty::Timestamp => {
                return properties.timestamp().map(|seconds| seconds.to_string().into());
            }
            MessageProperty::Priority => {
                return properties.priority().map(|priority| priority.to_string().into());
            }
        };
        text.as_ref().map(|text| Cow::Borrowed(text.as_str()))
    }
}

/// Converts the text that the AMQP parser returned for a short string. A short string that was not UTF-8 ([`not_utf8`])
/// is not a text.
fn short_text(text: Option<Cow<'_, str>>) -> PlaceValue<'_> {
    match text {
        None => PlaceValue::Missing,
        Some(text) if not_utf8(&text).is_some() => PlaceValue::NotText,
        Some(text) => PlaceValue::Text(text),
    }
}

impl PlaceReader for MessageReader<'_> {
    fn read(&self, place: &Place) -> PlaceValue<'_> {
        match place {
            Place::RoutingKey => {
                short_text(Some(Cow::Borrowed(self.delivery.routing_key.as_str())))
            }
            Place::Property(property) => short_text(self.property(*property)),
            Place::Header(name) => match self.header(name) {
                None => PlaceValue::Missing,
                Some(value) => as_text(value).map_or(PlaceValue::NotText, PlaceValue::Text),
            },
            Place::Data(pointer) => match find_value(self.data, pointer) {
                Ok(raw) => raw.and_then(scalar_text).map_or(PlaceValue::Missing, PlaceValue::Text),
                Err(NotJsonError) => PlaceValue::NotJson,
            },
            // Only a CloudEvent in structured mode has attributes.
            Place::Attribute(_) => PlaceValue::Missing,
        }
    }

    fn show(&self, place: &Place) -> String {
        let found = match place {
            Place::Header(name) => return self.header(name).map_or_else(String::new, excerpt),
            Place::Data(pointer) => {
                find_value(self.data, pointer).ok().flatten().unwrap_or_default().to_owned()
            }
            Place::Property(property) => {
                self.property(*property).map_or_else(String::new, |text| shown(&text))
            }
            Place::RoutingKey => shown(self.delivery.routing_key.as_str()),
            Place::Attribute(_) => String::new(),
        };
        truncated(found, EXCERPT_LIMIT)
    }
}

fn shown(text: &str) -> String {
    match not_utf8(text) {
        Some(bytes) => format!("the bytes {bytes}"),
        None => format!("{text:?}"),
    }
}
