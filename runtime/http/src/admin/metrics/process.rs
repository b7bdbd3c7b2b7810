//! The standard metrics of a process, under the names that the client libraries of Prometheus use. The values come from
//! `/proc`. If a file in `/proc` cannot be read, the response lacks the metrics that need this file.

use std::fmt::Result as Written;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

/// The number of ticks per second in `/proc` (`USER_HZ`). Linux has this value on all common architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// The indexes of fields of `/proc/self/stat`. The indexes count from the first field after the name of the program,
/// because this name may contain spaces.
const USER_TICKS_FIELD: usize = 11;
const SYSTEM_TICKS_FIELD: usize = 12;
const START_TICKS_FIELD: usize = 19;

#[derive(Debug)]
pub(super) struct ProcessMetrics {
    cpu_seconds: Option<f64>,
    start_time_seconds: Option<f64>,
    resident_memory_bytes: Option<u64>,
    open_fds: Option<u64>,
    max_fds: Option<u64>,
}

impl ProcessMetrics {
    pub(super) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let seconds = |field| Some(number::<f64>(fields, field)? / TICKS_PER_SECOND);
        let cpu_seconds = seconds(USER_TICKS_FIELD)
            .zip(seconds(SYSTEM_TICKS_FIELD))
            .map(|(user, system)| user + system);
        let boot_time = value("/proc/stat", "btime ").map(|seconds| seconds as f64);
        let start_time_seconds =
            boot_time.zip(seconds(START_TICKS_FIELD)).map(|(boot, start)| boot + start);
        Self {
            cpu_seconds,
            start_time_seconds,
            resident_memory_bytes: value("/proc/self/status", "VmRSS:").map(|kib| kib << 10),
            // Do not count the descriptor of this listing, which is closed when the listing ends.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|open| open.count() as u64 - 1),
            max_fds: value("/proc/self/limits", "Max open files"),
        }
    }
}

/// Searches a file for the first line that begins with `prefix`, and returns the number after `prefix`.
fn value(path: &str, prefix: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    number(text.lines().find_map(|line| line.strip_prefix(prefix))?, 0)
}

fn number<T: std::str::FromStr>(words: &str, index: usize) -> Option<T> {
    words.split_whitespace().nth(index)?.parse().ok()
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Written {
        if let Some(seconds) = self.cpu_seconds {
            let name = "process_cpu_seconds";
            let help = "CPU time of the process, in user mode and in the kernel";
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<Vec<(&str, &str)>, f64, u64>(&seconds, None)?;
        }
        if let Some(seconds) = self.start_time_seconds {
            let name = "process_start_time_seconds";
            let help = "Time of the start of the process, in seconds since 1970";
            encoder
                .encode_descriptor(name, help, None, MetricType::Gauge)?
                .encode_gauge(&seconds)?;
        }
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory of the process",
                self.resident_memory_bytes,
            ),
            ("process_open_fds", "Number of open file descriptors", self.open_fds),
            ("process_max_fds", "Maximum number of open file descriptors", self.max_fds),
        ] {
            let Some(value) = value else { continue };
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}
