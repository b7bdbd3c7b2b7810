//! Events that wait in the store for a stream that is fed from here.
//!
//! Each shard has a queue of its own, which is read from its beginning when the partition comes here:
//! what was taken and not removed comes again. It is removed when it is acknowledged, a little later.
//! Whoever puts something in this process says so; what others put is found by looking.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use ordain_core::{Cause, DeadLetter, LetterContent, LetterId, digest};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::feed::Feed;
use ordain_cloudevents::{
    Acknowledged, BATCH_BYTES, BATCH_EVENTS, Deliveries, Position, READ_AHEAD, Source,
};
use ordain_store::{Claim, Partition, Store, StoreError, insist_on};
use ordain_util::backoff::Backoff;
use ordain_util::gauge::Waiting;
use ordain_util::log_throttle::LogThrottle;

/// Delays between two looks at what others have put: the longer nothing comes, the fewer looks.
const POLL_BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));
/// Time between two looks where only this process can have put something.
const ALONE_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Acknowledged events are removed when there are so many, or a quarter of what may wait, or after a
/// while.
const REMOVE: u64 = 512;
const REMOVE_AFTER: Duration = Duration::from_millis(100);
/// Between two counts of what waits.
const COUNT: Duration = Duration::from_secs(2);
/// Time between two warnings of a store that cannot be read.
const WARN_INTERVAL: Duration = Duration::from_secs(10);
/// For the last removal.
const LAST: Duration = Duration::from_secs(2);
/// Before it is read again.
const AGAIN: Duration = Duration::from_millis(500);

/// What to read.
#[derive(Clone)]
pub struct QueueOptions {
    /// Where it waits.
    pub store: Arc<dyn Store>,
    /// For whom.
    pub partition: Partition,
    /// Under which it is removed.
    pub claim: Claim,
    /// By which this process says that there is more.
    pub feed: Arc<Feed>,
    /// How many may wait.
    pub limit: u64,
    /// Whether only streams of this process and producers that number put something, in order.
    pub is_fed_from_here: bool,
    /// Whether other processes may put something.
    pub others: bool,
    /// Where it is told how much waits.
    pub waits: Option<Arc<Waiting>>,
    /// Whether what is delivered and not removed counts as well.
    pub counts_delivered: bool,
}

/// Starts reading. It ends when nobody takes its deliveries any more.
pub fn read_queue(options: QueueOptions) -> Source {
    let (deliver, deliveries) = mpsc::channel(READ_AHEAD);
    let (fail, failure) = oneshot::channel();
    let (acknowledge, acknowledged) = watch::channel(Acknowledged::default());
    let is_fed_from_here = options.is_fed_from_here;
    let reader = Reader::new(options, acknowledged);
    let ended = tokio::spawn(async move {
        if let Err(error) = reader.run(deliver).await {
            // Nobody listens when the process is ending: then it does not matter.
            let _ = fail.send(io::Error::other(error));
        }
    });
    let (acknowledge, ended) = (Some(acknowledge), Some(ended));
    Source { deliveries, failure, acknowledge, ended, is_fed_from_here }
}

struct Reader {
    options: QueueOptions,
    acknowledged: watch::Receiver<Acknowledged>,
    /// Of each shard, the last number that was read.
    read: Vec<u64>,
    /// Of each shard, the last number that is acknowledged and not removed.
    done: Vec<Option<u64>>,
    /// How many of those there are, and since when.
    undone: usize,
    since: Instant,
    /// What is delivered and not acknowledged: shard and number.
    open: VecDeque<(u32, u64)>,
    /// How many were acknowledged.
    through: u64,
    /// Shards that are to be read.
    hot: BTreeSet<u32>,
    /// Whether to look where others have put something.
    looks: bool,
    /// What was delivered before it was read anew counts for nothing.
    generation: u64,
    /// How often the store was away when it was last read from its beginning: it may have less since then.
    breaks: u64,
    poll: Backoff,
    counted: Option<Instant>,
    throttle: LogThrottle,
}

