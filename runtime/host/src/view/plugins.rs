//! The folder of handlers: what is in it, what uses it, what of it runs, and what is wrong with files
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::Loaded;
use crate::plugin::{Digest, Engine, Handler, HandlerFile, LoadError};
use crate::run::{RunError, folder};

/// The handlers in the folder as a start would find them now, and which of them a process runs, if
/// one is asked: it goes on with what it has loaded, whatever becomes of the file. Each is loaded for
/// that, since what is no handler would be found out by the next start: it may take seconds.
pub fn plugins(
    loaded: &Loaded,
    engine: &Engine,
    running: Option<&BTreeMap<String, Arc<Handler>>>,
) -> Result<Value, RunError> {
    let folder = folder(loaded)?;
    let mut handlers = Vec::new();
    for (name, versions) in &folder.handlers {
        let streams = streams_of(loaded, name);
        let running = running.map(|running| running.get(name));
        let mut is_there = false;
        for file in versions {
            let found = engine.load(file);
            let is_highest = folder.active(name) == Some(file);
            let mut row = handler(file, &found, is_highest, &streams);
            if let Some(running) = running {
                let runs = running.is_some_and(|it| is_of(it, &found, file));
                is_there |= runs;
                row["running"] = if runs { json!(streams) } else { json!([]) };
            }
            handlers.push(row);
        }
        handlers.extend(running.flatten().filter(|_| !is_there).map(|it| gone(it, &streams)));
    }
    for (name, handler) in running.into_iter().flatten() {
        if !folder.handlers.contains_key(name) {
            handlers.push(gone(handler, &streams_of(loaded, name)));
        }
    }
    let refused = folder.refused.iter();
    let refused = refused
        .map(|it| json!({ "path": it.path.to_string_lossy(), "reason": it.reason }))
        .collect::<Vec<_>>();
    Ok(json!({ "handlers": handlers, "refused": refused }))
}

/// The streams that are configured with a handler.
fn streams_of<'a>(loaded: &'a Loaded, handler: &str) -> Vec<&'a str> {
    let using = loaded.config.streams.iter().filter(|(_, it)| &*it.handler == handler);
    using.map(|(stream, _)| &**stream).collect()
}

/// Whether what runs was made of a file, as that is now.
fn is_of(running: &Handler, found: &Result<Arc<Handler>, LoadError>, file: &HandlerFile) -> bool {
    let digest: Option<Digest> = found.as_ref().ok().map(|it| it.digest());
    running.file() == file && Some(running.digest()) == digest
}

fn handler(
    file: &HandlerFile,
    found: &Result<Arc<Handler>, LoadError>,
    is_highest: bool,
    streams: &[&str],
) -> Value {
    let state = match found {
        Err(_) => "broken",
        Ok(_) if is_highest => "active",
        Ok(_) => "older",
    };
    json!({
        // As it is recorded; of one that cannot be loaded, what its file's name says.
        "handler": found.as_ref().map_or_else(|_| file.to_string(), |it| it.version().to_string()),
        "digest": found.as_ref().ok().map(|it| it.digest().to_string()),
        "state": state,
        "streams": streams,
        "running": null,
        "path": file.path.to_string_lossy(),
        "reason": found.as_ref().err().map(|error| &error.reason),
    })
}

/// One that runs, of which the file is not there any more or has another content.
fn gone(handler: &Handler, streams: &[&str]) -> Value {
    json!({
        "handler": &**handler.version(),
        "digest": handler.digest().to_string(),
        "state": "gone",
        "streams": streams,
        "running": streams,
        "path": handler.file().path.to_string_lossy(),
        "reason": "it runs; its file has been removed or has another content now",
    })
}
