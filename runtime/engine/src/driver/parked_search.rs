//! Finds the parked keys (keys that stopped at a failed event) whose failure is out of date. A failure is out of date
//! in two cases. In the first case, the event failed under another handler version, and `retry.on_new_version` is set.
//! In the second case, the handler exceeded a limit, and the configuration has changed the value of this limit since
//! then. In each of these cases, the current version retries the key. The sequencer itself finds the parked keys that
//! are in memory; this module finds the parked keys in the store.
//!
//! The sequencer decides what happens to each found key, and does not report its decision to the search. The search
//! therefore makes up to [`PASS_LIMIT`] passes over the keys, until a pass finds no key. After a pass that finds no
//! key, the search writes a record into the store. The record names the current rollout (and therefore the current
//! handler version), and the settings on which the result depends. A driver that starts later under the same rollout
//! and settings does not search. If each of the [`PASS_LIMIT`] passes finds keys, the search ends without this record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ordain_core::{Key, KeyRecord, KeyStatus, RetrySettings, Rollout};
use tokio::sync::{Semaphore, mpsc};

use ordain_store::{KeyFilter, Mark, Partition, Store, retry_until_ok, versions};
use ordain_util::backoff::Backoff;
use ordain_util::command::PrintedCommand;
use ordain_util::wait::shortened;

const KEY_PAGE_LIMIT: usize = 256;
/// Maximum number of key records that the store examines for one request, which is one step of the search.
const KEY_RECORDS_PER_STEP: usize = 1_000;
/// The pause after a step, as a multiple of the step's duration; the pause is at most [`MAX_PASS_DELAY`]. During the
/// pause, the store is free for other requests.
const PAUSE_FACTOR: u32 = 3;
/// Limits the search steps of this process to one at a time.
static SEARCH_PERMIT: Semaphore = Semaphore::const_new(1);
/// While at least this number of found keys wait in the sequencer, the driver takes no more keys from the search.
pub(super) const WAITING_KEY_LIMIT: usize = KEY_PAGE_LIMIT;
/// Minimum delays between passes over the keys. A delay gives the sequencer time to commit the keys that the previous
/// pass found. The minimum delay doubles after each pass, because a pass reads the records of all keys of the stream.
/// If the previous pass took longer than the minimum delay, the delay equals the duration of that pass, up to
/// [`MAX_PASS_DELAY`].
const PASS_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), MAX_PASS_DELAY);
/// The longest delay between two passes, and between two steps of a pass.
const MAX_PASS_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of passes. Normally, one pass finds the keys, and the next pass finds no key. A key that is still
/// parked after all passes, which take 20 seconds or more, probably cannot be read or written.
const PASS_LIMIT: u32 = 16;

/// A search for parked keys, from which the driver takes the found keys. The sequencer checks each found key before it
/// retries the key.
pub(super) struct ParkedSearch(Option<mpsc::Receiver<Vec<Key>>>);

