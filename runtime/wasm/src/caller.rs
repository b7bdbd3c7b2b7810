//! Executes turns on the calling thread.

use std::sync::Arc;

use ordain_core::{Turn, TurnDone};

use super::engine::{Engine, Running};
use super::handler::{Active, Handler};
use super::instance::{Instance, block_on};
use super::stream::StreamContext;
use super::turn::{self, Setting};

/// An executor that runs turns one by one on the calling thread, with an instance of its own. Tools use it to measure
/// the cost of a handler alone; the turns of a stream go to a [`Pool`](super::Pool).
pub struct Caller {
    setting: Arc<Setting>,
    instance: Option<Instance>,
    /// Keeps the guests' clock running.
    _running: Running,
}

impl Caller {
    /// Creates an executor. The first turn starts the instance.
    pub fn new(engine: &Arc<Engine>, handler: Arc<Handler>, stream: StreamContext) -> Self {
        let setting = Setting {
            engine: Arc::clone(engine),
            active: Active::first(handler),
            stream: Arc::new(stream),
        };
        Self { setting: Arc::new(setting), instance: None, _running: engine.running() }
    }

    /// Executes a turn to its end.
    pub fn run(&mut self, turn: Turn) -> TurnDone {
        let instance = self.instance.take().filter(|_| !turn.fresh);
        let ended = block_on(turn::run(Arc::clone(&self.setting), turn, instance));
        self.instance = ended.instance;
        ended.done
    }
}
