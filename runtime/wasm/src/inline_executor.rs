//! Executes turns on the calling thread.

use std::sync::Arc;

use ordain_core::{Turn, TurnResult};

use super::engine::{HandlerEngine, TickerGuard};
use super::handler::{ActiveVersion, Handler};
use super::instance::{HandlerInstance, block_on};
use super::stream::StreamContext;
use super::turn::{self, TurnContext};

/// An executor that runs turns (runs of events of one key) one by one on the calling thread, with a WebAssembly
/// instance of its own. Tools use this executor to measure the cost of a handler alone. A
/// [`WorkerPool`](super::WorkerPool) executes the turns of streams.
pub struct InlineExecutor {
    context: Arc<TurnContext>,
    instance: Option<HandlerInstance>,
    /// Keeps the ticker running. The ticker interrupts a guest that exceeds its time limit.
    _ticking: TickerGuard,
}

impl InlineExecutor {
    /// Creates an executor. The first turn starts the instance.
    pub fn new(engine: &Arc<HandlerEngine>, handler: Arc<Handler>, stream: StreamContext) -> Self {
        let setting = TurnContext {
            engine: Arc::clone(engine),
            active: ActiveVersion::first(handler),
            stream: Arc::new(stream),
        };
        Self { context: Arc::new(setting), instance: None, _ticking: engine.keep_ticking() }
    }

    /// Executes a turn to its end, and blocks the calling thread until then.
    pub fn run(&mut self, turn: Turn) -> TurnResult {
        let instance = self.instance.take().filter(|_| !turn.fresh);
        let ended = block_on(turn::run(Arc::clone(&self.context), turn, instance));
        self.instance = ended.instance;
        ended.done
    }
}
