//! Finds the keys that a failure has parked under another handler version, so that they try again
//! under this one. Those in memory the sequencer finds by itself; the others are in the store.
//!
//! What becomes of a key is the sequencer's affair: it is only told to look. So the store is read
//! again until it shows none, and only then this is noted, with the number of the decision: from then on
//! no start reads it again before something else is decided.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ordain_core::{Decided, Job, Key, Status};
use tokio::sync::{Semaphore, mpsc};

use ordain_store::{KeyFilter, Mark, Partition, Store, insist_on};
use ordain_util::backoff::Backoff;

/// Keys handed over at a time.
const PAGE: usize = 256;
/// Jobs that are looked at in one go, and how many times as long as that took the store is left to others
/// then: they are waiting.
const LOOKS: usize = 1_000;
const PACE: u32 = 3;
/// Searches of this process that read at one time.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
/// Keys that may wait for room in the sequencer before it is told of more.
pub(super) const WAITING: usize = PAGE;
/// Delays before the store is read again: long enough for the commits of the last keys, and doubled each
/// time, since reading is a pass over all keys of the stream.
const PASS_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), MAX_PASS_DELAY);
/// The longest delay between passes, and between the pages of one.
const MAX_PASS_DELAY: Duration = Duration::from_secs(2);
/// Passes. One finds the keys and one finds none; a key that is still there after half a minute
/// cannot be read or written.
const PASSES: u32 = 16;

/// Keys that are to be looked at.
pub(super) struct Parked(Option<mpsc::Receiver<Vec<Key>>>);

impl Parked {
    /// Begins to look for them, if that is wanted of this version.
    pub(super) fn start(
        store: &Arc<dyn Store>,
        partition: &Partition,
        decided: Option<&Decided>,
    ) -> Self {
        Self(decided.cloned().map(|decided| {
            let (pages, keys) = mpsc::channel(1);
            let (store, partition) = (Arc::clone(store), partition.clone());
            tokio::spawn(Search { store, partition, decided, pages }.run());
            keys
        }))
    }

    /// Whether all are found.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_none()
    }

    /// The next keys; none once all are found. May be dropped at any time.
    pub(super) async fn next(&mut self) -> Vec<Key> {
        let Some(keys) = &mut self.0 else { return std::future::pending().await };
        let page = keys.recv().await;
        if page.is_none() {
            self.0 = None;
        }
        page.unwrap_or_default()
    }
}

struct Search {
    store: Arc<dyn Store>,
    partition: Partition,
    decided: Decided,
    pages: mpsc::Sender<Vec<Key>>,
}

impl Search {
    async fn run(self) {
        let Partition { stream, number } = &self.partition;
        let Decided { generation, build } = &self.decided;
        let (stream, version, generation) = (&**stream, &*build.version, generation.to_string());
        let name = format!("version/{stream}/{number}");
        let mark = insist_on("read of a mark", || self.store.mark(&name)).await;
        if mark.as_deref() == Some(generation.as_bytes()) {
            return;
        }
        tracing::debug!(stream, version, "looking for keys that another version has parked");
        let mut first = 0;
        let mut backoff = PASS_BACKOFF;
        for pass in 1..=PASSES {
            let began = Instant::now();
            let Some(found) = self.pass().await else { return };
            first = first.max(found);
            if found == 0 {
                if first > 0 {
                    tracing::info!(
                        stream,
                        version,
                        keys = first,
                        "keys that another version had parked try again"
                    );
                }
                if self.pages.is_closed() {
                    // Something else was decided meanwhile.
                    return;
                }
                let value = Bytes::copy_from_slice(generation.as_bytes());
                let mark = [Mark { name: name.clone(), value }];
                return insist_on("write of a mark", || self.store.put_marks(&mark)).await;
            }
            if pass < PASSES {
                let delay = backoff.next_delay().max(began.elapsed()).min(MAX_PASS_DELAY);
                tokio::time::sleep(delay).await;
            } else {
                tracing::warn!(
                    stream,
                    version,
                    keys = found,
                    "keys that another version has parked do not come back; the next start tries \
                     again, see `ordain keys why`"
                );
            }
        }
    }

    /// Hands over the keys that the store shows, and answers how many; `None` if nobody wants them
    /// any more.
    async fn pass(&self) -> Option<usize> {
        let status = Some(Status::Parked);
        let mut filter =
            KeyFilter { status, limit: PAGE, looks: Some(LOOKS), ..KeyFilter::default() };
        let mut found = 0;
        loop {
            // Each partition's search reads the keys of the whole stream.
            let turn = ONE_AT_A_TIME.acquire().await.ok()?;
            let began = Instant::now();
            let page = insist_on("listing of parked keys", || {
                self.store.keys(&self.partition.stream, &filter)
            });
            let page = page.await;
            let took = began.elapsed();
            let rows = page.rows.into_iter();
            let ours = |job: &Job| self.is_meant(job);
            let keys: Vec<Key> =
                rows.filter(|row| row.job.as_ref().is_ok_and(ours)).map(|row| row.key).collect();
            found += keys.len();
            if !keys.is_empty() {
                self.pages.send(keys).await.ok()?;
            }
            filter.cursor = page.cursor;
            if filter.cursor.is_none() {
                return Some(found);
            }
            tokio::time::sleep((took * PACE).min(MAX_PASS_DELAY)).await;
            drop(turn);
            if self.pages.is_closed() {
                return None;
            }
        }
    }

    /// Whether another version's failure has parked this key of ours.
    fn is_meant(&self, job: &Job) -> bool {
        let version = job.trouble.as_ref().and_then(|trouble| trouble.version.as_ref());
        job.partition == self.partition.number
            && version.is_some_and(|it| *it != self.decided.build.version)
    }
}
