//! The rows of dead letters.

use ordain_core::{Event, LetterContent};
use serde::{Deserialize, Serialize};

use super::{BoundedRows, JsonData, RowText, event_time, time};
use ordain_store::StoredLetter;

/// A page of a listing of dead letters.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeadPage<L = BoundedRows<LetterRow>> {
    /// The dead letters of the page.
    pub dead: L,
    /// The cursor of the next page, if there is one.
    pub cursor: Option<String>,
}

/// A dead letter.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LetterRow {
    /// The id of the letter, unique within the stream and key.
    pub id: RowText,
    /// The key of the event; empty if the event has no key.
    pub key: RowText,
    /// The sequence of the event, even if the event never arrived; `None` if the event has no sequence.
    pub sequence: Option<u64>,
    /// If the letter stands for several skipped sequences: the last of these sequences. `sequence` is the first of
    /// them. Otherwise `None`.
    pub last_sequence: Option<u64>,
    /// The name of the cause, such as `rejected`.
    pub cause: RowText,
    /// The reason in words.
    pub error: RowText,
    /// The place in the source, such as `line 17 of orders.ndjson`. Present only if the delivery was not a readable
    /// event, or if the unread rest of a file is lost.
    pub origin: Option<RowText>,
    /// The handler version that executed the event; `None` if no handler executed the event.
    pub version: Option<RowText>,
    /// The time at which the letter was written.
    pub at: RowText,
    /// The event; `None` if the delivery was not a readable event, or if the event never arrived.
    pub event: Option<EventRow>,
    /// The bytes of a delivery that was not a readable event, or of a stored letter that cannot be read; otherwise
    /// `None`.
    pub raw: Option<JsonData>,
}

impl LetterRow {
    /// Builds the row of a dead letter.
    pub fn of(stored: &StoredLetter) -> Self {
        let letter = &stored.letter;
        let (event, raw) = match &letter.content {
            LetterContent::Nothing => (None, None),
            LetterContent::Event(event) => (Some(EventRow::of(event)), None),
            LetterContent::Raw(bytes) => (None, Some(JsonData::of(bytes))),
        };
        Self {
            id: letter.id.text().into(),
            key: (&*letter.id.key).into(),
            sequence: letter.sequence(),
            last_sequence: letter.last_sequence(),
            cause: letter.cause.name().into(),
            error: letter.error.as_str().into(),
            origin: letter.origin.as_deref().map(RowText::from),
            version: letter.version.as_deref().map(RowText::from),
            at: time(stored.at).into(),
            event,
            raw,
        }
    }
}

/// The event of a dead letter.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EventRow {
    /// The event's id, as the producer set it.
    pub id: RowText,
    /// The event's type, as the producer set it.
    #[serde(rename = "type")]
    pub kind: RowText,
    /// The CloudEvents attribute `source`: the part of the producer that sent the event.
    pub source: RowText,
    /// The event's number within its key; `None` if the event has no number.
    pub sequence: Option<u64>,
    /// The time that the producer gave the event; `None` if the event has no time.
    pub time: Option<RowText>,
    /// The media type of the data.
    pub content_type: RowText,
    /// `true` if the event ends its key.
    pub end_of_sequence: bool,
    /// The names and values of the attributes of the event that have no field of their own here.
    pub headers: Vec<(RowText, RowText)>,
    /// The data of the event, as JSON, text or base64.
    pub data: JsonData,
}

impl EventRow {
    fn of(event: &Event) -> Self {
        let headers = event.headers();
        Self {
            id: event.id().into(),
            kind: event.kind().into(),
            source: event.source().into(),
            sequence: event.sequence(),
            time: event.time_us().map(event_time).map(RowText::from),
            content_type: event.content_type().into(),
            end_of_sequence: event.end(),
            headers: headers.map(|(name, value)| (name.into(), value.into())).collect(),
            data: JsonData::of(event.data()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_core::{Cause, DeadLetter, EventParts, LetterId};

    use super::*;
    use crate::view::to_json;

    #[test]
    fn row_is_read_as_it_was_written() {
        let event = Event::new(&EventParts { id: "a", data: b"[1]", ..EventParts::default() });
        let contents = [
            (LetterContent::Nothing, "\"event\":null,\"raw\":null}"),
            (LetterContent::Raw("x".into()), "\"event\":null,\"raw\":\"x\"}"),
            (LetterContent::Event(event.into()), "\"headers\":[],\"data\":[1]},\"raw\":null}"),
        ];
        for (content, end) in contents {
            let letter = DeadLetter {
                id: LetterId { key: "k".into(), sequence: 1, tag: 10 },
                cause: Cause::Rejected,
                error: "no".into(),
                origin: None,
                version: None,
                content,
            };
            let json = to_json(&LetterRow::of(&StoredLetter { letter, at: 0 }));
            let begin = "{\"id\":\"1-a\",\"key\":\"k\",\"sequence\":1,\"last_sequence\":null,\
                         \"cause\":\"rejected\",\"error\":\"no\",\"origin\":null,\"version\":null,\"at\":\"1970";
            assert!(json.starts_with(begin) && json.ends_with(end), "{json}");
            let row: LetterRow = serde_json::from_str(&json).unwrap();
            assert_eq!(to_json(&row), json);
        }
    }

    #[test]
    fn row_of_skipped_sequences_has_their_range() {
        for (last, expected) in [(2, None), (3, Some(3)), (20_000_000, Some(20_000_000))] {
            let letter = DeadLetter {
                id: LetterId::of_skipped(&"k".into(), 2, last),
                cause: Cause::Gap,
                error: "never arrived".into(),
                origin: None,
                version: None,
                content: LetterContent::Nothing,
            };
            let row = LetterRow::of(&StoredLetter { letter, at: 0 });
            assert_eq!((row.sequence, row.last_sequence), (Some(2), expected));
        }
    }

    #[test]
    fn row_has_the_sequence_0_only_if_the_letter_is_about_a_numbered_event() {
        let numbered = EventParts { sequence: Some(0), ..EventParts::default() };
        let cases = [
            (Cause::Gap, LetterContent::Nothing, Some(0)),
            (Cause::Rejected, LetterContent::Event(Event::new(&numbered).into()), Some(0)),
            (
                Cause::Rejected,
                LetterContent::Event(Event::new(&EventParts::default()).into()),
                None,
            ),
            (Cause::Unreadable, LetterContent::Nothing, None),
            (Cause::Unreadable, LetterContent::Raw("x".into()), None),
        ];
        for (cause, content, sequence) in cases {
            let letter = DeadLetter {
                id: LetterId { key: "k".into(), sequence: 0, tag: 1 },
                cause,
                error: "no".into(),
                origin: None,
                version: None,
                content,
            };
            assert_eq!(
                LetterRow::of(&StoredLetter { letter, at: 0 }).sequence,
                sequence,
                "{cause:?}"
            );
        }
    }
}
