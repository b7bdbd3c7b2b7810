//! Compiles a component in a process of its own, which writes the result to the cache. A handler's file therefore
//! cannot affect the host, even if the compiler uses all memory, runs for hours or crashes.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, nice, setrlimit};
use wasmtime::component::Component;

use super::cache::{open_cache, remove_unfinished};
use super::engine::compiling_engine;
use super::function_cache::FunctionCache;
use super::settings::CompileLimits;
use ordain_util::text::truncated;

/// Niceness (low scheduling priority) of a process that compiles while handlers run. A handler thread on the same core
/// gets about thirty times as much processor time.
const LOW_PRIORITY_NICENESS: i32 = 15;

/// Factor by which the limit of elapsed time exceeds the limit of processor time. The factor allows for machines whose
/// processors are busy.
const ELAPSED_TIME_FACTOR: u32 = 10;
/// Interval at which the host checks whether the compiler process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// If the compiler process fails, it reports a reason. The host reads at most this number of bytes of the reason.
const REASON_LIMIT_BYTES: u64 = 16 << 10;
/// The exit code of the compiler process for a failure that may be temporary.
const TEMPORARY_FAILURE_CODE: u8 = 75;

/// The hidden command with which the host starts itself to compile.
pub const COMPILE_COMMAND: &str = "compile-handler";

/// The priority of a compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompilePriority {
    /// Full speed: no handler runs yet.
    Normal,
    /// Low priority, on one core at most: handlers are running.
    Low,
}

/// Compiles a component into a cache, in a child process. Returns the reason if the compilation fails.
pub(super) fn compile_in_child(
    bytes: &[u8],
    handler: &str,
    cache: &Path,
    limits: CompileLimits,
    priority: CompilePriority,
) -> Result<(), LoadFailure> {
    let failed = |error: io::Error| {
        LoadFailure::temporary(format!("cannot be compiled: the compiler process failed: {error}"))
    };
    let mut child = spawn_compiler(handler, cache, limits, priority).map_err(failed)?;
    let input = child.stdin.take();
    let write_input = move || {
        // Ignore the result of the write: if the child ends before it has read the whole component, its output or its
        // exit status shows the reason.
        input.map(|mut input| input.write_all(bytes))
    };
    let status = std::thread::scope(|scope| {
        // A second thread writes the input, because the write blocks while the child does not read. The write ends at
        // the latest when the child ends.
        std::thread::Builder::new().spawn_scoped(scope, write_input)?;
        wait_for_exit(&mut child, limits.timeout * ELAPSED_TIME_FACTOR)
    });
    let status = status.map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let mut output = String::new();
    if let Some(stdout) = child.stdout.take() {
        // An error is ignored: a child that was killed may have written an incomplete UTF-8 character.
        let _ = stdout.take(REASON_LIMIT_BYTES).read_to_string(&mut output);
    }
    if status.code() == Some(i32::from(TEMPORARY_FAILURE_CODE)) {
        return Err(LoadFailure::temporary(output));
    }
    if !output.trim().is_empty() {
        return Err(output.into());
    }
    Err(exit_failure(status, limits))
}

