//! The worker threads, shared by all streams, and the queues from which they take turns (runs of events of one key).
//!
//! A driver (the task that processes a partition) submits several turns in one call. A worker takes several turns from
//! a queue together, and delivers several results together. The workers serve the queues round robin, so that a stream
//! with a slow handler does not starve another stream. This module must never inspect the contents of a turn.

mod instances;
mod queue;
mod worker;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ordain_core::{StateUpdate, Turn, TurnResult};

use super::engine::HandlerEngine;
use super::handler::ActiveVersion;
use super::stream::StreamContext;
use ordain_util::standard_error;
use queue::{TurnQueue, TurnScheduler};
use worker::Worker;

/// The time for which a process that aborts writes the rest of its log. This time is enough for a healthy reader. It is
/// short, because the other workers continue until the process ends.
const ABORT_DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// A callback that receives results on a worker's thread. The callback must only pass the results to another thread,
/// because the worker executes no turn until the callback returns.
pub type ResultCallback = Box<dyn Fn(TurnResults) + Send + Sync>;

/// Results of turns of one queue. Until the receiver takes the results, the queue counts their memory. While this
/// memory is at the queue's limit, workers start no turn of the queue.
pub struct TurnResults {
    turns: Vec<TurnResult>,
    bytes: usize,
    scheduler: Arc<TurnScheduler>,
    queue: Arc<TurnQueue>,
}

impl TurnResults {
    fn new(
        turns: Vec<TurnResult>,
        bytes: usize,
        queues: &Arc<TurnScheduler>,
        of: &Arc<TurnQueue>,
    ) -> Self {
        of.add_unread(bytes);
        Self { turns, bytes, scheduler: Arc::clone(queues), queue: Arc::clone(of) }
    }

    /// Returns the results. After this call, the caller must count the memory of the results, because the queue no
    /// longer counts this memory.
    pub fn take(mut self) -> Vec<TurnResult> {
        std::mem::take(&mut self.turns)
    }
}

impl std::fmt::Debug for TurnResults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Results").field(&self.turns).finish()
    }
}

impl Drop for TurnResults {
    fn drop(&mut self) {
        self.scheduler.release_unread(&self.queue, self.bytes);
    }
}

/// The worker threads. Dropping the pool ends the threads. The threads start none of the queued turns, and drop each
/// running turn at its next interruption, within about a tick. The threads report no results for dropped turns.
pub struct WorkerPool {
    scheduler: Arc<TurnScheduler>,
    threads: Vec<JoinHandle<()>>,
}

impl WorkerPool {
    /// Starts the worker threads.
    pub fn start(engine: &Arc<HandlerEngine>) -> io::Result<Self> {
        let queues = Arc::new(TurnScheduler::new(engine.settings().workers.max(1)));
        let mut pool = Self { scheduler: Arc::clone(&queues), threads: Vec::new() };
        for number in 0..engine.settings().workers.max(1) {
            let worker = Worker::new(Arc::clone(&queues), Arc::clone(engine));
            let thread = std::thread::Builder::new()
                .name(format!("ordain-worker-{number}"))
                .spawn(move || run(worker))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Creates a queue for the turns of one caller. If `active` is `None`, the turns of the queue wait for a call of
    /// [`TurnQueueHandle::switch_version`] with a version.
    pub fn attach(
        &self,
        stream: StreamContext,
        active: Option<Arc<ActiveVersion>>,
        done: ResultCallback,
    ) -> TurnQueueHandle {
        let queue = TurnQueue::new(stream, active, done);
        TurnQueueHandle { scheduler: Arc::clone(&self.scheduler), queue: Arc::new(queue) }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.scheduler.close();
        for thread in self.threads.drain(..) {
            // The result is ignored, because a panic of a worker has already ended the process.
            let _ = thread.join();
        }
    }
}

/// Runs a worker, and aborts the process if the worker panics. A panicked worker has lost its turns, and the keys of
/// these turns would wait forever. All committed data is durable, so the next start of the process executes the events
/// of the lost turns again.
fn run(worker: Worker) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run()));
    if result.is_err() {
        // The guard ends the process even if the log panics.
        let _end = AbortGuard;
        tracing::error!("worker thread panicked: this is a bug in Ordain; ending the process");
    }
}

/// A guard that writes the rest of the log and ends the process when it is dropped.
struct AbortGuard;

impl Drop for AbortGuard {
    fn drop(&mut self) {
        standard_error::finish(ABORT_DRAIN_TIMEOUT);
        std::process::abort();
    }
}

/// The handle of a queue of turns. Dropping the handle drops the queued turns. The workers then report no results of
/// the queue's running turns.
pub struct TurnQueueHandle {
    scheduler: Arc<TurnScheduler>,
    queue: Arc<TurnQueue>,
}

impl TurnQueueHandle {
    /// Submits turns for execution. The callback receives one result for each turn. The queue has no limit, so the
    /// caller must limit the number of turns whose result has not arrived.
    pub fn submit(&self, turns: Vec<Turn>) {
        self.scheduler.submit(&self.queue, turns);
    }

    /// If `paused` is `true`, pauses the queue, so that no worker starts a turn of the queue. Otherwise resumes the
    /// queue. A pause does not affect turns that have already started.
    pub fn pause(&self, paused: bool) {
        self.scheduler.pause(&self.queue, paused);
    }

    /// Switches the queue to another version, and returns no results. The new version executes the turns that are
    /// submitted from now on and the turns that no worker has taken yet. The workers drop the idle instances of the old
    /// version when no value refers to that version any more.
    ///
    /// With `None` (this process lacks the new version), the queue keeps its version. This function then removes the
    /// turns that no worker has taken yet, and returns for each of them a result without outcomes.
    pub fn switch_version(&self, active: Option<Arc<ActiveVersion>>) -> Vec<TurnResult> {
        // If `active` replaces the version, this function must not hold the old version. A worker drops an instance
        // only if nothing refers to the handler of the instance any more. If this function held the old version, the
        // workers that `signal_retired` wakes would therefore keep the idle instances of that version.
        let last_active = if active.is_none() { self.queue.active() } else { None };
        let unstarted = self.queue.switch_version(active);
        self.scheduler.signal_retired();
        let Some(last) = last_active else { return Vec::new() };
        let undone = |turn: Turn| TurnResult {
            token: turn.token,
            rollout: Arc::clone(&last.rollout),
            outcomes: Vec::new(),
            state: StateUpdate::Keep,
            failure: None,
        };
        unstarted.into_iter().map(undone).collect()
    }

    /// Returns the version that executes the turns of the queue; `None` if the queue has had no version yet.
    pub fn active(&self) -> Option<Arc<ActiveVersion>> {
        self.queue.active()
    }
}

impl Drop for TurnQueueHandle {
    fn drop(&mut self) {
        self.queue.detach();
        self.scheduler.signal_retired();
    }
}
