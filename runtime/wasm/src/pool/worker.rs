//! A worker thread, which only executes turns (runs of events of one key).
//!
//! A tick ([`TICK_INTERVAL`]) interrupts the turn that is running. An interrupted turn moves to the list of slow turns,
//! and the next turn starts on another WebAssembly instance. The worker alternates: it executes new turns for a tick,
//! and then resumes one slow turn for a tick. A slow key therefore delays other keys by about a tick. While other keys
//! need the worker, all slow keys together take at most about half of the worker's time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ordain_core::{Turn, TurnResult};

use super::super::engine::{
    HandlerEngine, STREAM_SUSPENDED_LIMIT, TICK_INTERVAL, WORKER_SUSPENDED_LIMIT,
};
use super::super::handler::Handler;
use super::super::stream::StreamContext;
use super::super::turn::{self, FinishedTurn, TurnContext};
use super::TurnResults;
use super::instances::IdleInstances;
use super::queue::{TurnBatch, TurnQueue, TurnScheduler, WakeReason};
use ordain_util::histogram::{HANDLER_SECONDS, Histogram};

/// Size of results, in bytes, above which the worker delivers the results before it has executed all turns of the
/// batch. The receiver must get the results soon, because only the receiver counts their memory against the memory
/// limit.
const RESULT_BATCH_BYTES: usize = 1 << 20;

pub(super) struct Worker {
    scheduler: Arc<TurnScheduler>,
    engine: Arc<HandlerEngine>,
    instances: IdleInstances,
    suspended: VecDeque<SuspendedTurn>,
    retired: u64,
    /// Measured times of the handler that the worker executes now. The times are not in the histogram of the handler
    /// yet.
    times: Histogram,
}

/// A turn that a tick has interrupted: a slow turn.
struct SuspendedTurn {
    queue: Arc<TurnQueue>,
    handler: Arc<Handler>,
    future: TurnFuture,
    /// Time that the turn has run so far.
    ran: Duration,
}

type TurnFuture = Pin<Box<dyn Future<Output = FinishedTurn> + Send>>;

impl Worker {
    pub(super) fn new(queues: Arc<TurnScheduler>, engine: Arc<HandlerEngine>) -> Self {
        let instances = IdleInstances::new(engine.idle_instance_limit());
        let times = Histogram::new(&HANDLER_SECONDS);
        Self { scheduler: queues, engine, instances, suspended: VecDeque::new(), retired: 0, times }
    }

    /// Executes turns until the pool closes.
    pub(super) fn run(mut self) {
        let engine = Arc::clone(&self.engine);
        loop {
            match self.scheduler.wait(self.retired) {
                WakeReason::Batch(batch) => {
                    let _running = engine.keep_ticking();
                    self.execute(batch);
                    self.work_until_idle();
                }
                WakeReason::Retired => self.drop_retired(),
                WakeReason::Closed => return,
            }
        }
    }

    /// Executes turns until no slow turn is left and no queue has a new turn that may start, or until the pool closes.
    fn work_until_idle(&mut self) {
        loop {
            self.drop_retired();
            let begun = Instant::now();
            while !self.scheduler.is_closed()
                && let Some(batch) = self.scheduler.try_take(|stream| self.has_room(stream))
            {
                self.execute(batch);
                if !self.suspended.is_empty() && begun.elapsed() >= TICK_INTERVAL {
                    break;
                }
            }
            if self.scheduler.is_closed() {
                self.suspended.clear();
            }
            if self.suspended.is_empty() {
                return;
            }
            self.resume_turn();
        }
    }

