//! What was done to the events, told beside them: NDJSON, an entry a line, in the order in which
//! it became known. First the options, last the counts.

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// One line of a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entry {
    /// What was asked for.
    Options(serde_json::Value),
    /// An event that was never written.
    Lost(At),
    /// An event that was written twice; told with its second copy.
    Repeated(At),
    /// An event that was written after a later one of its key.
    Swapped(At),
    /// A step of an order that its handler must refuse.
    Impossible(At),
    /// A key of which nothing more comes.
    Key(KeyEntry),
    /// The sums of all.
    Counts(Counts),
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct At {
    /// Its key.
    pub key: String,
    /// Its sequence.
    pub sequence: u64,
}

/// A key at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyEntry {
    /// The key.
    pub key: String,
    /// Its events, lost ones included: its last sequence.
    pub events: u64,
    /// Whether the last one is marked as such.
    pub ended: bool,
}

/// The sums of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Events, lost ones included.
    pub events: u64,
    /// Lines written: events less the lost ones, and the second copies.
    pub lines: u64,
    /// Keys.
    pub keys: u64,
    /// Keys whose last event is marked.
    pub ended: u64,
    /// Events never written.
    pub lost: u64,
    /// Events written twice.
    pub repeated: u64,
    /// Events written after a later one of their key.
    pub swapped: u64,
    /// Steps that must be refused.
    pub impossible: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, lines, keys, ended, lost, repeated, swapped, impossible } = self;
        write!(
            f,
            "{events} events of {keys} keys ({ended} ended) in {lines} lines: {lost} lost, \
             {repeated} repeated, {swapped} swapped, {impossible} impossible"
        )
    }
}

/// Counts, and writes where it is wanted.
pub(super) struct Manifest<'a> {
    out: Option<&'a mut (dyn Write + 'a)>,
    pub(super) counts: Counts,
}

impl<'a> Manifest<'a> {
    pub(super) fn new(out: Option<&'a mut (dyn Write + 'a)>) -> Self {
        Self { out, counts: Counts::default() }
    }

    /// Writes an entry, made only if it is wanted.
    pub(super) fn tell(&mut self, entry: impl FnOnce() -> Entry) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        serde_json::to_writer(&mut *out, &entry())?;
        out.write_all(b"\n")
    }

    /// Writes the counts and everything before them.
    pub(super) fn finish(mut self) -> io::Result<Counts> {
        let counts = self.counts;
        self.tell(|| Entry::Counts(counts))?;
        self.out.map_or(Ok(()), Write::flush)?;
        Ok(counts)
    }
}
