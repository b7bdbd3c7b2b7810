//! Describes a message that cannot be read, and proposes settings of the source with which the message can be read.
//! The texts contain the names of the values of a message, but never the values: a value can be confidential.

use lapin::message::Delivery;
use lapin::types::FieldTable;
use ordain_config::{
    EventLocations, IdLocation, IdPlace, JsonPointer, KeyLocation, KeyPlace, MessageFormat,
    MessageProperty, Place, ValueLocation,
};
use ordain_core::{Cause, Event, OrderingMode};
use serde_json::Value;

use super::DeliveryDecoder;
use super::encoding::plain_body;
use super::place::MessageReader;
use crate::header::QUEUE_HEADERS;
use crate::unreadable::first_delivery;
use crate::value::as_text;
use ordain_cloudevents::{DecodeError, located_text};
use ordain_util::text::{escape_invisible, truncated};

/// Names that usually belong to the id of an event: in lower case, without punctuation. The first name is the most
/// likely one.
const ID_NAMES: [&str; 7] = ["id", "messageid", "eventid", "msgid", "taskid", "uuid", "guid"];
/// Names that usually belong to the key of an event, in the form of [`ID_NAMES`].
const KEY_NAMES: [&str; 12] = [
    "partitionkey",
    "subject",
    "key",
    "orderid",
    "customerid",
    "aggregateid",
    "entityid",
    "conversationid",
    "sessionid",
    "accountid",
    "userid",
    "tenantid",
];
/// Names that usually belong to the sequence of an event, in the form of [`ID_NAMES`].
const SEQUENCE_NAMES: [&str; 8] = [
    "sequence",
    "sequenceid",
    "sequencenumber",
    "seq",
    "version",
    "revision",
    "position",
    "number",
];
/// A name of at least this size also counts at the end of a longer name, as `messageid` in `NServiceBus.MessageId`.
const ENDING_BYTES: usize = 5;
/// Maximum depth, in a JSON body, of the values that a proposal names.
const DEPTH_LIMIT: usize = 3;
const FIELDS_LIMIT: usize = 64;
const NAMES_LIMIT: usize = 12;
const NAME_BYTES: usize = 60;
/// Maximum number of settings in a proposal: ordering, key, and id, format or sequence.
const SETTINGS_LIMIT: usize = 4;
/// The condition of a proposal with `ordering` or `first`. If the store has data that was written with another value of
/// these settings, a start ends with an error.
const NEW_NAME_CONDITION: &str =
    " (if the store already has data of the stream, give the stream a new name as well)";

struct ProposedSetting {
    name: &'static str,
    value: String,
    /// A decoder of the stream as it would be with this setting.
    decoder: DeliveryDecoder,
}

/// Proposes settings to an operator, for a message that the decoder cannot read. With these settings, the decoder can
/// read the message: this function has tried them. But only the operator knows whether the settings name the right
/// values. If the message is a dead letter in its original form that has returned to its stream, the settings are for
/// the original message.
pub(crate) fn propose_settings(decoder: &DeliveryDecoder, delivery: &Delivery) -> Option<String> {
    let first = first_delivery(decoder, delivery);
    let delivery = first.as_ref().unwrap_or(delivery);
    let mut decoder = decoder.clone();
    let mut chosen: Vec<ProposedSetting> = Vec::new();
    while let Some(cause) = fault_cause(&decoder, delivery) {
        if chosen.len() == SETTINGS_LIMIT {
            return None;
        }
        let helps = |candidate: &ProposedSetting| {
            let next = fault_cause(&candidate.decoder, delivery);
            next != Some(cause) && next.is_none_or(is_missing_value)
        };
        let candidate = candidates(cause, &decoder, delivery).into_iter().find(helps)?;
        decoder = candidate.decoder.clone();
        chosen.push(candidate);
    }
    let text = |candidate: &ProposedSetting| format!("{} = {}", candidate.name, candidate.value);
    let of_stream = |candidate: &&ProposedSetting| matches!(candidate.name, "ordering" | "first");
    let mut parts: Vec<String> =
        chosen.iter().filter(of_stream).map(|found| format!("`{}`", text(found))).collect();
    let mut of_source: Vec<String> =
        chosen.iter().filter(|candidate| !of_stream(candidate)).map(text).collect();
    if chosen.iter().any(|candidate| candidate.name == "format") && decoder.locations.key.is_none()
    {
        // A format requires the setting `key`.
        of_source.push("key = \"routing-key\"".to_owned());
    }
    if !of_source.is_empty() {
        parts.push(format!("`source = {{ …, {} }}`", of_source.join(", ")));
    }
    let condition =
        if chosen.iter().any(|found| of_stream(&found)) { NEW_NAME_CONDITION } else { "" };
    (!parts.is_empty()).then(|| parts.join(" and ") + condition)
}

