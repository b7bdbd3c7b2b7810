//! Records of incidents in which a store lost data. Each record is a CloudEvent in JSON. The log line of an incident
//! contains the incident's record in the field `cloudevent`. A program can take the record from the log, and pass the
//! record on unchanged.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use ordain_core::QueueLoss;
use ordain_publish::new_id;
use ordain_store::Partition;
use serde::Serialize;

/// The data of a record about events that the store lost before the stream read them.
#[derive(Debug, Serialize)]
pub(crate) struct EventsLost {
    pub(crate) shard: u32,
    pub(crate) events: u64,
    /// The time when this process accepted the first lost event (RFC 3339).
    pub(crate) since: String,
    /// The number of waiting events that the store still has. `None` if this process does not read the queue, or has
    /// not read all of these events yet. In the second case, a record of the type [`EventsSafe`] or [`EventsLost`]
    /// follows, unless the reader ends before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) safe: Option<u64>,
}

/// The data of a record about events that waited when the store went back in time.
#[derive(Debug, Serialize)]
pub(crate) struct EventsSafe {
    pub(crate) shard: u32,
    /// The number of these events that the store still has.
    pub(crate) safe: u64,
    /// The number of these events that the store lost.
    pub(crate) lost: u64,
}

/// The data of a record about commits that the store lost and that the partition's owner repeated from memory.
#[derive(Debug, Serialize)]
pub(crate) struct CommitsRepeated {
    pub(crate) commits: u64,
    pub(crate) shards: Vec<LostCommits>,
}

/// The range of commits that a shard (slice of the store) lost: from `first` to `last`, both included.
#[derive(Debug, Serialize)]
pub(crate) struct LostCommits {
    pub(crate) shard: u32,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl fmt::Display for LostCommits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} to {}", self.shard, self.first, self.last)
    }
}

/// Counts and logs events that a shard lost before the stream read them. `safe` is as in [`EventsLost`]. `words` describe
/// the loss, and say what the producers must do.
pub(crate) fn report_lost_events(
    partition: &Partition,
    shard: u32,
    loss: QueueLoss,
    safe: Option<u64>,
    counter: &AtomicU64,
    words: &str,
) {
    let QueueLoss { entries, since } = loss;
    counter.fetch_add(entries, Ordering::Relaxed);
    let since = jiff::Timestamp::from_millisecond(since.cast_signed()).unwrap_or_default();
    let incident = EventsLost { shard, events: entries, since: since.to_string(), safe };
    tracing::error!(
        stream = &*partition.stream,
        partition = partition.number,
        shard,
        events = entries,
        %since,
        safe,
        cloudevent = record(partition, &incident),
        "{words}"
    );
}

/// The data of a record, and the type of the record's CloudEvent.
pub(crate) trait Incident: Serialize {
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

/// Returns the record of an incident in a partition: a structured CloudEvent in JSON, in one line. The `source` of the
/// record is `/ordain/` and the stream's name, which is also the `source` of the messages that the stream emits. The
/// `subject` of the record is the partition.
pub(crate) fn record<T: Incident>(partition: &Partition, data: &T) -> String {
    let envelope = IncidentEnvelope {
        specversion: "1.0",
        id: new_id(),
        source: format!("/ordain/{}", partition.stream),
        kind: T::TYPE,
        subject: format!("partition/{}", partition.number),
        time: jiff::Timestamp::now().to_string(),
        datacontenttype: "application/json",
        data,
    };
    serde_json::to_string(&envelope).expect("texts, numbers and times can always be written")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The page of the guide that describes the records.
    const PAGE: &str = include_str!("../../../docs/guide/redis.md");

    fn parsed<T: Incident>(data: &T) -> Value {
        let partition = Partition { stream: "orders".into(), number: 0 };
        serde_json::from_str(&record(&partition, data)).expect("a record in JSON")
    }

    /// A log line names the shard with the first and the last lost commit.
    #[test]
    fn range_of_lost_commits_names_shard_and_both_ends() {
        let lost = LostCommits { shard: 3, first: 641, last: 812 };
        assert_eq!(lost.to_string(), "3: 641 to 812");
    }

    /// The example in the guide is a record of this version, apart from its id and its time.
    #[test]
    fn example_in_the_guide_is_a_true_record() {
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

    /// The guide names the type and each field of each record. An unknown number of safe events is absent.
    #[test]
    fn guide_names_all_fields_of_all_records() {
        let shards = vec![LostCommits { shard: 3, first: 641, last: 812 }];
        let records = [
            parsed(&EventsLost { shard: 3, events: 42, since: String::new(), safe: None }),
            parsed(&EventsSafe { shard: 3, safe: 7, lost: 42 }),
            parsed(&CommitsRepeated { commits: 172, shards }),
        ];
        assert_eq!(records[0]["data"]["safe"], Value::Null);
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