impl Reader {
    fn new(options: QueueOptions, acknowledged: watch::Receiver<Acknowledged>) -> Self {
        let (shards, breaks) = (options.store.shards() as usize, options.store.breaks());
        Self {
            options,
            acknowledged,
            read: vec![0; shards],
            done: vec![None; shards],
            undone: 0,
            since: Instant::now(),
            open: VecDeque::new(),
            through: 0,
            hot: BTreeSet::new(),
            looks: false,
            generation: 0,
            breaks,
            poll: POLL_BACKOFF,
            counted: None,
            throttle: LogThrottle::new(WARN_INTERVAL),
        }
    }

    async fn run(mut self, deliver: mpsc::Sender<Deliveries>) -> Result<(), StoreError> {
        // What was put before is found now.
        self.hot.extend(0..self.read.len() as u32);
        loop {
            let puts = self.options.feed.puts();
            self.hot.append(&mut self.options.feed.take_fresh());
            // A store that is away must not keep the end waiting.
            let batch = tokio::select! {
                batch = self.next_batch() => batch?,
                () = deliver.closed() => break,
            };
            if !batch.items.is_empty() {
                self.poll.reset();
                if !self.deliver(&deliver, batch).await {
                    break;
                }
                continue;
            }
            if self.open.is_empty() && self.hot.is_empty() {
                self.options.feed.emptied(puts);
            }
            let feed = Arc::clone(&self.options.feed);
            tokio::select! {
                () = feed.more() => self.poll.reset(),
                () = tokio::time::sleep(self.pause()) => {
                    self.looks = true;
                    self.poll.advance();
                }
                changed = self.acknowledged.changed() => match changed {
                    Ok(()) => self.acknowledge(),
                    Err(_) => break,
                },
                () = tokio::time::sleep(REMOVE_AFTER), if self.undone > 0 => {}
                () = deliver.closed() => break,
            }
        }
        // Whoever drove it has said its last word.
        drop(deliver);
        while self.acknowledged.changed().await.is_ok() {}
        self.acknowledge();
        // What is not removed comes again, and is known.
        let _ = timeout(LAST, self.remove(true)).await;
        Ok(())
    }

    /// Reads everything again: numbers that were read may be others' by now. What comes again is known.
    fn start_anew(&mut self) {
        self.generation += 1;
        self.read.fill(0);
        self.done.fill(None);
        self.open.clear();
        (self.undone, self.through) = (0, 0);
        self.hot.extend(0..self.read.len() as u32);
    }

    fn pause(&self) -> Duration {
        if self.options.others { self.poll.delay() } else { ALONE_POLL_INTERVAL }
    }

    /// Removes what is done, reads what comes next, and counts now and then.
    async fn next_batch(&mut self) -> Result<Deliveries, StoreError> {
        let breaks = self.options.store.breaks();
        if breaks != self.breaks {
            self.breaks = breaks;
            self.start_anew();
        }
        self.remove(false).await;
        if std::mem::take(&mut self.looks) {
            self.look_around().await?;
        }
        let batch = self.read().await?;
        if batch.items.is_empty() {
            self.count().await;
        }
        Ok(batch)
    }

    /// Finds the shards where there is more than was read: one plain look at each, since mostly there is
    /// nothing.
    async fn look_around(&mut self) -> Result<(), StoreError> {
        let QueueOptions { store, partition, .. } = &self.options;
        let found = match store.waiting_in(partition).await {
            Err(StoreError::Unavailable(reason)) => {
                self.is_away(&reason).await;
                return Ok(());
            }
            found => found?,
        };
        let more = (0..).zip(found.iter().zip(&self.read));
        let more = more.filter(|(_, (waiting, read))| waiting.end > **read + 1);
        self.hot.extend(more.map(|(shard, _)| shard));
        Ok(())
    }

    async fn is_away(&mut self, reason: &str) {
        if self.throttle.allow() {
            let stream = &*self.options.partition.stream;
            tracing::warn!(stream, "what waits cannot be read: {reason}");
        }
        tokio::time::sleep(AGAIN).await;
    }

