//! The worker threads, shared by all streams, and the queues from which they take turns.
//!
//! Work crosses between threads in bunches: a submission, a bunch of turns, a bunch of results.
//! Queues with turns in them are served round robin, so that a stream whose handler is slow does
//! not starve another. Nothing here may look at what a turn does.

mod instances;
mod queue;
mod worker;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use ordain_core::{Change, Turn, TurnDone};

use super::engine::Engine;
use super::handler::Active;
use super::stream::StreamContext;
use queue::{Attachment, Queues};
use worker::Worker;

/// What is done with results, on a worker's thread: it should only hand them on.
pub type Done = Box<dyn Fn(Results) + Send + Sync>;

/// Results of turns. As long as nobody takes them out, what they take in memory holds up the turns
/// of their queue.
pub struct Results {
    turns: Vec<TurnDone>,
    bytes: usize,
    queues: Arc<Queues>,
    attachment: Arc<Attachment>,
}

impl Results {
    fn new(turns: Vec<TurnDone>, bytes: usize, queues: &Arc<Queues>, of: &Arc<Attachment>) -> Self {
        of.unread(bytes);
        Self { turns, bytes, queues: Arc::clone(queues), attachment: Arc::clone(of) }
    }

    /// Takes them out.
    pub fn take(mut self) -> Vec<TurnDone> {
        std::mem::take(&mut self.turns)
    }
}

impl std::fmt::Debug for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Results").field(&self.turns).finish()
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        self.queues.taken(&self.attachment, self.bytes);
    }
}

/// The worker threads. Dropping it ends them: what they run is dropped within a tick, what is
/// queued at once, and nothing of it is reported.
pub struct Pool {
    queues: Arc<Queues>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the threads.
    pub fn start(engine: &Arc<Engine>) -> io::Result<Self> {
        let queues = Arc::new(Queues::new(engine.settings().workers.max(1)));
        let mut pool = Self { queues: Arc::clone(&queues), threads: Vec::new() };
        for number in 0..engine.settings().workers.max(1) {
            let worker = Worker::new(Arc::clone(&queues), Arc::clone(engine));
            let thread = std::thread::Builder::new()
                .name(format!("ordain-worker-{number}"))
                .spawn(move || run(worker))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// A queue of its own for one source of turns, which wait as long as nothing is active.
    pub fn attach(&self, stream: StreamContext, active: Option<Arc<Active>>, done: Done) -> Turns {
        let attachment = Attachment::new(stream, active, done);
        Turns { queues: Arc::clone(&self.queues), attachment: Arc::new(attachment) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queues.close();
        for thread in self.threads.drain(..) {
            // A worker that panics ends the process.
            let _ = thread.join();
        }
    }
}

/// A worker that panics has lost its turns, and their keys would wait for ever: everything is
/// durable but that, so the process ends and is started again.
fn run(worker: Worker) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run()));
    if result.is_err() {
        // Also if the log panics.
        let _end = Abort;
        tracing::error!("a worker thread panicked, which is a bug of the host; ending the process");
    }
}

/// Ends the process when it is dropped.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// A queue of turns. Dropping it drops what is in it, and what of it runs is not reported.
pub struct Turns {
    queues: Arc<Queues>,
    attachment: Arc<Attachment>,
}

impl Turns {
    /// Executes turns; each is answered once. The queue has no bound of its own: whoever submits
    /// bounds the turns that are not answered.
    pub fn submit(&self, turns: Vec<Turn>) {
        self.queues.submit(&self.attachment, turns);
    }

    /// Lets no more turns start, or lets them start again. Those that run, run on.
    pub fn pause(&self, paused: bool) {
        self.queues.pause(&self.attachment, paused);
    }

    /// Lets another version execute the turns that are submitted from now on, and those that no
    /// worker has taken yet; idle instances of the old one end as soon as nobody holds it. Where there
    /// is none (`None`), those that nobody has taken are answered here, with nothing done.
    pub fn replace(&self, active: Option<Arc<Active>>) -> Vec<TurnDone> {
        // Of one that is replaced nothing must be held here.
        let last = if active.is_none() { self.attachment.active() } else { None };
        let back = self.attachment.replace(active);
        self.queues.retire();
        let Some(last) = last else { return Vec::new() };
        let undone = |turn: Turn| TurnDone {
            token: turn.token,
            version: Arc::clone(&last.decided),
            verdicts: Vec::new(),
            state: Change::Keep,
            failure: None,
        };
        back.into_iter().map(undone).collect()
    }

    /// What executes turns now.
    pub fn active(&self) -> Option<Arc<Active>> {
        self.attachment.active()
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.attachment.detach();
        self.queues.retire();
    }
}
