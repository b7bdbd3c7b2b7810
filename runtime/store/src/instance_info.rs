//! The information that an instance (one process, from its start to its end) publishes about itself, for other
//! instances and for users.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;

use ordain_core::Build;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{InstanceId, MembershipTable, is_version};

/// The numbers of partitions that a stream may have. The configuration allows the same numbers.
const STREAM_PARTITIONS_RANGE: RangeInclusive<u32> = 1..=1_024;
/// The maximum number of partitions that an instance may announce, over all its streams. Each instance computes the
/// owners of the partitions that all instances announce. The limit prevents one instance from slowing down the other
/// instances.
pub const PARTITIONS_LIMIT: u64 = 100_000;
/// The maximum number of displayed characters of a name.
const DISPLAY_NAME_LIMIT: usize = 100;

/// The information about an instance. Other instances may run another version of the program: unknown fields are
/// ignored, and missing fields have defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceInfo {
    /// The host name and the process id, for display to users.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// The streams that the instance runs, with the number of partitions of each stream.
    pub streams: BTreeMap<String, u32>,
    /// The build (a handler version and the digest of its file) that the instance offers for each stream: the highest
    /// usable version in the instance's folder of handlers.
    #[serde(serialize_with = "write_offers", deserialize_with = "read_offers")]
    pub offers: BTreeMap<String, Build>,
    /// `true` if the instance takes every free partition and hands no partition over, as `run --once` does.
    pub alone: bool,
    /// `true` if the instance is shutting down and takes no more partitions.
    pub leaving: bool,
    /// The instance's connection to the broker.
    #[serde(deserialize_with = "lenient")]
    pub broker: BrokerHealth,
    /// The streams whose topology (exchange, queues and bindings) the broker refuses to this instance. While another
    /// instance can consume such a stream, this instance owns none of its partitions.
    #[serde(deserialize_with = "lenient")]
    pub refused_streams: BTreeSet<String>,
    /// The identity of the process; `None` if the system does not provide it.
    #[serde(deserialize_with = "lenient")]
    pub process: Option<ProcessIdentity>,
}

/// The state of a process's connection to the broker. After an outage, the state stays `Suspect` or `Down` until the
/// broker has answered all checks for some time: the time limit of a check plus the interval between two checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokerHealth {
    /// The broker is reachable.
    #[default]
    #[serde(rename = "reached")]
    Up,
    /// The broker was unreachable at a recent check. In addition, one of two conditions holds: the broker was
    /// unreachable for at most the duration of a lease, or the process still consumes queues of the broker.
    #[serde(rename = "doubted")]
    Suspect,
    /// The broker was unreachable at a recent check, and for longer than the duration of a lease. The process consumes
    /// no queue of the broker.
    #[serde(rename = "lost")]
    Down,
}

/// The stored form of an offered build.
#[derive(Default, Serialize, Deserialize)]
struct OfferedBuild {
    version: String,
    digest: String,
}

/// The identity of a process on a machine. No other process ever has the same identity, even if the system reuses the
/// process id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The id of the machine's boot, and the namespace in which the process id is valid.
    seen_from: String,
    id: u32,
    /// The start time, in the system's ticks.
    started: u64,
}

impl InstanceInfo {
    /// Creates the information about this process, with its streams and their numbers of
    /// partitions.
    pub fn of_this_process(streams: BTreeMap<String, u32>, alone: bool) -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let host = host.or_else(|| std::env::var("HOSTNAME").ok());
        let host = host.map_or_else(|| "host".to_owned(), |name| name.trim().to_owned());
        Self {
            name: format!("{host}/{}", std::process::id()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            streams,
            offers: BTreeMap::new(),
            alone,
            leaving: false,
            broker: BrokerHealth::Up,
            refused_streams: BTreeSet::new(),
            process: ProcessIdentity::of_this_process(),
        }
    }

    /// Returns the information about all members of `table` except the instance `id`.
    pub fn of_other_instances(table: &MembershipTable, id: InstanceId) -> Vec<Self> {
        let others = table.members.iter().filter(|(other, _)| **other != id);
        others.map(|(_, member)| Self::decode(&member.info)).collect()
    }

    /// Returns the streams that the instance runs and whose topology the broker does not refuse to the instance.
    pub fn accepted_streams(&self) -> impl Iterator<Item = &str> {
        let streams = self.streams.keys().map(String::as_str);
        streams.filter(move |stream| !self.refused_streams.contains(*stream))
    }

    /// Encodes the information for the store.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers always serialize")
    }

    /// Decodes the information of an instance. Returns the default, an instance without streams, if the information is
    /// unreadable or announces a forbidden number of partitions.
    pub fn decode(text: &str) -> Self {
        let info: Option<Self> = serde_json::from_str(text).ok();
        let info = info.filter(|info| {
            let all: u64 = info.streams.values().map(|count| u64::from(*count)).sum();
            all <= PARTITIONS_LIMIT
                && info.streams.values().all(|count| STREAM_PARTITIONS_RANGE.contains(count))
        });
        let mut info = info.unwrap_or_default();
        info.name = display_name(&info.name);
        info
    }
}

/// Returns a name that is safe in a log line: without control characters, and limited in length.
fn display_name(name: &str) -> String {
    name.chars().filter(|character| !character.is_control()).take(DISPLAY_NAME_LIMIT).collect()
}

