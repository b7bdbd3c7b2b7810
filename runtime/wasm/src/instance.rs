//! A WebAssembly instance of a handler, and the calls to the instance.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{SystemTime, UNIX_EPOCH};

use ordain_core::{Event, FailedAttempt};
use wasmtime::Store;

use super::engine::HandlerEngine;
use super::failure::{TimeoutExceeded, classify};
use super::guest::{EventIdentity, GuestState, TurnIdentity};
use super::handler::Handler;
use super::settings::HandlerLimits;
use super::stream::StreamContext;
use super::wire::{EventArg, HandleFunc, HandleReply, HeaderArg};

/// A WebAssembly instance of a handler. After a failed call, the instance must not be called again.
pub(super) struct HandlerInstance {
    store: Store<GuestState>,
    handle: HandleFunc<'static>,
    wake_flag: Arc<WakeFlag>,
    waker: Waker,
    events: u64,
}

impl HandlerInstance {
    /// Starts an instance for an event, within the limits that apply to one event.
    pub(super) async fn start(
        engine: &HandlerEngine,
        handler: &Handler,
        name: &EventIdentity,
        event: &Event,
    ) -> Result<Self, FailedAttempt> {
        let limits = &engine.settings().limits;
        let mut store = GuestState::store(engine.wasm(), limits);
        store.data_mut().begin_event(name, time_us(event));
        store.set_epoch_deadline(1);
        let woken = Arc::<WakeFlag>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let start = async {
            let instance = handler.pre().instantiate_async(&mut store).await?;
            instance.get_typed_func(&mut store, handler.handle())
        };
        let started = poll_until_stuck(&woken, &waker, pin!(start)).await;
        match started.unwrap_or_else(|| Err(TimeoutExceeded::waiting(limits.timeout).into())) {
            Ok(handle) => Ok(Self { store, handle, wake_flag: woken, waker, events: 0 }),
            Err(error) => Err(call_failure(&store, &error, limits)),
        }
    }

    /// Checks that the handler can start: starts an instance and drops it.
    pub(super) async fn trial(
        engine: &HandlerEngine,
        handler: &Handler,
    ) -> Result<(), FailedAttempt> {
        let stream = Arc::new(StreamContext::new("", [""; 0]));
        let turn = TurnIdentity { version: handler.version().clone(), stream, key: "".into() };
        let name = EventIdentity { turn: Arc::new(turn), sequence: 0 };
        let event = Event::new(&ordain_core::EventParts::default());
        Self::start(engine, handler, &name, &event).await.map(drop)
    }

    /// Returns the number of events with which the handler was called on this instance.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Starts a time slice, which ends at the next tick. All calls until the next time slice share this slice.
    pub(super) fn begin_slice(&mut self) {
        self.store.set_epoch_deadline(1);
    }

    /// Calls the handler with an event and the state before the event.
    pub(super) async fn call(
        &mut self,
        name: &EventIdentity,
        event: &Event,
        state: Option<&[u8]>,
        limits: &HandlerLimits,
    ) -> Result<HandleReply, FailedAttempt> {
        self.events += 1;
        self.store.data_mut().begin_event(name, time_us(event));
        let headers: Vec<HeaderArg<'_>> = event.headers().collect();
        let args = (event_arg(name, event, &headers), state);
        let handle: HandleFunc<'_> = self.handle;
        let call = handle.call_async(&mut self.store, args);
        let reply = poll_until_stuck(&self.wake_flag, &self.waker, pin!(call)).await;
        match reply.unwrap_or_else(|| Err(TimeoutExceeded::waiting(limits.timeout).into())) {
            Err(error) => Err(call_failure(&self.store, &error, limits)),
            Ok((reply,)) => {
                self.store.data().end_event();
                Ok(reply)
            }
        }
    }
}

fn event_arg<'a>(
    name: &'a EventIdentity,
    event: &'a Event,
    headers: &'a [HeaderArg<'a>],
) -> EventArg<'a> {
    EventArg {
        stream: &name.turn.stream.name,
        key: &name.turn.key,
        sequence: name.sequence,
        id: event.id(),
        kind: event.kind(),
        source: event.source(),
        time_ms: event.time_ms(),
        content_type: event.content_type(),
        headers,
        data: event.data(),
        end: event.end(),
    }
}

fn call_failure(
    store: &Store<GuestState>,
    error: &wasmtime::Error,
    limits: &HandlerLimits,
) -> FailedAttempt {
    let guest = store.data();
    guest.end_event();
    classify(error, &guest.stderr_excerpt(), limits)
}

/// Returns the time at which the guest's wall clock starts for an event, in µs since the Unix epoch. This is the time
/// of the event, or the present time of the machine if the event has no time.
fn time_us(event: &Event) -> u64 {
    event.time_us().unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64)
    })
}

/// A flag that is set when a suspended guest has requested another poll.
#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls the call of a guest until the call ends. Returns `None` if the guest waits for something that can never occur.
/// Nothing outside the guest can wake the guest, so a timer or an interruption by a tick must itself request the next
/// poll of the call. If a poll ends without such a request, the wait can never end.
async fn poll_until_stuck<T>(
    woken: &WakeFlag,
    waker: &Waker,
    mut call: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    std::future::poll_fn(|_| match call.as_mut().poll(&mut Context::from_waker(waker)) {
        Poll::Ready(reply) => Poll::Ready(Some(reply)),
        Poll::Pending if woken.0.swap(false, Ordering::Relaxed) => Poll::Pending,
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Polls a future on this thread until the future completes. The future must wait only in [`poll_until_stuck`], because
/// this function polls it without a pause.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}
