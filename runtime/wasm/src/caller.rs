//! Executes turns on the calling thread.

use std::sync::Arc;

use ordain_core::{Turn, TurnDone};

use super::engine::{Engine, Running};
use super::handler::{Active, Handler};
use super::instance::{Instance, block_on};
use super::stream::StreamContext;
use super::turn::{self, Setting};

/// Executes turns one by one on the thread that asks, with an instance of its own: for tools that
/// want to know what a handler itself costs. A stream's turns go to a [`Pool`](super::Pool).
pub struct Caller {
    setting: Arc<Setting>,
    instance: Option<Instance>,
    /// While it lives, time passes for the guest.
    _running: Running,
}

impl Caller {
    /// Nothing is started yet: the first turn does that.
    pub fn new(engine: &Arc<Engine>, handler: Arc<Handler>, stream: StreamContext) -> Self {
        let (engine_of, active) = (Arc::clone(engine), Active::first(handler));
        let setting = Setting { engine: engine_of, active, stream: Arc::new(stream) };
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
