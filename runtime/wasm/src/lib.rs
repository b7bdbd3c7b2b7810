//! Runs handlers: WebAssembly components that turn an event and a state into a new state and messages.
//!
//! [`PluginFolder`] lists the files, [`HandlerEngine`] compiles a file into a [`Handler`], and a [`WorkerPool`] of
//! threads executes turns (runs of events of one key) with the handler. This crate must never decide what happens to a
//! failed event, and must never give a handler access to the machine.

mod cache;
mod catalog;
mod compile;
mod engine;
mod excerpt;
mod execution_times;
mod failure;
mod folder;
mod function_cache;
mod guest;
mod handler;
mod inline_executor;
mod instance;
mod load;
mod log_line;
mod observer;
mod outcome;
mod pool;
mod registry;
mod settings;
mod setup;
mod stream;
mod turn;
mod wire;

pub use catalog::{
    Catalog, CatalogAction, FileFault, LoadOutcome, OfferedVersion, other_content_advice,
};
pub use compile::{COMPILE_COMMAND, CompilePriority, run_compiler};
pub use engine::{EngineError, HandlerEngine};
pub use folder::{FileStamp, HandlerFile, MisnamedFile, PluginFolder};
pub use handler::{ActiveVersion, Handler};
pub use inline_executor::InlineExecutor;
pub use load::LoadError;
pub use log_line::{LogLine, LogOrigin, LogTarget};
pub use observer::{Execution, ExecutionObserver, ExecutionResult};
pub use pool::{ResultCallback, TurnQueueHandle, TurnResults, WorkerPool};
pub use registry::{ActivationResult, HandlerRegistry, VersionUnavailable, VersionWatcher};
pub use settings::{CompileLimits, HandlerLimits, HandlerSettings, InstancePolicy};
pub use setup::{HandlerSetupError, create_engine, load_handlers, scan_folder, warn_of_migrate};
pub use stream::StreamContext;
