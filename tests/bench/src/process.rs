//! Measures the duration and the resource usage of a process.

use std::fs;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Interval between two checks whether a process still runs. Each check also reads the peak memory.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Number of ticks per second. `/proc` counts processor time in these ticks (`USER_HZ`); on x86 and ARM, Linux has 100
/// ticks per second.
const TICKS_PER_SECOND: f64 = 100.0;

/// The resource usage of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_mib: f64,
}

/// Runs a command to its end. Returns the resource usage of the process.
pub(crate) fn measure(command: &mut Command) -> Result<Usage> {
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let mut peak_mib = 0.0;
    let mut cpu_seconds = 0.0;
    // The processor time of an ended process can be read until its parent waits for the process.
    while let Some(state) = process_state(&child, &mut cpu_seconds)
        && state != 'Z'
    {
        peak_mib = peak(child.id()).unwrap_or(peak_mib);
        sleep(POLL_INTERVAL);
    }
    let seconds = started.elapsed().as_secs_f64();
    let status = child.wait()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(Usage { seconds, cpu_seconds, peak_mib })
}

/// Returns the state of the process (a letter of `/proc/PID/stat`), and stores the processor time of the process so far
/// in `cpu_seconds`.
fn process_state(child: &Child, cpu_seconds: &mut f64) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    *cpu_seconds = cpu_of(&stat)?;
    // The name of the process is in parentheses, and may itself contain parentheses.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns the processor time in a line of `/proc/PID/stat`, in seconds, including the time of ended children. The
/// fields 14 to 17 are utime, stime, cutime and cstime. The first field after the name is field 3.
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

/// Returns the memory of this process in MiB. Each page of memory counts once, even if the process maps the page several
/// times. A page that other processes share counts in part.
pub(crate) fn own_mib() -> Result<f64> {
    let smaps = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = smaps.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    Ok(kib.context("/proc/self/smaps_rollup has no line of the memory")? / 1024.0)
}

/// Returns the processor time of a process and its ended children so far, in seconds.
pub(crate) fn cpu_seconds(id: u32) -> Result<f64> {
    cpu_of(&fs::read_to_string(format!("/proc/{id}/stat"))?)
        .context("/proc/PID/stat has no processor times")
}

/// Returns the processor time of all processes of this machine so far, in seconds.
pub(crate) fn machine_cpu_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let ticks = line
        .context("/proc/stat has no line of all processors")?
        .split_whitespace()
        .map(str::parse::<f64>);
    let ticks: Vec<f64> = ticks.collect::<Result<_, _>>()?;
    // The busy times are `user`, `nice` and `system` (0 to 2), and the times of interrupts and of other virtual
    // machines (5 to 7). The fields 3 and 4 are idle times.
    let busy = ticks.iter().enumerate().filter(|(at, _)| matches!(at, 0..=2 | 5..=7));
    Ok(busy.map(|(_, ticks)| ticks).sum::<f64>() / TICKS_PER_SECOND)
}

/// Returns the processor time of this process and its ended children so far, in seconds.
pub(crate) fn own_cpu_seconds() -> Result<f64> {
    cpu_of(&fs::read_to_string("/proc/self/stat")?)
        .context("/proc/self/stat has no processor times")
}
