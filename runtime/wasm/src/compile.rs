//! Compiles a component in a process of its own, which leaves the result in the cache: so a file that
//! makes the compiler take all memory, run for hours or crash does that to nobody else.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, nice, setrlimit};
use wasmtime::component::Component;

use super::cache::{open_cache, remove_unfinished};
use super::engine::compiler;
use super::settings::CompileLimits;
use ordain_util::text::cut;

/// How much a process that compiles beside running handlers leaves to them: it gets about a thirtieth of
/// what one of them gets where both want the same core.
const NICE: i32 = 15;

/// How many times the processor time the whole may take: where others want the processor too.
const PATIENCE: u32 = 10;
/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Bytes of a reason that are read.
const SAID: u64 = 16 << 10;
/// The exit code for a reason that may pass.
const PASSING: u8 = 75;

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

/// Compiles into a cache, or says why that cannot be.
pub(super) fn compile_beside(
    bytes: &[u8],
    cache: &Path,
    limits: CompileLimits,
    manner: Manner,
) -> Result<(), Unloaded> {
    let failed = |error: io::Error| {
        Unloaded::for_now(format!("cannot be compiled by a process of its own: {error}"))
    };
    let mut child = start(cache, limits, manner).map_err(failed)?;
    let input = child.stdin.take();
    let give = move || {
        // One that ends before it has read all says why.
        input.map(|mut input| input.write_all(bytes))
    };
    let status = std::thread::scope(|scope| {
        // It may never read. It ends in any case, and this with it.
        std::thread::Builder::new().spawn_scoped(scope, give)?;
        ended(&mut child, limits.timeout * PATIENCE)
    });
    let status = status.map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        // It may have been ended within a letter.
        let _ = output.take(SAID).read_to_string(&mut said);
    }
    if status.code() == Some(i32::from(PASSING)) {
        return Err(Unloaded::for_now(said));
    }
    if !said.trim().is_empty() {
        return Err(said.into());
    }
    Err(why(status, limits))
}

/// Waits for its end, for so long.
fn ended(child: &mut Child, patience: Duration) -> io::Result<ExitStatus> {
    let until = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= until {
            // A disk that does not answer, or other processes that leave it no time.
            child.kill()?;
            child.wait()?;
            let words = "it did not end within ten times `plugins.compile_timeout`, and was ended";
            return Err(io::Error::other(words));
        }
        std::thread::sleep(LOOK);
    }
}

fn start(cache: &Path, limits: CompileLimits, manner: Manner) -> io::Result<Child> {
    // Also where its file was replaced by a newer one.
    let this = Path::new("/proc/self/exe");
    let this = if this.exists() { this.to_owned() } else { std::env::current_exe()? };
    let mut command = Command::new(this);
    command.arg(COMMAND).arg(cache);
    command.args(["--seconds", &limits.timeout.as_secs().max(1).to_string()]);
    command.args(["--memory", &limits.memory.to_string()]);
    // It needs nothing of what the host was given.
    command.env_clear();
    // What the allocator only sets aside does not count as memory that it takes.
    command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
    if manner == Manner::Polite {
        command.env("RAYON_NUM_THREADS", "1").arg("--polite");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

fn why(status: ExitStatus, CompileLimits { timeout, memory }: CompileLimits) -> Unloaded {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return match Signal::from_named_raw(signal) {
            Some(Signal::XCPU) => format!(
                "cannot be compiled in {timeout:?} of processor time, which `plugins.compile_timeout` allows"
            )
            .into(),
            Some(Signal::ABORT) => format!(
                "cannot be compiled with {} MiB of memory, which `plugins.compile_memory` allows",
                memory >> 20
            )
            .into(),
            Some(Signal::KILL) => Unloaded::for_now(
                "cannot be compiled: the compiler was killed, as systems do that have less memory than \
                 `plugins.compile_memory` allows"
                    .to_owned(),
            ),
            _ => format!("makes the compiler crash (signal {signal})").into(),
        };
    }
    format!("cannot be compiled: the compiler ended with {status}").into()
}

/// What that process does: compiles what comes in on standard input. Says on standard output why it
/// could not.
pub fn compile(cache: &Path, limits: CompileLimits, is_polite: bool) -> ExitCode {
    if is_polite {
        // Where that is not allowed it is only less polite.
        let _ = nice(NICE);
    }
    let Err(Unloaded { reason, may_pass }) = try_compile(cache, limits) else {
        return ExitCode::SUCCESS;
    };
    // Nobody else reads it.
    let _ = io::stdout().write_all(cut(reason, SAID as usize / 2).as_bytes());
    if may_pass { PASSING.into() } else { ExitCode::FAILURE }
}

fn try_compile(cache: &Path, limits: CompileLimits) -> Result<(), Unloaded> {
    // If the host dies, nobody waits for this any more.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // Where memory runs out, this goes first, and not the host.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let failed = |error: String| Unloaded::for_now(format!("cannot be compiled: {error}"));
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    remove_unfinished(cache);
    let kept = open_cache(cache).ok_or_else(|| failed("there is no cache".to_owned()))?;
    let engine = compiler(kept.clone()).map_err(|error| failed(format!("{error:#}")))?;
    let (memory, seconds) = (limits.memory, limits.timeout.as_secs().max(1));
    for (resource, most) in
        [(Resource::Data, memory), (Resource::Cpu, seconds), (Resource::Core, 0)]
    {
        // One more at the end of the time, so that it is told by the signal for that.
        let hard = if resource == Resource::Cpu { most + 1 } else { most };
        let limit = Rlimit { current: Some(most), maximum: Some(hard) };
        setrlimit(resource, limit).map_err(|error| failed(format!("no limit for it: {error}")))?;
    }
    drop(compiled(&engine, &bytes)?);
    // What the cache has not kept, the host would compile itself, without limits.
    let before = kept.cache_hits();
    drop(compiled(&engine, &bytes)?);
    if kept.cache_hits() == before {
        let reason = format!(
            "the result cannot be kept in {}: is the disk full? If not, empty that folder",
            cache.display()
        );
        return Err(failed(reason));
    }
    Ok(())
}

/// Compiles a component, unless it is in the engine's cache.
pub(super) fn compiled(engine: &wasmtime::Engine, bytes: &[u8]) -> Result<Component, String> {
    Component::from_binary(engine, bytes)
        .map_err(|error| format!("is damaged, truncated or not supported: {error:#}"))
}

/// Why a handler cannot be loaded.
pub(super) struct Unloaded {
    pub(super) reason: String,
    pub(super) may_pass: bool,
}

impl Unloaded {
    /// The machine could not do it now.
    pub(super) fn for_now(reason: String) -> Self {
        Self { reason, may_pass: true }
    }
}

/// What is wrong with the file.
impl From<String> for Unloaded {
    fn from(reason: String) -> Self {
        Self { reason, may_pass: false }
    }
}
