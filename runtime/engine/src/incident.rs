//! Records of incidents in which a store lost data. Each record is a CloudEvent in JSON. The log line of an incident
//! carries the incident's record in the field `cloudevent`. A program can take the record from the log, and pass the
//! record on unchanged.

use std::fmt;

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

/// The data of a record, and the type of the record's CloudEvent.
pub(crate) trait Incident: Serialize {
    /// The attribute `type` of the CloudEvent.
    const TYPE: &'static str;
}

impl Incident for EventsLost {
    const TYPE: &'static str = "ordain.events.lost";
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
