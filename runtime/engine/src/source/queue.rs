//! Events that wait in the store for a stream that is fed from here.
//!
//! Each shard has a queue of its own, which is read from its beginning when the partition comes here:
//! what was taken and not removed comes again. It is removed when it is acknowledged, a little later.
//! Whoever puts something in this process says so; what others put is found by looking.
//!
//! A store that went back in time refuses the place that the reader names. The reader then reads the shard again from
//! its beginning, and delivers only the entries that it has not delivered ([`QueueCursor`]).

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use ordain_core::{
    Cause, DeadLetter, LetterContent, LetterId, QueueCursor, QueueLoss, QueuePlace, digest,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::feed::Feed;
use crate::incident::{self, EventsLost};
use crate::sink::Target;
use ordain_cloudevents::{
    Acknowledged, BATCH_BYTES, BATCH_EVENTS, Deliveries, Position, READ_AHEAD, Source,
};
use ordain_store::{Claim, Partition, Removal, Store, StoreError, insist_on};
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
    /// The owner whose commits settle these events; `None` if they are settled without a commit, as in an inbox.
    pub target: Option<Arc<Target>>,
    /// Counts events that this process put into the queue and that the store lost before they were read.
    pub lost: Arc<AtomicU64>,
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
    /// Of each shard.
    cursors: Vec<QueueCursor>,
    /// How many entries may be removed, about, and since when.
    undone: usize,
    since: Instant,
    /// Nothing is removed before this time.
    not_before: Instant,
    /// Shard and place of each entry that is delivered and not acknowledged.
    open: VecDeque<(u32, QueuePlace)>,
    /// How many were acknowledged.
    through: u64,
    /// Shards that are to be read.
    hot: BTreeSet<u32>,
    /// Whether to look where others have put something.
    looks: bool,
    poll: Backoff,
    counted: Option<Instant>,
    throttle: LogThrottle,
    restart_throttle: LogThrottle,
}

impl Reader {
    fn new(options: QueueOptions, acknowledged: watch::Receiver<Acknowledged>) -> Self {
        let shards = options.store.shards() as usize;
        Self {
            options,
            acknowledged,
            cursors: vec![QueueCursor::default(); shards],
            undone: 0,
            since: Instant::now(),
            not_before: Instant::now(),
            open: VecDeque::new(),
            through: 0,
            hot: BTreeSet::new(),
            looks: false,
            poll: POLL_BACKOFF,
            counted: None,
            throttle: LogThrottle::new(WARN_INTERVAL),
            restart_throttle: LogThrottle::new(WARN_INTERVAL),
        }
    }

