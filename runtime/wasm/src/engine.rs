//! The engine that all handlers share: the compiler's configuration, the pool of handler instances, and the ticker that
//! interrupts guests. In this module, an instance is a WebAssembly instance of a handler.

mod ticker;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use wasmtime::component::Linker;
use wasmtime::{Cache, Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::cache::{CacheDir, open_cache};
use super::function_cache::FunctionCache;
use super::guest::{self, GuestState};
use super::observer::ExecutionObserver;
use super::settings::HandlerSettings;
use ticker::Ticker;
pub(super) use ticker::TickerGuard;

/// Length of a tick. After about this time, a worker switches from a running guest (the WebAssembly code of a handler)
/// to another turn (a run of events of one key). Shorter ticks cost more switches; longer ticks delay other turns.
pub(super) const TICK_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum number of suspended instances of a worker: instances whose turn a tick has interrupted. Each suspended
/// instance keeps its memory. A worker at the limit starts no new turn until one of the interrupted turns has ended.
pub(super) const WORKER_SUSPENDED_LIMIT: usize = 32;

/// Maximum number of suspended instances of one stream in a worker. If every event of one stream runs to its time
/// limit, half of [`WORKER_SUSPENDED_LIMIT`] remains for other streams.
pub(super) const STREAM_SUSPENDED_LIMIT: usize = WORKER_SUSPENDED_LIMIT / 2;

/// Maximum number of instances of one worker: suspended, running and idle instances together. Each instance reserves
/// address space, not memory.
const WORKER_INSTANCES_LIMIT: usize = 128;

/// Maximum number of instances of all workers. The pool reserves two memories for each instance, and a little over 4
/// GiB of address space for each memory. All instances together therefore reserve a little over 64 TiB of the 128 TiB
/// (47 bits) of address space that a process has.
const POOL_INSTANCES_LIMIT: usize = 8_192;

/// Number of additional instances for the trial start of handlers that are being loaded.
const TRIAL_INSTANCES_LIMIT: usize = 8;

/// Maximum number of memories of a component. Most components have one memory.
const COMPONENT_MEMORIES_LIMIT: u32 = 8;

/// Maximum number of core instances of a component. A core instance is an instance of a module inside the component.
/// Python components have 33 to 64.
const COMPONENT_CORE_INSTANCES_LIMIT: u32 = 128;

/// Maximum number of tables of a component.
const COMPONENT_TABLES_LIMIT: u32 = 16;
/// Maximum number of elements of a table. The largest table of a Python or JavaScript component has more than 10,000
/// elements.
const TABLE_ELEMENTS_LIMIT: usize = 1 << 16;

/// Native stack size for a guest, in bytes.
const GUEST_STACK_BYTES: usize = 1 << 20;
/// Additional native stack size for the host functions that a guest calls, in bytes.
const HOST_STACK_BYTES: usize = 1 << 20;

/// Maximum size, in bytes, of the part of each guest memory that the engine keeps when an instance ends. The engine
/// clears this part for the next instance, and returns the rest of the memory to the system.
const KEEP_RESIDENT_BYTES: usize = 16 << 20;
/// The limit in place of [`KEEP_RESIDENT_BYTES`] on a system that cannot list the memory pages that a guest has
/// written. On such a system, the engine must clear all bytes up to the limit, so the limit is lower.
const KEEP_RESIDENT_UNSCANNED_BYTES: usize = 256 << 10;
/// Maximum size, in bytes, of the part of each table that the engine keeps when an instance ends. The engine clears
/// this part for the next instance.
const KEEP_TABLE_RESIDENT_BYTES: usize = 64 << 10;

/// Builds an engine that only compiles into a cache. Engines of other processes that have the same configuration load
/// the compiled code from this cache.
pub(super) fn compiling_engine(
    cache: Cache,
    functions: Arc<FunctionCache>,
) -> wasmtime::Result<wasmtime::Engine> {
    wasmtime::Engine::new(wasm_config(Some(cache)).enable_incremental_compilation(functions)?)
}

/// The compiler of handlers, which also creates their instances.
pub struct HandlerEngine {
    wasm: wasmtime::Engine,
    linker: Linker<GuestState>,
    settings: HandlerSettings,
    ticker: Ticker,
    /// The folder of compiled handlers.
    cache: Option<CacheDir>,
    observer: OnceLock<Arc<dyn ExecutionObserver>>,
}

/// An error that prevents the engine from starting.
#[derive(Debug, thiserror::Error)]
#[error("the handler engine cannot start: {0}")]
pub struct EngineError(String);

impl HandlerEngine {
    /// Creates an engine. If the system lets the process reserve enough address space, the engine takes instances from
    /// a pool. Without the pool, instances start more slowly.
    pub fn new(settings: HandlerSettings) -> Result<Arc<Self>, EngineError> {
        let cache = settings.cache.as_deref().and_then(CacheDir::open_or_temporary);
        let path = cache.as_ref().map(CacheDir::path);
        let wasm = build_wasm_engine(&settings, path)
            .map_err(|error| EngineError(format!("{error:#}")))?;
        let mut linker = Linker::new(&wasm);
        guest::link(&mut linker).map_err(|error| EngineError(format!("{error:#}")))?;
        let ticker = Ticker::start(wasm.clone())
            .map_err(|error| EngineError(format!("its clock thread cannot start: {error}")))?;
        Ok(Arc::new(Self { wasm, linker, settings, ticker, cache, observer: OnceLock::new() }))
    }

    /// Returns the settings of the engine.
    pub fn settings(&self) -> &HandlerSettings {
        &self.settings
    }

    /// Sets the receiver of all executions and log lines. Ignores the call if the engine already has a receiver.
    pub fn observe(&self, observer: Arc<dyn ExecutionObserver>) {
        // The first receiver stays.
        let _ = self.observer.set(observer);
    }

    /// Returns the receiver of all executions and log lines; `None` if the engine has no receiver.
    pub fn observer(&self) -> Option<&Arc<dyn ExecutionObserver>> {
        self.observer.get()
    }

    /// Returns the folder of compiled handlers; `None` if there is no such folder.
    pub(super) fn cache(&self) -> Option<&CacheDir> {
        self.cache.as_ref()
    }

    pub(super) fn wasm(&self) -> &wasmtime::Engine {
        &self.wasm
    }

    pub(super) fn linker(&self) -> &Linker<GuestState> {
        &self.linker
    }

    /// Keeps the ticker running until the guard is dropped. Without ticks, a guest would never be interrupted.
    pub(super) fn keep_ticking(&self) -> TickerGuard {
        self.ticker.keep_ticking()
    }

    /// Returns the maximum number of idle instances of one worker.
    pub(super) fn idle_instance_limit(&self) -> usize {
        let workers = self.settings.workers.max(1);
        let share = WORKER_INSTANCES_LIMIT.min(POOL_INSTANCES_LIMIT / workers);
        // Every worker keeps at least one idle instance: the instance that it used last.
        share.saturating_sub(WORKER_SUSPENDED_LIMIT + 1).max(1)
    }
}

fn build_wasm_engine(
    settings: &HandlerSettings,
    cache: Option<&Path>,
) -> wasmtime::Result<wasmtime::Engine> {
    let config = wasm_config(cache.and_then(open_cache));
    let mut pooled = config.clone();
    pooled
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pooling_config(settings.workers)));
    wasmtime::Engine::new(&pooled).or_else(|error| {
        tracing::warn!(
            "instance pool unavailable: {error:#}; handlers will start more slowly. The usual reason is a limit on \
             address space (`ulimit -v`): remove this limit"
        );
        wasmtime::Engine::new(&config)
    })
}