fn write_offers<S: Serializer>(offers: &BTreeMap<String, Build>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(offers.iter().map(|(stream, Build { version, digest })| {
        (stream, OfferedBuild { version: version.to_string(), digest: digest.to_string() })
    }))
}

/// Reads the offers. Skips an offer with an invalid version or digest. Returns no offers if the field has another form.
fn read_offers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Build>, D::Error> {
    let offers: BTreeMap<String, OfferedBuild> = lenient(from)?;
    let offers = offers.into_iter().filter_map(|(stream, OfferedBuild { version, digest })| {
        let version = Some(version).filter(|version| is_version(version))?;
        Some((stream, Build { version: version.into(), digest: digest.parse().ok()? }))
    });
    Ok(offers.collect())
}

/// Reads a field that another version of the program may write in another form. Returns the default if the field has
/// another form.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    from: D,
) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

impl ProcessIdentity {
    fn of_this_process() -> Option<Self> {
        let id = std::process::id();
        Some(Self { seen_from: boot_and_namespace()?, id, started: start_ticks(id)? })
    }

    /// Returns `true` if the process has certainly ended. Returns `false` if the process runs, or if its state is
    /// unknown: the process belongs to another boot or namespace, or the system hides the process from the caller.
    pub fn has_ended(&self) -> bool {
        // If the system hides the processes of other users, it hides process 1 too. A process without an entry in
        // `/proc` may then still run.
        let sees_others = start_ticks(1).is_some();
        boot_and_namespace().is_some_and(|here| here == self.seen_from)
            && start_ticks(self.id).map_or(sees_others, |time| time != self.started)
    }
}

fn boot_and_namespace() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

/// Returns `None` if the process does not exist, or if the system hides it from the caller; also if the process has
/// ended and its parent has not called `wait` yet.
fn start_ticks(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name of the process precedes these fields, in parentheses. The name may contain any characters.
    let mut rest = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = rest.next()?;
    rest.nth(18)?.parse().ok().filter(|_| !["Z", "X"].contains(&state))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn ended_process_is_detected() {
        let this = ProcessIdentity::of_this_process().expect("this system identifies processes");
        assert!(!this.has_ended());
        let mut child = Command::new("sleep").arg("60").spawn().expect("started");
        let started = start_ticks(child.id()).expect("the child runs");
        let other = ProcessIdentity { id: child.id(), started, ..this.clone() };
        assert!(!other.has_ended());
        child.kill().expect("killed");
        // The parent has not called `wait` yet, so the system still lists the child. The child must count as ended.
        while !other.has_ended() {
            std::thread::yield_now();
        }
        child.wait().expect("ended");
        assert!(other.has_ended());
        assert!(ProcessIdentity { started: this.started + 1, ..this.clone() }.has_ended());
        let elsewhere = ProcessIdentity { seen_from: "another machine".to_owned(), ..other };
        assert!(!elsewhere.has_ended(), "a process elsewhere is unknown");
    }

    #[test]
    fn offers_are_read_as_written() {
        let digest = ordain_core::FileDigest([0xa5; 32]);
        let offer = Build { version: "orders@2.0.0".into(), digest };
        let offers = BTreeMap::from([("orders".to_owned(), offer)]);
        let name = "a/1".to_owned();
        let about = InstanceInfo { name: name.clone(), offers, ..InstanceInfo::default() };
        let text = about.encode();
        assert_eq!(InstanceInfo::decode(&text), about);
        // If an offer is unreadable, the other fields are still read.
        let other = InstanceInfo::decode(&text.replace("a5a5", "x5a5"));
        assert_eq!(other, InstanceInfo { name, ..InstanceInfo::default() });
    }

    #[test]
    fn information_of_another_version_is_read() {
        let about = InstanceInfo {
            name: "a/1".to_owned(),
            leaving: true,
            streams: BTreeMap::from([("orders".to_owned(), 4), ("bills".to_owned(), 2)]),
            refused_streams: BTreeSet::from(["orders".to_owned()]),
            ..InstanceInfo::default()
        };
        assert_eq!(InstanceInfo::decode(&about.encode()), about);
        assert!(about.accepted_streams().eq(["bills"]));
        let later = r#"{"name":"b/2","streams":{"orders":4},"zone":"x"}"#;
        let later = InstanceInfo::decode(later);
        assert_eq!(later.streams["orders"], 4);
        assert!(
            later.accepted_streams().eq(["orders"]),
            "an earlier version names no refused streams"
        );
        let other = r#"{"name":"c\n3","broker":"slow","process":7,"refused_streams":"all","streams":{"orders":4}}"#;
        let other = InstanceInfo::decode(other);
        assert_eq!((&*other.name, other.streams["orders"]), ("c3", 4));
        assert!(other.accepted_streams().eq(["orders"]));
        for strange in [
            "\u{0}nothing",
            r#"{"streams":{"orders":0}}"#,
            r#"{"streams":{"orders":1025}}"#,
            r#"{"streams":{"orders":4294967296}}"#,
        ] {
            assert_eq!(InstanceInfo::decode(strange), InstanceInfo::default(), "{strange}");
        }
        let many = (0..100).map(|number| (format!("s{number}"), 1_024)).collect();
        let many = InstanceInfo { streams: many, ..InstanceInfo::default() };
        assert_eq!(InstanceInfo::decode(&many.encode()), InstanceInfo::default());
    }
}
