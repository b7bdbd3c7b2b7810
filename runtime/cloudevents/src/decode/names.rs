//! Checks the names of attributes. CloudEvents allows only lower case in these names. Ordain would treat an attribute
//! such as `EndOfSequence` as an extension without a meaning, so the event would have another effect than the producer
//! intended.

use ordain_config::{IdPlace, KeyPlace, Place};
use ordain_core::OrderingMode;

use super::super::envelope::{EnvelopeMember, EventEnvelope};
use super::{DecodeResult, EventDecoder, is_default_place, unreadable};

impl EventDecoder {
    /// Rejects an event with an extension whose name differs only in case from an attribute that the decoder
    /// interprets. All other extensions may have any name.
    pub(super) fn check_names(&self, envelope: &EventEnvelope<'_>) -> DecodeResult<()> {
        for (name, raw) in &envelope.extensions {
            if *raw == "null" || !name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                continue;
            }
            let right = name.to_ascii_lowercase();
            if EnvelopeMember::of(&right).is_some_and(|member| self.interprets(envelope, member)) {
                return unreadable(format!(
                    "the names of attributes are lower case: write `{right}` instead of `{name}`"
                ));
            }
        }
        Ok(())
    }

    /// Returns whether the decoder interprets this member in events that contain it.
    fn interprets(&self, envelope: &EventEnvelope<'_>, member: EnvelopeMember) -> bool {
        let locations = self.locations();
        match member {
            EnvelopeMember::SpecVersion
            | EnvelopeMember::Source
            | EnvelopeMember::EndOfSequence
            | EnvelopeMember::DataContentType
            | EnvelopeMember::Data
            | EnvelopeMember::DataBase64 => true,
            EnvelopeMember::Id => self.is_default_id(),
            EnvelopeMember::Type => is_default_place(locations.kind.as_ref(), "type"),
            EnvelopeMember::Time => is_default_place(locations.time.as_ref(), "time"),
            EnvelopeMember::Sequence => self.is_numbered(),
            EnvelopeMember::PartitionKey => self.reads_key_from(envelope, "partitionkey"),
            EnvelopeMember::Subject => self.reads_key_from(envelope, "subject"),
        }
    }

    /// Returns whether the decoder would read the key of the event from an attribute with this name. The decoder reads
    /// the key from the first place that is present. If an earlier place is not an attribute, this method does not
    /// check whether this place is present.
    fn reads_key_from(&self, envelope: &EventEnvelope<'_>, name: &str) -> bool {
        let names = match &self.locations().key {
            Some(key) => key.0.iter().filter_map(attribute_name).collect(),
            None => vec!["partitionkey", "subject"],
        };
        let is_present = |name: &str| {
            EnvelopeMember::of(name).is_some_and(|member| envelope.raw(member).is_some())
        };
        let first = names.into_iter().find(|found| *found == name || is_present(found));
        first == Some(name)
    }

    /// Returns whether the decoder reads the sequence first from the attribute `sequence`.
    pub(super) fn is_numbered(&self) -> bool {
        self.ordering == OrderingMode::Sequenced
            && is_default_place(self.locations().sequence.as_ref(), "sequence")
    }

    /// Returns whether the decoder reads the id first from the attribute `id`.
    pub(super) fn is_default_id(&self) -> bool {
        let first = self.locations().id.as_ref().map(|id| id.0.first());
        first.is_none_or(
            |first| matches!(first, Some(IdPlace::Place(Place::Attribute(name))) if name == "id"),
        )
    }
}

/// Returns the name of the attribute that contains the whole key; `None` if the place is no attribute.
fn attribute_name(place: &KeyPlace) -> Option<&str> {
    match place {
        KeyPlace::Place(Place::Attribute(name)) => Some(name),
        _ => None,
    }
}
