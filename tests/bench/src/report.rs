//! The output of a benchmark: a table for people, or one JSON object.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Result;
use serde::Serialize;

/// The result of one benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    name: &'static str,
    machine: String,
    rows: Vec<Row>,
    ratios: BTreeMap<String, f64>,
    /// Facts that a reader needs to interpret the figures.
    #[serde(skip)]
    notes: Vec<String>,
}

/// The medians of one side. A figure that does not apply to the side is `None`. For the figures that every benchmark
/// has, the JSON output contains `None` as `null`. The output leaves out any other figure that is `None`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) side: String,
    /// The number of events per second; 0 if the benchmark counts no events.
    pub(crate) events_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns_per_event: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instructions_per_event: Option<f64>,
    pub(crate) cpu_s_per_million: Option<f64>,
    /// The processor time of the consumer or host alone, if several processes do the work. The fields `rabbitmq_…` and
    /// `redis_…` contain the times of RabbitMQ and Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consumer_cpu_s_per_million: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rabbitmq_cpu_s_per_million: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redis_cpu_s_per_million: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p999_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) longest_ms: Option<f64>,
    /// The measured mean duration of a gap. `expected_ms` is the expected mean duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expected_ms: Option<f64>,
    /// Number of held events that were executed per second after their gap had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drained_per_s: Option<f64>,
    pub(crate) peak_mib: Option<f64>,
    /// The time from the start of a command to its first result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start_ms: Option<f64>,
    /// The time until the host can call a handler that it has not compiled before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compile_ms: Option<f64>,
    /// The time until the host can call a handler whose compiled code is in the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) load_ms: Option<f64>,
    /// The size of the handler's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file_kb: Option<f64>,
    /// The time of the first call of a new WebAssembly instance, including the creation of the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_call_us: Option<f64>,
    /// The memory of one WebAssembly instance that the machine provides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance_mib: Option<f64>,
    /// The least `plugins.memory` with which all events take effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_mib: Option<f64>,
}

/// A function that returns one figure of a side.
pub(crate) type Figure = fn(&Row) -> Option<f64>;

