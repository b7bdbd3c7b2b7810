//! The folder of handlers: what is in it, what uses it, and what is wrong with files there.

use serde_json::{Value, json};

use crate::config::Loaded;
use crate::plugin::{Engine, HandlerFile};
use crate::run::{RunError, folder};

/// The handlers in the folder as a start would find them now. Each is loaded for that, since what is
/// no handler would be found out by the next start: it may take seconds.
pub fn plugins(loaded: &Loaded, engine: &Engine) -> Result<Value, RunError> {
    let folder = folder(loaded)?;
    let mut handlers = Vec::new();
    for (name, versions) in &folder.handlers {
        let using = loaded.config.streams.iter().filter(|(_, it)| &*it.handler == name);
        let streams: Vec<&str> = using.map(|(stream, _)| &**stream).collect();
        for file in versions {
            handlers.push(handler(file, folder.active(name) == Some(file), &streams, engine));
        }
    }
    let refused = folder.refused.iter();
    let refused: Vec<_> =
        refused.map(|refused| json!({ "path": refused.path, "reason": refused.reason })).collect();
    Ok(json!({ "handlers": handlers, "refused": refused }))
}

fn handler(file: &HandlerFile, is_highest: bool, streams: &[&str], engine: &Engine) -> Value {
    let loaded = engine.load(file);
    let state = match &loaded {
        Err(_) => "broken",
        Ok(_) if is_highest => "active",
        Ok(_) => "older",
    };
    json!({
        // As it is recorded; of one that cannot be loaded, what its file's name says.
        "handler": loaded.as_ref().map_or_else(|_| file.to_string(), |it| it.version().to_string()),
        "state": state,
        "streams": streams,
        "path": file.path,
        "reason": loaded.as_ref().err().map(|error| &error.reason),
    })
}
