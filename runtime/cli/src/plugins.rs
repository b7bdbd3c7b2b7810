//! `ordain plugins`: lists and checks handlers, and makes components.

mod wrap;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::inspect::{InspectArgs, RowForm};
use crate::cli::{CommandError, EXIT_CONFIG};
use crate::show::{self, JsonRow};
use ordain_config::{DEFAULT_FILE, LoadedConfig};
use ordain_http::view::{
    FileRow, PluginRow, PluginsPage, RefusedRow, RowText, inspect_file, plugins_page,
};
use ordain_wasm::{PluginFolder, create_engine, scan_folder};

#[derive(Debug, Subcommand)]
pub(crate) enum PluginsCommand {
    /// List the handlers in the folder of handlers. For each handler, show the streams that use it, and the errors of
    /// its files.
    ///
    /// With `--admin`, the column RUNS IN shows the streams in which the process runs the handler (`-`: none). Without
    /// `--admin`, these streams are unknown (`?`).
    List(PluginsListArgs),
    /// Check files before you copy them into the folder of handlers. A process checks its folder in the same way.
    ///
    /// Compiles and starts each handler under the limits of the configuration. Exits with 78 if a file cannot
    /// be used.
    Check(PluginsCheckArgs),
    /// Make a handler's component of a core module, as the compilers of Go, C and Zig create it.
    ///
    /// The component has the interfaces of this release. The module's functions of WASI preview 1 become functions of
    /// WASI 0.2. Exits with 78 if the module cannot become a handler.
    Wrap(wrap::PluginsWrapArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PluginsListArgs {
    #[command(flatten)]
    inspect: InspectArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PluginsCheckArgs {
    /// The configuration file, whose limits apply. Without the option, the file is `ordain.toml`; if this file does not
    /// exist, the default limits apply.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The files, named as in the folder of handlers: `NAME@VERSION.wasm`.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

impl PluginsCommand {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        match self {
            Self::List(args) => args.run(),
            Self::Check(args) => args.run(),
            Self::Wrap(args) => args.run(),
        }
    }
}

impl PluginsCheckArgs {
    fn run(self) -> Result<ExitCode, CommandError> {
        let default = Some(Path::new(DEFAULT_FILE)).filter(|file| file.symlink_metadata().is_ok());
        let (loaded, folder) = match self.config.as_deref().or(default) {
            Some(file) => {
                let loaded = LoadedConfig::load(file)?;
                // A new project has no folder of handlers before its first build.
                let has_folder = loaded.config.plugins.dir.symlink_metadata().is_ok();
                let folder =
                    if has_folder { scan_folder(&loaded)? } else { PluginFolder::default() };
                (loaded, folder)
            }
            // Without a configuration, there is no folder of handlers with which the files could conflict.
            None => (LoadedConfig::without_file()?, PluginFolder::default()),
        };
        let engine = create_engine(&loaded)?;
        let mut end = ExitCode::SUCCESS;
        for path in &self.files {
            let row = inspect_file(&loaded, &folder, &engine, path);
            if row.reason.is_some() {
                end = ExitCode::from(EXIT_CONFIG);
            }
            if self.json {
                JsonRow::from(row).print(true)?;
            } else {
                show::text(&file(&row))?;
            }
        }
        Ok(end)
    }
}

impl PluginsListArgs {
    fn run(self) -> Result<ExitCode, CommandError> {
        if self.json {
            self.read_page::<JsonRow>()?.print(true)?;
        } else {
            show::text(&text(&self.read_page()?))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn read_page<F: RowForm<PluginsPage>>(&self) -> Result<F, CommandError> {
        if let Some(process) = self.inspect.process() {
            return process.get(&["plugins"], &[], "handlers");
        }
        let loaded = self.inspect.load()?;
        Ok(plugins_page(&loaded, &*create_engine(&loaded)?)?.into())
    }
}

fn file(row: &FileRow) -> String {
    let FileRow { path, .. } = row;
    if let Some(reason) = &row.reason {
        return format!("{path}: {reason}\n");
    }
    let [handler, digest] =
        [&row.handler, &row.digest].map(|text| text.clone().unwrap_or_default());
    let used = if row.streams.is_empty() { ", and no stream uses it" } else { "" };
    format!("{path}: can be used as {handler} (SHA-256 {digest}){used}\n")
}

fn text(seen: &PluginsPage) -> String {
    let mut text = format!(
        "{:<32} {:<8} {:<24} {:<24} {}\n",
        "HANDLER", "STATE", "STREAMS", "RUNS IN", "FILE"
    );
    text.extend(seen.handlers.iter().map(handler));
    text.extend(seen.refused.iter().map(refused));
    text
}

fn handler(row: &PluginRow) -> String {
    let running = match &row.running {
        None => "?".to_owned(),
        Some(streams) if streams.is_empty() => "-".to_owned(),
        Some(streams) => names(streams),
    };
    let reason = row.reason.as_ref().map(|reason| format!(": {reason}"));
    format!(
        "{:<32} {:<8} {:<24} {running:<24} {}{}\n",
        row.handler,
        row.state,
        names(&row.streams),
        row.path,
        reason.unwrap_or_default()
    )
}

fn names(streams: &[RowText]) -> String {
    streams.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn refused(row: &RefusedRow) -> String {
    let RefusedRow { path, reason } = row;
    format!("{:<32} {:<8} {:<24} {:<24} {path}: {reason}\n", "-", "broken", "", "-")
}
