//! A process, its resource usage, and its duration.

use std::fs;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Interval between two checks of a process, and of its peak memory.
const LOOK: Duration = Duration::from_millis(5);
/// Ticks per second in which `/proc` counts processor time on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The resource usage of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_mib: f64,
}

/// Runs a command to its end. Returns its usage.
pub(crate) fn measure(command: &mut Command) -> Result<Usage> {
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let mut peak_mib = 0.0;
    let mut cpu_seconds = 0.0;
    // A process that has ended keeps its processor time until its parent waits for it.
    while let Some(state) = look(&child, &mut cpu_seconds)
        && state != 'Z'
    {
        peak_mib = peak(child.id()).unwrap_or(peak_mib);
        sleep(LOOK);
    }
    let seconds = started.elapsed().as_secs_f64();
    let status = child.wait()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(Usage { seconds, cpu_seconds, peak_mib })
}

/// Returns the process's state, and stores its processor time so far in `cpu_seconds`.
fn look(child: &Child, cpu_seconds: &mut f64) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    *cpu_seconds = cpu_of(&stat)?;
    // The process's name, in parentheses, may contain any character, also parentheses.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns the processor time in a line of `/proc/PID/stat`, including that of ended children: utime, stime, cutime and
/// cstime are the fields 14 to 17, and the field after the name is the third.
fn cpu_of(stat: &str) -> Option<f64> {
    let fields = stat.rsplit_once(") ")?.1.split(' ');
    let ticks: Vec<f64> = fields.skip(11).take(4).filter_map(|field| field.parse().ok()).collect();
    (ticks.len() == 4).then(|| ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// Returns the peak memory of a process, in MiB; `None` for an ended process.
pub(crate) fn peak(id: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

/// Returns the processor time of a process so far.
pub(crate) fn cpu_seconds(id: u32) -> Result<f64> {
    cpu_of(&fs::read_to_string(format!("/proc/{id}/stat"))?).context("a line with processor times")
}

/// Returns the processor time of all processes of this machine so far.
pub(crate) fn machine_cpu_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let ticks = line.context("a line of all processors")?.split_whitespace().map(str::parse::<f64>);
    let ticks: Vec<f64> = ticks.collect::<Result<_, _>>()?;
    // The fields user, nice and system precede the idle times; the fields for interrupts and other machines follow
    // them.
    let busy = ticks.iter().enumerate().filter(|(at, _)| matches!(at, 0..=2 | 5..=7));
    Ok(busy.map(|(_, ticks)| ticks).sum::<f64>() / TICKS_PER_SECOND)
}

/// Returns the processor time of this process so far.
pub(crate) fn own_cpu_seconds() -> Result<f64> {
    cpu_of(&fs::read_to_string("/proc/self/stat")?).context("a line with the processor times")
}
