//! The ticker, which interrupts guests: at each tick, its thread increments the epoch of the Wasmtime engine. The
//! thread waits while no [`TickerGuard`] exists.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::TICK_INTERVAL;

pub(super) struct Ticker {
    shared: Arc<TickerShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct TickerShared {
    state: Mutex<TickerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TickerState {
    running: usize,
    stopped: bool,
}

impl TickerShared {
    fn state(&self) -> MutexGuard<'_, TickerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticker {
    pub(super) fn start(engine: wasmtime::Engine) -> io::Result<Self> {
        let shared = Arc::<TickerShared>::default();
        let thread = std::thread::Builder::new().name("ordain-ticker".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || run(&shared, &engine)
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn keep_ticking(&self) -> TickerGuard {
        let mut state = self.shared.state();
        state.running += 1;
        if state.running == 1 {
            self.shared.changed.notify_one();
        }
        drop(state);
        TickerGuard(Arc::clone(&self.shared))
    }
}

/// A guard that keeps the ticker running. [`super::HandlerEngine::keep_ticking`] returns the guard.
pub(in super::super) struct TickerGuard(Arc<TickerShared>);

impl Drop for TickerGuard {
    fn drop(&mut self) {
        self.0.state().running -= 1;
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.state().stopped = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread cannot panic.
            let _ = thread.join();
        }
    }
}

fn run(shared: &TickerShared, engine: &wasmtime::Engine) {
    loop {
        let state = shared.state();
        let idle = |state: &mut TickerState| state.running == 0 && !state.stopped;
        let state = shared.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return;
        }
        drop(state);
        std::thread::sleep(TICK_INTERVAL);
        engine.increment_epoch();
    }
}
