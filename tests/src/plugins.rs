//! The handlers of this repository, as components.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use wasm_encoder::{ComponentSection as _, CustomSection};

const TARGET: &str = "wasm32-wasip2";

/// A change in these folders makes every built handler out of date.
const SHARED_FOLDERS: [&str; 2] = ["sdk/rust", "wit"];

/// The handlers in `plugins/`, and the example of the SDK for Rust. One build makes all of them, because a separate
/// build for each handler would build the shared libraries again with other features.
const HANDLERS: [&str; 6] = ["orders", "ledger", "tally", "faulty", "probe", "conformance"];

/// Returns the component of one of the `HANDLERS`. If the component is missing or older than its sources, builds it
/// as `cargo xtask plugins` does.
pub fn plugin(name: &str) -> Result<PathBuf> {
    // Only one thread at a time checks and builds. Otherwise, two threads could find the same component out of date and
    // build it twice.
    static BUILD_LOCK: Mutex<()> = Mutex::new(());
    let _building = BUILD_LOCK.lock();
    let target = target_dir()?;
    let file = target.join(TARGET).join("plugin").join(format!("{name}.wasm"));
    let mut sources = SystemTime::UNIX_EPOCH;
    let own = Path::new("plugins").join(name);
    for folder in SHARED_FOLDERS.map(Path::new).into_iter().chain([&*own]) {
        // The example of the SDK for Rust has no folder in `plugins/`: it is in the folder of the SDK.
        if root().join(folder).exists() {
            sources = sources.max(newest(&root().join(folder))?);
        }
    }
    let built = file.metadata().and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    if built < sources {
        build(&file, &target)?;
    }
    ensure!(file.exists(), "cargo did not create {}", file.display());
    Ok(file)
}

/// Returns the component of a handler with a note in a custom section. The note changes the digest of the file, but not
/// the behaviour of the handler.
pub fn plugin_with_note(name: &str, note: &str) -> Result<Vec<u8>> {
    let mut component = std::fs::read(plugin(name)?)?;
    let note = CustomSection { name: "note".into(), data: note.as_bytes().into() };
    note.append_to_component(&mut component);
    Ok(component)
}

fn build(file: &Path, target: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root()).args(["build", "--quiet", "--profile", "plugin", "--target", TARGET]);
    for handler in HANDLERS {
        build.args(["--package", handler]);
    }
    let status = build.arg("--target-dir").arg(target).status().context("cargo cannot be run")?;
    ensure!(
        status.success(),
        "the handlers cannot be built; if the target is missing, run `rustup target add {TARGET}`"
    );
    // Cargo does not write a file whose content has not changed. Set the modification time here, so that the next check
    // finds the component newer than its sources.
    std::fs::File::options().append(true).open(file)?.set_modified(SystemTime::now())?;
    Ok(())
}

/// Returns the root folder of the workspace.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the package is in a folder of the workspace").to_owned()
}

/// Returns the target folder. The path of the running test is `<target>/<profile>/deps/<test>`.
pub fn target_dir() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let target = test.ancestors().nth(3).context("the test is not in a target folder")?;
    Ok(target.to_owned())
}

fn newest(path: &Path) -> Result<SystemTime> {
    let mut newest = path.metadata()?.modified()?;
    if path.is_dir() {
        for entry in path.read_dir()? {
            newest = newest.max(self::newest(&entry?.path())?);
        }
    }
    Ok(newest)
}
