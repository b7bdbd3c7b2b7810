//! The settings of handlers and their defaults. This module must not depend on the form of the configuration file.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The settings for running handlers. In this module, an instance is a WebAssembly instance of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerSettings {
    /// Number of threads that execute handlers, shared by all streams. The pool starts at least one thread.
    pub workers: usize,
    /// The number of events that one instance of a handler executes: one or many.
    pub instance: InstancePolicy,
    /// Number of events after which a reused instance is replaced. The replacement limits the memory that a leaking
    /// handler can accumulate.
    pub instance_events: u64,
    /// Folder of compiled handlers. With `None`, [`HandlerEngine::load`](crate::HandlerEngine::load) compiles a handler
    /// anew at every start, and [`HandlerEngine::load_in_child`](crate::HandlerEngine::load_in_child) fails. The
    /// process executes the code in the folder without verifying it. If another user could write to the folder, the
    /// engine therefore uses a temporary folder instead.
    pub cache: Option<PathBuf>,
    /// Limits for the separate process that compiles a handler.
    pub compile: CompileLimits,
    /// Limits for a handler's execution and results.
    pub limits: HandlerLimits,
}

/// Limits for compiling one handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Processor time of the process: at least one second; a fraction of a second is dropped. The host also ends the
    /// process when ten times this duration has elapsed.
    pub timeout: Duration,
    /// Size of the data that the process may allocate (`RLIMIT_DATA`), in bytes.
    pub memory: u64,
}

/// The number of events that one instance of a handler executes: one or many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstancePolicy {
    /// Many events. Data that a handler leaves in its memory is present at the next event.
    Reused,
    /// A single event. Each event has an instance of its own.
    Fresh,
}

/// Limits for one handler. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerLimits {
    /// Size of all memories and tables of an instance together.
    pub memory: usize,
    /// Time for which a handler may execute one event. Only the time in which the guest (the handler's code) runs
    /// counts. The same limit applies separately to the time for which the guest sleeps, measured by the guest's own
    /// clock.
    pub timeout: Duration,
    /// Size of the state of a key.
    pub state_size: usize,
    /// Number of messages that a handler may emit for one event.
    pub messages: usize,
    /// Total size of the messages of one event.
    pub messages_size: usize,
    /// Size of one message in the form of an event, because the message may become an event of another stream.
    pub event_size: usize,
    /// Size of the log output of one event, including standard output and standard error.
    pub log: usize,
}

impl Default for HandlerSettings {
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            instance: InstancePolicy::Reused,
            // With this number, a leak of a few KiB per event stays within the default memory limit. The cost of
            // replacing an instance (2.5 ms for the slowest measured handler) is negligible.
            instance_events: 10_000,
            cache: None,
            compile: CompileLimits { timeout: Duration::from_mins(5), memory: 4 << 30 },
            limits: HandlerLimits::default(),
        }
    }
}

impl Default for HandlerLimits {
    fn default() -> Self {
        Self {
            // SpiderMonkey needs the most memory of all measured languages: 32 MiB for small events.
            memory: 64 * MIB,
            // A handler that only computes needs far less time; a broker's timeouts are far longer.
            timeout: Duration::from_secs(5),
            // Every event reads the state, and most events write it, so larger data belongs elsewhere.
            state_size: MIB,
            messages: 1_000,
            messages_size: 4 * MIB,
            event_size: MIB,
            // A few hundred lines, or a long stack trace.
            log: 16 * KIB,
        }
    }
}

/// Number of bytes that the host may copy from a guest for each allowed message, in addition to the sizes that
/// `state_size` and `messages_size` allow. These bytes are for the structures that represent messages and headers in
/// the host's memory. An error text in `failure` names this value.
const LIFT_OVERHEAD_BYTES: usize = 1 << 10;

impl HandlerLimits {
    /// Returns the number of bytes that the host may copy from a guest for one result (one lift). A guest can return a
    /// list of a million elements that share the same bytes of its memory. The limit prevents the host from copying
    /// these bytes a million times.
    pub(super) fn lift_limit(&self) -> usize {
        self.state_size + self.messages_size + self.messages * LIFT_OVERHEAD_BYTES
    }
}

/// A size in bytes, formatted for people.
pub(super) struct DisplaySize(pub(super) usize);

impl fmt::Display for DisplaySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= MIB && bytes.is_multiple_of(MIB) => write!(f, "{} MiB", bytes / MIB),
            bytes if bytes >= KIB && bytes.is_multiple_of(KIB) => write!(f, "{} KiB", bytes / KIB),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}
