//! The manifest: the faults of the generated events and the totals of each key as NDJSON, one entry per line. The
//! entries are in the order in which the faults occur and the keys end. The first entry has the options, and the last
//! entry has the counts.

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// One line of a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ManifestEntry {
    /// The options that determined the events.
    Options(serde_json::Value),
    /// An event that was never written.
    Lost(EventRef),
    /// An event that was written twice. The generator adds this entry when it writes the event for the second time.
    Repeated(EventRef),
    /// An event that was written after a later event of its key.
    Swapped(EventRef),
    /// A step of an order that the handler `orders` must reject. The event of the step may also be lost.
    Impossible(EventRef),
    /// A key that gets no more events, with its totals.
    Key(KeyEntry),
    /// The totals of the whole load.
    Counts(ManifestCounts),
}

/// The key and sequence of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EventRef {
    /// The key of the event.
    pub key: String,
    /// The sequence of the event.
    pub sequence: u64,
}

/// The totals of one key, after its last event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyEntry {
    /// The name of the key.
    pub key: String,
    /// Number of events, including lost events; equal to the sequence of the key's last event.
    pub events: u64,
    /// True if the last event is marked as the last event of its key.
    pub ended: bool,
}

/// The totals of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestCounts {
    /// Number of events, including lost events.
    pub events: u64,
    /// Number of lines written: one line for each event that was not lost, plus a copy for each repeated event.
    pub lines: u64,
    /// Number of keys that have events.
    pub keys: u64,
    /// Number of keys whose last event is marked as the last event of its key.
    pub ended: u64,
    /// Number of events that were never written.
    pub lost: u64,
    /// Number of events that were written twice.
    pub repeated: u64,
    /// Number of events that were written after a later event of their key.
    pub swapped: u64,
    /// Number of steps that the handler `orders` must reject.
    pub impossible: u64,
}

impl fmt::Display for ManifestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, lines, keys, ended, lost, repeated, swapped, impossible } = self;
        write!(
            f,
            "{events} events of {keys} keys ({ended} ended) in {lines} lines: {lost} lost, \
             {repeated} repeated, {swapped} swapped, {impossible} impossible"
        )
    }
}

/// The counts of a manifest, and the output of its entries. Without an output, no entries are written.
pub(super) struct ManifestWriter<'a> {
    out: Option<&'a mut (dyn Write + 'a)>,
    pub(super) counts: ManifestCounts,
}

impl<'a> ManifestWriter<'a> {
    pub(super) fn new(out: Option<&'a mut (dyn Write + 'a)>) -> Self {
        Self { out, counts: ManifestCounts::default() }
    }

    /// Writes an entry. The entry is created only if there is an output.
    pub(super) fn write_entry(&mut self, entry: impl FnOnce() -> ManifestEntry) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        serde_json::to_writer(&mut *out, &entry())?;
        out.write_all(b"\n")
    }

    /// Writes the counts and flushes the output.
    pub(super) fn finish(mut self) -> io::Result<ManifestCounts> {
        let counts = self.counts;
        self.write_entry(|| ManifestEntry::Counts(counts))?;
        self.out.map_or(Ok(()), Write::flush)?;
        Ok(counts)
    }
}
