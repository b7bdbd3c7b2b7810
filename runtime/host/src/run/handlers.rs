//! The handlers of a configuration: found, compiled, and checked before anything is opened.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Instance, Loaded};
use crate::plugin::{Engine, Folder, Handler, HandlerFile, InstancePolicy, Limits, Settings};
use crate::text::clean;

use super::RunError;

/// Loading that takes longer is told.
const WORTH_TELLING: Duration = Duration::from_secs(1);

/// The engine and the active version of each handler that some stream names.
pub struct Handlers {
    /// What runs them.
    pub engine: Arc<Engine>,
    /// By name.
    pub active: BTreeMap<String, Arc<Handler>>,
}

/// Looks into the folder of handlers.
pub fn folder(loaded: &Loaded) -> Result<Folder, RunError> {
    let dir = &loaded.config.plugins.dir;
    let folder = Folder::scan(dir).map_err(|error| {
        let dir = dir.display();
        loaded.error(
            "plugins.dir",
            format!("the folder {dir} cannot be read: {error}. Make it, and put the handlers in"),
        )
    });
    Ok(folder?)
}

/// Makes the engine that a configuration asks for.
pub fn engine(loaded: &Loaded) -> Result<Arc<Engine>, RunError> {
    Ok(Engine::new(settings(loaded))?)
}

/// Finds and compiles what the streams name.
pub fn handlers(loaded: &Loaded) -> Result<Handlers, RunError> {
    let folder = folder(loaded)?;
    for refused in &folder.refused {
        let path = refused.path.display().to_string();
        tracing::warn!(path = %clean(&path), reason = %clean(&refused.reason), "not a handler");
    }
    let engine = engine(loaded)?;
    let mut active = BTreeMap::new();
    for (name, stream) in &loaded.config.streams {
        let handler = stream.handler.to_string();
        let Some(file) = folder.active(&handler) else {
            let known: Vec<&str> = folder.handlers.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "nothing".into() } else { known.join(", ") };
            return Err(RunError::Config(loaded.error(
                &format!("streams.{name}.handler"),
                format!(
                    "there is no {handler}.wasm or {handler}@<version>.wasm in {}; it has {known}",
                    loaded.config.plugins.dir.display()
                ),
            )));
        };
        if let Entry::Vacant(place) = active.entry(handler) {
            let handler = place.insert(load(&engine, file)?);
            if handler.migrates() {
                tracing::warn!(
                    handler = &**handler.version(),
                    "exports `migrate`, which this build does not call yet: `handle` must read \
                     the states of older versions"
                );
            }
        }
    }
    Ok(Handlers { engine, active })
}

/// Loads a handler. A first compilation takes some seconds, which is told: a later start finds the
/// result beside the handlers.
fn load(engine: &Engine, file: &HandlerFile) -> Result<Arc<Handler>, RunError> {
    tracing::info!(file = %clean(&file.path.display().to_string()), "loading a handler");
    let began = Instant::now();
    let handler = engine.load(file)?;
    let took = began.elapsed();
    if took > WORTH_TELLING {
        tracing::info!(handler = &**handler.version(), ?took, "compiled");
    }
    Ok(handler)
}

fn settings(loaded: &Loaded) -> Settings {
    let plugins = &loaded.config.plugins;
    Settings {
        workers: loaded.config.workers(),
        instance: match plugins.instance {
            Instance::Reuse => InstancePolicy::Reused,
            Instance::Fresh => InstancePolicy::Fresh,
        },
        instance_events: plugins.instance_events,
        cache: Some(plugins.dir.join(".cache")),
        limits: Limits {
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
