//! The engine that all handlers share: how code is compiled, where instances live, and the clock
//! that ends what runs too long.

mod ticker;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::Linker;
use wasmtime::{Cache, Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::cache::{CacheDir, open_cache};
use super::guest::{self, Guest};
use super::settings::Settings;
pub(super) use ticker::Running;
use ticker::Ticker;

/// How long a guest runs at most before others get their turn. Shorter costs switches, longer
/// makes others wait.
pub(super) const TICK: Duration = Duration::from_millis(5);

/// Instances of a worker that wait for their next slice. Each holds its memory; a worker with as
/// many takes no new turn before one ends.
pub(super) const MAX_SUSPENDED: usize = 32;

/// How many of them may be of one stream: the others still have a place when all that one stream's
/// handler does is run to its time limit.
pub(super) const MAX_SUSPENDED_OF_STREAM: usize = MAX_SUSPENDED / 2;

/// Instances that one worker can have, waiting, running and idle ones. Address space is reserved
/// for each, memory is not.
const INSTANCES_PER_WORKER: usize = 128;

/// Instances of all workers: what 47 bits of address space hold at two memories each.
const MAX_INSTANCES: usize = 8_192;

/// Instances beside those of the workers: handlers that are being loaded are tried.
const TRIAL_INSTANCES: usize = 8;

/// Memories that a component can have; one is usual.
const MAX_MEMORIES: u32 = 8;

/// Core instances that a component can have. Python has 33 to 64.
const MAX_CORE_INSTANCES: u32 = 128;

/// Tables that a component can have, and elements in each: Python and JavaScript have tables of
/// more than 10,000.
const MAX_TABLES: u32 = 16;
const MAX_TABLE_ELEMENTS: usize = 1 << 16;

/// Native stack for a guest, and what the host's functions need above it.
const GUEST_STACK: usize = 1 << 20;
const HOST_STACK: usize = 1 << 20;

/// Memory of an ended instance that is cleaned and kept for the next one, rather than given back
/// to the system page by page. Without a way to find the pages that were touched, all of them
/// would have to be cleaned.
const KEEP_RESIDENT: usize = 16 << 20;
const KEEP_RESIDENT_BLIND: usize = 256 << 10;
const KEEP_TABLE_RESIDENT: usize = 64 << 10;

/// An engine that only compiles, into a cache. What it compiles is what others find there.
pub(super) fn compiler(cache: Cache) -> wasmtime::Result<wasmtime::Engine> {
    wasmtime::Engine::new(&config(Some(cache)))
}

/// Compiles handlers and makes instances of them.
pub struct Engine {
    wasm: wasmtime::Engine,
    linker: Linker<Guest>,
    settings: Settings,
    ticker: Ticker,
    /// Where compiled handlers are kept.
    cache: Option<CacheDir>,
}

/// The engine cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("the handler engine cannot start: {0}")]
pub struct EngineError(String);

impl Engine {
    /// Makes an engine, with a pool of instances where the system has the address space for it.
    pub fn new(settings: Settings) -> Result<Arc<Self>, EngineError> {
        let cache = settings.cache.as_deref().and_then(CacheDir::make);
        let path = cache.as_ref().map(CacheDir::path);
        let wasm = make(&settings, path).map_err(|error| EngineError(format!("{error:#}")))?;
        let mut linker = Linker::new(&wasm);
        guest::link(&mut linker).map_err(|error| EngineError(format!("{error:#}")))?;
        let ticker = Ticker::start(wasm.clone())
            .map_err(|error| EngineError(format!("its clock has no thread: {error}")))?;
        Ok(Arc::new(Self { wasm, linker, settings, ticker, cache }))
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where compiled handlers are kept.
    pub(super) fn cache(&self) -> Option<&CacheDir> {
        self.cache.as_ref()
    }

    pub(super) fn wasm(&self) -> &wasmtime::Engine {
        &self.wasm
    }

    pub(super) fn linker(&self) -> &Linker<Guest> {
        &self.linker
    }

    /// While the guard lives, time passes for guests.
    pub(super) fn running(&self) -> Running {
        self.ticker.running()
    }

    /// Idle instances that one worker may keep.
    pub(super) fn idle_instances(&self) -> usize {
        let workers = self.settings.workers.max(1);
        let share = INSTANCES_PER_WORKER.min(MAX_INSTANCES / workers);
        // At least the one that it has just used.
        share.saturating_sub(MAX_SUSPENDED + 1).max(1)
    }
}

fn make(settings: &Settings, cache: Option<&Path>) -> wasmtime::Result<wasmtime::Engine> {
    let config = config(cache.and_then(open_cache));
    let mut pooled = config.clone();
    pooled.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(settings.workers)));
    wasmtime::Engine::new(&pooled).or_else(|error| {
        // A limit on address space (`ulimit -v`) is the usual reason.
        tracing::warn!("no pool of instances, handlers will start more slowly: {error:#}");
        wasmtime::Engine::new(&config)
    })
}

/// Everything that compiled code depends on.
fn config(cache: Option<Cache>) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .max_wasm_stack(GUEST_STACK)
        .async_stack_size(GUEST_STACK + HOST_STACK)
        .memory_init_cow(true)
        .cache(cache);
    config
}

fn pool(workers: usize) -> PoolingAllocationConfig {
    let instances = workers.max(1).saturating_mul(INSTANCES_PER_WORKER).min(MAX_INSTANCES);
    let instances = (instances + TRIAL_INSTANCES) as u32;
    let scan = PoolingAllocationConfig::is_pagemap_scan_available();
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances * MAX_CORE_INSTANCES)
        .total_memories(instances * 2)
        .total_tables(instances * 4)
        .total_stacks(instances)
        .max_core_instances_per_component(MAX_CORE_INSTANCES)
        .max_memories_per_component(MAX_MEMORIES)
        .max_memories_per_module(MAX_MEMORIES)
        .max_tables_per_component(MAX_TABLES)
        .max_tables_per_module(MAX_TABLES)
        .table_elements(MAX_TABLE_ELEMENTS)
        .linear_memory_keep_resident(if scan { KEEP_RESIDENT } else { KEEP_RESIDENT_BLIND })
        .table_keep_resident(KEEP_TABLE_RESIDENT)
        .pagemap_scan(Enabled::Auto);
    pool
}
