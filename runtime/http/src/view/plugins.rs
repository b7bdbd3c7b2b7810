//! The folder of handlers: what is in it, what uses it, what of it runs, and what is wrong with files
//! there.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Text;
use ordain_config::Loaded;
use ordain_core::Build;
use ordain_wasm::{Chosen, Handlers, LoadingError, folder};
use ordain_wasm::{Engine, Folder, HandlerFile, Manner, Refused};

/// The folder of handlers.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plugins {
    /// The handlers.
    pub handlers: Vec<PluginRow>,
    /// Files that are no handlers.
    pub refused: Vec<RefusedRow>,
}

/// A handler in the folder, or one that runs and is no longer there.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PluginRow {
    /// The SHA-256 of the file, if it can be used.
    pub digest: Option<Text>,
    /// The recorded version; of a file that cannot be loaded, the version in its name.
    pub handler: Text,
    /// The file.
    pub path: Text,
    /// Why it cannot be used, or is gone.
    pub reason: Option<Text>,
    /// The streams that it executes; `None` without a process that knows.
    pub running: Option<Vec<Text>>,
    /// `loading`, `broken`, `unused`, `active`, `older` or `gone`.
    pub state: Text,
    /// The streams that are configured with it.
    pub streams: Vec<Text>,
}

/// A file whose name is no handler's.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedRow {
    /// The file.
    pub path: Text,
    /// Why it is no handler.
    pub reason: Text,
}

/// A file, as a process would find it in its folder.
#[derive(Debug, Serialize)]
pub struct FileRow {
    /// The SHA-256 of the file, if it can be used.
    pub digest: Option<Text>,
    /// The recorded version, if it can be used.
    pub handler: Option<Text>,
    /// The file.
    pub path: Text,
    /// Why it cannot be used.
    pub reason: Option<Text>,
    /// The streams that are configured with it.
    pub streams: Vec<Text>,
}

/// What is known of a file; `None` where nobody has looked into it yet.
type Look = Option<Result<Build, Refused>>;

/// The handlers in the folder as a start would find them now. Each is loaded for that: it may take
/// seconds.
pub fn plugins(loaded: &Loaded, engine: &Engine) -> Result<Plugins, LoadingError> {
    let folder = folder(loaded)?;
    let look = |file: &HandlerFile| -> Look { Some(load(engine, file)) };
    let mut handlers = Vec::new();
    for (name, versions) in &folder.handlers {
        let looks: Vec<(&HandlerFile, Look)> = versions.iter().map(|it| (it, look(it))).collect();
        let streams = streams_of(loaded, name);
        let active = looks.iter().rposition(|(_, look)| matches!(look, Some(Ok(_))));
        for (at, (file, look)) in looks.iter().enumerate() {
            handlers.push(row(file, look.as_ref(), Some(at) == active, &streams, None));
        }
    }
    Ok(Plugins { handlers, refused: refused(&folder) })
}

/// What a process would find in a file, if it were in its folder. It is loaded for that.
pub fn look_into(loaded: &Loaded, engine: &Engine, path: &Path) -> Result<FileRow, LoadingError> {
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
    let path = Text::from(&*path.to_string_lossy());
    Ok(match found {
        Ok((build, streams)) => FileRow {
            digest: Some(build.digest.to_string().into()),
            handler: Some((&*build.version).into()),
            path,
            reason: None,
            streams,
        },
        Err(reason) => FileRow {
            digest: None,
            handler: None,
            path,
            reason: Some(reason.into()),
            streams: Vec::new(),
        },
    })
}

fn load(engine: &Engine, file: &HandlerFile) -> Result<Build, Refused> {
    let handler = engine.load_beside(file, Manner::Fast);
    handler.map(|it| it.build().clone()).map_err(|error| Refused::from(&error))
}

/// The handlers in the folder as a process has found them, and which of them it runs: it goes on with
/// what it has loaded, whatever becomes of the file.
pub fn running_plugins(loaded: &Loaded, running: &Handlers) -> Plugins {
    let folder = running.folder();
    let mut executing: BTreeMap<Build, (Text, Vec<Text>)> = BTreeMap::new();
    for stream in loaded.config.streams.keys() {
        if let Some(Chosen::Ok(active)) = running.chosen(stream) {
            let path = Text::from(&*active.handler.file().path.to_string_lossy());
            let of = executing.entry(active.handler.build().clone());
            of.or_insert((path, Vec::new())).1.push((&**stream).into());
        }
    }
    let mut handlers = Vec::new();
    for (name, versions) in &folder.handlers {
        let streams = streams_of(loaded, name);
        for file in versions {
            let (look, is_offered) = running.look(file);
            let build = look.as_ref().and_then(|it| it.as_ref().ok());
            let runs = build.and_then(|it| executing.remove(it));
            let runs = runs.map(|(_, streams)| streams).unwrap_or_default();
            handlers.push(row(file, look.as_ref(), is_offered, &streams, Some(runs)));
        }
    }
    for (build, (path, streams)) in executing {
        handlers.push(PluginRow {
            digest: Some(build.digest.to_string().into()),
            handler: (&*build.version).into(),
            path,
            reason: Some("it runs; its file has been removed or has another content now".into()),
            running: Some(streams.clone()),
            state: "gone".into(),
            streams,
        });
    }
    Plugins { handlers, refused: refused(&folder) }
}

/// Files whose names say nothing.
fn refused(folder: &Folder) -> Vec<RefusedRow> {
    let rows = folder.refused.iter().map(|file| RefusedRow {
        path: (&*file.path.to_string_lossy()).into(),
        reason: file.reason.as_str().into(),
    });
    rows.collect()
}

/// The streams that are configured with a handler.
fn streams_of(loaded: &Loaded, handler: &str) -> Vec<Text> {
    let using = loaded.config.streams.iter().filter(|(_, it)| &*it.handler == handler);
    using.map(|(stream, _)| (&**stream).into()).collect()
}

fn row(
    file: &HandlerFile,
    look: Option<&Result<Build, Refused>>,
    is_active: bool,
    streams: &[Text],
    running: Option<Vec<Text>>,
) -> PluginRow {
    let build = look.and_then(|it| it.as_ref().ok());
    let state = match look {
        None => "loading",
        Some(Err(_)) => "broken",
        Some(Ok(_)) if streams.is_empty() => "unused",
        Some(Ok(_)) if is_active => "active",
        Some(Ok(_)) => "older",
    };
    PluginRow {
        digest: build.map(|build| build.digest.to_string().into()),
        handler: build.map_or_else(|| file.to_string().into(), |build| (&*build.version).into()),
        path: (&*file.path.to_string_lossy()).into(),
        reason: look.and_then(|look| Some(look.as_ref().err()?.reason.as_str().into())),
        running,
        state: state.into(),
        streams: streams.to_vec(),
    }
}
