//! Makes a runnable handler from a file, or returns the reason why the file cannot be loaded. A loaded handler has the
//! right interface, and imports only functions that the host provides. One WebAssembly instance of the handler has been
//! started as a trial.

mod imports;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ordain_core::{Build, FailureKind, FileDigest};
use rustix::io::Errno;
use sha2::Digest as _;
use wasmtime::component::Component;
use wasmtime::component::types::{self, ComponentItem};

use super::compile::{CompilePriority, LoadFailure, compile_component, compile_in_child};
use super::engine::HandlerEngine;
use super::folder::HandlerFile;
use super::handler::Handler;
use super::instance::{HandlerInstance, block_on};
use super::wire;
use imports::check_imports;
use ordain_util::command::PrintedCommand;
use ordain_util::text::truncated;

/// The interface through which the host calls a handler.
const HANDLER_INTERFACE: &str = "ordain:handler/handler@0.1.0";
const HANDLE_FUNCTION: &str = "handle";
/// The interface that migrates the state of an older version.
const MIGRATION_INTERFACE: &str = "ordain:handler/migration@0.1.0";
/// The interface of a program that runs once, in all versions.
const COMMAND_INTERFACE_PREFIX: &str = "wasi:cli/run@";

/// Maximum size of a handler's file, in bytes; the largest measured component (Python) has 19 MB.
const FILE_LIMIT_BYTES: u64 = 256 << 20;

const WASM_MAGIC: &[u8] = b"\0asm";
/// Version and layer of a core module: the four bytes after the magic.
const MODULE_HEADER: &[u8] = &[1, 0, 0, 0];
/// Version and layer of a component.
const COMPONENT_HEADER: &[u8] = &[0x0d, 0, 1, 0];

/// The reason why a file cannot be loaded as a handler.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct LoadError {
    /// The file.
    pub path: PathBuf,
    /// The fault, and how to correct it.
    pub reason: String,
    /// True if the machine, and not the file, caused the failure: a later load of the same file may succeed.
    pub is_temporary: bool,
}

/// Number of attempts to start the trial instance, while the machine refuses the start. For example, Linux refuses to
/// seal the memory image of a component while the kernel uses a page of this image.
const START_ATTEMPTS: usize = 10;
/// Delay before the next attempt to start the trial instance.
const START_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum size of the reason of a [`LoadError`], in bytes. Without this limit, a file could cause a reason that is as
/// long as the file.
const REASON_LIMIT_BYTES: usize = 4 << 10;

impl HandlerEngine {
    /// Reads, checks and compiles a handler, and starts one WebAssembly instance of the handler. The compilation of a
    /// large component takes several seconds, so the caller must use a thread that may block.
    pub fn load(&self, file: &HandlerFile) -> Result<Arc<Handler>, LoadError> {
        let read = || {
            let bytes = read_file(&file.path)?;
            check_header(&file.path, &bytes)?;
            let component = compile_component(self.wasm(), &bytes)?;
            Ok((bytes, component))
        };
        with_path(file, self.build_handler(file, read))
    }

    /// Loads a handler as [`Self::load`] does, but compiles in a child process. The child runs the current program with
    /// [`COMPILE_COMMAND`](crate::COMPILE_COMMAND), so the current program must be `ordain`. With
    /// [`CompilePriority::Low`], the child runs at low priority and on one core.
    pub fn load_in_child(
        &self,
        file: &HandlerFile,
        priority: CompilePriority,
    ) -> Result<Arc<Handler>, LoadError> {
        let compiled = || {
            let bytes = read_file(&file.path)?;
            check_header(&file.path, &bytes)?;
            let cache = self.cache().ok_or_else(|| {
                LoadFailure::temporary(format!(
                    "cannot be compiled: Ordain cannot use the cache folder or the temporary folder for the compiled \
                     code. Let this user own and write to `.cache` in the folder of handlers, or let this user write \
                     to {}",
                    std::env::temp_dir().display()
                ))
            })?;
            let limits = self.settings().compile;
            compile_in_child(&bytes, &file.name, cache.path(), limits, priority)?;
            let component = Component::from_binary(self.wasm(), &bytes)
                .map_err(|error| pool_failure(&error))?;
            Ok((bytes, component))
        };
        let made = self.build_handler(file, compiled);
        if let Some(cache) = self.cache() {
            cache.clean();
        }
        with_path(file, made)
    }

    fn build_handler(
        &self,
        file: &HandlerFile,
        compiled: impl FnOnce() -> Result<(Vec<u8>, Component), LoadFailure>,
    ) -> Result<Arc<Handler>, LoadFailure> {
        let (bytes, component) = compiled()?;
        let ty = component.component_type();
        check_imports(ty.imports(self.wasm()).map(|(name, _)| name))?;
        check_exports(self, &ty)?;
        let pre = self.linker().instantiate_pre(&component).map_err(|error| {
            format!("imports something that Ordain does not provide, or that Ordain provides in another form: {error:#}")
        })?;
        let (_, interface) =
            component.get_export(None, HANDLER_INTERFACE).ok_or_else(missing_function)?;
        let (_, handle) =
            component.get_export(Some(&interface), HANDLE_FUNCTION).ok_or_else(missing_function)?;
        let digest = FileDigest(sha2::Sha256::digest(&bytes).into());
        let build = Build { version: file.version(digest), digest };
        let migrates = ty.get_export(self.wasm(), MIGRATION_INTERFACE).is_some();
        let handler = Arc::new(Handler::new(file.clone(), build, pre, handle, migrates));
        self.start_trial(&handler)?;
        Ok(handler)
    }

