//! What an instance says of itself to others and to people.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

use crate::broker::Reach;
use crate::config::Loaded;

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
    /// It takes every partition that is free and gives none away, as `run --once` does.
    pub alone: bool,
    /// It is ending, and takes no more.
    pub leaving: bool,
    /// Whether it reaches the broker.
    pub broker: Reach,
    /// Which process it is, where the system tells.
    pub process: Option<Process>,
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
    /// This process with a configuration.
    pub fn this(loaded: &Loaded, alone: bool) -> Self {
        let streams = loaded.config.streams.iter();
        let streams = streams.map(|(name, it)| (name.to_string(), it.source.partitions()));
        let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let host = host.or_else(|| std::env::var("HOSTNAME").ok());
        let host = host.map_or_else(|| "host".to_owned(), |it| it.trim().to_owned());
        Self {
            name: format!("{host}/{}", std::process::id()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            streams: streams.collect(),
            alone,
            leaving: false,
            broker: Reach::Reached,
            process: Process::this(),
        }
    }

    /// As it is kept.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers can always be written")
    }

    /// What an instance wrote. What cannot be read says nothing: such an instance takes no part.
    pub fn decode(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
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
    fn what_others_say_may_be_of_another_version() {
        let about = About { name: "a/1".to_owned(), leaving: true, ..About::default() };
        assert_eq!(About::decode(&about.encode()), about);
        let later = r#"{"name":"b/2","streams":{"orders":4},"zone":"x"}"#;
        assert_eq!(About::decode(later).streams["orders"], 4);
        assert_eq!(About::decode("\u{0}nothing"), About::default());
    }
}