/// Returns the cause that prevents the decoder from reading a message as an event; `None` if the decoder can read the
/// message. For a batch, returns the first cause; `None` if the decoder can read all events of the batch.
fn fault_cause(decoder: &DeliveryDecoder, delivery: &Delivery) -> Option<Cause> {
    match decoder.decode_batch(delivery, |_, event| event_cause(decoder, &event)) {
        Some(causes) => causes.into_iter().flatten().next(),
        None => event_cause(decoder, &decoder.decode(delivery)),
    }
}

fn event_cause(decoder: &DeliveryDecoder, event: &Result<Event, DecodeError>) -> Option<Cause> {
    match event {
        Ok(event) => decoder.sequence_fault(event).map(|_| Cause::NoSequence),
        Err(error) => Some(error.cause),
    }
}

/// Returns whether the cause is a missing value whose place a setting can name.
fn is_missing_value(cause: Cause) -> bool {
    matches!(cause, Cause::NoKey | Cause::NoId | Cause::NoSequence)
}

/// Returns the settings that can remove the cause, the most likely setting first.
fn candidates(
    cause: Cause,
    decoder: &DeliveryDecoder,
    delivery: &Delivery,
) -> Vec<ProposedSetting> {
    let candidate = |name, value: String, change: &dyn Fn(&mut EventLocations)| {
        let mut locations = decoder.locations.clone();
        change(&mut locations);
        let value = format!("\"{value}\"");
        ProposedSetting { name, value, decoder: decoder.with(decoder.ordering, locations) }
    };
    let of_key = |key: KeyPlace, value: String| {
        let key = KeyLocation(vec![key]);
        candidate("key", value, &|locations| locations.key = Some(key.clone()))
    };
    let of_id = |id: IdPlace, value: String| {
        let id = IdLocation(vec![id]);
        candidate("id", value, &|locations| locations.id = Some(id.clone()))
    };
    let places = places(decoder, delivery);
    let mut found = Vec::new();
    match cause {
        Cause::NoKey => {
            for place in ranked(&places, key_rank) {
                if !decoder.is_partitioned || is_hashable(place) {
                    found.push(of_key(KeyPlace::Place(place.clone()), place.setting()));
                }
            }
            if !decoder.is_partitioned {
                found.push(of_key(KeyPlace::Stream, "*".to_owned()));
            }
        }
        Cause::NoId => {
            for format in formats(decoder, delivery) {
                found.push(candidate("format", format.name().to_owned(), &|locations| {
                    *locations = format.complete(locations.clone());
                }));
            }
            for place in ranked(&places, |name| rank(name, &ID_NAMES)) {
                found.push(of_id(IdPlace::Place(place.clone()), place.setting()));
            }
            found.push(of_id(IdPlace::Content, "content".to_owned()));
        }
        Cause::NoSequence => {
            if decoder.sequences.start > 0 {
                let decoder = decoder.clone().with_sequences(0..decoder.sequences.end);
                found.push(ProposedSetting { name: "first", value: "0".to_owned(), decoder });
            }
            for place in ranked(&places, |name| rank(name, &SEQUENCE_NAMES)) {
                found.push(candidate("sequence", place.setting(), &|locations| {
                    locations.sequence = Some(ValueLocation(vec![place.clone()]));
                }));
            }
            found.push(ProposedSetting {
                name: "ordering",
                value: "\"fifo\"".to_owned(),
                decoder: decoder.with(OrderingMode::Fifo, decoder.locations.clone()),
            });
        }
        _ => {}
    }
    found
}

/// Returns the formats whose signature ([`MessageFormat::signature`]) the message contains. Returns no format if the
/// settings already name the place of the id.
fn formats(decoder: &DeliveryDecoder, delivery: &Delivery) -> Vec<MessageFormat> {
    if decoder.locations.id.is_some() {
        return Vec::new();
    }
    let Ok(body) = plain_body(delivery, decoder.event_size) else { return Vec::new() };
    let reader = MessageReader { data: &body.data, ..reader_without_data(delivery) };
    let has_signature = |format: &MessageFormat| {
        format.signature().is_some_and(|places| located_text(&reader, &places).is_some())
    };
    MessageFormat::all().filter(has_signature).collect()
}

fn reader_without_data(delivery: &Delivery) -> MessageReader<'_> {
    let kind = delivery.properties.kind().as_ref();
    MessageReader { delivery, data: &[], kind, encoding: None }
}