/// Waits until the child ends; kills it after `timeout`.
fn wait_for_exit(child: &mut Child, timeout: Duration) -> io::Result<ExitStatus> {
    let until = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= until {
            // Possible causes of the timeout: the disk does not respond, or other processes use all processor time.
            child.kill()?;
            child.wait()?;
            let words = "the compiler did not end within ten times `plugins.compile_timeout` and was killed";
            return Err(io::Error::other(words));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn spawn_compiler(
    handler: &str,
    cache: &Path,
    limits: CompileLimits,
    manner: CompilePriority,
) -> io::Result<Child> {
    // This path works even after a newer version has replaced the program's file.
    let this = Path::new("/proc/self/exe");
    let this = if this.exists() { this.to_owned() } else { std::env::current_exe()? };
    let mut command = Command::new(this);
    command.arg(COMPILE_COMMAND).arg(cache).arg(handler);
    command.args(["--seconds", &limits.timeout.as_secs().max(1).to_string()]);
    command.args(["--memory", &limits.memory.to_string()]);
    // The child needs nothing from the host's environment.
    command.env_clear();
    // With this setting, the allocator does not commit memory in advance, so that memory that the allocator only
    // reserves does not count against the limit.
    command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
    if manner == CompilePriority::Low {
        command.env("RAYON_NUM_THREADS", "1").arg("--polite");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

fn exit_failure(
    status: ExitStatus,
    CompileLimits { timeout, memory }: CompileLimits,
) -> LoadFailure {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return match Signal::from_named_raw(signal) {
            Some(Signal::XCPU) => format!(
                "cannot be compiled in {timeout:?} of processor time (`plugins.compile_timeout`)"
            )
            .into(),
            Some(Signal::ABORT) => format!(
                "cannot be compiled with {} MiB of memory (`plugins.compile_memory`)",
                memory >> 20
            )
            .into(),
            Some(Signal::KILL) => LoadFailure::temporary(
                "cannot be compiled: the compiler was killed, probably because the system has less memory than \
                 `plugins.compile_memory` allows"
                    .to_owned(),
            ),
            _ => format!("makes the compiler crash (signal {signal})").into(),
        };
    }
    format!("cannot be compiled: the compiler ended with {status}").into()
}

/// Runs in the child process: compiles the component from standard input. Writes the reason for a failure to standard
/// output.
pub fn run_compiler(
    cache: &Path,
    handler: &str,
    limits: CompileLimits,
    is_low_priority: bool,
) -> ExitCode {
    if is_low_priority {
        // If the system refuses the lower priority, the compilation runs at normal priority.
        let _ = nice(LOW_PRIORITY_NICENESS);
    }
    let Err(LoadFailure { reason, is_temporary: may_pass }) = compile_stdin(cache, handler, limits)
    else {
        return ExitCode::SUCCESS;
    };
    // Only the host reads this output; if the host has ended, the reason is not needed.
    let _ = io::stdout().write_all(truncated(reason, REASON_LIMIT_BYTES as usize / 2).as_bytes());
    if may_pass { TEMPORARY_FAILURE_CODE.into() } else { ExitCode::FAILURE }
}

fn compile_stdin(cache: &Path, handler: &str, limits: CompileLimits) -> Result<(), LoadFailure> {
    // Makes the kernel kill this process when the host dies: no other process needs the result.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // When memory runs out, the kernel must kill this process rather than the host.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let failed = |error: String| LoadFailure::temporary(format!("cannot be compiled: {error}"));
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    remove_unfinished(cache);
    let kept = open_cache(cache).ok_or_else(|| failed("there is no cache".to_owned()))?;
    let functions = Arc::new(FunctionCache::open(cache, handler));
    let engine = compiling_engine(kept.clone(), Arc::clone(&functions))
        .map_err(|error| failed(format!("{error:#}")))?;
    let memory = limits.memory;
    let seconds = limits.timeout.as_secs().max(1);
    for (resource, most) in
        [(Resource::Data, memory), (Resource::Cpu, seconds), (Resource::Core, 0)]
    {
        // The kernel sends `SIGXCPU` at the soft limit of processor time, and `SIGKILL` at the hard limit. The hard
        // limit is one second higher, so that `SIGXCPU` ends the process and the host can name the cause.
        let hard = if resource == Resource::Cpu { most + 1 } else { most };
        let limit = Rlimit { current: Some(most), maximum: Some(hard) };
        setrlimit(resource, limit).map_err(|error| {
            failed(format!("the limits of the compiler process cannot be set: {error}"))
        })?;
    }
    drop(compile_component(&engine, &bytes)?);
    // The second call only checks that the cache has the compiled component. If the cache lacked the compiled
    // component, the host itself would later compile the component, without limits.
    let before = kept.cache_hits();
    drop(compile_component(&engine, &bytes)?);
    if kept.cache_hits() == before {
        let reason = format!(
            "the result cannot be stored in {}: is the disk full? If not, empty this folder",
            cache.display()
        );
        return Err(failed(reason));
    }
    // Without the file, the next compilation only takes longer.
    let _ = functions.save();
    Ok(())
}

/// Compiles a component, or takes the compiled component from the engine's cache. Returns the fault if the component
/// cannot be compiled.
pub(super) fn compile_component(
    engine: &wasmtime::Engine,
    bytes: &[u8],
) -> Result<Component, String> {
    Component::from_binary(engine, bytes)
        .map_err(|error| format!("is damaged, truncated or not supported: {error:#}"))
}

/// The failure to load a handler, without the path of the file.
pub(super) struct LoadFailure {
    pub(super) reason: String,
    pub(super) is_temporary: bool,
}

impl LoadFailure {
    /// Creates a failure that may be temporary: the machine could not load the handler now.
    pub(super) fn temporary(reason: String) -> Self {
        Self { reason, is_temporary: true }
    }
}

/// A permanent failure: the file has a fault.
impl From<String> for LoadFailure {
    fn from(reason: String) -> Self {
        Self { reason, is_temporary: false }
    }
}
