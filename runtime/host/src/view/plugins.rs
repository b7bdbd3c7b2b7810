//! The folder of handlers: what is in it, what uses it, what of it runs, and what is wrong with files
//! there.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::Loaded;
use crate::plugin::{Engine, Folder, Found, HandlerFile, Manner, Refused};
use crate::run::{Chosen, Handlers, RunError, folder};

/// What is known of a file; `None` where nobody has looked into it yet.
type Look = Option<Result<Found, Refused>>;

/// The handlers in the folder as a start would find them now. Each is loaded for that: it may take
/// seconds.
pub fn plugins(loaded: &Loaded, engine: &Engine) -> Result<Value, RunError> {
    let folder = folder(loaded)?;
    let look = |file: &HandlerFile| -> Look {
        let handler = engine.load_beside(file, Manner::Fast);
        let found = |it: std::sync::Arc<crate::plugin::Handler>| Found {
            version: it.version().clone(),
            digest: it.digest(),
        };
        Some(handler.map(found).map_err(|error| Refused::from(&error)))
    };
    let mut handlers = Vec::new();
    for (name, versions) in &folder.handlers {
        let looks: Vec<(&HandlerFile, Look)> = versions.iter().map(|it| (it, look(it))).collect();
        let streams = streams_of(loaded, name);
        let active = looks.iter().rposition(|(_, look)| matches!(look, Some(Ok(_))));
        for (at, (file, look)) in looks.iter().enumerate() {
            handlers.push(row(file, look.as_ref(), Some(at) == active, &streams, &Value::Null));
        }
    }
    Ok(json!({ "handlers": handlers, "refused": refused(&folder) }))
}

/// The handlers in the folder as a process has found them, and which of them it runs: it goes on with
/// what it has loaded, whatever becomes of the file.
pub fn running_plugins(loaded: &Loaded, running: &Handlers) -> Value {
    let folder = running.folder();
    let mut executing: BTreeMap<(String, String), (Found, String, Vec<String>)> = BTreeMap::new();
    for stream in loaded.config.streams.keys() {
        if let Some(Chosen::Ok(active)) = running.chosen(stream) {
            let (handler, decided) = (&active.handler, &active.decided);
            let found = Found { version: decided.version.clone(), digest: handler.digest() };
            let path = handler.file().path.to_string_lossy().into_owned();
            let of = executing.entry((found.version.to_string(), found.digest.to_string()));
            of.or_insert((found, path, Vec::new())).2.push(stream.to_string());
        }
    }
    let mut handlers = Vec::new();
    for (name, versions) in &folder.handlers {
        let streams = streams_of(loaded, name);
        for file in versions {
            let (look, is_offered) = running.look(file);
            let found = look.as_ref().and_then(|it| it.as_ref().ok());
            let runs = found
                .and_then(|it| executing.remove(&(it.version.to_string(), it.digest.to_string())));
            let runs = json!(runs.map(|it| it.2).unwrap_or_default());
            handlers.push(row(file, look.as_ref(), is_offered, &streams, &runs));
        }
    }
    for (found, path, streams) in executing.into_values() {
        handlers.push(json!({
            "handler": &*found.version,
            "digest": found.digest.to_string(),
            "state": "gone",
            "streams": streams,
            "running": streams,
            "path": path,
            "reason": "it runs; its file has been removed or has another content now",
        }));
    }
    json!({ "handlers": handlers, "refused": refused(&folder) })
}

/// Files whose names say nothing.
fn refused(folder: &Folder) -> Vec<Value> {
    let rows = folder.refused.iter();
    rows.map(|it| json!({ "path": it.path.to_string_lossy(), "reason": it.reason })).collect()
}

/// The streams that are configured with a handler.
fn streams_of<'a>(loaded: &'a Loaded, handler: &str) -> Vec<&'a str> {
    let using = loaded.config.streams.iter().filter(|(_, it)| &*it.handler == handler);
    using.map(|(stream, _)| &**stream).collect()
}

fn row(
    file: &HandlerFile,
    look: Option<&Result<Found, Refused>>,
    is_active: bool,
    streams: &[&str],
    running: &Value,
) -> Value {
    let found = look.and_then(|it| it.as_ref().ok());
    let state = match look {
        None => "loading",
        Some(Err(_)) => "broken",
        Some(Ok(_)) if streams.is_empty() => "unused",
        Some(Ok(_)) if is_active => "active",
        Some(Ok(_)) => "older",
    };
    json!({
        // As it is recorded; of one that cannot be loaded, what its file's name says.
        "handler": found.map_or_else(|| file.to_string(), |it| it.version.to_string()),
        "digest": found.map(|it| it.digest.to_string()),
        "state": state,
        "streams": streams,
        "running": running,
        "path": file.path.to_string_lossy(),
        "reason": look.and_then(|it| it.as_ref().err()).map(|it| &it.reason),
    })
}
