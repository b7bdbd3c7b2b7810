//! The queues of turns (runs of events of one key). Each caller that submits turns has a queue of its own. The workers
//! serve the queues round robin.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ordain_core::Turn;

use super::super::handler::{ActiveVersion, Handler};
use super::super::stream::StreamContext;
use super::{ResultCallback, TurnResults};

/// Number of events at which a worker ends the batch of turns that it takes from a queue. The number is large enough to
/// make the cost of taking a batch negligible, and small enough that other queues do not wait long.
const BATCH_EVENTS_LIMIT: usize = 128;
/// Limit for the total size, in bytes, of a queue's results that the receiver has not taken yet. At this limit, no turn
/// of the queue starts. The queue itself must limit this memory, because the receiver counts the memory of results only
/// when it takes them.
const UNREAD_LIMIT_BYTES: usize = 4 << 20;

/// The queue of one caller that submits turns.
pub(super) struct TurnQueue {
    pub(super) stream: Arc<StreamContext>,
    /// The version that executes turns; `None` before the first rollout (the stored choice of a version). While this
    /// process lacks the version of the current rollout, the field keeps the previous version.
    active: Mutex<Option<Arc<ActiveVersion>>>,
    callback: ResultCallback,
    waiting: Mutex<VecDeque<Turn>>,
    detached: AtomicBool,
    /// True while the caller has paused the start of turns.
    paused: AtomicBool,
    /// Size of the results that the receiver has not taken yet, in bytes.
    unread_bytes: AtomicUsize,
}

impl TurnQueue {
    pub(super) fn new(
        stream: StreamContext,
        active: Option<Arc<ActiveVersion>>,
        done: ResultCallback,
    ) -> Self {
        Self {
            stream: Arc::new(stream),
            active: Mutex::new(active),
            callback: done,
            waiting: Mutex::default(),
            detached: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            unread_bytes: AtomicUsize::new(0),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Turn>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn active(&self) -> Option<Arc<ActiveVersion>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether this handler executes the queue's turns now.
    pub(super) fn executes(&self, handler: &Handler) -> bool {
        self.active().is_some_and(|active| active.handler.id() == handler.id())
    }

    /// Switches to another version, and returns no turn, because the new version executes the waiting turns. With
    /// `None` (this process lacks the new version), keeps the previous version, and removes and returns the turns that
    /// no worker has taken.
    pub(super) fn switch_version(&self, active: Option<Arc<ActiveVersion>>) -> VecDeque<Turn> {
        if active.is_none() {
            return std::mem::take(&mut *self.waiting());
        }
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) = active;
        VecDeque::new()
    }

    pub(super) fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
        self.waiting().clear();
    }

