//! Checks the names of attributes. CloudEvents allows only lower case in these names. Ordain would treat an attribute
//! such as `EndOfSequence` as an extension without a meaning, so the event would have another effect than the producer
//! intended.

use ordain_config::{IdPlace, Place};
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

    /// Returns whether the decoder interprets an attribute of the event, or would interpret the attribute if the event
    /// had it.
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
            EnvelopeMember::PartitionKey => locations.key.is_none(),
            EnvelopeMember::Subject => {
                let has_other_key = envelope.raw(EnvelopeMember::PartitionKey).is_some();
                locations.key.is_none() && !has_other_key
            }
        }
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
