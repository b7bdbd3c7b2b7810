//! The handlers of a configuration: found, compiled, and checked before anything is opened.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::config::{Instance, Loaded};
use crate::plugin::{Engine, Folder, Handler, InstancePolicy, Limits, Settings};

use super::RunError;

/// The engine and the active version of each handler that some stream names.
pub struct Handlers {
    /// What runs them.
    pub engine: Arc<Engine>,
    /// By name.
    pub active: BTreeMap<String, Arc<Handler>>,
}

/// Finds and compiles what the streams name.
pub fn handlers(loaded: &Loaded) -> Result<Handlers, RunError> {
    let plugins = &loaded.config.plugins;
    let folder = Folder::scan(&plugins.dir).map_err(|error| {
        let dir = plugins.dir.display();
        loaded.error(
            "plugins.dir",
            format!("the folder {dir} cannot be read: {error}. Make it, and put the handlers in"),
        )
    })?;
    for refused in &folder.refused {
        tracing::warn!(path = %refused.path.display(), reason = refused.reason, "not a handler");
    }
    let engine = Engine::new(settings(loaded))?;
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
                    plugins.dir.display()
                ),
            )));
        };
        if let Entry::Vacant(place) = active.entry(handler) {
            tracing::info!(
                handler = &*file.version(),
                "loading; a first compilation takes a while"
            );
            let handler = place.insert(engine.load(file)?);
            if handler.migrates() {
                tracing::warn!(
                    handler = &*file.version(),
                    "exports `migrate`, which this build does not call yet: `handle` must read \
                     the states of older versions"
                );
            }
        }
    }
    Ok(Handlers { engine, active })
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
