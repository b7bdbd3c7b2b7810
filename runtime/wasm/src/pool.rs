//! The worker threads, shared by all streams, and the queues from which they take turns (runs of events of one key).
//!
//! Turns and results pass between threads in batches. A driver submits several turns at once. A worker takes several
//! turns at once, and delivers several results at once. The workers serve the queues round robin, so that a stream with
//! a slow handler does not starve another stream. This module must never inspect the contents of a turn.

mod instances;
mod queue;
mod worker;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use ordain_core::{StateUpdate, Turn, TurnResult};

use super::engine::HandlerEngine;
use super::handler::ActiveVersion;
use super::stream::StreamContext;
use queue::{TurnQueue, TurnScheduler};
use worker::Worker;

/// A callback that receives results on a worker's thread. The callback must only pass the results on, because the
/// worker waits for the callback.
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

    /// Returns the results. From then on, the caller must count their memory, because the queue no longer does.
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

/// The worker threads. Dropping the pool ends the threads. The threads drop queued turns at once, and running turns
/// within a tick. The threads report no results for these turns.
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

    /// Creates a queue for the turns of one caller. The turns of the queue wait until a handler version is active.
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
/// these turns would wait forever. All committed data is durable, so a restart of the process executes the lost turns
/// again.
fn run(worker: Worker) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run()));
    if result.is_err() {
        // The guard ends the process even if the log panics.
        let _end = AbortGuard;
        tracing::error!("worker thread panicked: this is a bug in Ordain; ending the process");
    }
}

/// A guard that ends the process when it is dropped.
struct AbortGuard;

impl Drop for AbortGuard {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// A queue of turns. Dropping this value drops the queued turns. The results of the queue's running turns are then not
/// reported.
pub struct TurnQueueHandle {
    scheduler: Arc<TurnScheduler>,
    queue: Arc<TurnQueue>,
}

impl TurnQueueHandle {
    /// Submits turns for execution. Each turn gets one result. The queue has no limit, so the caller must limit the
    /// number of turns without a result.
    pub fn submit(&self, turns: Vec<Turn>) {
        self.scheduler.submit(&self.queue, turns);
    }

    /// Stops or resumes the start of the queue's turns. A pause does not affect turns that have already started.
    pub fn pause(&self, paused: bool) {
        self.scheduler.pause(&self.queue, paused);
    }

    /// Switches the queue to another version, and returns no results. The new version executes the turns that are
    /// submitted from now on and the turns that no worker has taken yet. The idle instances of the old version end when
    /// no value refers to that version any more.
    ///
    /// With `None` (this process lacks the new version), the queue keeps its version. This function then removes the
    /// turns that no worker has taken yet, and returns for each of them a result without outcomes.
    pub fn switch_version(&self, active: Option<Arc<ActiveVersion>>) -> Vec<TurnResult> {
        // If `active` replaces the version, this function must not hold the old version. A worker drops only instances
        // of handlers to which nothing refers. If this function held the old version, the workers that `signal_retired`
        // wakes would therefore keep the idle instances of that version.
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

    /// Returns the version that executes the turns of the queue now; `None` before the first rollout.
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
