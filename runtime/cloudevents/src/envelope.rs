//! Splits the JSON object of a CloudEvent into its members in one pass. This module does not interpret the members:
//! each member is a slice of the input.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of a CloudEvent that the specification or Ordain defines. All other members are extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EnvelopeMember {
    SpecVersion,
    Id,
    Source,
    Type,
    Subject,
    PartitionKey,
    Sequence,
    EndOfSequence,
    Time,
    DataContentType,
    Data,
    DataBase64,
}

/// Number of variants of [`EnvelopeMember`].
const MEMBER_COUNT: usize = 12;

impl EnvelopeMember {
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "specversion" => Self::SpecVersion,
            "id" => Self::Id,
            "source" => Self::Source,
            "type" => Self::Type,
            "subject" => Self::Subject,
            "partitionkey" => Self::PartitionKey,
            "sequence" => Self::Sequence,
            "endofsequence" => Self::EndOfSequence,
            "time" => Self::Time,
            "datacontenttype" => Self::DataContentType,
            "data" => Self::Data,
            "data_base64" => Self::DataBase64,
            _ => return None,
        })
    }
}

/// The members of the JSON object of a CloudEvent, each as JSON text.
#[derive(Debug, Default)]
pub(super) struct EventEnvelope<'a> {
    members: [Option<&'a str>; MEMBER_COUNT],
    pub(super) extensions: Vec<(Cow<'a, str>, &'a str)>,
    /// The first name that occurs twice, which makes the object ambiguous.
    pub(super) duplicate_name: Option<Cow<'a, str>>,
}

impl<'a> EventEnvelope<'a> {
    /// Returns the JSON text of a member; `None` if the member is missing. According to the specification, an attribute
    /// with the value `null` is not set, so the attribute counts as missing. In the member `data`, `null` is a value.
    pub(super) fn raw(&self, member: EnvelopeMember) -> Option<&'a str> {
        self.members[member as usize].filter(|raw| *raw != "null" || member == EnvelopeMember::Data)
    }

    pub(super) fn insert(&mut self, name: Cow<'a, str>, raw: &'a str) {
        let twice = if let Some(member) = EnvelopeMember::of(&name) {
            self.members[member as usize].replace(raw).is_some()
        } else {
            let twice = self.extensions.iter().any(|(other, _)| *other == name);
            self.extensions.push((name.clone(), raw));
            twice
        };
        if twice {
            self.duplicate_name.get_or_insert(name);
        }
    }
}

impl<'de> Deserialize<'de> for EventEnvelope<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EnvelopeVisitor)
    }
}

struct EnvelopeVisitor;

impl<'de> Visitor<'de> for EnvelopeVisitor {
    type Value = EventEnvelope<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EventEnvelope<'de>, A::Error> {
        let mut envelope = EventEnvelope::default();
        while let Some(MemberName(name)) = map.next_key()? {
            if envelope.extensions.len() > super::HEADERS_LIMIT {
                let limit = super::HEADERS_LIMIT;
                return Err(A::Error::custom(format_args!("more than {limit} extensions")));
            }
            envelope.insert(name, map.next_value::<&RawValue>()?.get());
        }
        Ok(envelope)
    }
}

/// The name of a member; borrowed if it has no escapes.
struct MemberName<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for MemberName<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MemberNameVisitor;

        impl<'de> Visitor<'de> for MemberNameVisitor {
            type Value = MemberName<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<MemberName<'de>, E> {
                Ok(MemberName(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<MemberName<'de>, E> {
                Ok(MemberName(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(MemberNameVisitor)
    }
}
