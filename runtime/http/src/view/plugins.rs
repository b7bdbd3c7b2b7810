//! The folder of handlers: its files, the streams that use the files, the versions that run, and the faults of files.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::RowText;
use ordain_config::LoadedConfig;
use ordain_core::Build;
use ordain_wasm::other_content_advice;
use ordain_wasm::{ActivationResult, HandlerRegistry, HandlerSetupError, scan_folder};
use ordain_wasm::{CompilePriority, FileFault, HandlerEngine, HandlerFile, PluginFolder};

/// The content of the folder of handlers and, if the page comes from a running process, the versions that the process
/// runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct PluginsPage {
    /// The usable and the unusable handlers. In a page of a running process, also the running handlers whose file was
    /// removed or changed.
    pub handlers: Vec<PluginRow>,
    /// Files whose names are not valid handler names.
    pub refused: Vec<RefusedRow>,
}

/// A handler in the folder, or a running handler whose file was removed or changed.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PluginRow {
    /// The SHA-256 of the file that was loaded; `None` if the file is unusable or not loaded yet.
    pub digest: Option<RowText>,
    /// The handler version as the store records it. If the file is unusable or not loaded yet, the name and the version
    /// that the file's name contains.
    pub handler: RowText,
    /// The path of the file.
    pub path: RowText,
    /// The reason why the file is unusable. In the state `gone`, a text which states that the file was removed or
    /// changed. `None` for a usable file, and for a file that is not loaded yet.
    pub reason: Option<RowText>,
    /// The streams whose events the version executes; `None` if the row does not come from a running process.
    pub running: Option<Vec<RowText>>,
    /// `loading`: not loaded yet. `broken`: unusable. `unused`: no stream is configured with the handler. `active`: the
    /// highest usable version. `older`: another usable version. `gone`: the version runs, but its file was removed or
    /// changed.
    pub state: RowText,
    /// The streams that are configured with this handler. In the state `gone`, only the streams that run the version.
    pub streams: Vec<RowText>,
}

/// A file whose name is not a valid handler name.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedRow {
    /// The path of the file.
    pub path: RowText,
    /// The reason why the file is not a handler.
    pub reason: RowText,
}

/// The result of loading a file in the same way as a process loads the files of its folder.
#[derive(Debug, Serialize)]
pub struct FileRow {
    /// The SHA-256 of the file, if the file is usable.
    pub digest: Option<RowText>,
    /// The handler version as the store records it, if the file is usable.
    pub handler: Option<RowText>,
    /// The path of the file.
    pub path: RowText,
    /// The reason why the file is unusable; `None` for a usable file.
    pub reason: Option<RowText>,
    /// The streams that are configured with this handler.
    pub streams: Vec<RowText>,
}

/// The result of loading a file; `None` before the first load.
type FileLoadResult = Option<Result<Build, FileFault>>;

/// Returns the handlers in the folder as a process that starts now would load them. This function loads every file,
/// which may take seconds.
pub fn plugins_page(
    loaded: &LoadedConfig,
    engine: &HandlerEngine,
) -> Result<PluginsPage, HandlerSetupError> {
    let folder = scan_folder(loaded)?;
    let load_file = |file: &HandlerFile| -> FileLoadResult { Some(load(engine, file)) };
    let mut handlers = Vec::new();
    for (name, versions) in &folder.handlers {
        let results: Vec<(&HandlerFile, FileLoadResult)> =
            versions.iter().map(|file| (file, load_file(file))).collect();
        let streams = streams_of(loaded, name);
        let active = results.iter().rposition(|(_, result)| matches!(result, Some(Ok(_))));
        for (at, (file, result)) in results.iter().enumerate() {
            handlers.push(plugin_row(file, result.as_ref(), Some(at) == active, &streams, None));
        }
    }
    Ok(PluginsPage { handlers, refused: refused_rows(&folder) })
}