    async fn run(mut self, deliver: mpsc::Sender<Deliveries>) -> Result<(), StoreError> {
        // The first read finds all earlier entries. Another reader may already have read and removed some of them.
        self.hot.extend(0..self.cursors.len() as u32);
        drop(self.options.feed.take_fresh());
        loop {
            let puts = self.options.feed.puts();
            // Take these before the read, so that the read must find all entries put before it.
            self.take_fresh();
            // A store that is away must not keep the end waiting.
            let (batch, is_known) = tokio::select! {
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
            if is_known {
                // The reader is repeating a queue after the store went back: new entries may follow.
                self.acknowledge();
                tokio::task::yield_now().await;
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

    /// Takes the places of the entries that this process has put.
    fn take_fresh(&mut self) {
        for (shard, runs) in self.options.feed.take_fresh() {
            self.hot.insert(shard);
            for (run, at) in runs {
                self.cursors[shard as usize].expect(run, at);
            }
        }
    }

    fn pause(&self) -> Duration {
        if self.options.others { self.poll.delay() } else { ALONE_POLL_INTERVAL }
    }

    /// Removes finished entries, reads the next ones, and counts now and then. Also returns whether the read
    /// brought entries that were delivered before.
    async fn next_batch(&mut self) -> Result<(Deliveries, bool), StoreError> {
        self.remove(false).await;
        if std::mem::take(&mut self.looks) {
            self.look_around().await?;
        }
        let (batch, is_known) = self.read().await?;
        if batch.items.is_empty() && !is_known {
            self.count().await;
        }
        Ok((batch, is_known))
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
        // A shard is also read if the store has fewer entries than were read here, or other ones.
        for (shard, (ends, cursor)) in (0..).zip(found.iter().zip(&mut self.cursors)) {
            cursor.begins_at(ends.first);
            self.undone += usize::from(cursor.removable().is_some());
            let after = cursor.after();
            if ends.last != after && (after.number > 0 || !ends.is_empty()) {
                self.hot.insert(shard);
            }
        }
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
    async fn read(&mut self) -> Result<(Deliveries, bool), StoreError> {
        let (mut batch, mut is_known) = (Deliveries::default(), false);
        if self.hot.is_empty() {
            return Ok((batch, is_known));
        }
        let shards: Vec<u32> = self.hot.iter().copied().collect();
        let share = |all: usize| (all / shards.len()).max(1);
        let (limit, bytes) = (share(BATCH_EVENTS), share(BATCH_BYTES));
        let QueueOptions { store, partition, .. } = &self.options;
        let asked = shards.iter().map(|shard| {
            let after = self.cursors[*shard as usize].after();
            store.queued(partition, *shard, after, limit, bytes)
        });
        let found = join_all(asked).await;
        let (mut away, of_shards) = (None, self.cursors.len() as u32);
        for (shard, found) in shards.into_iter().zip(found) {
            let page = match found {
                Ok(page) => page,
                Err(StoreError::WentBack) => {
                    self.restart(shard);
                    continue;
                }
                Err(StoreError::Unavailable(reason)) => {
                    away = Some(reason);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let cursor = &mut self.cursors[shard as usize];
            cursor.begins_at(page.first);
            if page.entries.is_empty() {
                cursor.reached_end(page.first);
                self.hot.remove(&shard);
            }
            for (place, queued) in page.entries {
                if !cursor.take(place) {
                    // If the entry is already acknowledged, it must be removed once more.
                    self.undone += 1;
                    is_known = true;
                    continue;
                }
                self.open.push_back((shard, place));
                let delivered = queued.map_err(|(bytes, reason)| {
                    letter(&self.options.partition, of_shards, shard, place, bytes, &reason)
                });
                batch.items.push((delivered, Position::default()));
            }
            if let Some(loss) = cursor.take_loss() {
                self.note_loss(shard, loss);
            }
        }
        if let Some(reason) = away {
            self.is_away(&reason).await;
        }
        Ok((batch, is_known))
    }

    /// The store went back in time: the shard is read from its beginning.
    fn restart(&mut self, shard: u32) {
        let Partition { stream, number } = &self.options.partition;
        if self.restart_throttle.allow() {
            tracing::warn!(
                stream = &**stream,
                partition = number,
                shard,
                "the store went back in time: reading the queue of this shard again, and delivering only events \
                 that were not delivered before"
            );
        }
        self.cursors[shard as usize].restart();
        self.hot.insert(shard);
        self.tell_driver();
    }

    /// An idle driver would not notice that the store went back.
    fn tell_driver(&self) {
        if let Some(target) = &self.options.target {
            target.store_may_have_gone_back();
        }
    }

    fn note_loss(&self, shard: u32, loss: QueueLoss) {
        let Partition { stream, number } = &self.options.partition;
        let QueueLoss { entries, since } = loss;
        self.options.lost.fetch_add(entries, Ordering::Relaxed);
        let since = jiff::Timestamp::from_millisecond(since.cast_signed()).unwrap_or_default();
        let incident = EventsLost { shard, events: entries, since: since.to_string() };
        tracing::error!(
            stream = &**stream,
            partition = number,
            shard,
            events = entries,
            %since,
            cloudevent = incident::record(&self.options.partition, &incident),
            "the store went back in time and lost events before they were read; this process accepted the first of \
             them at `since`: their producers must send them again"
        );
    }

    /// Delivers, and takes acknowledgements meanwhile. Answers false when nobody takes it.
    async fn deliver(&mut self, to: &mpsc::Sender<Deliveries>, batch: Deliveries) -> bool {
        let feed = Arc::clone(&self.options.feed);
        loop {
            tokio::select! {
                permit = to.reserve() => {
                    let Ok(permit) = permit else { return false };
                    permit.send(batch);
                    self.acknowledge();
                    return true;
                }
                () = feed.more() => self.take_fresh(),
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
        let Acknowledged { through, .. } = *self.acknowledged.borrow_and_update();
        while self.through < through
            && let Some((shard, place)) = self.open.pop_front()
        {
            if self.undone == 0 {
                self.since = Instant::now();
            }
            self.through += 1;
            self.undone += 1;
            self.cursors[shard as usize].finish(place);
        }
    }

    /// Removes what is acknowledged, if it is worth it.
    async fn remove(&mut self, all: bool) {
        let enough = (self.options.limit / 4).clamp(1, REMOVE) as usize;
        let is_due = self.undone >= enough || self.since.elapsed() >= REMOVE_AFTER;
        if self.undone == 0 || !(all || is_due && self.not_before <= Instant::now()) {
            return;
        }
        self.undone = 0;
        let QueueOptions { store, partition, claim, target, feed, .. } = &self.options;
        let removable = (0..).zip(&self.cursors);
        let removable = removable.filter_map(|(shard, it)| Some((shard, it.removable()?)));
        let removing = removable.map(async |(shard, through)| {
            let commit = target.as_ref().map_or(0, |it| it.last_commit(shard));
            let removal = insist_on("removal of finished entries", || async {
                match store.dequeue(partition, *claim, shard, commit, through).await {
                    Err(StoreError::WentBack) => Ok(None),
                    removal => removal.map(Some),
                }
            });
            (shard, through, removal.await)
        });
        let removals = join_all(removing).await;
        feed.removed();
        for (shard, through, removal) in removals {
            match removal {
                Some(Removal::Done) => {
                    self.cursors[shard as usize].removed(through);
                    continue;
                }
                // The driver repeats the commit; this removal is tried again.
                Some(Removal::LacksCommit) => self.tell_driver(),
                None => self.restart(shard),
            }
            self.not_before = Instant::now() + REMOVE_AFTER;
            self.undone += 1;
        }
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

/// Makes the dead letter of an unreadable entry. The tag is derived from the place, so that a repeated read makes the
/// same letter. It also selects the shard of the queue for the letter's commit, on which the removal depends.
fn letter(
    partition: &Partition,
    shards: u32,
    shard: u32,
    place: QueuePlace,
    bytes: Bytes,
    reason: &str,
) -> Box<DeadLetter> {
    let (Partition { stream, number: of }, QueuePlace { number, history }) = (partition, place);
    let tag = digest(format!("{stream} {of} {shard} {number} {history}").as_bytes());
    let shards = u64::from(shards);
    // Not 0, which is no tag.
    let tag = (tag % (u64::MAX / shards - 1) + 1) * shards + u64::from(shard);
    let origin =
        format!("partition {of}, shard {shard}, number {number} of the queue of stream {stream}");
    Box::new(DeadLetter {
        id: LetterId { key: "".into(), sequence: 0, tag },
        cause: Cause::Unreadable,
        error: format!("what waits there was written by somebody else, or is damaged: {reason}"),
        origin: Some(origin),
        version: None,
        content: LetterContent::Raw(bytes),
    })
}
