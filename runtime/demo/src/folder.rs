//! The folder of the demo. A temporary folder is removed at the end of the demo, also after an error.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::statvfs;
use tempfile::TempDir;

/// The component of the handler `orders`, made by the build script.
const HANDLER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/orders.wasm"));

/// The configuration. The free port lets the demo run beside another process of Ordain.
const CONFIG: &str = r#"[streams.orders]
handler = "orders"
source = { kind = "file", path = "events.ndjson" }

[sinks.receipts]
kind = "file"
path = "receipts.ndjson"

[admin]
listen = "127.0.0.1:0"
"#;

/// The space that an event needs in the folder, in bytes: its line, its receipt, and its part of the store.
const BYTES_PER_EVENT: u64 = 800;
/// The space that the folder needs in addition, in bytes: the journal of the store.
const FIXED_BYTES: u64 = 64 << 20;

/// The folder with the files of the demo.
pub(crate) struct DemoFolder {
    path: PathBuf,
    /// The owner of a temporary folder, which removes the folder.
    temporary: Option<TempDir>,
}

impl DemoFolder {
    /// Creates the folder `keep`, or a temporary folder, with the configuration and the handler. Returns an error if
    /// the folder cannot store this number of events.
    pub(crate) fn create(keep: Option<&Path>, events: u64, handler: Option<&Path>) -> Result<Self> {
        let folder = match keep {
            Some(path) => Self::kept(path)?,
            None => Self::temporary()?,
        };
        folder.check_space(events)?;
        let wasm = match handler {
            Some(file) => {
                fs::read(file).with_context(|| format!("cannot read {}", file.display()))?
            }
            None => HANDLER.to_vec(),
        };
        let plugins = folder.path.join("plugins");
        // The host caches compiled handlers only in a folder into which no other user can write.
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&plugins)
            .and_then(|()| fs::create_dir(folder.scratch()))
            .and_then(|()| fs::write(plugins.join("orders.wasm"), wasm))
            .and_then(|()| fs::write(folder.config(), CONFIG))
            .with_context(|| format!("cannot write to the folder {}", folder.path.display()))?;
        Ok(folder)
    }

    fn kept(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)
            .with_context(|| format!("cannot create the folder {}", path.display()))?;
        let mut entries = fs::read_dir(path)
            .with_context(|| format!("cannot read the folder {}", path.display()))?;
        ensure!(
            entries.next().is_none(),
            "the folder {} is not empty: name a new or empty folder with --keep",
            path.display()
        );
        Ok(Self { path: path.canonicalize()?, temporary: None })
    }

    fn temporary() -> Result<Self> {
        let temporary = tempfile::Builder::new().prefix("ordain-demo-").tempdir().with_context(|| {
            format!(
                "cannot create a folder in {}: set TMPDIR to a folder that you can write to, or name a new folder with \
                 --keep",
                std::env::temp_dir().display()
            )
        })?;
        Ok(Self { path: temporary.path().canonicalize()?, temporary: Some(temporary) })
    }

    fn check_space(&self, events: u64) -> Result<()> {
        let Ok(system) = statvfs(&self.path) else { return Ok(()) };
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        let needed = events * BYTES_PER_EVENT + FIXED_BYTES;
        if free < needed {
            bail!(
                "the demo needs {} MiB, but the disk of {} has only {} MiB of free space: use a smaller number for \
                 --events, set TMPDIR to a folder on another disk, or name a folder on another disk with --keep",
                needed >> 20,
                self.path.display(),
                free >> 20
            );
        }
        Ok(())
    }

    /// Removes the temporary files: the whole folder, or the scratch folder if the user keeps the other files.
    pub(crate) fn remove_temporary(self) -> io::Result<()> {
        let scratch = self.scratch();
        self.temporary.map_or_else(|| fs::remove_dir_all(scratch), TempDir::close)
    }

    /// Returns the folder for the temporary files of the host. A killed process leaves such files behind.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path.join("ordain.toml")
    }

    pub(crate) fn events(&self) -> PathBuf {
        self.path.join("events.ndjson")
    }

    pub(crate) fn receipts(&self) -> PathBuf {
        self.path.join("receipts.ndjson")
    }
}