    pub(super) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
            || self.unread_bytes.load(Ordering::Relaxed) >= UNREAD_LIMIT_BYTES
    }

    /// Counts the size of results that a worker is about to deliver.
    pub(super) fn add_unread(&self, bytes: usize) {
        self.unread_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Delivers results to the receiver. Drops the results if the queue is detached (the caller has dropped its
    /// handle).
    pub(super) fn deliver(&self, results: TurnResults) {
        if !self.is_detached() {
            (self.callback)(results);
        }
    }
}

/// Turns that a worker has taken from one queue.
pub(super) struct TurnBatch {
    pub(super) queue: Arc<TurnQueue>,
    pub(super) turns: VecDeque<Turn>,
}

/// The reason why a worker woke up.
pub(super) enum WakeReason {
    /// Turns are ready.
    Batch(TurnBatch),
    /// Possibly a handler is no longer in use. The worker must drop the idle instances of all unused handlers.
    Retired,
    /// The pool is closing.
    Closed,
}

/// The queues of all callers that submit turns.
pub(super) struct TurnScheduler {
    workers: usize,
    state: Mutex<SchedulerState>,
    changed: Condvar,
    /// Number of calls of [`Self::signal_retired`] so far. Each call signals that possibly a handler is no longer in
    /// use.
    retired: AtomicU64,
    closed: AtomicBool,
}

#[derive(Default)]
struct SchedulerState {
    /// The queues with turns, each queue once. A thread that needs the scheduler's lock and the lock of a queue's turns
    /// takes the scheduler's lock first.
    ready: VecDeque<Arc<TurnQueue>>,
    /// Number of workers that wait for turns.
    idle: usize,
}

impl TurnScheduler {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            workers,
            state: Mutex::default(),
            changed: Condvar::new(),
            retired: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&self) {
        let _state = self.state();
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Wakes the workers, so that they drop the idle instances of handlers that are no longer in use.
    pub(super) fn signal_retired(&self) {
        let _state = self.state();
        self.retired.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(super) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Relaxed)
    }

    pub(super) fn submit(&self, queue: &Arc<TurnQueue>, turns: Vec<Turn>) {
        if turns.is_empty() {
            return;
        }
        let mut waiting = queue.waiting();
        let was_empty = waiting.is_empty();
        waiting.extend(turns);
        drop(waiting);
        if was_empty {
            self.make_ready(queue);
        }
    }

    /// If `paused` is `true`, pauses a queue, so that no worker starts a turn of the queue. Otherwise resumes the
    /// queue.
    pub(super) fn pause(&self, queue: &TurnQueue, paused: bool) {
        if queue.paused.swap(paused, Ordering::Relaxed) && !paused {
            self.wake_all();
        }
    }

    /// Records that the receiver has taken or dropped results of a queue. Wakes the workers if the size of the
    /// remaining results has fallen below [`UNREAD_LIMIT_BYTES`], so that turns of the queue may start again.
    pub(super) fn release_unread(&self, queue: &TurnQueue, bytes: usize) {
        let before = queue.unread_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if before >= UNREAD_LIMIT_BYTES && before - bytes < UNREAD_LIMIT_BYTES {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        // A worker holds this lock from its check of the queues until it waits. This function takes the lock, so that
        // no worker misses the notification.
        let _state = self.state();
        self.changed.notify_all();
    }

    /// Puts turns that a worker has taken, but cannot execute now, back to the front of their queue. Drops the turns if
    /// the queue is detached.
    pub(super) fn requeue(&self, queue: &Arc<TurnQueue>, turns: VecDeque<Turn>) {
        if turns.is_empty() || queue.is_detached() {
            return;
        }
        let mut waiting = queue.waiting();
        let was_empty = waiting.is_empty();
        for turn in turns.into_iter().rev() {
            waiting.push_front(turn);
        }
        drop(waiting);
        if was_empty {
            self.make_ready(queue);
        }
    }

    fn make_ready(&self, queue: &Arc<TurnQueue>) {
        let mut state = self.state();
        state.ready.push_back(Arc::clone(queue));
        if state.idle > 0 && !queue.is_paused() {
            self.changed.notify_one();
        }
    }

    /// Takes a batch of turns from the next queue in the rotation. Skips paused queues, and queues of streams for which
    /// `wanted` returns false. Returns `None` if no other queue has a turn.
    pub(super) fn try_take(&self, wanted: impl Fn(&StreamContext) -> bool) -> Option<TurnBatch> {
        self.take(&mut self.state(), wanted)
    }

    /// Waits until turns are ready, [`Self::signal_retired`] is called, or the pool closes. `retired` is the value that
    /// [`Self::retired`] had when the worker last dropped unused instances.
    pub(super) fn wait(&self, retired: u64) -> WakeReason {
        let mut state = self.state();
        loop {
            if self.is_closed() {
                return WakeReason::Closed;
            }
            if let Some(batch) = self.take(&mut state, |_| true) {
                return WakeReason::Batch(batch);
            }
            if self.retired() != retired {
                return WakeReason::Retired;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn take(
        &self,
        state: &mut SchedulerState,
        wanted: impl Fn(&StreamContext) -> bool,
    ) -> Option<TurnBatch> {
        for _ in 0..state.ready.len() {
            let queue = state.ready.pop_front()?;
            if queue.is_detached() {
                continue;
            }
            if queue.is_paused() || !wanted(&queue.stream) {
                state.ready.push_back(queue);
                continue;
            }
            let mut waiting = queue.waiting();
            let turns = next_batch(&mut waiting, self.workers);
            if !waiting.is_empty() {
                state.ready.push_back(Arc::clone(&queue));
            }
            drop(waiting);
            if turns.is_empty() {
                continue;
            }
            let more = state.ready.iter().any(|other| !other.is_paused());
            if more && state.idle > 0 {
                self.changed.notify_one();
            }
            return Some(TurnBatch { queue, turns });
        }
        None
    }
}

/// Takes the next turns of a queue. Takes at most the share of one worker: the number of waiting turns divided by the
/// number of workers, rounded up. Stops earlier when the taken turns have [`BATCH_EVENTS_LIMIT`] events.
fn next_batch(waiting: &mut VecDeque<Turn>, workers: usize) -> VecDeque<Turn> {
    let share = waiting.len().div_ceil(workers);
    let mut events = 0;
    let few = |turn: &&Turn| {
        let fits = events < BATCH_EVENTS_LIMIT;
        events += turn.events.len();
        fits
    };
    let turns = waiting.iter().take(share).take_while(few).count();
    waiting.drain(..turns).collect()
}
