//! The rows of keys, in a listing or one by one.

use bytes::Bytes;
use ordain_core::{
    Cause, FailureInfo, GapEnd, GapEntry, HandlerLimit, KeyRecord, KeyStatus, SourceAnswers,
    SpillExtent,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BoundedRows, JsonData, RowText, time};

/// A page of a listing of keys.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeysPage<L = BoundedRows<KeyRow>> {
    /// The keys of the page.
    pub keys: L,
    /// The cursor of the next page, if there is one.
    pub cursor: Option<String>,
}

/// The row of a key. If the key's record cannot be read, the row has an `error`, and its JSON lacks the members whose
/// values come from the record.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct KeyRow {
    /// The range of the key's events that wait in dead letters, because they arrived when the key could not hold them.
    /// The key takes each event from its letter when the key reaches the sequence of the event. `None` if there are no
    /// such events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<AheadRow>,
    /// The number of failed tries of the event with the sequence `next`. Only tries that count towards `retry.attempts`
    /// are included.
    pub attempts: u32,
    /// The earliest time at which the owner of the key's partition handles the key, even if no event arrives; `None` if
    /// no time is set.
    pub due_at: Option<RowText>,
    /// The reason why the key's record cannot be read; `None` if the record can be read.
    #[serde(skip_serializing)]
    pub error: Option<RowText>,
    /// The number of rounds of replay requests for the event with the sequence `next`, if this event is missing.
    pub gap_rounds: u32,
    /// The number and the range of the key's waiting events that the store holds.
    pub held: HeldRow,
    /// The time of the key's first commit, in ms since the Unix epoch. The ids of the key's messages are derived from
    /// this time and other values.
    pub incarnation: u64,
    /// The key, as the events of the stream contain it.
    pub key: RowText,
    /// The sequence that the key settles next; all lower sequences are settled.
    pub next: u64,
    /// Number of times that the key was parked.
    pub park_generation: u32,
    /// The partition of the key. Only the partition's owner may commit changes of the key.
    pub partition: u32,
    /// The ranges of sequences that were skipped because their events never arrived.
    pub skipped: Vec<(u64, u64)>,
    /// Size of the handler state, in bytes.
    pub state_size: u64,
    /// The name of the status; `corrupt` if the record cannot be read.
    pub status: RowText,
    /// The reason why the key is parked, or why the owner retries the key's next event; `None` in all other cases.
    pub trouble: Option<FailureRow>,
    /// The handler version that executed the newest of the key's executed and committed events; `None` before the first
    /// such event.
    pub version: Option<RowText>,
    /// The SHA-256 of the file of the handler version in `version`; `None` if `version` is `None`.
    pub version_digest: Option<RowText>,
    /// The number of the rollout (the stored choice of a handler version) that selected `version`; `None` if `version`
    /// is `None`.
    pub version_generation: Option<u64>,
    /// The newest gaps (missing events) whose timeout has elapsed; `None` in a listing, and if the record cannot be
    /// read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Vec<GapRow>>,
    /// The handler state; `None` in a listing, and if the key has no state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JsonData>,
}

#[derive(Serialize)]
struct CorruptRow<'a> {
    due_at: Option<&'a RowText>,
    error: &'a RowText,
    key: &'a RowText,
    state_size: u64,
    status: &'a RowText,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a JsonData>,
}

impl Serialize for KeyRow {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Some(error) = &self.error else { return Self::serialize(self, to) };
        let row = CorruptRow {
            due_at: self.due_at.as_ref(),
            error,
            key: &self.key,
            state_size: self.state_size,
            status: &self.status,
            state: self.state.as_ref(),
        };
        row.serialize(to)
    }
}

impl<'de> Deserialize<'de> for KeyRow {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::deserialize(from)
    }
}

impl KeyRow {
    /// Builds the row of a key in a listing, without its gaps and its state.
    pub fn of(stored: &ordain_store::StoredKey) -> Self {
        let record = match &stored.record {
            Ok(record) => Self::of_record(record),
            Err(error) => {
                let error = Some(error.as_str().into());
                Self { status: "corrupt".into(), error, ..Self::default() }
            }
        };
        Self {
            key: (&*stored.key).into(),
            state_size: stored.state_size,
            due_at: stored.due_at.map(time).map(RowText::from),
            ..record
        }
    }

    /// Builds the row of a key with its gaps and its state.
    pub fn with_state(stored: &ordain_store::StoredKey, state: Option<&Bytes>) -> Self {
        let gaps =
            stored.record.as_ref().map(|record| record.gaps.iter().map(GapRow::of).collect());
        let state = state.map(|state| JsonData::of(state));
        Self { gaps: gaps.ok(), state, ..Self::of(stored) }
    }

