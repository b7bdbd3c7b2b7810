//! The settings of handlers and their defaults. How they are written in a file is not known here.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// How handlers are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Threads that execute handlers, shared by all streams. At least one is started.
    pub workers: usize,
    /// Whether an instance serves one event or many.
    pub instance: InstancePolicy,
    /// Events after which a reused instance is replaced, which bounds what a handler that leaks
    /// memory can pile up.
    pub instance_events: u64,
    /// Folder in which compiled handlers are kept; `None` compiles at every start. What is in it
    /// is run as it is: whoever can write there can run code in this process.
    pub cache: Option<PathBuf>,
    /// What compiling a handler may take, where a process of its own does that.
    pub compile: CompileLimits,
    /// What a handler may use and return.
    pub limits: Limits,
}

/// What compiling one handler may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Processor time, in whole seconds.
    pub timeout: Duration,
    /// Memory, in bytes.
    pub memory: u64,
}

/// Whether an instance serves one event or many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstancePolicy {
    /// Many: what a handler leaves in its memory is there at the next event.
    Reused,
    /// Each event has its own.
    Fresh,
}

/// What one handler may use and return. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// All memories and tables of an instance together.
    pub memory: usize,
    /// How long one event may run; what the guest does not run does not count.
    pub timeout: Duration,
    /// The state of a key.
    pub state_size: usize,
    /// Messages that one event may emit.
    pub messages: usize,
    /// All messages of one event together.
    pub messages_size: usize,
    /// One message: it may be an event of another stream.
    pub event_size: usize,
    /// What one event may write to the log, standard output and error included.
    pub log: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            instance: InstancePolicy::Reused,
            // Often enough that a leak of a few KiB an event stays within the memory limit, rare
            // enough that even an instance that takes a millisecond to make costs nothing.
            instance_events: 10_000,
            cache: None,
            compile: CompileLimits { timeout: Duration::from_mins(5), memory: 4 << 30 },
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // The hungriest language measured (Python) starts in 16 MiB.
            memory: 64 * MIB,
            // Far above any handler that only computes, far below a broker's patience.
            timeout: Duration::from_secs(5),
            // A state is read and written with every event: a larger one belongs elsewhere.
            state_size: MIB,
            messages: 1_000,
            messages_size: 4 * MIB,
            event_size: MIB,
            // A few hundred lines, or a long stack trace.
            log: 16 * KIB,
        }
    }
}

/// Bytes that may be lifted from a guest at once beyond the limits of state and messages: what
/// the host needs for the messages' and headers' own records.
const LIFT_OVERHEAD_PER_MESSAGE: usize = 1 << 10;

impl Limits {
    /// Bytes that one lift may take from a guest. It is what keeps a list of a million elements that
    /// all lie in the same place from being copied a million times.
    pub(super) fn lift(&self) -> usize {
        self.state_size + self.messages_size + self.messages * LIFT_OVERHEAD_PER_MESSAGE
    }
}

/// A size as people write it.
pub(super) struct Size(pub(super) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= MIB && bytes.is_multiple_of(MIB) => write!(f, "{} MiB", bytes / MIB),
            bytes if bytes >= KIB && bytes.is_multiple_of(KIB) => write!(f, "{} KiB", bytes / KIB),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}