/// Builds the configuration on which compiled code depends.
fn wasm_config(cache: Option<Cache>) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .max_wasm_stack(GUEST_STACK_BYTES)
        .async_stack_size(GUEST_STACK_BYTES + HOST_STACK_BYTES)
        .memory_init_cow(true)
        .cache(cache);
    config
}

fn pooling_config(workers: usize) -> PoolingAllocationConfig {
    let instances = workers.max(1).saturating_mul(WORKER_INSTANCES_LIMIT).min(POOL_INSTANCES_LIMIT);
    let instances = (instances + TRIAL_INSTANCES_LIMIT) as u32;
    let scan = PoolingAllocationConfig::is_pagemap_scan_available();
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances * COMPONENT_CORE_INSTANCES_LIMIT)
        .total_memories(instances * 2)
        .total_tables(instances * 4)
        .total_stacks(instances)
        .max_core_instances_per_component(COMPONENT_CORE_INSTANCES_LIMIT)
        .max_memories_per_component(COMPONENT_MEMORIES_LIMIT)
        .max_memories_per_module(COMPONENT_MEMORIES_LIMIT)
        .max_tables_per_component(COMPONENT_TABLES_LIMIT)
        .max_tables_per_module(COMPONENT_TABLES_LIMIT)
        .table_elements(TABLE_ELEMENTS_LIMIT)
        .linear_memory_keep_resident(if scan {
            KEEP_RESIDENT_BYTES
        } else {
            KEEP_RESIDENT_UNSCANNED_BYTES
        })
        .table_keep_resident(KEEP_TABLE_RESIDENT_BYTES)
        .pagemap_scan(Enabled::Auto);
    pool
}