impl ParkedSearch {
    /// Starts the search for the parked keys that the handler version of `rollout` must retry according to `settings`.
    /// Without a rollout, there is nothing to search, and the search counts as ended.
    pub(super) fn start(
        store: &Arc<dyn Store>,
        partition: &Partition,
        rollout: Option<&Rollout>,
        settings: &RetrySettings,
    ) -> Self {
        Self(rollout.cloned().map(|rollout| {
            let (pages, keys) = mpsc::channel(1);
            let store = Arc::clone(store);
            let partition = partition.clone();
            let settings = settings.clone();
            tokio::spawn(ParkedSearchTask { store, partition, rollout, settings, pages }.run());
            keys
        }))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the next found keys. An empty result means that the search has ended; later calls never return. This
    /// method is cancel-safe.
    pub(super) async fn next(&mut self) -> Vec<Key> {
        let Some(keys) = &mut self.0 else { return std::future::pending().await };
        let page = keys.recv().await;
        if page.is_none() {
            self.0 = None;
        }
        page.unwrap_or_default()
    }
}

struct ParkedSearchTask {
    store: Arc<dyn Store>,
    partition: Partition,
    rollout: Rollout,
    settings: RetrySettings,
    pages: mpsc::Sender<Vec<Key>>,
}

impl ParkedSearchTask {
    async fn run(self) {
        let Partition { stream, number } = &self.partition;
        let stream = &**stream;
        let version = &*self.rollout.build.version;
        let RetrySettings { on_new_version, limits, .. } = &self.settings;
        let searched = Bytes::from(format!(
            "{} {on_new_version} {:016x}",
            versions::encode(&self.rollout),
            limits.digest()
        ));
        let name = format!("version/{stream}/{number}");
        let stored = retry_until_ok("check for parked keys", || self.store.mark(&name)).await;
        if stored.as_ref() == Some(&searched) {
            return;
        }
        tracing::debug!(stream, version, "searching for parked keys to retry");
        let mut first = 0;
        let mut backoff = PASS_BACKOFF;
        for pass in 1..=PASS_LIMIT {
            let began = Instant::now();
            let Some(found) = self.run_pass().await else { return };
            first = first.max(found);
            if found == 0 {
                if first > 0 {
                    tracing::info!(
                        stream,
                        version,
                        keys = first,
                        "retried parked keys: they had failed under another handler version, or had exceeded a limit \
                         that now has another value in the configuration"
                    );
                }
                if self.pages.is_closed() {
                    // The driver does not need this search any more: another rollout has begun, or the driver has
                    // ended.
                    return;
                }
                let marks = [Mark { name: name.clone(), value: searched.clone() }];
                return retry_until_ok("record of retried keys", || self.store.put_marks(&marks))
                    .await;
            }
            if pass < PASS_LIMIT {
                let delay = backoff.next_delay().max(began.elapsed()).min(MAX_PASS_DELAY);
                tokio::time::sleep(shortened(delay)).await;
            } else {
                tracing::warn!(
                    stream,
                    version,
                    keys = found,
                    "keys still parked, although this handler version should have retried them. They had failed under \
                     another handler version, or had exceeded a limit whose value in the configuration has changed \
                     since then. The next start retries these keys. To list the keys: {}",
                    PrintedCommand::new("keys list")
                        .argument(stream)
                        .choice("status", KeyStatus::Parked.name())
                );
            }
        }
    }

    /// Sends the found keys to the driver, and returns their number. Returns `None` if the driver no longer receives
    /// keys of this search.
    async fn run_pass(&self) -> Option<usize> {
        let status = Some(KeyStatus::Parked);
        let mut filter = KeyFilter {
            status,
            limit: KEY_PAGE_LIMIT,
            scan_limit: Some(KEY_RECORDS_PER_STEP),
            ..KeyFilter::default()
        };
        let mut found = 0;
        loop {
            // In this process, only one search reads at a time, because the search of each partition reads the keys of
            // the whole stream.
            let permit = SEARCH_PERMIT.acquire().await.ok()?;
            let began = Instant::now();
            let page = retry_until_ok("listing of parked keys", || {
                self.store.keys(&self.partition.stream, &filter)
            });
            let page = page.await;
            let duration = began.elapsed();
            let rows = page.rows.into_iter();
            let is_outdated = |record: &KeyRecord| self.is_outdated(record);
            let keys: Vec<Key> = rows
                .filter(|row| row.record.as_ref().is_ok_and(is_outdated))
                .map(|row| row.key)
                .collect();
            found += keys.len();
            if !keys.is_empty() {
                self.pages.send(keys).await.ok()?;
            }
            filter.cursor = page.cursor;
            if filter.cursor.is_none() {
                return Some(found);
            }
            tokio::time::sleep((duration * PAUSE_FACTOR).min(MAX_PASS_DELAY)).await;
            drop(permit);
            if self.pages.is_closed() {
                return None;
            }
        }
    }

    /// Returns whether the key of `record` belongs to the partition of this search and has a failure that is out of
    /// date.
    fn is_outdated(&self, record: &KeyRecord) -> bool {
        let version = &self.rollout.build.version;
        let failure = record.failure.as_ref();
        record.partition == self.partition.number
            && failure.is_some_and(|failure| self.settings.is_outdated(failure, version))
    }
}
