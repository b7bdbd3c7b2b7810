//! What an instance says of itself to others and to people.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;

use ordain_core::Build;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{InstanceId, Table, is_version};

/// Partitions that a stream may have: no configuration allows others.
const OF_STREAM: RangeInclusive<u32> = 1..=1_024;
/// Partitions of an instance, at most: all instances work out the owners of all of them.
pub const PARTITIONS: u64 = 100_000;
/// Characters of a name that are shown.
const NAME: usize = 100;

/// What an instance is. Others may be of another version: what one does not know it passes over, and
/// what is missing has a default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// For people: the host's name and the process.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// Streams that it runs, with the number of their partitions.
    pub streams: BTreeMap<String, u32>,
    /// What it could execute events of streams with, by stream: of each the highest in its folder.
    #[serde(serialize_with = "write_offers", deserialize_with = "read_offers")]
    pub offers: BTreeMap<String, Build>,
    /// It takes every partition that is free and gives none away, as `run --once` does.
    pub alone: bool,
    /// It is ending, and takes no more.
    pub leaving: bool,
    /// Whether it reaches the broker.
    #[serde(deserialize_with = "lenient")]
    pub broker: Reach,
    /// Which process it is, where the system tells.
    #[serde(deserialize_with = "lenient")]
    pub process: Option<Process>,
}

/// Whether a process reaches the broker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// A moment ago.
    #[default]
    Reached,
    /// Not at the last try, or only for a moment.
    Doubted,
    /// Not for longer than a lease.
    Lost,
}

/// A build in somebody's folder, as it is written.
#[derive(Default, Serialize, Deserialize)]
struct Offer {
    version: String,
    /// In hexadecimal digits.
    digest: String,
}

/// A process of a machine, told apart from all others that there ever were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Which start of which machine, and which processes are to be seen there.
    seen_from: String,
    id: u32,
    /// When it was started, in the system's ticks.
    started: u64,
}

impl About {
    /// This process, with the streams that it runs and the number of partitions of each.
    pub fn this(streams: BTreeMap<String, u32>, alone: bool) -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let host = host.or_else(|| std::env::var("HOSTNAME").ok());
        let host = host.map_or_else(|| "host".to_owned(), |it| it.trim().to_owned());
        Self {
            name: format!("{host}/{}", std::process::id()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            streams,
            offers: BTreeMap::new(),
            alone,
            leaving: false,
            broker: Reach::Reached,
            process: Process::this(),
        }
    }

    /// What all others than one say.
    pub fn all_but(table: &Table, id: InstanceId) -> Vec<Self> {
        let others = table.members.iter().filter(|(other, _)| **other != id);
        others.map(|(_, member)| Self::decode(&member.about)).collect()
    }

    /// As it is kept.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers can always be written")
    }

    /// What an instance wrote. What cannot be read says nothing: such an instance takes no part.
    pub fn decode(text: &str) -> Self {
        let about: Option<Self> = serde_json::from_str(text).ok();
        let about = about.filter(|it| {
            let all: u64 = it.streams.values().map(|count| u64::from(*count)).sum();
            all <= PARTITIONS && it.streams.values().all(|count| OF_STREAM.contains(count))
        });
        let mut about = about.unwrap_or_default();
        about.name = shown(&about.name);
        about
    }
}

/// A name as it may stand in a line of a log.
fn shown(name: &str) -> String {
    name.chars().filter(|it| !it.is_control()).take(NAME).collect()
}

fn write_offers<S: Serializer>(offers: &BTreeMap<String, Build>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(offers.iter().map(|(stream, Build { version, digest })| {
        (stream, Offer { version: version.to_string(), digest: digest.to_string() })
    }))
}

/// What cannot be read is not offered.
fn read_offers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Build>, D::Error> {
    let offers: BTreeMap<String, Offer> = lenient(from)?;
    let offers = offers.into_iter().filter_map(|(stream, Offer { version, digest })| {
        let version = Some(version).filter(|it| is_version(it))?;
        Some((stream, Build { version: version.into(), digest: digest.parse().ok()? }))
    });
    Ok(offers.collect())
}

/// What another version says in another way has the default.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    from: D,
) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

impl Process {
    fn this() -> Option<Self> {
        let id = std::process::id();
        Some(Self { seen_from: seen_from()?, id, started: started(id)? })
    }

    /// Whether it is known to have ended: only of processes that can be seen from here.
    pub fn has_ended(&self) -> bool {
        // Where the processes of others are hidden, the first one is too.
        let sees_others = started(1).is_some();
        seen_from().is_some_and(|it| it == self.seen_from)
            && started(self.id).map_or(sees_others, |it| it != self.started)
    }
}

/// The boot of the machine and the namespace of processes.
fn seen_from() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

/// When a process was started; `None` if there is none, or what there is has ended and waits for
/// its parent.
fn started(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in front is in parentheses, and may have anything in it.
    let mut rest = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = rest.next()?;
    rest.nth(18)?.parse().ok().filter(|_| !["Z", "X"].contains(&state))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_has_ended_is_known() {
        let this = Process::this().expect("this system tells");
        assert!(!this.has_ended());
        let mut child = Command::new("sleep").arg("60").spawn().expect("started");
        let started = started(child.id()).expect("it runs");
        let other = Process { id: child.id(), started, ..this.clone() };
        assert!(!other.has_ended());
        child.kill().expect("killed");
        // Its parent has not heard of it.
        while !other.has_ended() {
            std::thread::yield_now();
        }
        child.wait().expect("ended");
        assert!(other.has_ended());
        assert!(Process { started: this.started + 1, ..this.clone() }.has_ended());
        let elsewhere = Process { seen_from: "another machine".to_owned(), ..other };
        assert!(!elsewhere.has_ended(), "nobody can know");
    }

    #[test]
    fn offers_are_read_as_they_were_written() {
        let digest = ordain_core::Digest([0xa5; 32]);
        let offer = Build { version: "orders@2.0.0".into(), digest };
        let offers = BTreeMap::from([("orders".to_owned(), offer)]);
        let name = "a/1".to_owned();
        let about = About { name: name.clone(), offers, ..About::default() };
        let text = about.encode();
        assert_eq!(About::decode(&text), about);
        // The rest of it counts where an offer is of another form.
        let other = About::decode(&text.replace("a5a5", "x5a5"));
        assert_eq!(other, About { name, ..About::default() });
    }

    #[test]
    fn what_others_say_may_be_of_another_version() {
        let about = About { name: "a/1".to_owned(), leaving: true, ..About::default() };
        assert_eq!(About::decode(&about.encode()), about);
        let later = r#"{"name":"b/2","streams":{"orders":4},"zone":"x"}"#;
        assert_eq!(About::decode(later).streams["orders"], 4);
        let other = r#"{"name":"c\n3","broker":"slow","process":7,"streams":{"orders":4}}"#;
        let other = About::decode(other);
        assert_eq!((&*other.name, other.streams["orders"]), ("c3", 4));
        for strange in [
            "\u{0}nothing",
            r#"{"streams":{"orders":0}}"#,
            r#"{"streams":{"orders":1025}}"#,
            r#"{"streams":{"orders":4294967296}}"#,
        ] {
            assert_eq!(About::decode(strange), About::default(), "{strange}");
        }
        let many = (0..100).map(|it| (format!("s{it}"), 1_024)).collect();
        let many = About { streams: many, ..About::default() };
        assert_eq!(About::decode(&many.encode()), About::default());
    }
}
