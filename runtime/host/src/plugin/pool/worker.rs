//! One worker thread: an executor for turns and nothing else.
//!
//! A turn that its tick interrupts goes to a list of slow ones, and the next one starts on another
//! instance. While there are slow ones, they have every other tick. So a slow key holds others up
//! by about a tick, and never has more than half of a worker that others need.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use ordain_core::{Turn, TurnDone};

use super::super::engine::{Engine, MAX_SUSPENDED, MAX_SUSPENDED_OF_STREAM, TICK};
use super::super::load::Handler;
use super::super::stream::StreamContext;
use super::super::turn::{self, Ended, Setting};
use super::Results;
use super::instances::Instances;
use super::queue::{Attachment, Bunch, Queues, Woken};

/// Bytes of results that are handed back together: whoever submits counts the memory that they
/// take, and is to know soon.
const RESULT_BYTES: usize = 1 << 20;

pub(super) struct Worker {
    queues: Arc<Queues>,
    engine: Arc<Engine>,
    instances: Instances,
    slow: VecDeque<Slow>,
    retired: u64,
}

/// A turn that was interrupted.
struct Slow {
    attachment: Arc<Attachment>,
    handler: Arc<Handler>,
    turn: Running,
}

type Running = Pin<Box<dyn Future<Output = Ended> + Send>>;

impl Worker {
    pub(super) fn new(queues: Arc<Queues>, engine: Arc<Engine>) -> Self {
        let instances = Instances::new(engine.idle_instances());
        Self { queues, engine, instances, slow: VecDeque::new(), retired: 0 }
    }

    /// Works until the pool ends.
    pub(super) fn run(mut self) {
        let engine = Arc::clone(&self.engine);
        loop {
            match self.queues.wait(self.retired) {
                Woken::Bunch(bunch) => {
                    let _running = engine.running();
                    self.execute(bunch);
                    self.work_until_idle();
                }
                Woken::Retired => self.drop_retired(),
                Woken::Closed => return,
            }
        }
    }

    /// Returns when there is neither a slow turn nor a new one.
    fn work_until_idle(&mut self) {
        loop {
            self.drop_retired();
            let begun = Instant::now();
            while !self.queues.is_closed()
                && let Some(bunch) = self.queues.try_take(|stream| self.has_room(stream))
            {
                self.execute(bunch);
                if !self.slow.is_empty() && begun.elapsed() >= TICK {
                    break;
                }
            }
            if self.queues.is_closed() {
                self.slow.clear();
            }
            if self.slow.is_empty() {
                return;
            }
            self.resume();
        }
    }

    /// Starts every turn of a bunch, and hands back the results of those that end.
    fn execute(&mut self, bunch: Bunch) {
        let Bunch { attachment, mut turns } = bunch;
        let handler = attachment.handler();
        let setting = Arc::new(Setting {
            engine: Arc::clone(&self.engine),
            handler: Arc::clone(&handler),
            stream: Arc::clone(&attachment.stream),
        });
        let mut ended = Vec::with_capacity(turns.len());
        let mut bytes = 0;
        while self.has_room(&attachment.stream)
            && !attachment.is_paused()
            && !attachment.is_detached()
            && !self.queues.is_closed()
            && let Some(turn) = turns.pop_front()
        {
            let mut turn = self.start(&setting, turn);
            match poll(&mut turn) {
                Poll::Ready(turn) => {
                    bytes += turn.bytes;
                    ended.push(self.end(&handler, turn));
                    if bytes > RESULT_BYTES {
                        self.hand_back(&attachment, &mut ended, &mut bytes);
                    }
                }
                Poll::Pending => {
                    // What is finished must not wait behind what is slow.
                    self.hand_back(&attachment, &mut ended, &mut bytes);
                    let slow = Slow {
                        attachment: Arc::clone(&attachment),
                        handler: Arc::clone(&handler),
                        turn,
                    };
                    self.slow.push_back(slow);
                }
            }
        }
        self.hand_back(&attachment, &mut ended, &mut bytes);
        self.queues.give_back(&attachment, turns);
    }

    fn hand_back(&self, to: &Arc<Attachment>, ended: &mut Vec<TurnDone>, bytes: &mut usize) {
        let (ended, bytes) = (std::mem::take(ended), std::mem::take(bytes));
        if !ended.is_empty() {
            to.done(Results::new(ended, bytes, &self.queues, to));
        }
    }

    /// Whether another turn of a stream may become a slow one.
    fn has_room(&self, stream: &StreamContext) -> bool {
        let same = |slow: &&Slow| slow.attachment.stream.name == stream.name;
        self.slow.len() < MAX_SUSPENDED
            && self.slow.iter().filter(same).count() < MAX_SUSPENDED_OF_STREAM
    }

    fn start(&mut self, setting: &Arc<Setting>, turn: Turn) -> Running {
        let instance = if turn.fresh { None } else { self.instances.take(&setting.handler) };
        Box::pin(turn::run(Arc::clone(setting), turn, instance))
    }

    fn end(&mut self, handler: &Arc<Handler>, ended: Ended) -> TurnDone {
        if let Some(instance) = ended.instance {
            self.instances.put(handler, instance);
        }
        ended.done
    }

    /// Lets the next slow turn go on for a tick.
    fn resume(&mut self) {
        let Some(mut slow) = self.slow.pop_front() else { return };
        if slow.attachment.is_detached() {
            return;
        }
        match poll(&mut slow.turn) {
            Poll::Ready(ended) => {
                let mut bytes = ended.bytes;
                let done = self.end(&slow.handler, ended);
                self.hand_back(&slow.attachment, &mut vec![done], &mut bytes);
            }
            Poll::Pending => self.slow.push_back(slow),
        }
    }

    fn drop_retired(&mut self) {
        let retired = self.queues.retired();
        if retired != self.retired {
            self.retired = retired;
            self.instances.drop_retired();
        }
    }
}

/// Nothing outside can wake a guest, so that there is nobody to be told by a waker.
fn poll(turn: &mut Running) -> Poll<Ended> {
    turn.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}
