//! The host's data for one WebAssembly instance, and the parts of WASI that a guest (the WebAssembly code of a handler)
//! can use. A guest can read the time of the event that it executes, and random numbers that are the same in every try
//! of the event. Standard output and standard error of a guest write to the log. This module must never give a guest a
//! file, an environment variable, a program argument or a socket.

mod log;
mod memory;
mod output;
mod random;
mod time;

use std::sync::Arc;

use ordain_core::{Key, VersionName};
use wasmtime::component::{HasData, Linker, ResourceTable, WasmStr};
use wasmtime::{Store, StoreContextMut, UpdateDeadline};
use wasmtime_wasi::p2::bindings::{clocks, random as wasi_random};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::failure::ReportedFault;
use super::log_line::LogOrigin;
use super::settings::HandlerLimits;
use super::stream::StreamContext;
use super::wire;
use log::EventLog;
use memory::MemoryBudget;
use output::GuestOutput;
use random::EventRandom;
use time::{ClockView, EventClock};

/// The interface through which a handler writes to the log.
pub(super) const LOGGING_INTERFACE: &str = "ordain:handler/logging@0.1.0";

/// The interface through which a handler ends a call because of a fault.
pub(super) const FAULT_INTERFACE: &str = "ordain:handler/fault@0.1.0";

/// Maximum number of component handles (streams, pollables) that a guest may hold at one time. Each handle costs the
/// host a few hundred bytes, and a handler needs only a few handles.
const MAX_HANDLES: usize = 1_000;

/// The host's data in the Wasmtime store of an instance.
pub(super) struct GuestState {
    table: ResourceTable,
    wasi: WasiCtx,
    memory: MemoryBudget,
    random: EventRandom,
    clock: Arc<EventClock>,
    log: Arc<EventLog>,
}

/// The identity of the event that a handler executes. Cheap to clone.
#[derive(Clone)]
pub(super) struct EventIdentity {
    pub(super) turn: Arc<TurnIdentity>,
    pub(super) sequence: u64,
}

/// The part of the identity that all events of a turn (a run of events of one key) share.
pub(super) struct TurnIdentity {
    pub(super) version: VersionName,
    pub(super) stream: Arc<StreamContext>,
    pub(super) key: Key,
}

impl GuestState {
    /// Creates a Wasmtime store for one new instance.
    pub(super) fn store(engine: &wasmtime::Engine, limits: &HandlerLimits) -> Store<Self> {
        let log = EventLog::new(limits.log);
        let wasi = WasiCtx::builder()
            .stdout(GuestOutput::new(Arc::clone(&log), LogOrigin::Stdout))
            .stderr(GuestOutput::new(Arc::clone(&log), LogOrigin::Stderr))
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .build();
        let guest = Self {
            table: ResourceTable::new(),
            wasi,
            memory: MemoryBudget::new(limits.memory),
            random: EventRandom::default(),
            clock: EventClock::new(limits.timeout),
            log,
        };
        let mut store = Store::new(engine, guest);
        store.set_hostcall_fuel(limits.lift_limit());
        store.set_max_component_handles(MAX_HANDLES);
        store.limiter(|guest| &mut guest.memory);
        store.epoch_deadline_callback(|mut store| {
            let time = &store.data_mut().clock;
            time.tick()?;
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(time.yield_once())))
        });
        store
    }

    /// Prepares the guest's clock, random numbers and log for another event.
    pub(super) fn begin_event(&mut self, name: &EventIdentity, time_us: u64) {
        self.clock.begin_event(time_us);
        self.random.begin_event(name);
        self.log.begin_event(name);
    }

    /// Ends the event's output: logs incomplete lines, and the size of output that was not logged.
    pub(super) fn end_event(&self) {
        self.log.end_event();
    }

    /// Returns an excerpt of the text that the guest wrote to standard error during the event. After a panic, the
    /// excerpt contains the text of the panic.
    pub(super) fn stderr_excerpt(&self) -> String {
        self.log.stderr_excerpt()
    }
}

impl WasiView for GuestState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Adds to a linker all functions that a handler may import.
pub(super) fn link(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    // The clocks and random numbers of the event replace the clocks and random numbers of the machine.
    linker.allow_shadowing(true);
    clocks::wall_clock::add_to_linker::<_, ClockBinding>(linker, GuestState::clock)?;
    clocks::monotonic_clock::add_to_linker::<_, ClockBinding>(linker, GuestState::clock)?;
    wasi_random::random::add_to_linker::<_, RandomBinding>(linker, |guest| &mut guest.random)?;
    wasi_random::insecure::add_to_linker::<_, RandomBinding>(linker, |guest| &mut guest.random)?;
    wasi_random::insecure_seed::add_to_linker::<_, RandomBinding>(linker, |guest| {
        &mut guest.random
    })?;
    linker.allow_shadowing(false);
    let log = |store: StoreContextMut<'_, GuestState>,
               (level, message): (wire::LogLevel, WasmStr)| {
        log_message(&store, level, &message)
    };
    linker.instance(LOGGING_INTERFACE)?.func_wrap("log", log)?;
    let fail =
        |store: StoreContextMut<'_, GuestState>, (message,): (WasmStr,)| -> wasmtime::Result<()> {
            Err(ReportedFault::new(&message.to_str(&store)?).into())
        };
    linker.instance(FAULT_INTERFACE)?.func_wrap("fail", fail)
}

fn log_message(
    store: &StoreContextMut<'_, GuestState>,
    level: wire::LogLevel,
    message: &WasmStr,
) -> wasmtime::Result<()> {
    let text = message.to_str(store)?;
    store.data().log.message(level, &text);
    Ok(())
}

impl GuestState {
    fn clock(&mut self) -> ClockView<'_> {
        ClockView { clock: &self.clock, table: &mut self.table }
    }
}

struct ClockBinding;

impl HasData for ClockBinding {
    type Data<'a> = ClockView<'a>;
}

struct RandomBinding;

impl HasData for RandomBinding {
    type Data<'a> = &'a mut EventRandom;
}
