//! Checks that the places of a source's values exist in the events of the source, and that all events of a key reach
//! one partition.

use ordain_core::OrderingMode;

use super::ConfigChecker;
use crate::format::MessageFormat;
use crate::location::{IdLocation, IdPlace, KeyLocation, KeyPlace, Place};
use crate::text::ResourceName;
use crate::{SourceConfig, StreamConfig};

impl ConfigChecker<'_> {
    /// Checks the locations of a stream's source.
    pub(super) fn locations(&mut self, name: &ResourceName, stream: &StreamConfig) {
        let at = |field: &str| format!("streams.{name}.source.{field}");
        let (is_amqp, locations) = match &stream.source {
            SourceConfig::Amqp(source) => {
                self.require_key(&at("format"), &at("key"), source.format);
                (true, source.named_locations())
            }
            source => (false, source.locations()),
        };
        let places = [
            ("key", locations.key.as_ref().map(KeyLocation::places)),
            ("id", locations.id.as_ref().map(IdLocation::places)),
            ("sequence", locations.sequence.as_ref().map(|places| places.0.iter().collect())),
            ("type", locations.kind.as_ref().map(|places| places.0.iter().collect())),
            ("time", locations.time.as_ref().map(|places| places.0.iter().collect())),
        ];
        let mut is_key_foreign = false;
        for (field, places) in places {
            let foreign =
                places.into_iter().flatten().find_map(|place| foreign_place(place, is_amqp));
            if let Some(message) = foreign {
                self.report(&at(field), message);
                is_key_foreign |= field == "key";
            }
        }
        let is_fifo = stream.ordering == OrderingMode::Fifo;
        if is_fifo && locations.sequence.is_some() {
            let message = "applies to sequenced streams only: in a fifo stream Ordain numbers the events from 1";
            self.report(&at("sequence"), message);
        }
        if !is_fifo && locations.id.is_some_and(|id| id.0.contains(&IdPlace::Unique)) {
            let message = "\"none\" is for streams with ordering = \"fifo\" only: a sequenced stream recognises a \
                           repeated event by its sequence, and needs no id; remove the setting";
            self.report(&at("id"), message);
        }
        if !is_key_foreign && let Some(message) = partitions_conflict(&stream.source) {
            self.report(&at("key"), message);
        }
    }

    /// Reports a source with a format and without a key. `format_setting` and `key_setting` are the full names of the
    /// two settings.
    fn require_key(
        &mut self,
        format_setting: &str,
        key_setting: &str,
        format: Option<MessageFormat>,
    ) {
        let Some(format) = format.filter(|_| !self.lines.has(key_setting)) else { return };
        let message = format!(
            "format = \"{}\" needs the setting `key`, because {} has no fixed place for the key of your data: name the \
             place in your messages, such as key = \"{}\". Or write key = \"routing-key\", or key = \"*\" for one key \
             of the whole stream",
            format.name(),
            format.library(),
            format.example_key()
        );
        self.report(format_setting, message);
    }
}

/// Returns an error text if a place does not exist in the events of a source.
fn foreign_place(place: &Place, is_amqp: bool) -> Option<String> {
    match place {
        Place::Attribute(name) if is_amqp => Some(format!(
            "\"attribute:{name}\" is for kind = \"http\" and \"file\": a message contains the attribute {name} of a \
             CloudEvent in a header, so use \"header:cloudEvents:{name}\" or \"header:cloudEvents_{name}\"; or use \
             \"property:NAME\" or \"data:/POINTER\""
        )),
        Place::RoutingKey if !is_amqp => {
            Some(only_in_messages("routing-key", "\"attribute:NAME\""))
        }
        Place::Header(name) if !is_amqp => Some(only_in_messages(
            &format!("header:{name}"),
            "\"attribute:NAME\" (the header ce-NAME of a request contains the attribute NAME)",
        )),
        Place::Property(property) if !is_amqp => {
            Some(only_in_messages(&format!("property:{}", property.name()), "\"attribute:NAME\""))
        }
        _ => None,
    }
}

fn only_in_messages(found: &str, instead: &str) -> String {
    format!(
        "\"{found}\" is for kind = \"amqp\": use {instead} for an attribute of the CloudEvent, or \"data:/POINTER\" \
         for a value in its data"
    )
}

/// Returns an error text if the events of a key could be in several partitions, or if all events are in one partition
/// although the source has several.
fn partitions_conflict(source: &SourceConfig) -> Option<String> {
    if source.partitions() == 1 {
        return None;
    }
    if source.locations().key.is_some_and(|key| key.0 == [KeyPlace::Stream]) {
        return Some(
            "\"*\" makes the whole stream one key, and all events of a key are in one partition: set partitions = 1, \
             or choose another key"
                .to_owned(),
        );
    }
    let SourceConfig::Amqp(source) = source else { return None };
    if source.hashed_part().is_some() {
        return None;
    }
    Some(
        "with more than one partition, the exchange chooses the partition of each event. RabbitMQ can choose it only \
         by the routing key, by one header, or by one of the properties message_id, correlation_id and timestamp. With \
         this setting, the events of one key could be in several partitions. Set partitions = 1; or let the producer \
         or a shovel write the key into a header, and use \"header:NAME\"; or use kind = \"http\", where Ordain \
         chooses the partition itself"
            .to_owned(),
    )
}