/// Returns whether an exchange of RabbitMQ can divide messages among partitions by the value in this place.
fn is_hashable(place: &Place) -> bool {
    matches!(
        place,
        Place::Header(_)
            | Place::Property(MessageProperty::MessageId | MessageProperty::CorrelationId)
    )
}

/// Returns the places whose names have a rank, the lowest rank first.
fn ranked(places: &[Place], rank: impl Fn(&str) -> Option<usize>) -> Vec<&Place> {
    let mut found: Vec<(usize, &Place)> =
        places.iter().filter_map(|place| Some((rank(&plain_name(place))?, place))).collect();
    // This sort keeps the order of places with the same rank.
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, place)| place).collect()
}

fn plain_name(place: &Place) -> String {
    let setting = place.setting();
    let name = setting.split_once(':').map_or(&*setting, |(_, name)| name);
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Returns the rank of a name: its index in `names`, or a higher number if the name only ends with one of `names`.
fn rank(name: &str, names: &[&str]) -> Option<usize> {
    let equal = names.iter().position(|known| *known == name);
    let is_ending = |known: &&str| known.len() >= ENDING_BYTES && name.ends_with(*known);
    equal.or_else(|| names.iter().position(is_ending).map(|index| names.len() + index))
}

/// Returns the rank of a name that may belong to a key. The least likely names are names such as `partid`, which end
/// with `id` but do not look like the id of an event.
fn key_rank(name: &str) -> Option<usize> {
    rank(name, &KEY_NAMES).or_else(|| {
        let is_id_of_object = name.ends_with("id") && rank(name, &ID_NAMES).is_none();
        is_id_of_object.then_some(2 * KEY_NAMES.len())
    })
}

/// Returns the places of a message that have a value and that the configuration can name: headers, then properties,
/// then values in a JSON body.
fn places(decoder: &DeliveryDecoder, delivery: &Delivery) -> Vec<Place> {
    let mut places = Vec::new();
    for (name, value) in headers(delivery).into_iter().flat_map(FieldTable::inner) {
        let name = name.as_str();
        let has_value = as_text(value).is_some_and(|text| !text.is_empty());
        if has_value && is_plain(name) && !QUEUE_HEADERS.contains(&name) {
            places.push(Place::Header(name.to_owned()));
        }
    }
    let reader = reader_without_data(delivery);
    for property in [MessageProperty::MessageId, MessageProperty::CorrelationId] {
        if reader.property(property).is_some_and(|text| !text.is_empty()) {
            places.push(Place::Property(property));
        }
    }
    if let Some(body) = json_body(decoder, delivery) {
        let mut pointers = Vec::new();
        add_fields(&body, "", 1, &mut pointers);
        let fields = pointers.iter().filter(|pointer| is_plain(pointer));
        places.extend(fields.filter_map(|pointer| JsonPointer::parse(pointer)).map(Place::Data));
    }
    places
}

fn headers(delivery: &Delivery) -> Option<&FieldTable> {
    delivery.properties.headers().as_ref()
}

/// Returns whether a name needs no escape in a setting.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '{' | '}'))
}

fn json_body(decoder: &DeliveryDecoder, delivery: &Delivery) -> Option<Value> {
    let body = plain_body(delivery, decoder.event_size).ok()?;
    serde_json::from_slice(&body.data).ok()
}

fn add_fields(value: &Value, parent: &str, depth: usize, pointers: &mut Vec<String>) {
    let Value::Object(members) = value else { return };
    for (name, member) in members {
        if pointers.len() >= FIELDS_LIMIT {
            return;
        }
        let pointer = format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"));
        match member {
            Value::String(_) | Value::Number(_) => pointers.push(pointer),
            member if depth < DEPTH_LIMIT => add_fields(member, &pointer, depth + 1, pointers),
            _ => {}
        }
    }
}

/// Returns a description of the values that a message has, without the values themselves.
pub(crate) fn describe_message(decoder: &DeliveryDecoder, delivery: &Delivery) -> String {
    let first = first_delivery(decoder, delivery);
    let delivery = first.as_ref().unwrap_or(delivery);
    let routing_key =
        if delivery.routing_key.as_str().is_empty() { "no routing key" } else { "a routing key" };
    let reader = reader_without_data(delivery);
    let property_names: Vec<&str> = MessageProperty::ALL
        .into_iter()
        .filter(|property| reader.property(*property).is_some())
        .map(MessageProperty::name)
        .collect();
    let header_names: Vec<&str> = headers(delivery)
        .into_iter()
        .flat_map(FieldTable::inner)
        .map(|(name, _)| name.as_str())
        .filter(|name| !QUEUE_HEADERS.contains(name))
        .collect();
    let body = match json_body(decoder, delivery) {
        None => "a body that is not JSON".to_owned(),
        Some(body) => {
            let mut pointers = Vec::new();
            add_fields(&body, "", 1, &mut pointers);
            let pointers: Vec<&str> = pointers.iter().map(String::as_str).collect();
            listed("a JSON body with the values", "a JSON body", &pointers)
        }
    };
    let properties = listed("the properties", "no properties", &property_names);
    let headers = listed("the headers", "no headers", &header_names);
    format!("{routing_key}, {properties}, {headers}, and {body}")
}

