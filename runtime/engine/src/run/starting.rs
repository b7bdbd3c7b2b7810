//! The parts of the process that every partition needs to start.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::replay;
use crate::sink::{Committed, Question};
use crate::source::Feeds;
use ordain_amqp::{Broker, LastWindow};
use ordain_config::Loaded;
use ordain_store::Store;
use ordain_wasm::{Handlers, Pool};

/// The parts of the process that all partitions share.
pub(super) struct Starting<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) once: bool,
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) pool: &'a Pool,
    pub(super) handlers: &'a Arc<Handlers>,
    /// The files of events, by stream, until their sources are started for the first time.
    pub(super) sources: RefCell<BTreeMap<String, File>>,
    pub(super) broker: Option<Arc<Broker>>,
    /// Limits for requests to replay servers.
    pub(super) hosts: replay::Hosts,
    /// Notifiers of streams that this process adds events to.
    pub(super) feeds: Arc<Feeds>,
    /// With `once`: `true` if a partition that rests may end.
    pub(super) may_end: watch::Sender<bool>,
    /// The last consumer window of each stream.
    pub(super) last_windows: RefCell<BTreeMap<Arc<str>, LastWindow>>,
    pub(super) committed: mpsc::Sender<Committed>,
    pub(super) questions: mpsc::Sender<Question>,
}