type Column = (&'static str, Figure);

const COLUMNS: [Column; 22] = [
    ("events/s", |row| Some(row.events_per_s).filter(|rate| *rate > 0.0)),
    ("ns/event", |row| row.ns_per_event),
    ("instr/event", |row| row.instructions_per_event),
    ("CPU s/million", |row| row.cpu_s_per_million),
    ("consumer", |row| row.consumer_cpu_s_per_million),
    ("RabbitMQ", |row| row.rabbitmq_cpu_s_per_million),
    ("Redis", |row| row.redis_cpu_s_per_million),
    ("p50 ms", |row| row.p50_ms),
    ("p99 ms", |row| row.p99_ms),
    ("p99.9 ms", |row| row.p999_ms),
    ("longest ms", |row| row.longest_ms),
    ("mean ms", |row| row.mean_ms),
    ("expected ms", |row| row.expected_ms),
    ("drained/s", |row| row.drained_per_s),
    ("peak MiB", |row| row.peak_mib),
    ("start ms", |row| row.start_ms),
    ("compile ms", |row| row.compile_ms),
    ("load ms", |row| row.load_ms),
    ("file KB", |row| row.file_kb),
    ("first call us", |row| row.first_call_us),
    ("instance MiB", |row| row.instance_mib),
    ("limit MiB", |row| row.limit_mib),
];

impl Row {
    /// Returns a row with the median of each figure over several runs.
    pub(crate) fn median(runs: &[Self]) -> Self {
        let of = |figure: Figure| median(runs.iter().filter_map(figure).collect());
        Self {
            side: runs.first().map(|row| row.side.clone()).unwrap_or_default(),
            events_per_s: of(|row| Some(row.events_per_s)).unwrap_or_default(),
            ns_per_event: of(|row| row.ns_per_event),
            instructions_per_event: of(|row| row.instructions_per_event),
            cpu_s_per_million: of(|row| row.cpu_s_per_million),
            consumer_cpu_s_per_million: of(|row| row.consumer_cpu_s_per_million),
            rabbitmq_cpu_s_per_million: of(|row| row.rabbitmq_cpu_s_per_million),
            redis_cpu_s_per_million: of(|row| row.redis_cpu_s_per_million),
            p50_ms: of(|row| row.p50_ms),
            p99_ms: of(|row| row.p99_ms),
            p999_ms: of(|row| row.p999_ms),
            longest_ms: of(|row| row.longest_ms),
            mean_ms: of(|row| row.mean_ms),
            expected_ms: of(|row| row.expected_ms),
            drained_per_s: of(|row| row.drained_per_s),
            peak_mib: of(|row| row.peak_mib),
            start_ms: of(|row| row.start_ms),
            compile_ms: of(|row| row.compile_ms),
            load_ms: of(|row| row.load_ms),
            file_kb: of(|row| row.file_kb),
            first_call_us: of(|row| row.first_call_us),
            instance_mib: of(|row| row.instance_mib),
            limit_mib: of(|row| row.limit_mib),
        }
    }
}

impl Report {
    pub(crate) fn new(name: &'static str, rows: Vec<Row>) -> Self {
        Self { name, machine: machine(), rows, ratios: BTreeMap::new(), notes: Vec::new() }
    }

    /// Adds the ratio of two sides' events per second.
    pub(crate) fn ratio(self, over: &str, under: &str) -> Self {
        let rate: Figure = |row| Some(row.events_per_s);
        self.ratio_of(format!("{over}/{under}"), (over, rate), (under, rate))
    }

    /// Adds the ratio of two figures, if both exist.
    pub(crate) fn ratio_of(
        mut self,
        name: impl Into<String>,
        (over, over_figure): (&str, Figure),
        (under, under_figure): (&str, Figure),
    ) -> Self {
        let of = |side: &str, figure: Figure| {
            self.rows.iter().find(|row| row.side == side).and_then(figure)
        };
        if let (Some(over), Some(under)) = (of(over, over_figure), of(under, under_figure)) {
            self.ratios.insert(name.into(), (over / under * 1000.0).round() / 1000.0);
        }
        self
    }

    pub(crate) fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    pub(crate) fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        println!("{}: {}", self.name, self.machine);
        let columns: Vec<&Column> = COLUMNS
            .iter()
            .filter(|(_, figure)| self.rows.iter().any(|row| figure(row).is_some()))
            .collect();
        print!("{:<24}", "");
        for (name, _) in &columns {
            print!("{name:>15}");
        }
        println!();
        for row in &self.rows {
            print!("{:<24}", row.side);
            for (_, figure) in &columns {
                print!("{:>15}", figure(row).map_or_else(|| "-".to_owned(), format_figure));
            }
            println!();
        }
        for (name, ratio) in &self.ratios {
            println!("{name:<40} {ratio:.2}");
        }
        for note in &self.notes {
            println!("{note}");
        }
        Ok(())
    }
}

/// Returns the median of the values; `None` if there are no values. The median of an even number of values is the mean
/// of the two middle values.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

fn format_figure(figure: f64) -> String {
    if figure >= 100.0 { format!("{figure:.0}") } else { format!("{figure:.2}") }
}

fn machine() -> String {
    let model = fs::read_to_string("/proc/cpuinfo").ok().and_then(|info| {
        let line = info.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split(':').nth(1)?.trim().to_owned())
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {cores} cores", model.unwrap_or_else(|| "unknown processor".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_number_of_values_is_the_mean_of_the_middle_values() {
        for (values, expected) in [
            (&[3.0][..], Some(3.0)),
            (&[], None),
            (&[9.0, 1.0], Some(5.0)),
            (&[9.0, 1.0, 2.0], Some(2.0)),
            (&[2.0, 9.0, 4.0, 1.0], Some(3.0)),
        ] {
            assert_eq!(median(values.to_vec()), expected, "{values:?}");
        }
    }

    #[test]
    fn median_of_runs_omits_missing_figures() {
        let run = |events_per_s, p50_ms| Row { events_per_s, p50_ms, ..Row::default() };
        let row = Row::median(&[run(10.0, None), run(30.0, Some(2.0))]);
        assert_eq!((row.events_per_s, row.p50_ms, row.p99_ms), (20.0, Some(2.0), None));
    }
}