    fn start_trial(&self, handler: &Handler) -> Result<(), LoadFailure> {
        let _running = self.keep_ticking();
        let mut attempts = 1;
        loop {
            let Err(failure) = block_on(HandlerInstance::trial(self, handler)) else {
                return Ok(());
            };
            let is_temporary = failure.kind == FailureKind::Retry;
            if !is_temporary || attempts == START_ATTEMPTS {
                let reason = format!("does not start: {}", failure.message);
                return Err(LoadFailure { reason, is_temporary });
            }
            attempts += 1;
            std::thread::sleep(START_RETRY_DELAY);
        }
    }
}

/// Returns the failure to load a component that the child has compiled. The child has no pool of instances. The cause
/// is therefore a limit of the pool, or the machine.
fn pool_failure(error: &wasmtime::Error) -> LoadFailure {
    if error.chain().any(|cause| cause.is::<io::Error>() || cause.is::<Errno>()) {
        return LoadFailure::temporary(format!("cannot be loaded now: {error:#}"));
    }
    format!("exceeds a limit of Ordain that no setting raises: {error:#}").into()
}

/// Adds the file's path to a failure, and limits the length of its reason.
fn with_path(
    file: &HandlerFile,
    loaded: Result<Arc<Handler>, LoadFailure>,
) -> Result<Arc<Handler>, LoadError> {
    loaded.map_err(|LoadFailure { reason, is_temporary: may_pass }| {
        let reason = truncated(reason, REASON_LIMIT_BYTES);
        LoadError { path: file.path.clone(), reason, is_temporary: may_pass }
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, LoadFailure> {
    // The failure is temporary: the permissions may change, and the disk may become available again.
    let unreadable = |error| LoadFailure::temporary(format!("cannot be read: {error}"));
    let mut options = File::options();
    options.read(true);
    // Without this flag, opening a named pipe would block until another process opens the pipe for writing.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, NONBLOCK_FLAG);
    let file = options.open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err("is not a regular file".to_owned().into());
    }
    let mut bytes = Vec::new();
    file.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_LIMIT_BYTES {
        let most = FILE_LIMIT_BYTES >> 20;
        return Err(format!("is larger than {most} MiB, the limit for a handler's file").into());
    }
    Ok(bytes)
}

/// The flag that opens a named pipe without waiting for a writer.
#[cfg(unix)]
const NONBLOCK_FLAG: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

fn check_header(path: &Path, bytes: &[u8]) -> Result<(), String> {
    const EXPECTED_FILE: &str = "a handler must be a WebAssembly component. In Rust, build with `--target \
                         wasm32-wasip2`; in other languages, build with the SDK";
    let what = match bytes {
        [] => "is empty",
        _ if !bytes.starts_with(WASM_MAGIC) => "is no WebAssembly",
        _ if bytes[WASM_MAGIC.len()..].starts_with(COMPONENT_HEADER) => return Ok(()),
        _ if bytes[WASM_MAGIC.len()..].starts_with(MODULE_HEADER) => {
            let path = path.to_string_lossy();
            let command = PrintedCommand::new("plugins wrap").with_place("");
            return Err(format!(
                "is a core module, not a component; make a component of the module with {}",
                command.option("output", &path).argument(&path)
            ));
        }
        _ => "is WebAssembly of an unknown version, or truncated",
    };
    Err(format!("{what}; {EXPECTED_FILE}"))
}

fn check_exports(engine: &HandlerEngine, ty: &types::Component) -> Result<(), String> {
    let Some(interface) = ty.get_export(engine.wasm(), HANDLER_INTERFACE) else {
        let names: Vec<_> =
            ty.exports(engine.wasm()).map(|(name, _)| format!("`{name}`")).collect();
        let has = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        let is_command =
            ty.exports(engine.wasm()).any(|(name, _)| name.starts_with(COMMAND_INTERFACE_PREFIX));
        let advice = if is_command {
            "this is a program that runs once, but a handler is a library: in Rust, set `crate-type = [\"cdylib\"]`; \
             in Go, build with `-buildmode=c-shared`"
        } else {
            "in Rust: `ordain_sdk::handler!(handle);`; in JavaScript: `export default handler(…)`; in Go: \
             `ordain.Handle(…)`; in C: `ORDAIN_HANDLER(event, state)`; in Python: a function `handle`"
        };
        return Err(format!("does not export `{HANDLER_INTERFACE}`; it exports {has}; {advice}"));
    };
    let ComponentItem::ComponentInstance(interface) = interface.ty else {
        return Err(missing_function());
    };
    let Some(handle) = interface.get_export(engine.wasm(), HANDLE_FUNCTION) else {
        return Err(missing_function());
    };
    let ComponentItem::ComponentFunc(handle) = handle.ty else { return Err(missing_function()) };
    handle.typecheck::<wire::HandleArgs<'_>, (wire::HandleReply,)>(&ty.instance_type()).map_err(
        |error| {
            format!(
                "exports `{HANDLER_INTERFACE}` with a wrong type of `{HANDLE_FUNCTION}`: {error:#}"
            )
        },
    )
}

fn missing_function() -> String {
    format!("exports `{HANDLER_INTERFACE}` without a function `{HANDLE_FUNCTION}`")
}
