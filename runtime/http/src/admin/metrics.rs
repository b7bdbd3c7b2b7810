//! `GET /metrics`: the counts of the partitions, the handlers and the background tasks. Each request reads the current
//! counts, and the newest results of the background tasks. The value of a label is a name (of a stream, handler or
//! replay source), a version of a handler, a number (of a partition or shard), the status of a response, or a word of a
//! fixed set. A label must never contain the key of an event.

mod help;
mod process;
mod write;

use std::collections::BTreeMap;
use std::fmt::{Error, Result as Written};
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use ordain_core::{LaneState, ReplayCounts, Stats};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use super::AdminState;
use crate::problem::ProblemDetails;
use ordain_config::{SinkConfig, StreamConfig};
use ordain_engine::driver::{CommitHistograms, PartitionMetrics};
use ordain_util::histogram::Histogram;
use ordain_util::standard_error::dropped_lines;
use process::ProcessMetrics;

/// The media type of `OpenMetrics`. Callers that do not accept this type get the text format of Prometheus.
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text";

struct MetricsSnapshot {
    partitions: Vec<(String, Arc<PartitionMetrics>, Stats)>,
    streams: BTreeMap<Arc<str>, Stats>,
    /// The number of times that this process has found that a shard had lost data of a stream, by stream and shard.
    rollbacks: BTreeMap<(Arc<str>, u32), u64>,
    /// The counts of requests for missing events, by stream and the name of the replay source.
    replays: BTreeMap<(Arc<str>, String), ReplayCounts>,
    /// The durations of commits, in seconds, by stream.
    commit_seconds: BTreeMap<Arc<str>, Histogram>,
    times: CommitHistograms,
    handlers: Vec<(String, String, Histogram)>,
    refused: BTreeMap<String, usize>,
    rollouts: Vec<(String, u64)>,
    parked: BTreeMap<Arc<str>, u64>,
    wanted: BTreeMap<String, u64>,
    /// The number of requests of producers over HTTP, by the status of the response.
    requests: BTreeMap<u16, u64>,
    /// For each stream, the number of lost messages: at the start of the process, sink files contained these messages
    /// of the stream, but the store lacked them.
    lost_messages: BTreeMap<String, u64>,
    /// The number of published messages, by sink.
    published_messages: BTreeMap<String, u64>,
    /// The number of log lines that the process dropped instead of writing them to standard error.
    dropped_lines: u64,
    is_store_writable: bool,
    /// True if the broker responds. `None` without a broker, and before the first check of the broker.
    is_broker_connected: Option<bool>,
    /// For each sink of kind `amqp`, true unless the broker refuses the exchange of the sink.
    accepted_sinks: BTreeMap<String, bool>,
    /// The number of messages that each sink of kind `amqp` has dropped because no queue accepted them.
    unroutable_messages: BTreeMap<String, u64>,
}

pub(super) async fn metrics(
    State(app): State<Arc<AdminState>>,
    headers: HeaderMap,
) -> Result<Response, ProblemDetails> {
    let accepted = headers.get(ACCEPT).and_then(|accepted| accepted.to_str().ok());
    let open = accepted.is_some_and(|accepted| accepted.contains(OPEN_METRICS_TYPE));
    let snapshot = MetricsSnapshot::of(&app);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessMetrics::read()));
    registry.sub_registry_with_prefix("ordain").register_collector(Box::new(snapshot));
    let mut body = String::new();
    text::encode(&mut body, &registry).map_err(|Error| ProblemDetails::no_metrics())?;
    let form = if open {
        format!("{OPEN_METRICS_TYPE}; version=1.0.0; charset=utf-8")
    } else {
        body = to_prometheus_format(&body);
        "text/plain; version=0.0.4; charset=utf-8".to_owned()
    };
    Ok(([(CONTENT_TYPE, form)], body).into_response())
}