    fn of_record(record: &KeyRecord) -> Self {
        let version = record.rollout.as_ref();
        Self {
            ahead: record
                .ahead
                .as_deref()
                .filter(|range| range.last >= record.next && record.status != KeyStatus::Completed)
                .map(|range| AheadRow { first: range.first.max(record.next), last: range.last }),
            attempts: record.attempts,
            gap_rounds: record.rounds,
            held: HeldRow::of(record.spilled),
            incarnation: record.incarnation,
            next: record.next,
            park_generation: record.park_count,
            partition: record.partition,
            skipped: record.skipped.ranges().to_vec(),
            status: record.status.name().into(),
            trouble: record.failure.as_deref().map(FailureRow::of),
            version: version.map(|decided| (&*decided.build.version).into()),
            version_digest: version.map(|decided| decided.build.digest.to_string().into()),
            version_generation: version.map(|decided| decided.number),
            ..Self::default()
        }
    }

    /// Returns the status; `None` for `corrupt`, and for a name that this version of the program does not know.
    pub fn status(&self) -> Option<KeyStatus> {
        KeyStatus::parse(self.status.raw())
    }
}

/// The number and the range of the events that the store holds for a key.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldRow {
    /// The number of held events.
    pub count: u64,
    /// A lower bound of the sequences of the held events.
    pub first: u64,
    /// An upper bound of the sequences of the held events.
    pub last: u64,
}

impl HeldRow {
    fn of(spilled: SpillExtent) -> Self {
        Self { count: spilled.count, first: spilled.first, last: spilled.last }
    }
}

/// The range of a key's events that wait in dead letters (see [`KeyRow::ahead`]), from the key's next sequence on. Not
/// every sequence in the range has such an event.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AheadRow {
    /// A lower bound of the sequences of these events.
    pub first: u64,
    /// The highest sequence of these events.
    pub last: u64,
}

/// The reason why a key is parked, or why the owner retries the key's next event.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FailureRow {
    /// The name of the cause, such as `gap`.
    pub cause: RowText,
    /// The reason in words.
    pub error: RowText,
    /// The name of the limit that the handler exceeded. `None` if the handler exceeded no limit, or if the
    /// configuration cannot raise the exceeded limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<RowText>,
    /// The time of the commit that recorded the reason.
    pub since: RowText,
    /// The handler version that failed; `None` if no handler failed.
    pub version: Option<RowText>,
}

impl FailureRow {
    fn of(failure: &FailureInfo) -> Self {
        Self {
            cause: failure.cause.name().into(),
            error: failure.words().into(),
            limit: failure.limit().map(|limit| limit.name().into()),
            since: time(failure.since).into(),
            version: failure.version.as_deref().map(RowText::from),
        }
    }

    /// Returns the cause; `None` if this version of the program does not know the name in `cause`.
    pub fn cause(&self) -> Option<Cause> {
        Cause::parse(self.cause.raw())
    }

    /// Returns the exceeded limit; `None` if `limit` is `None`, or if this version of the program does not know the
    /// name in `limit`.
    pub fn limit(&self) -> Option<HandlerLimit> {
        HandlerLimit::parse(self.limit.as_ref()?.raw())
    }
}

/// A gap whose timeout (`gap.timeout`) has elapsed.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GapRow {
    /// The answers of each replay source.
    pub answers: Vec<AnswersRow>,
    /// The way in which the gap ended, such as `replayed`; `open` during the rounds of requests. With `waiting` or
    /// `parked`, no round of requests has found the events, and they are still missing.
    pub end: RowText,
    /// The first missing sequence.
    pub first: u64,
    /// The last missing sequence.
    pub last: u64,
    /// The time from `since` to `until`, in ms; `None` while `end` is `open`.
    pub lasted_ms: Option<u64>,
    /// Number of rounds of replay requests that have begun.
    pub rounds: u32,
    /// The time at which the owner of the partition detected the gap.
    pub since: RowText,
    /// The time at which `end` was recorded; `None` while `end` is `open`.
    pub until: Option<RowText>,
}

impl GapRow {
    fn of(gap: &GapEntry) -> Self {
        let is_over = gap.end != GapEnd::Open;
        Self {
            answers: gap.answers.iter().map(AnswersRow::of).collect(),
            end: gap.end.name().into(),
            first: gap.first,
            last: gap.last,
            lasted_ms: is_over.then(|| gap.lasted(gap.until)),
            rounds: gap.rounds,
            since: time(gap.since.saturating_sub(gap.waited)).into(),
            until: is_over.then(|| time(gap.until).into()),
        }
    }

    /// Returns the way in which the gap ended; `None` if this version of the program does not know the name in `end`.
    pub fn end(&self) -> Option<GapEnd> {
        GapEnd::parse(self.end.raw())
    }
}

/// The answers of a replay source to requests for a gap's events.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswersRow {
    /// Number of requests to the source for events of the gap.
    pub asked: u32,
    /// The error of the last request that failed; `None` if no request failed.
    pub error: Option<RowText>,
    /// Number of requests that failed.
    pub failed: u32,
    /// Number of events that the source returned.
    pub found: u32,
    /// The name of the replay source.
    pub source: RowText,
}

