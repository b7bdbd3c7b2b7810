//! Time as a guest sees it, and how much of the machine's time it has used.
//!
//! A guest never sees the machine's clocks. Its wall clock shows the event's time, and its time
//! passes only when it waits: a sleep ends at once and moves both clocks forward by its length.
//! So a handler that sleeps holds nobody up, and a repeated try sees what the first one saw.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wasmtime::component::{Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::bindings::clocks::wall_clock::{self, Datetime};
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

use super::super::engine::TICK;
use super::super::failure::TimedOut;

/// Step of the monotonic clock, in ns. Each reading moves it by one, so that a loop that waits
/// for it to move ends.
const STEP_NS: u64 = 1_000;

/// Shared by a store, its timers and its epoch callback; they never meet on two threads, so the
/// lock is always free.
pub(super) struct EventTime {
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The event's time, in ms since the Unix epoch.
    event_ms: u64,
    /// How long the event has waited, in the guest's time.
    waited: Duration,
    /// The monotonic clock in ns; it goes on from event to event.
    monotonic_ns: u64,
    /// When the first of the timers that are waited for is due.
    next_ns: Option<u64>,
    /// Counts the times that the clock was moved to a timer.
    moves: u64,
    /// How long the event has run, in the machine's time.
    ran: Duration,
    /// When it last went on after a pause.
    resumed: Option<Instant>,
}

impl EventTime {
    pub(super) fn new(timeout: Duration) -> Arc<Self> {
        Arc::new(Self { timeout, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, event_ms: u64) {
        let mut state = self.state();
        let (monotonic_ns, moves) = (state.monotonic_ns, state.moves);
        *state = State { event_ms, monotonic_ns, moves, ..State::default() };
    }

    /// The epoch has moved while the guest ran: an error if it has used up its time.
    pub(super) fn tick(&self) -> Result<(), TimedOut> {
        let mut state = self.state();
        // Without a pause in this event it began somewhere within this tick.
        let slice = state.resumed.take().map_or(TICK, |since| since.elapsed());
        state.ran += slice;
        if state.ran > self.timeout { Err(TimedOut::running(self.timeout)) } else { Ok(()) }
    }

    /// Lets others run.
    pub(super) fn pause(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let time = Arc::clone(self);
        let mut paused = false;
        poll_fn(move |cx| {
            if paused {
                time.state().resumed = Some(Instant::now());
                return Poll::Ready(());
            }
            paused = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    /// Polls a timer. `asked` is at which move of the clock this wait last asked for its time.
    ///
    /// A wait for several timers polls all of them before any again: then the earliest is known
    /// and the clock moves to it, unless that exceeds the time limit. A wait that can never end
    /// wakes nobody, by which it is found.
    fn poll(&self, at_ns: u64, asked: &mut Option<u64>, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if *asked == Some(state.moves)
            && let Some(next_ns) = state.next_ns.take()
        {
            let waited =
                state.waited + Duration::from_nanos(next_ns.saturating_sub(state.monotonic_ns));
            if waited > self.timeout {
                return Poll::Pending;
            }
            state.waited = waited;
            state.monotonic_ns = state.monotonic_ns.max(next_ns);
            state.moves += 1;
        }
        if state.monotonic_ns >= at_ns {
            return Poll::Ready(());
        }
        *asked = Some(state.moves);
        state.next_ns = Some(state.next_ns.map_or(at_ns, |next_ns| next_ns.min(at_ns)));
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

struct Timer {
    at_ns: u64,
    time: Arc<EventTime>,
}

#[async_trait::async_trait]
impl Pollable for Timer {
    async fn ready(&mut self) {
        let mut asked = None;
        poll_fn(|cx| self.time.poll(self.at_ns, &mut asked, cx)).await;
    }
}

/// A guest's clocks.
pub(super) struct TimeView<'a> {
    pub(super) time: &'a Arc<EventTime>,
    pub(super) table: &'a mut ResourceTable,
}

impl TimeView<'_> {
    fn timer(&mut self, at_ns: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let timer = self.table.push(Timer { at_ns, time: Arc::clone(self.time) })?;
        subscribe(self.table, timer)
    }
}

impl wall_clock::Host for TimeView<'_> {
    fn now(&mut self) -> wasmtime::Result<Datetime> {
        let state = self.time.state();
        let now = Duration::from_millis(state.event_ms) + state.waited;
        Ok(Datetime { seconds: now.as_secs(), nanoseconds: now.subsec_nanos() })
    }

    fn resolution(&mut self) -> wasmtime::Result<Datetime> {
        Ok(Datetime { seconds: 0, nanoseconds: 1_000_000 })
    }
}

impl monotonic_clock::Host for TimeView<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        let mut state = self.time.state();
        state.monotonic_ns += STEP_NS;
        Ok(state.monotonic_ns)
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(STEP_NS)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.timer(when)
    }

    fn subscribe_duration(&mut self, duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let at_ns = self.time.state().monotonic_ns.saturating_add(duration);
        self.timer(at_ns)
    }
}