/// Returns `words`, followed by the names. Returns `none` if there are no names.
fn listed(words: &str, none: &str, names: &[&str]) -> String {
    if names.is_empty() {
        return none.to_owned();
    }
    let shown: Vec<String> = names
        .iter()
        .take(NAMES_LIMIT)
        .map(|name| escape_invisible(&truncated((*name).to_owned(), NAME_BYTES)).into_owned())
        .collect();
    let more = match names.len().saturating_sub(NAMES_LIMIT) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{words} {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use lapin::types::AMQPValue;

    use super::*;

    fn decoder(ordering: OrderingMode, is_partitioned: bool) -> DeliveryDecoder {
        let locations = EventLocations::DEFAULT;
        DeliveryDecoder::new("/ordain/s".to_owned(), ordering, 1 << 20, locations, is_partitioned)
    }

    fn message(
        routing_key: &str,
        headers: &[&str],
        properties: BasicProperties,
        body: &str,
    ) -> Delivery {
        let mut table = FieldTable::default();
        for name in headers {
            table.insert((*name).into(), AMQPValue::LongString("7".into()));
        }
        let body = body.as_bytes().to_vec();
        let mut delivery = Delivery::mock(1, "".into(), routing_key.into(), false, body);
        delivery.properties = properties.with_headers(table);
        delivery
    }

    #[test]
    fn id_of_a_known_producer_is_proposed() {
        let fifo = decoder(OrderingMode::Fifo, false);
        let plain = BasicProperties::default;
        for (headers, body, expected) in [
            (&["argsrepr", "id"][..], "[[7], {}, {}]", "header:id"),
            (&["Shop.ConversationId", "Shop.MessageId"], "", "header:Shop.MessageId"),
            (&["rbs2-msg-id"], "{}", "header:rbs2-msg-id"),
            (&[], r#"{"messageId": "a", "message": {"orderId": 3}}"#, "data:/messageId"),
            (&[], r#"{"order": {"id": 3}}"#, "content"),
            (&["bad\"id"], "text", "content"),
        ] {
            let found = propose_settings(&fifo, &message("queue", headers, plain(), body));
            let expected = format!("`source = {{ …, id = \"{expected}\" }}`");
            assert_eq!(found, Some(expected), "{headers:?} {body}");
        }
    }

    /// The message must have the signature of the library, because other programs also write an id into the places that
    /// the library uses.
    #[test]
    fn format_of_a_known_library_is_proposed() {
        let fifo = decoder(OrderingMode::Fifo, false);
        let find = |decoder: &DeliveryDecoder, headers: &[&str], body| {
            propose_settings(decoder, &message("k", headers, BasicProperties::default(), body))
        };
        for (headers, body, name) in [
            (&[][..], r#"{"messageId": "a", "messageType": ["urn:message:A"]}"#, "masstransit"),
            (&["NServiceBus.ConversationId", "NServiceBus.MessageId"], "", "nservicebus"),
            (&["argsrepr", "id", "task"], "[[7], {}, {}]", "celery"),
            (&["__TypeId__", "spring_returned_message_correlation"], "{}", "spring"),
            (&[], r#"{"pattern": {"cmd": "a"}, "data": {}, "id": "b"}"#, "nestjs"),
            (&[], r#"{"specversion": "1.0", "id": "a", "data": {}}"#, "dapr"),
        ] {
            let expected =
                format!("`source = {{ …, format = \"{name}\", key = \"routing-key\" }}`");
            assert_eq!(find(&fifo, headers, body), Some(expected), "{headers:?} {body}");
        }
        // If the source already names the place of the id, this place takes precedence over the format.
        let id = IdLocation(vec![IdPlace::Place(Place::Header("other".to_owned()))]);
        let locations = EventLocations { id: Some(id), ..EventLocations::DEFAULT };
        let found = find(&fifo.with(OrderingMode::Fifo, locations), &["id", "task"], "[]");
        assert_eq!(found.as_deref(), Some("`source = { …, id = \"header:id\" }`"));
        let keyless = message("", &["id", "task"], BasicProperties::default(), "[]");
        let expected = "`source = { …, key = \"*\", format = \"celery\" }`";
        assert_eq!(propose_settings(&fifo, &keyless).as_deref(), Some(expected));
    }

    #[test]
    fn settings_for_all_events_of_a_batch_are_proposed() {
        let batch = |body: &str| {
            let content_type = "application/cloudevents-batch+json";
            let properties = BasicProperties::default().with_content_type(content_type.into());
            message("", &["customer-id"], properties, body)
        };
        let fifo = decoder(OrderingMode::Fifo, false);
        let event = r#"{"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}"#;
        let found = propose_settings(&fifo, &batch(&format!("[{event}, {event}]")));
        assert_eq!(found.as_deref(), Some("`source = { …, key = \"header:customer-id\" }`"));
        assert_eq!(propose_settings(&fifo, &batch(&format!("[{event}, {{}}]"))), None);
    }

    #[test]
    fn several_missing_values_are_proposed_together() {
        let properties = BasicProperties::default().with_correlation_id("c".into());
        let delivery = message("", &["id"], properties, "{}");
        let fifo = decoder(OrderingMode::Fifo, false);
        let expected = "`source = { …, key = \"property:correlation_id\", id = \"header:id\" }`";
        assert_eq!(propose_settings(&fifo, &delivery).as_deref(), Some(expected));
        let sequenced = decoder(OrderingMode::Sequenced, false);
        let expected = "`ordering = \"fifo\"` and `source = { …, key = \"property:correlation_id\", \
                        id = \"header:id\" }` (if the store already has data of the stream, give the stream a new \
                        name as well)";
        assert_eq!(propose_settings(&sequenced, &delivery).as_deref(), Some(expected));
        let numbered = message("", &["version"], BasicProperties::default(), "{}");
        let expected = "`source = { …, key = \"*\", sequence = \"header:version\" }`";
        assert_eq!(propose_settings(&sequenced, &numbered).as_deref(), Some(expected));
    }

    #[test]
    fn lower_first_sequence_is_proposed() {
        let sequenced = decoder(OrderingMode::Sequenced, false).with_sequences(1..9);
        let numbered = |number: i64| {
            let mut delivery = message("k", &["version"], BasicProperties::default(), "{}");
            let mut headers = delivery.properties.headers().clone().unwrap_or_default();
            headers.insert("X-Sequence-ID".into(), AMQPValue::LongLongInt(number));
            delivery.properties = delivery.properties.with_headers(headers);
            delivery
        };
        assert_eq!(propose_settings(&sequenced, &numbered(1)), None);
        let expected = "`first = 0` (if the store already has data of the stream, give the stream a new name as well)";
        assert_eq!(propose_settings(&sequenced, &numbered(0)).as_deref(), Some(expected));
        let expected = "`source = { …, sequence = \"header:version\" }`";
        assert_eq!(propose_settings(&sequenced, &numbered(9)).as_deref(), Some(expected));
    }

    /// An exchange cannot divide messages by a value in the body.
    #[test]
    fn key_of_several_partitions_can_be_hashed() {
        let fifo = decoder(OrderingMode::Fifo, true);
        let body = r#"{"orderId": 7}"#;
        let id = || BasicProperties::default().with_message_id("m".into());
        let expected = "`source = { …, key = \"header:customer-id\" }`";
        let found = propose_settings(&fifo, &message("", &["customer-id"], id(), body));
        assert_eq!(found.as_deref(), Some(expected));
        assert_eq!(propose_settings(&fifo, &message("", &[], id(), body)), None);
    }

    #[test]
    fn damaged_message_has_no_proposal() {
        let fifo = decoder(OrderingMode::Fifo, false);
        let properties = BasicProperties::default()
            .with_message_id("m".into())
            .with_content_encoding("gzip".into());
        assert_eq!(propose_settings(&fifo, &message("a", &[], properties, "no gzip")), None);
    }

    #[test]
    fn description_names_values_without_showing_them() {
        let properties = BasicProperties::default().with_app_id("secret".into());
        let delivery = message("secret", &["tenant"], properties, r#"{"a": {"b": "secret"}}"#);
        let described = describe_message(&decoder(OrderingMode::Fifo, false), &delivery);
        let expected = "a routing key, the properties app_id, the headers tenant, and a JSON body with the values /a/b";
        assert_eq!(described, expected);
        let bare = message("", &[], BasicProperties::default(), "text");
        let described = describe_message(&decoder(OrderingMode::Fifo, false), &bare);
        let expected = "no routing key, no properties, no headers, and a body that is not JSON";
        assert_eq!(described, expected);
    }
}
