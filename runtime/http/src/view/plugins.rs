//! The folder of handlers: what is in it, what uses it, what of it runs, and what is wrong with files
//! there.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use ordain_config::Loaded;
use ordain_core::Build;
use ordain_wasm::{Chosen, Handlers, LoadingError, folder};
use ordain_wasm::{Engine, Folder, HandlerFile, Manner, Refused};

/// What is known of a file; `None` where nobody has looked into it yet.
type Look = Option<Result<Build, Refused>>;

/// The handlers in the folder as a start would find them now. Each is loaded for that: it may take
/// seconds.
pub fn plugins(loaded: &Loaded, engine: &Engine) -> Result<Value, LoadingError> {
    let folder = folder(loaded)?;
    let look = |file: &HandlerFile| -> Look { Some(load(engine, file)) };
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

/// What a process would find in a file, if it were in its folder. It is loaded for that.
pub fn look_into(loaded: &Loaded, engine: &Engine, path: &Path) -> Result<Value, LoadingError> {
    let folder = folder(loaded)?;
    let not_one =
        || Err("is passed over: a handler's file ends with .wasm, and is not hidden".to_owned());
    let file = HandlerFile::from_path(path).unwrap_or_else(not_one);
    let found = file.and_then(|file| {
        let build = load(engine, &file).map_err(|refused| refused.reason)?;
        let others = folder.handlers.get(&file.name).into_iter().flatten();
        let mut same = others.filter(|it| it.semver.is_some() && it.semver == file.semver);
        let is_other = |other: &HandlerFile| {
            load(engine, other).is_ok_and(|other| other.digest != build.digest)
        };
        match same.find(|other| is_other(other)) {
            Some(other) => Err(format!(
                "has another content than {}: give it a higher version",
                other.path.display()
            )),
            None => Ok((build, streams_of(loaded, &file.name))),
        }
    });
    let build = found.as_ref().ok().map(|(build, _)| build);
    Ok(json!({
        "path": path.to_string_lossy(),
        "handler": build.map(|it| &*it.version),
        "digest": build.map(|it| it.digest.to_string()),
        "streams": found.as_ref().map_or(&[][..], |(_, streams)| streams),
        "reason": found.as_ref().err(),
    }))
}

fn load(engine: &Engine, file: &HandlerFile) -> Result<Build, Refused> {
    let handler = engine.load_beside(file, Manner::Fast);
    handler.map(|it| it.build().clone()).map_err(|error| Refused::from(&error))
}

/// The handlers in the folder as a process has found them, and which of them it runs: it goes on with
/// what it has loaded, whatever becomes of the file.
pub fn running_plugins(loaded: &Loaded, running: &Handlers) -> Value {
    let folder = running.folder();
    let mut executing: BTreeMap<Build, (String, Vec<String>)> = BTreeMap::new();
    for stream in loaded.config.streams.keys() {
        if let Some(Chosen::Ok(active)) = running.chosen(stream) {
            let path = active.handler.file().path.to_string_lossy().into_owned();
            let of = executing.entry(active.handler.build().clone());
            of.or_insert((path, Vec::new())).1.push(stream.to_string());
        }
    }
    let mut handlers = Vec::new();
    for (name, versions) in &folder.handlers {
        let streams = streams_of(loaded, name);
        for file in versions {
            let (look, is_offered) = running.look(file);
            let build = look.as_ref().and_then(|it| it.as_ref().ok());
            let runs = build.and_then(|it| executing.remove(it));
            let runs = json!(runs.map(|it| it.1).unwrap_or_default());
            handlers.push(row(file, look.as_ref(), is_offered, &streams, &runs));
        }
    }
    for (build, (path, streams)) in executing {
        handlers.push(json!({
            "handler": &*build.version,
            "digest": build.digest.to_string(),
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
    look: Option<&Result<Build, Refused>>,
    is_active: bool,
    streams: &[&str],
    running: &Value,
) -> Value {
    let build = look.and_then(|it| it.as_ref().ok());
    let state = match look {
        None => "loading",
        Some(Err(_)) => "broken",
        Some(Ok(_)) if streams.is_empty() => "unused",
        Some(Ok(_)) if is_active => "active",
        Some(Ok(_)) => "older",
    };
    json!({
        // As it is recorded; of one that cannot be loaded, what its file's name says.
        "handler": build.map_or_else(|| file.to_string(), |it| it.version.to_string()),
        "digest": build.map(|it| it.digest.to_string()),
        "state": state,
        "streams": streams,
        "running": running,
        "path": file.path.to_string_lossy(),
        "reason": look.and_then(|it| it.as_ref().err()).map(|it| &it.reason),
    })
}
