//! The signals that end a run. The first signal must not end the process before the run has committed its results,
//! unless `runtime.shutdown_grace` elapses. Exceptions are the signals that no process can handle (such as SIGKILL),
//! and the signals for faults of a program (such as SIGSEGV).

use std::future::poll_fn;
use std::io;
use std::ops::RangeInclusive;
use std::task::{Context, Poll};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals with which an operator or a supervisor stops a process.
const STOP_SIGNALS: [(i32, &str); 3] = [(15, "SIGTERM"), (2, "SIGINT"), (3, "SIGQUIT")];

/// The other signals that end a process by default, with their numbers on Linux. The signals for faults of a program,
/// such as SIGSEGV, are not in this list.
const OTHER_SIGNALS: [(i32, &str); 10] = [
    (1, "SIGHUP"),
    (10, "SIGUSR1"),
    (12, "SIGUSR2"),
    (14, "SIGALRM"),
    (16, "SIGSTKFLT"),
    (24, "SIGXCPU"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (29, "SIGIO"),
    (30, "SIGPWR"),
];
/// The real-time signals, which end a process by default too.
const REAL_TIME_SIGNALS: RangeInclusive<i32> = 34..=64;

/// SIGXFSZ: the kernel sends this signal when a write would exceed the process's limit on the size of files. The write
/// also returns an error, so the process catches the signal and does nothing.
const FILE_SIZE_SIGNAL: i32 = 25;

/// A signal that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndSignal {
    /// The name, for the log.
    pub(crate) name: &'static str,
    /// `true` if the signal requests the end of the process. `false` if the signal has no meaning for this program: a
    /// supervisor should then start the process again.
    pub(crate) is_stop: bool,
}

/// The caught signals. The process does nothing when the signal in `_file_size` arrives.
pub(crate) struct EndSignals {
    stop: Vec<(Signal, &'static str)>,
    other: Vec<(Signal, &'static str)>,
    _file_size: Option<Signal>,
}

impl EndSignals {
    /// Starts to catch the signals. A signal that the process ignored at its start stays ignored. The reason: `nohup`
    /// and shells start a process with ignored signals so that the process outlives the terminal. Exceptions are
    /// SIGTERM and SIGINT, which this process always catches.
    pub(crate) fn new() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored_signals(&status);
        let is_ignored = |number: i32| ignored & (1 << (number - 1)) != 0;
        let handled = |number: i32| signal(SignalKind::from_raw(number));
        let mut stop = Vec::new();
        for (number, name) in STOP_SIGNALS {
            // SIGTERM and SIGINT are the documented ways to stop the process, so the process always catches them.
            if name != "SIGQUIT" || !is_ignored(number) {
                stop.push((handled(number)?, name));
            }
        }
        let real_time = REAL_TIME_SIGNALS.map(|number| (number, "a real-time signal"));
        let mut other = Vec::new();
        for (number, name) in OTHER_SIGNALS.into_iter().chain(real_time) {
            if !is_ignored(number) {
                // Some C libraries reserve a few real-time signals, and refuse a handler for them.
                other.extend(handled(number).ok().map(|signal| (signal, name)));
            }
        }
        let handles_file_size = !is_ignored(FILE_SIZE_SIGNAL);
        let file_size = handles_file_size.then(|| handled(FILE_SIZE_SIGNAL)).transpose()?;
        Ok(Self { stop, other, _file_size: file_size })
    }

    /// Waits for a signal that ends the run.
    pub(crate) async fn any(&mut self) -> EndSignal {
        poll_fn(|context| {
            let stop = poll_signals(&mut self.stop, true, context);
            if stop.is_ready() { stop } else { poll_signals(&mut self.other, false, context) }
        })
        .await
    }

    /// Waits for a signal that requests the end of the process. Ignores other signals, because some supervisors and
    /// terminals send SIGHUP in addition to SIGTERM or SIGINT.
    pub(crate) async fn stop(&mut self) -> EndSignal {
        poll_fn(|context| poll_signals(&mut self.stop, true, context)).await
    }
}

fn poll_signals(
    signals: &mut [(Signal, &'static str)],
    is_stop: bool,
    context: &mut Context<'_>,
) -> Poll<EndSignal> {
    for (signal, name) in signals {
        if signal.poll_recv(context).is_ready() {
            return Poll::Ready(EndSignal { name, is_stop });
        }
    }
    Poll::Pending
}

/// Returns the set of ignored signals from the status of a process in `/proc`: bit 0 stands for signal 1.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "Name:\tordain\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored_signals(status), 0x1001);
        assert_eq!(ignored_signals("Name:\tordain\n"), 0);
    }
}
