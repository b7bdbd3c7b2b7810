//! The clocks of a guest (the WebAssembly code of a handler), and the time for which the guest has run on the machine.
//!
//! For each event, the guest's wall clock starts at the event's time, or at the machine's time if the event has none.
//! The wall clock advances only when the guest sleeps. A sleep ends immediately, and advances the wall clock and the
//! monotonic clock by the length of the sleep. A handler that sleeps therefore delays no other handler. If an event has
//! a time, every try of the event reads the same wall-clock times.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wasmtime::component::{Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::bindings::clocks::wall_clock::{self, Datetime};
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

use super::super::engine::TICK_INTERVAL;
use super::super::failure::TimeoutExceeded;

/// Step of the monotonic clock, in ns. Each reading advances the clock by one step, so that a loop that waits for a
/// later time terminates.
const STEP_NS: u64 = 1_000;

/// The clocks of a guest. The WebAssembly instance, its timers and its epoch callback (which runs when a tick
/// interrupts the guest) share these clocks. All users of the clocks run on one thread, so the lock is never contended.
pub(super) struct EventClock {
    timeout: Duration,
    state: Mutex<ClockState>,
}

#[derive(Default)]
struct ClockState {
    /// The event's time, in µs since the Unix epoch.
    event_us: u64,
    /// Time that the guest has waited (slept) during this event, on the guest's clock.
    waited: Duration,
    /// The reading of the monotonic clock, in ns. A new event does not reset this clock.
    monotonic_ns: u64,
    /// Due time, on the monotonic clock, of the earliest timer for which the guest waits.
    next_ns: Option<u64>,
    /// Number of times that the clock was advanced to the due time of a timer.
    advances: u64,
    /// Time for which the guest has run during this event, on the machine's clock.
    ran: Duration,
    /// Time at which the guest last resumed after an interruption, on the machine's clock. `None` if the guest has not
    /// resumed since the last tick that interrupted it, or since the start of the event.
    resumed: Option<Instant>,
}

impl EventClock {
    pub(super) fn new(timeout: Duration) -> Arc<Self> {
        Arc::new(Self { timeout, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_event(&self, event_us: u64) {
        let mut state = self.state();
        let monotonic_ns = state.monotonic_ns;
        let moves = state.advances;
        *state = ClockState { event_us, monotonic_ns, advances: moves, ..ClockState::default() };
    }

    /// Adds the time since the guest last resumed to the time for which the event has run. Fails if the event has
    /// exceeded its time limit.
    pub(super) fn tick(&self) -> Result<(), TimeoutExceeded> {
        let mut state = self.state();
        // At the first interruption of an event, the start of the event is unknown: the event may have begun in the
        // middle of the tick. The whole tick then counts as time of the event.
        let slice = state.resumed.take().map_or(TICK_INTERVAL, |since| since.elapsed());
        state.ran += slice;
        if state.ran > self.timeout { Err(TimeoutExceeded::running(self.timeout)) } else { Ok(()) }
    }

    /// Suspends the guest until its next poll, so that other turns run.
    pub(super) fn yield_once(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
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

    /// Polls a timer. `registered_at` is the value that `advances` had when this wait last registered its due time.
    ///
    /// A guest that waits for several timers polls each of them once before it polls any of them again. At the second
    /// poll of a timer, the earliest due time is therefore known. If the sum of all waits of the event, up to this due
    /// time, is within the time limit, the clock advances to the due time. Otherwise, the present wait can never end,
    /// and the timer requests no further poll. The host recognises an endless wait by the missing request.
    fn poll_timer(
        &self,
        at_ns: u64,
        registered_at: &mut Option<u64>,
        cx: &Context<'_>,
    ) -> Poll<()> {
        let mut state = self.state();
        if *registered_at == Some(state.advances)
            && let Some(next_ns) = state.next_ns.take()
        {
            let waited =
                state.waited + Duration::from_nanos(next_ns.saturating_sub(state.monotonic_ns));
            if waited > self.timeout {
                return Poll::Pending;
            }
            state.waited = waited;
            state.monotonic_ns = state.monotonic_ns.max(next_ns);
            state.advances += 1;
        }
        if state.monotonic_ns >= at_ns {
            return Poll::Ready(());
        }
        *registered_at = Some(state.advances);
        state.next_ns = Some(state.next_ns.map_or(at_ns, |next_ns| next_ns.min(at_ns)));
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

struct Timer {
    at_ns: u64,
    clock: Arc<EventClock>,
}

#[async_trait::async_trait]
impl Pollable for Timer {
    async fn ready(&mut self) {
        let mut registered_at = None;
        poll_fn(|cx| self.clock.poll_timer(self.at_ns, &mut registered_at, cx)).await;
    }
}

/// A guest's clocks.
pub(super) struct ClockView<'a> {
    pub(super) clock: &'a Arc<EventClock>,
    pub(super) table: &'a mut ResourceTable,
}

impl ClockView<'_> {
    fn timer(&mut self, at_ns: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let timer = self.table.push(Timer { at_ns, clock: Arc::clone(self.clock) })?;
        subscribe(self.table, timer)
    }
}

impl wall_clock::Host for ClockView<'_> {
    fn now(&mut self) -> wasmtime::Result<Datetime> {
        let state = self.clock.state();
        let now = Duration::from_micros(state.event_us) + state.waited;
        Ok(Datetime { seconds: now.as_secs(), nanoseconds: now.subsec_nanos() })
    }

    fn resolution(&mut self) -> wasmtime::Result<Datetime> {
        Ok(Datetime { seconds: 0, nanoseconds: 1_000 })
    }
}

impl monotonic_clock::Host for ClockView<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        let mut state = self.clock.state();
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
        let at_ns = self.clock.state().monotonic_ns.saturating_add(duration);
        self.timer(at_ns)
    }
}
