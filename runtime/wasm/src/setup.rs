//! Loads the handlers at the start: reads the folder, creates the engine, and loads the highest usable version of each
//! handler that a stream names. `ordain run` loads the handlers before it opens the store, a source or a sink.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::registry::{HandlerRegistry, RegistryState};
use crate::{
    Catalog, CompileLimits, CompilePriority, EngineError, FileFault, Handler, HandlerEngine,
    HandlerFile, HandlerLimits, HandlerSettings, InstancePolicy, LoadError, PluginFolder,
};
use ordain_config::{ConfigError, InstanceMode, LoadedConfig};
use ordain_util::text::escape_invisible;

/// A load that takes longer than this time is logged when it ends.
const SLOW_LOAD_THRESHOLD: Duration = Duration::from_secs(1);

/// The reason why the handlers of a configuration cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum HandlerSetupError {
    /// The configuration names a folder that cannot be read, or a handler that has no file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A handler cannot be used.
    #[error(transparent)]
    Handler(#[from] LoadError),
    /// The engine of the handlers cannot start.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Reads the names and the metadata of the files in the folder of handlers.
pub fn scan_folder(loaded: &LoadedConfig) -> Result<PluginFolder, HandlerSetupError> {
    let dir = &loaded.config.plugins.dir;
    let folder = PluginFolder::scan(dir).map_err(|error| {
        let dir = dir.display();
        let mut message = format!("the folder {dir} cannot be read: {error}");
        if error.kind() == std::io::ErrorKind::NotFound {
            message += ". Create it, and put the handlers in it";
        }
        loaded.setting_error("plugins.dir", message).caused_by(&error)
    });
    Ok(folder?)
}

/// Creates the engine with the settings of a configuration.
pub fn create_engine(loaded: &LoadedConfig) -> Result<Arc<HandlerEngine>, HandlerSetupError> {
    Ok(HandlerEngine::new(settings(loaded))?)
}

/// Loads the handlers that the streams name: for each handler, the highest version that can be loaded.
pub fn load_handlers(loaded: &LoadedConfig) -> Result<HandlerRegistry, HandlerSetupError> {
    let folder = scan_folder(loaded)?;
    for refused in &folder.misnamed {
        let path = refused.path.display().to_string();
        tracing::warn!(
            path = %escape_invisible(&path),
            reason = %escape_invisible(&refused.reason),
            "file ignored: its name is not the name of a handler file",
        );
    }
    let engine = create_engine(loaded)?;
    let names = loaded.config.streams.values().map(|stream| stream.handler.to_string());
    let mut state = RegistryState { catalog: Catalog::new(names), ..RegistryState::default() };
    state.catalog.update(folder, Instant::now());
    for (name, stream) in &loaded.config.streams {
        let handler = stream.handler.to_string();
        state.load_highest(&engine, &handler)?;
        if state.catalog.offered(&handler).is_none() {
            let known: Vec<&str> =
                state.catalog.folder().handlers.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "nothing".into() } else { known.join(", ") };
            return Err(HandlerSetupError::Config(loaded.setting_error(
                &format!("streams.{name}.handler"),
                format!(
                    "there is no {handler}.wasm or {handler}@<version>.wasm in {}; the folder has {known}",
                    loaded.config.plugins.dir.display()
                ),
            )));
        }
    }
    let streams = loaded.config.streams.iter();
    let streams = streams.map(|(name, stream)| (name.shared(), stream.handler.to_string()));
    Ok(HandlerRegistry::new(engine, state, streams))
}

impl RegistryState {
    /// Loads the highest usable version of a handler. Returns the error of the highest version if the handler has files
    /// and none of them is usable.
    fn load_highest(&mut self, engine: &HandlerEngine, name: &str) -> Result<(), LoadError> {
        let mut first = None;
        while let Some(file) = self.catalog.preferred_file(name, Instant::now()).cloned() {
            let stamp = self.catalog.folder().stamps[&file.path];
            let found = load(engine, &file);
            let refused =
                found.as_ref().map(|handler| handler.build().clone()).map_err(FileFault::from);
            self.catalog.record_load(&file, stamp, refused, Instant::now());
            match found {
                Ok(handler) => self.compiled.push(handler),
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        match (first, self.catalog.offered(name)) {
            (None, _) => Ok(()),
            (Some(error), None) => Err(error),
            (Some(error), Some(offered)) => {
                tracing::error!(
                    path = %escape_invisible(&error.path.display().to_string()),
                    reason = %escape_invisible(&error.reason),
                    instead = &*offered.build.version,
                    "handler version unusable; using a lower version"
                );
                Ok(())
            }
        }
    }
}

/// Loads a handler, and logs the duration of a slow load. The first load of a file compiles the file, which can take
/// several seconds. Later starts find the compiled code in the cache, the folder `.cache` in the folder of handlers.
fn load(engine: &HandlerEngine, file: &HandlerFile) -> Result<Arc<Handler>, LoadError> {
    tracing::info!(file = %escape_invisible(&file.path.display().to_string()), "loading handler");
    let began = Instant::now();
    let handler = engine.load_in_child(file, CompilePriority::Normal)?;
    let took = began.elapsed();
    if took > SLOW_LOAD_THRESHOLD {
        tracing::info!(handler = &**handler.version(), ?took, "handler compiled");
    }
    warn_of_migrate(&handler);
    Ok(handler)
}

/// Logs a warning if the handler exports the function `migrate`, which converts the states of older versions: Ordain
/// does not call this function yet.
pub fn warn_of_migrate(handler: &Handler) {
    if handler.migrates() {
        tracing::warn!(
            handler = &**handler.version(),
            "handler exports `migrate`, which Ordain does not call yet: `handle` must read the states of older \
             versions"
        );
    }
}

fn settings(loaded: &LoadedConfig) -> HandlerSettings {
    let plugins = &loaded.config.plugins;
    HandlerSettings {
        workers: loaded.config.workers(),
        instance: match plugins.instance {
            InstanceMode::Reuse => InstancePolicy::Reused,
            InstanceMode::Fresh => InstancePolicy::Fresh,
        },
        instance_events: plugins.instance_events,
        cache: Some(plugins.dir.join(".cache")),
        compile: CompileLimits {
            timeout: plugins.compile_timeout.duration(),
            memory: plugins.compile_memory.bytes() as u64,
        },
        limits: HandlerLimits {
            memory: plugins.memory.bytes(),
            timeout: plugins.timeout.duration(),
            state_size: plugins.state_size.bytes(),
            messages: plugins.messages,
            messages_size: plugins.messages_size.bytes(),
            event_size: loaded.config.runtime.event_size.bytes(),
            log: plugins.log.bytes(),
        },
    }
}
