//! Records of incidents in which a store lost data. Each record is a CloudEvent in JSON. The log line of an incident
//! contains the record of the incident in the field `cloudevent`. A program can take the record from the log, and send
//! the record unchanged to another system.
#![allow(clippy::doc_markdown, reason = "CloudEvents is a name, not code")]

use std::fmt;

use serde::Serialize;

use crate::new_id;

/// The data of a record about events that the store lost before the stream read them.
#[derive(Debug, Serialize)]
pub struct EventsLost {
    /// The shard (slice of the store) that lost the events.
    pub shard: u32,
    /// The number of lost events, or an upper bound if the exact number is unknown.
    pub events: u64,
    /// The time when this process accepted or published the first lost event (RFC 3339).
    pub since: String,
    /// The number of waiting events that the store still has. `None` if this process does not read the queue, or has
    /// not read all of these events yet. A process that reads the queue logs another record, of the type [`EventsSafe`]
    /// or [`EventsLost`], when it has read all of these events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safe: Option<u64>,
}

/// The data of a record about events that waited when the store went back in time.
#[derive(Debug, Serialize)]
pub struct EventsSafe {
    /// The shard in which the events waited.
    pub shard: u32,
    /// The number of the waiting events that the store still has.
    pub safe: u64,
    /// The number of the waiting events that the store lost.
    pub lost: u64,
}

/// The data of a record about commits that the store lost and that the partition's owner repeated from memory.
#[derive(Debug, Serialize)]
pub struct CommitsRepeated {
    /// The number of repeated commits.
    pub commits: u64,
    /// The lost commits of each shard.
    pub shards: Vec<LostCommits>,
}

/// The range of commits that a shard lost: from `first` to `last`, both included.
#[derive(Debug, Serialize)]
pub struct LostCommits {
    /// The shard that lost the commits.
    pub shard: u32,
    /// The number of the first lost commit.
    pub first: u64,
    /// The number of the last lost commit.
    pub last: u64,
}

impl fmt::Display for LostCommits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} to {}", self.shard, self.first, self.last)
    }
}

/// The data of a record about commits that a shard lost and that the partition's owner cannot repeat. The owner's
/// process then exits.
#[derive(Debug, Serialize)]
pub struct CommitsLost {
    /// The shard that lost the commits.
    pub shard: u32,
    /// The number of lost commits, from `first` to `last`. The number is 0 if the shard lost the claim of the owner
    /// before the owner's first commit. In this case, `first` is above `last`.
    pub commits: u64,
    /// The number of the first lost commit.
    pub first: u64,
    /// The number of the owner's newest commit.
    pub last: u64,
    /// `true` if the shard also lost the claim of the owner. `first` is then the first commit under this claim, and the
    /// shard may also have lost earlier commits.
    pub claim_lost: bool,
    /// A time before the first lost commit (RFC 3339); `None` if the owner does not know such a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// The data of a record about messages that the store lost and that this process cannot write to the store again.
#[derive(Debug, Serialize)]
pub struct MessagesLost {
    /// The destination of the messages: a stream, an exchange or a file.
    pub to: String,
    /// The number of lost messages. If `numbered` is present, this is a lower bound: the process counts only the
    /// messages that it has in memory.
    pub messages: u64,
    /// The shard and the commits of the lost messages; `None` for messages of a file.
    #[serde(flatten)]
    pub numbered: Option<NumberedMessages>,
}

/// The lost messages of one outbox in one shard of their destination.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct NumberedMessages {
    /// The shard that lost the messages.
    pub shard: u32,
    /// The shard of the commits that emitted the messages.
    pub outbox: u32,
    /// The number of the first commit whose messages may be lost. Usually this is the commit after the newest commit of
    /// which the shard still has a message. If that newest commit is also `last`, `first` equals `last`: the shard then
    /// lost a part of the messages of this commit. `None` if the shard has no message of this owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    /// The number of the newest commit whose messages the shard had.
    pub last: u64,
    /// A time before the first lost message (RFC 3339); `None` if the owner does not know such a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// The data of an incident's record, with the type of the record's CloudEvent.
pub trait Incident: Serialize {
    /// The attribute `type` of the CloudEvent.
    const TYPE: &'static str;
}

impl Incident for EventsLost {
    const TYPE: &'static str = "ordain.events.lost";
}

impl Incident for EventsSafe {
    const TYPE: &'static str = "ordain.events.safe";
}

impl Incident for CommitsRepeated {
    const TYPE: &'static str = "ordain.commits.repeated";
}

impl Incident for CommitsLost {
    const TYPE: &'static str = "ordain.commits.lost";
}

impl Incident for MessagesLost {
    const TYPE: &'static str = "ordain.messages.lost";
}

/// The part of a stream that an incident affects.
#[derive(Debug, Clone, Copy)]
pub enum IncidentSubject<'a> {
    /// A partition.
    Partition(u32),
    /// A sink.
    Sink(&'a str),
    /// A publisher of events into the stream.
    Publisher,
}

impl fmt::Display for IncidentSubject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(number) => write!(f, "partition/{number}"),
            Self::Sink(name) => write!(f, "sink/{name}"),
            Self::Publisher => f.write_str("publisher"),
        }
    }
}

