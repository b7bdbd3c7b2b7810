//! Compiles a component in a process of its own, which leaves the result in the cache: so a file that
//! makes the compiler take all memory, run for hours or crash does that to nobody else.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use rustix::process::{Resource, Rlimit, Signal, nice, setrlimit};

use super::engine::compiler;
use super::load::compiled;
use super::settings::CompileLimits;

/// How much a process that compiles beside running handlers leaves to them: it gets about a tenth of
/// what one of them gets where both want the same core.
const NICE: i32 = 10;

/// The hidden command by which the host starts itself for this.
pub const COMMAND: &str = "compile-handler";

/// Whom compiling may disturb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Nothing runs yet: as fast as it can be.
    Fast,
    /// Handlers run: one core at most, and that only where nobody else wants it.
    Polite,
}

/// This thread leaves the processor to others from now on.
pub(super) fn be_polite() {
    // Where that is not allowed it is only less polite.
    let _ = nice(NICE);
}

/// Compiles into a cache, or says why that cannot be.
pub(super) fn compile_beside(
    bytes: &[u8],
    cache: &Path,
    limits: CompileLimits,
    manner: Manner,
) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot be compiled: no process for that: {error}");
    let mut child = start(cache, limits, manner).map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // One that ends before it has read all says why.
        let _ = input.write_all(bytes);
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Err(if said.is_empty() { why(output.status, limits) } else { said })
}

fn start(cache: &Path, limits: CompileLimits, manner: Manner) -> io::Result<Child> {
    // Also where its file was replaced by a newer one.
    let this = Path::new("/proc/self/exe");
    let this = if this.exists() { this.to_owned() } else { std::env::current_exe()? };
    let mut command = Command::new(this);
    command.arg(COMMAND).arg(cache);
    // What the allocator only sets aside does not count as memory that it takes.
    command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
    command.args(["--seconds", &limits.timeout.as_secs().max(1).to_string()]);
    command.args(["--memory", &limits.memory.to_string()]);
    if manner == Manner::Polite {
        command.arg("--polite").env("RAYON_NUM_THREADS", "1");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

fn why(status: ExitStatus, limits: CompileLimits) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let CompileLimits { timeout, memory } = limits;
        return match Signal::from_named_raw(signal) {
            Some(Signal::XCPU | Signal::KILL) => format!(
                "cannot be compiled within {timeout:?}, which `plugins.compile_timeout` allows"
            ),
            Some(Signal::ABORT) => format!(
                "cannot be compiled with {} MiB of memory, which `plugins.compile_memory` allows",
                memory >> 20
            ),
            _ => format!("makes the compiler crash (signal {signal})"),
        };
    }
    format!("cannot be compiled: the compiler ended with {status}")
}

/// What that process does: compiles what comes in on standard input. Says on standard output why it
/// could not.
pub fn compile(cache: &Path, limits: CompileLimits, polite: bool) -> ExitCode {
    if polite {
        be_polite();
    }
    match try_compile(cache, limits) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // Nobody else reads it.
            let _ = io::stdout().write_all(reason.as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn try_compile(cache: &Path, limits: CompileLimits) -> Result<(), String> {
    let engine = compiler(cache).map_err(|error| format!("cannot be compiled: {error:#}"))?;
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    let seconds = limits.timeout.as_secs();
    for (resource, most) in [(Resource::Data, limits.memory), (Resource::Cpu, seconds)] {
        // Where it is not allowed, there is less already.
        let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most + 1) });
    }
    // If the host dies, nobody waits for this any more.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    compiled(&engine, &bytes).map(drop)
}