    /// Reads what comes next of the shards that have something. Those that have no more are left alone.
    async fn read(&mut self) -> Result<Deliveries, StoreError> {
        let mut batch = Deliveries { generation: self.generation, ..Deliveries::default() };
        if self.hot.is_empty() {
            return Ok(batch);
        }
        let shards: Vec<u32> = self.hot.iter().copied().collect();
        let share = |all: usize| (all / shards.len()).max(1);
        let (limit, bytes) = (share(BATCH_EVENTS), share(BATCH_BYTES));
        let QueueOptions { store, partition, .. } = &self.options;
        let asked = shards.iter().map(|shard| {
            let after = self.read[*shard as usize];
            store.queued(partition, *shard, after, limit, bytes)
        });
        let found = match try_join_all(asked).await {
            Err(StoreError::Unavailable(reason)) => {
                self.is_away(&reason).await;
                return Ok(batch);
            }
            found => found?,
        };
        for (shard, events) in shards.into_iter().zip(found) {
            let Some((last, _)) = events.last() else {
                self.hot.remove(&shard);
                continue;
            };
            self.read[shard as usize] = *last;
            for (number, queued) in events {
                self.open.push_back((shard, number));
                let delivered = queued.map_err(|(bytes, reason)| {
                    letter(&self.options.partition, shard, number, bytes, &reason)
                });
                batch.items.push((delivered, Position::default()));
            }
        }
        Ok(batch)
    }

    /// Delivers, and takes acknowledgements meanwhile. Answers false when nobody takes it.
    async fn deliver(&mut self, to: &mpsc::Sender<Deliveries>, batch: Deliveries) -> bool {
        loop {
            tokio::select! {
                permit = to.reserve() => {
                    let Ok(permit) = permit else { return false };
                    permit.send(batch);
                    self.acknowledge();
                    return true;
                }
                changed = self.acknowledged.changed() => {
                    if changed.is_err() {
                        return false;
                    }
                    self.acknowledge();
                    self.remove(false).await;
                }
            }
        }
    }

    fn acknowledge(&mut self) {
        let Acknowledged { generation, through } = *self.acknowledged.borrow_and_update();
        if generation != self.generation {
            return;
        }
        while self.through < through
            && let Some((shard, number)) = self.open.pop_front()
        {
            if self.undone == 0 {
                self.since = Instant::now();
            }
            self.through += 1;
            self.undone += 1;
            self.done[shard as usize] = Some(number);
        }
    }

    /// Removes what is acknowledged, if it is worth it.
    async fn remove(&mut self, all: bool) {
        let enough = (self.options.limit / 4).clamp(1, REMOVE) as usize;
        let is_due = self.undone >= enough || self.since.elapsed() >= REMOVE_AFTER || all;
        if self.undone == 0 || !is_due {
            return;
        }
        self.undone = 0;
        let QueueOptions { store, partition, claim, feed, .. } = &self.options;
        let removing = (0..).zip(&mut self.done).filter_map(|(shard, done)| {
            let through = done.take()?;
            Some(insist_on("removal of what was taken", move || {
                store.dequeue(partition, *claim, shard, through)
            }))
        });
        join_all(removing).await;
        feed.removed();
    }

    /// Tells how much waits beyond what is taken.
    async fn count(&mut self) {
        if self.counted.is_some_and(|at| at.elapsed() < COUNT) {
            return;
        }
        self.counted = Some(Instant::now());
        let QueueOptions { store, partition, waits, counts_delivered, .. } = &self.options;
        if let Some(waits) = waits
            && let Ok(waiting) = store.waiting(partition).await
        {
            let delivered = if *counts_delivered { 0 } else { self.open.len() };
            waits.set(Some(waiting.saturating_sub((delivered + self.undone) as u64)));
        }
    }
}

/// The letter of what is no event. Its tag comes from its place, so that it makes the same letter again.
fn letter(
    partition: &Partition,
    shard: u32,
    number: u64,
    bytes: Bytes,
    reason: &str,
) -> Box<DeadLetter> {
    let Partition { stream, number: of } = partition;
    let origin =
        format!("partition {of}, shard {shard}, number {number} of the queue of stream {stream}");
    Box::new(DeadLetter {
        id: LetterId { key: "".into(), sequence: 0, tag: digest(origin.as_bytes()) | 1 },
        cause: Cause::Unreadable,
        error: format!("what waits there was written by somebody else, or is damaged: {reason}"),
        origin: Some(origin),
        version: None,
        content: LetterContent::Raw(bytes),
    })
}
