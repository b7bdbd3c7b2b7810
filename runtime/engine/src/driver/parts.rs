//! What a driver is made of.

use std::sync::Arc;

use ordain_core::{Input, Settings};
use tokio::sync::{mpsc, watch};

use super::Progress;
use crate::completion::Note;
use crate::replay;
use crate::sink::{Committed, Target};
use crate::source::Inbox;
use ordain_cloudevents::Source;
use ordain_store::{Claimed, Partition, Store};
use ordain_wasm::{Turns, VersionFeed};

/// What a driver is made of.
pub struct Parts {
    /// Its partition, as claimed.
    pub partition: Partition,
    /// The claim and the numbers of the last commits.
    pub claimed: Claimed,
    /// Settings of its sequencer.
    pub settings: Settings,
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// What executes events, as that changes.
    pub version: VersionFeed,
    /// Where turns are executed.
    pub turns: Turns,
    /// Where messages are published.
    pub publisher: mpsc::Sender<Committed>,
    /// The partition as the publisher needs it, with the tenure of it.
    pub target: Arc<Target>,
    /// What an earlier process left in the outbox, and is being published.
    pub left_over: Vec<Input>,
    /// Completions come in here.
    pub completions: mpsc::Receiver<Note>,
    /// Where events come from.
    pub source: Source,
    /// Events over HTTP on their way to the source's queue.
    pub inbox: Option<Inbox>,
    /// Where missing events are looked for.
    pub replay: replay::Sources,
    /// The name of the source's checkpoint, if it can resume.
    pub checkpoint: Option<String>,
    /// End when the source has ended and everything is settled or held.
    pub once: bool,
    /// With `once`: whether it may end, or others may have something for it.
    pub may_end: watch::Receiver<bool>,
    /// Where its figures are shown.
    pub progress: Arc<Progress>,
}