impl AnswersRow {
    fn of(answers: &SourceAnswers) -> Self {
        Self {
            asked: answers.requests,
            error: answers.error.as_deref().map(RowText::from),
            failed: answers.failed,
            found: answers.found,
            source: (&*answers.source).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_core::{AheadRange, Build, FileDigest, GapHistory, Rollout};

    use super::*;
    use crate::view::to_json;

    const TIME: &str = "1970-01-01T00:00:01.000Z";

    fn stored(record: Result<KeyRecord, String>) -> ordain_store::StoredKey {
        ordain_store::StoredKey { key: "k".into(), record, state_size: 2, due_at: None }
    }

    fn parked() -> KeyRecord {
        let build = Build { version: "h@1.0.0".into(), digest: FileDigest([0; 32]) };
        let mut gap = GapEntry::new(3, 3, 500);
        gap.since = 1_500;
        KeyRecord {
            incarnation: 9,
            status: KeyStatus::Parked,
            skipped: std::iter::once((1, 2)).collect(),
            rollout: Some(Arc::new(Rollout { number: 5, build })),
            failure: Some(Box::new(FailureInfo {
                cause: Cause::Limit,
                error: "[memory] too much".into(),
                since: 1_000,
                version: None,
            })),
            gaps: GapHistory::from_iter([gap]),
            ..KeyRecord::new(7, 4)
        }
    }

    #[test]
    fn members_have_their_names_order_and_nulls() {
        let zeros = "0".repeat(64);
        let record = format!(
            "{{\"attempts\":0,\"due_at\":null,\"gap_rounds\":0,\"held\":{{\"count\":0,\"first\":0,\
             \"last\":0}},\"incarnation\":9,\"key\":\"k\",\"next\":7,\"park_generation\":0,\
             \"partition\":4,\"skipped\":[[1,2]],\"state_size\":2,\"status\":\"parked\",\
             \"trouble\":{{\"cause\":\"limit\",\"error\":\"too much\",\"limit\":\"memory\",\
             \"since\":\"{TIME}\",\"version\":null}},\"version\":\"h@1.0.0\",\
             \"version_digest\":\"{zeros}\",\"version_generation\":5"
        );
        let gap = format!(
            "{{\"answers\":[],\"end\":\"open\",\"first\":3,\"last\":3,\"lasted_ms\":null,\
             \"rounds\":0,\"since\":\"{TIME}\",\"until\":null}}"
        );
        let row = stored(Ok(parked()));
        assert_eq!(to_json(&KeyRow::of(&row)), record.clone() + "}");
        let whole = KeyRow::with_state(&row, Some(&Bytes::from_static(b"[ 1 ]")));
        assert_eq!(to_json(&whole), format!("{record},\"gaps\":[{gap}],\"state\":[1]}}"));
        let corrupt = stored(Err("bad".to_owned()));
        assert_eq!(
            to_json(&KeyRow::with_state(&corrupt, None)),
            r#"{"due_at":null,"error":"bad","key":"k","state_size":2,"status":"corrupt"}"#
        );
        let fresh = to_json(&KeyRow::of(&stored(Ok(KeyRecord::new(1, 0)))));
        let nulls =
            r#""trouble":null,"version":null,"version_digest":null,"version_generation":null}"#;
        assert!(fresh.ends_with(nulls), "{fresh}");
    }

    #[test]
    fn row_is_read_as_it_was_written() {
        let ahead = Some(Box::new(AheadRange { first: 20, last: 30 }));
        let waiting = KeyRecord { ahead, ..parked() };
        let json = to_json(&KeyRow::of(&stored(Ok(waiting.clone()))));
        assert!(json.starts_with(r#"{"ahead":{"first":20,"last":30},"attempts":0,"#), "{json}");
        // The record keeps the lowest sequence of the letters, even after the key has passed it.
        let next = waiting.next;
        let ahead = Some(Box::new(AheadRange { first: 1, last: 30 }));
        let json = to_json(&KeyRow::of(&stored(Ok(KeyRecord { ahead, ..parked() }))));
        assert!(
            json.starts_with(&format!("{{\"ahead\":{{\"first\":{next},\"last\":30}}")),
            "{json}"
        );
        // The key has passed all letters, but the owner has not yet decided what happens to the remaining letters.
        let ahead = Some(Box::new(AheadRange { first: 1, last: next - 1 }));
        let json = to_json(&KeyRow::of(&stored(Ok(KeyRecord { ahead, ..parked() }))));
        assert!(json.starts_with(r#"{"attempts":0,"#), "{json}");
        for record in [Ok(parked()), Ok(waiting), Err("bad".to_owned())] {
            let json =
                to_json(&KeyRow::with_state(&stored(record), Some(&Bytes::from_static(b"text"))));
            let row: KeyRow = serde_json::from_str(&json).unwrap();
            assert_eq!(to_json(&row), json);
        }
    }

    #[test]
    fn rows_of_other_versions_are_read() {
        let deep = "[".repeat(1_000) + &"]".repeat(1_000);
        let json = format!("{{\"later\":{deep},\"state\":{deep},\"key\":\"k\",\"trouble\":{{}}}}");
        let row: KeyRow = serde_json::from_str(&json).unwrap();
        assert_eq!((row.key.raw(), row.next, row.status()), ("k", 0, None));
        let trouble = row.trouble.unwrap();
        assert_eq!((trouble.cause(), trouble.limit()), (None, None));
    }
}
