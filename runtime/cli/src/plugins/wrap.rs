//! `ordain plugins wrap`: makes a handler's component of a core module.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::Args;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::cli::CommandError;
use crate::show::{self, JsonRow};
use ordain_core::FileDigest;
use ordain_wasm::HandlerFile;

/// Read and write permissions for all users. The system removes the permissions in the process's umask.
const FILE_MODE: u32 = 0o666;

#[derive(Debug, Args)]
pub(crate) struct PluginsWrapArgs {
    /// The core module: WebAssembly that a compiler made for WASI preview 1, as a library (a reactor).
    module: PathBuf,
    /// The file of the component, named as in the folder of handlers: `NAME@VERSION.wasm`. The command creates the
    /// folder if it is missing, and replaces an earlier file.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A component that the command has written.
#[derive(Debug, Serialize)]
struct WrappedRow {
    /// The SHA-256 of the component.
    digest: String,
    /// The path of the component.
    path: String,
    /// The size of the component, in bytes.
    size: usize,
}

impl PluginsWrapArgs {
    pub(super) fn run(self) -> Result<ExitCode, CommandError> {
        let output = self.output.display();
        match HandlerFile::from_path(&self.output) {
            Some(Ok(_)) => {}
            Some(Err(reason)) => return Err(CommandError::Config(anyhow!("{output}: {reason}"))),
            None => {
                return Err(CommandError::Config(anyhow!(
                    "{output}: is not the name of a handler's file, such as orders@1.2.3.wasm"
                )));
            }
        }
        let module = self.module.display();
        let bytes = fs::read(&self.module).with_context(|| format!("{module}: cannot be read"))?;
        let component = ordain_wrap::wrap(&bytes)
            .map_err(|reason| CommandError::Config(anyhow!("{module}: {reason}")))?;
        write_atomically(&self.output, &component)
            .with_context(|| format!("{output}: cannot be written"))?;
        let row = WrappedRow {
            digest: FileDigest(Sha256::digest(&component).into()).to_string(),
            path: output.to_string(),
            size: component.len(),
        };
        if self.json {
            JsonRow::from(row).print(true)?;
        } else {
            let WrappedRow { digest, path, size } = row;
            show::text(&format!("{path}: a component of {size} bytes (SHA-256 {digest})\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Replaces a file as a whole: a process that watches the folder never finds an incomplete file. Creates the folder.
fn write_atomically(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // The name of the draft begins with a dot, so that a process that watches the folder ignores the draft.
    let mut draft = tempfile::Builder::new()
        .prefix(".wrap-")
        .permissions(Permissions::from_mode(FILE_MODE))
        .tempfile_in(folder)?;
    draft.write_all(bytes)?;
    draft.as_file().sync_all()?;
    draft.persist(path)?;
    Ok(())
}