#[derive(Serialize)]
struct IncidentEnvelope<'a, T> {
    specversion: &'a str,
    id: String,
    source: String,
    #[serde(rename = "type")]
    kind: &'a str,
    subject: String,
    time: String,
    datacontenttype: &'a str,
    data: &'a T,
}

/// Returns the record of an incident: a structured CloudEvent in JSON, in one line. The `source` of the record is
/// `/ordain/`, followed by the stream's name. The messages that the stream emits have the same `source`.
pub fn record<T: Incident>(stream: &str, subject: IncidentSubject<'_>, data: &T) -> String {
    let envelope = IncidentEnvelope {
        specversion: "1.0",
        id: new_id(),
        source: format!("/ordain/{stream}"),
        kind: T::TYPE,
        subject: subject.to_string(),
        time: jiff::Timestamp::now().to_string(),
        datacontenttype: "application/json",
        data,
    };
    serde_json::to_string(&envelope).expect("texts, numbers and times can always be written")
}

/// Formats a time, in ms since the Unix epoch, for a record (RFC 3339).
pub fn time_text(time: u64) -> String {
    jiff::Timestamp::from_millisecond(time.cast_signed()).unwrap_or_default().to_string()
}

/// Returns the present time, in ms since the Unix epoch.
pub fn now_ms() -> u64 {
    jiff::Timestamp::now().as_millisecond().cast_unsigned()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The page of the guide that describes the records.
    const PAGE: &str = include_str!("../../../docs/guide/redis.md");

    fn parsed<T: Incident>(data: &T) -> Value {
        let record = record("orders", IncidentSubject::Partition(0), data);
        serde_json::from_str(&record).expect("a record in JSON")
    }

    #[test]
    fn range_of_lost_commits_names_shard_and_both_ends() {
        let lost = LostCommits { shard: 3, first: 641, last: 812 };
        assert_eq!(lost.to_string(), "3: 641 to 812");
    }

    /// The example in the guide is a record of this version, apart from its id and its time.
    #[test]
    fn example_in_the_guide_equals_a_record() {
        let section = PAGE.split("### Records of a loss").nth(1).expect("the section");
        let example = section.split("```json").nth(1).and_then(|rest| rest.split("```").next());
        let example: Value = serde_json::from_str(example.expect("an example")).expect("JSON");
        let since = "2026-11-27T05:12:00.077Z".to_owned();
        let mut shown = parsed(&EventsLost { shard: 3, events: 42, since, safe: Some(1210) });
        for name in ["id", "time"] {
            assert_eq!(shown[name].is_string(), example[name].is_string());
            shown[name] = example[name].clone();
        }
        assert_eq!(shown, example);
    }

    /// The guide names the type and each field of each record. A record omits an unknown number or time. A record about
    /// a file also omits the fields of numbered messages.
    #[test]
    fn guide_names_all_fields_of_all_records() {
        let shards = vec![LostCommits { shard: 3, first: 641, last: 812 }];
        let since = || Some(time_text(0));
        let numbered =
            NumberedMessages { shard: 3, outbox: 2, first: Some(641), last: 812, since: since() };
        let messages =
            |numbered| MessagesLost { to: "stream/orders".to_owned(), messages: 9, numbered };
        let records = [
            parsed(&EventsLost { shard: 3, events: 42, since: String::new(), safe: None }),
            parsed(&messages(None)),
            parsed(&EventsSafe { shard: 3, safe: 7, lost: 42 }),
            parsed(&CommitsRepeated { commits: 172, shards }),
            parsed(&CommitsLost {
                shard: 3,
                commits: 172,
                first: 641,
                last: 812,
                claim_lost: false,
                since: since(),
            }),
            parsed(&messages(Some(numbered))),
        ];
        assert_eq!(records[0]["data"]["safe"], Value::Null);
        assert_eq!(records[1]["data"].as_object().map(serde_json::Map::len), Some(2));
        let section = PAGE.split("### Records of a loss").nth(1).expect("the section");
        for record in records {
            let kind = record["type"].as_str().expect("a type");
            let fields = record["data"].as_object().expect("an object").keys();
            for name in fields.map(String::as_str).chain([kind]) {
                assert!(section.contains(&format!("`{name}`")), "{name} of {kind}");
            }
        }
    }
}