/// Returns the result of loading the file at `path` as if the file were in the folder of handlers.
pub fn inspect_file(
    loaded: &LoadedConfig,
    folder: &PluginFolder,
    engine: &HandlerEngine,
    path: &Path,
) -> FileRow {
    let not_one = || {
        Err("is ignored: the name of a handler's file must end with .wasm and must not begin with a dot".to_owned())
    };
    let file = HandlerFile::from_path(path).unwrap_or_else(not_one);
    let found = file.and_then(|file| {
        let build = load(engine, &file).map_err(|refused| refused.reason)?;
        let others = folder.handlers.get(&file.name).into_iter().flatten();
        let mut same = others.filter(|other| other.semver.is_some() && other.semver == file.semver);
        let is_other = |other: &HandlerFile| {
            load(engine, other).is_ok_and(|other| other.digest != build.digest)
        };
        match same.find(|other| is_other(other)) {
            Some(other) => Err(format!(
                "has other content than {}: {}",
                other.path.display(),
                other_content_advice(&file.name)
            )),
            None => Ok((build, streams_of(loaded, &file.name))),
        }
    });
    let path = RowText::from(&*path.to_string_lossy());
    match found {
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
    }
}

fn load(engine: &HandlerEngine, file: &HandlerFile) -> Result<Build, FileFault> {
    let handler = engine.load_in_child(file, CompilePriority::Normal);
    handler.map(|handler| handler.build().clone()).map_err(|error| FileFault::from(&error))
}

/// Returns the handlers in the folder as a process has loaded them, and the versions that the process runs. A process
/// keeps running a loaded version even if the version's file is removed or changed.
pub fn running_plugins_page(loaded: &LoadedConfig, running: &HandlerRegistry) -> PluginsPage {
    let folder = running.folder();
    let mut executing: BTreeMap<Build, (RowText, Vec<RowText>)> = BTreeMap::new();
    for stream in loaded.config.streams.keys() {
        if let Some(ActivationResult::Ok(active)) = running.activation(stream) {
            let path = RowText::from(&*active.handler.file().path.to_string_lossy());
            let of = executing.entry(active.handler.build().clone());
            of.or_insert((path, Vec::new())).1.push((&**stream).into());
        }
    }
    let mut handlers = Vec::new();
    for (name, versions) in &folder.handlers {
        let streams = streams_of(loaded, name);
        for file in versions {
            let (result, is_offered) = running.inspect_file(file);
            let build = result.as_ref().and_then(|found| found.as_ref().ok());
            let runs = build.and_then(|build| executing.remove(build));
            let runs = runs.map(|(_, streams)| streams).unwrap_or_default();
            handlers.push(plugin_row(file, result.as_ref(), is_offered, &streams, Some(runs)));
        }
    }
    for (build, (path, streams)) in executing {
        handlers.push(PluginRow {
            digest: Some(build.digest.to_string().into()),
            handler: (&*build.version).into(),
            path,
            reason: Some("this version runs, but its file was removed or changed".into()),
            running: Some(streams.clone()),
            state: "gone".into(),
            streams,
        });
    }
    PluginsPage { handlers, refused: refused_rows(&folder) }
}

/// Returns the rows of the files whose names are not valid handler names.
fn refused_rows(folder: &PluginFolder) -> Vec<RefusedRow> {
    let rows = folder.misnamed.iter().map(|file| RefusedRow {
        path: (&*file.path.to_string_lossy()).into(),
        reason: file.reason.as_str().into(),
    });
    rows.collect()
}

fn streams_of(loaded: &LoadedConfig, handler: &str) -> Vec<RowText> {
    let using = loaded.config.streams.iter().filter(|(_, stream)| &*stream.handler == handler);
    using.map(|(stream, _)| (&**stream).into()).collect()
}

fn plugin_row(
    file: &HandlerFile,
    result: Option<&Result<Build, FileFault>>,
    is_active: bool,
    streams: &[RowText],
    running: Option<Vec<RowText>>,
) -> PluginRow {
    let build = result.and_then(|found| found.as_ref().ok());
    let state = match result {
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
        reason: result.and_then(|result| Some(result.as_ref().err()?.reason.as_str().into())),
        running,
        state: state.into(),
        streams: streams.to_vec(),
    }
}
