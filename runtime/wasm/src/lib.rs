//! Runs handlers: WebAssembly components that turn an event and a state into a state and messages.
//!
//! [`Folder`] lists the files, [`Engine`] compiles one into a [`Handler`], and a [`Pool`] of threads executes turns
//! with the handler. This crate must never decide what happens to a failed event, and must never give a handler
//! access to the machine that it runs on.

mod cache;
mod caller;
mod catalog;
mod compile;
mod engine;
mod failure;
mod folder;
mod guest;
mod handler;
mod handlers;
mod instance;
mod load;
mod loading;
mod log_line;
mod outcome;
mod pool;
mod settings;
mod stream;
mod turn;
mod wire;

pub use caller::Caller;
pub use catalog::{Catalog, Change, Next, Offered, Refused};
pub use compile::{COMMAND, Manner, compile};
pub use engine::{Engine, EngineError};
pub use folder::{Folder, HandlerFile, RefusedFile, Stamp};
pub use handler::{Active, Handler};
pub use handlers::{Chosen, Handlers, Missing, VersionFeed};
pub use load::LoadError;
pub use loading::{LoadingError, engine, folder, handlers, warn_of_migrate};
pub use log_line::{LogLine, LogTarget, Origin, log_to_tracing};
pub use pool::{Done, Pool, Results, Turns};
pub use settings::{CompileLimits, InstancePolicy, Limits, Settings};
pub use stream::StreamContext;