/// Converts `OpenMetrics` to the format of Prometheus. In the format of Prometheus, a counter has the same name in
/// comments and in samples, and the text does not end with `# EOF`.
fn to_prometheus_format(open: &str) -> String {
    let mut text = String::with_capacity(open.len() + 256);
    let mut lines = open.lines().peekable();
    while let Some(line) = lines.next() {
        let is_counter = |line: &str| line.starts_with("# TYPE ") && line.ends_with(" counter");
        let head = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        match head.and_then(|head| head.split_once(' ')) {
            _ if line == "# EOF" => continue,
            Some((name, rest))
                if is_counter(line) || lines.peek().is_some_and(|next| is_counter(next)) =>
            {
                text += &format!("{}{name}_total {rest}", &line[..7]);
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

impl MetricsSnapshot {
    fn of(app: &AdminState) -> Self {
        let handlers = app.figures.handlers();
        let mut snapshot = Self {
            partitions: Vec::new(),
            streams: BTreeMap::new(),
            rollbacks: BTreeMap::new(),
            replays: BTreeMap::new(),
            commit_seconds: BTreeMap::new(),
            times: CommitHistograms::default(),
            handlers: handlers.as_ref().map(|handlers| handlers.times()).unwrap_or_default(),
            refused: handlers
                .as_ref()
                .map(|handlers| handlers.unusable_file_counts())
                .unwrap_or_default(),
            rollouts: handlers
                .as_ref()
                .map(|handlers| handlers.rollout_numbers())
                .unwrap_or_default(),
            parked: app.parked_counts.get(),
            wanted: app.wanted.get(),
            requests: app.figures.requests(),
            lost_messages: app.figures.lost_messages(),
            published_messages: app.figures.published_messages(),
            dropped_lines: dropped_lines(),
            is_store_writable: app.health.is_writable()
                && app.figures.store().is_some_and(|store| store.lasting_failure().is_none()),
            is_broker_connected: app.figures.is_broker_connected(),
            accepted_sinks: app
                .figures
                .sinks()
                .into_iter()
                .map(|(sink, health)| (sink, health.is_accepted()))
                .collect(),
            unroutable_messages: app
                .figures
                .sinks()
                .into_iter()
                .filter(|(sink, _)| {
                    let config = app.loaded.config.sinks.get(sink.as_str());
                    matches!(config, Some(SinkConfig::Amqp(_)))
                })
                .map(|(sink, health)| (sink, health.dropped()))
                .collect(),
        };
        for shared in app.figures.partitions() {
            let stats = shared.stats();
            let stream = Arc::clone(&shared.partition().stream);
            let of_stream = snapshot.streams.entry(Arc::clone(&stream)).or_default();
            *of_stream = of_stream.plus(&stats);
            for (shard, count) in shared.losses.rollbacks() {
                *snapshot.rollbacks.entry((Arc::clone(&stream), shard)).or_default() += count;
            }
            let times = shared.commit_histograms();
            snapshot.times.merge(&times);
            snapshot
                .commit_seconds
                .entry(Arc::clone(&stream))
                .and_modify(|seconds| seconds.merge(&times.commit))
                .or_insert(times.commit);
            let config = app.loaded.config.streams.get(&*stream);
            let names = config.into_iter().flat_map(StreamConfig::replay_names);
            for (name, replays) in names.zip(&stats.replays) {
                let source = (Arc::clone(&stream), name);
                snapshot.replays.entry(source).or_default().add(replays);
            }
            snapshot.partitions.push((shared.partition().number.to_string(), shared, stats));
        }
        snapshot
    }

    /// Returns the number of parked keys (keys that stopped at a failed or missing event). This is the higher of two
    /// counts: the newest count in the store, and the present count in the memory of this process.
    fn parked_keys(&self, stream: &Arc<str>, stats: &Stats) -> u64 {
        let counted = self.parked.get(stream).copied().unwrap_or_default();
        counted.max(stats.lanes_in(LaneState::Parked) as u64)
    }
}

impl std::fmt::Debug for MetricsSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> Written {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}