    /// Starts the turns of a batch, and delivers the results of the turns that end without interruption. Puts turns
    /// that cannot start now back into their queue.
    fn execute(&mut self, batch: TurnBatch) {
        let TurnBatch { queue, mut turns } = batch;
        let Some(active) = queue.active() else {
            return self.scheduler.requeue(&queue, turns);
        };
        let handler = Arc::clone(&active.handler);
        let setting = Arc::new(TurnContext {
            engine: Arc::clone(&self.engine),
            active,
            stream: Arc::clone(&queue.stream),
        });
        let mut ended = Vec::with_capacity(turns.len());
        let mut bytes = 0;
        let mut began = Instant::now();
        while self.has_room(&queue.stream)
            && !queue.is_paused()
            && !queue.is_detached()
            && !self.scheduler.is_closed()
            && let Some(turn) = turns.pop_front()
        {
            let mut turn = self.start_turn(&setting, turn);
            let polled = poll_turn(&mut turn);
            let now = Instant::now();
            let ran = now - std::mem::replace(&mut began, now);
            match polled {
                Poll::Ready(turn) => {
                    bytes += turn.bytes;
                    self.measure(&turn.done, ran);
                    ended.push(self.finish_turn(&handler, turn));
                    if bytes > RESULT_BATCH_BYTES {
                        self.deliver_results(&queue, &mut ended, &mut bytes);
                        began = Instant::now();
                    }
                }
                Poll::Pending => {
                    // The results of finished turns must not wait for a slow turn.
                    self.deliver_results(&queue, &mut ended, &mut bytes);
                    let slow = SuspendedTurn {
                        queue: Arc::clone(&queue),
                        handler: Arc::clone(&handler),
                        future: turn,
                        ran,
                    };
                    self.suspended.push_back(slow);
                    began = Instant::now();
                }
            }
        }
        handler.execution_times().record(&mut self.times);
        self.deliver_results(&queue, &mut ended, &mut bytes);
        self.scheduler.requeue(&queue, turns);
        drop(setting);
        self.release_handler(&queue, handler);
    }

    /// Releases the handler of a batch or slow turn that has been executed. The queue may have switched to another
    /// handler since the start of the batch or turn. In this case, wakes the workers, so that they drop the idle
    /// instances of the released handler.
    fn release_handler(&self, queue: &TurnQueue, handler: Arc<Handler>) {
        let is_left = !queue.executes(&handler);
        drop(handler);
        if is_left {
            self.scheduler.signal_retired();
        }
    }

    /// Adds the time of a turn to the histogram, divided equally among the events of the turn.
    fn measure(&mut self, done: &TurnResult, ran: Duration) {
        let events = done.outcomes.len() + usize::from(done.failure.is_some());
        self.times.add(ran.as_secs_f64() / events.max(1) as f64, events as u64);
    }

    fn deliver_results(&self, to: &Arc<TurnQueue>, ended: &mut Vec<TurnResult>, bytes: &mut usize) {
        let ended = std::mem::take(ended);
        let bytes = std::mem::take(bytes);
        if !ended.is_empty() {
            to.deliver(TurnResults::new(ended, bytes, &self.scheduler, to));
        }
    }

    /// Returns whether the worker may start another turn of a stream. The suspended turns of the worker and the
    /// suspended turns of the stream must both be below their limits, so that the worker can suspend this turn too.
    fn has_room(&self, stream: &StreamContext) -> bool {
        let same = |slow: &&SuspendedTurn| slow.queue.stream.name == stream.name;
        self.suspended.len() < WORKER_SUSPENDED_LIMIT
            && self.suspended.iter().filter(same).count() < STREAM_SUSPENDED_LIMIT
    }

    fn start_turn(&mut self, setting: &Arc<TurnContext>, turn: Turn) -> TurnFuture {
        let instance = if turn.fresh { None } else { self.instances.take(&setting.active.handler) };
        Box::pin(turn::run(Arc::clone(setting), turn, instance))
    }

    fn finish_turn(&mut self, handler: &Arc<Handler>, ended: FinishedTurn) -> TurnResult {
        if let Some(instance) = ended.instance {
            self.instances.put(handler, instance);
        }
        ended.done
    }

    /// Resumes the next slow turn until it ends or a tick interrupts it. Drops the turn if the caller has dropped the
    /// handle of the turn's queue.
    fn resume_turn(&mut self) {
        let Some(mut slow) = self.suspended.pop_front() else { return };
        if slow.queue.is_detached() {
            return;
        }
        let began = Instant::now();
        let polled = poll_turn(&mut slow.future);
        slow.ran += began.elapsed();
        match polled {
            Poll::Ready(ended) => {
                self.measure(&ended.done, slow.ran);
                slow.handler.execution_times().record(&mut self.times);
                let mut bytes = ended.bytes;
                let SuspendedTurn { queue, handler, future: turn, .. } = slow;
                drop(turn);
                let done = self.finish_turn(&handler, ended);
                self.deliver_results(&queue, &mut vec![done], &mut bytes);
                self.release_handler(&queue, handler);
            }
            Poll::Pending => self.suspended.push_back(slow),
        }
    }

    fn drop_retired(&mut self) {
        let retired = self.scheduler.retired();
        if retired != self.retired {
            self.retired = retired;
            self.instances.drop_retired();
        }
    }
}

/// Polls a turn. The waker does nothing, because the worker polls each slow turn again without a request.
fn poll_turn(turn: &mut TurnFuture) -> Poll<FinishedTurn> {
    turn.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}
