//! Runs handlers: WebAssembly components that turn an event and a state into a state and messages.
//!
//! [`Folder`] finds the files, [`Engine`] makes a [`Handler`] of one, and a [`Pool`] of threads
//! executes turns with it. Nothing here may decide what becomes of an event that failed, and no
//! handler may be given anything of the machine it runs on.

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
