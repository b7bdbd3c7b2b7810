//! The names and labels of all metrics.

use std::fmt::Result as Written;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ordain_core::{Cause, FailureKind, LaneState, RecoveryTimes, ReplayCounts, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{MetricsSnapshot, help};
use ordain_engine::driver::PartitionMetrics;
use ordain_util::histogram::Histogram;
use ordain_util::source_health::SourceState;

/// The labels of one sample: names and values.
type SampleLabels = Vec<(&'static str, String)>;

impl Collector for MetricsSnapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Written {
        let mut all = MetricsEncoder { encoder, snapshot: self };
        all.build()?;
        all.log()?;
        all.connections()?;
        all.events()?;
        all.gaps()?;
        all.handlers()?;
        all.commits()?;
        all.keys()
    }
}

struct MetricsEncoder<'e, 's> {
    encoder: DescriptorEncoder<'e>,
    snapshot: &'s MetricsSnapshot,
}

impl MetricsEncoder<'_, '_> {
    fn build(&mut self) -> Written {
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        self.samples(
            "build_info",
            help::BUILD_INFO,
            MetricType::Gauge,
            [(version, SampleValue::Gauge(1))],
        )
    }

    fn log(&mut self) -> Written {
        let dropped = [(Vec::new(), self.snapshot.dropped_lines)];
        self.counters("log_lines_dropped", help::LOG_LINES_DROPPED, dropped)
    }

    fn connections(&mut self) -> Written {
        let gauge = |value| (Vec::new(), SampleValue::Gauge(u64::from(value)));
        let writable = [gauge(self.snapshot.is_store_writable)];
        self.samples("store_writable", help::STORE_WRITABLE, MetricType::Gauge, writable)?;
        let connected = self.snapshot.is_broker_connected.map(gauge);
        self.samples("broker_connected", help::BROKER_CONNECTED, MetricType::Gauge, connected)?;
        let sinks = self.snapshot.accepted_sinks.iter().map(|(sink, is_accepted)| {
            (vec![("sink", sink.clone())], SampleValue::Gauge(u64::from(*is_accepted)))
        });
        self.samples("sink_accepted", help::SINK_ACCEPTED, MetricType::Gauge, sinks)?;
        self.gauges("stream_consuming", help::STREAM_CONSUMING, |shared, _| match shared.intake() {
            SourceState::Inactive => Vec::new(),
            state => vec![(Vec::new(), usize::from(state == SourceState::Consuming))],
        })
    }

    fn events(&mut self) -> Written {
        let of_stream = |(stream, stats): (&'_ Arc<str>, &Stats)| {
            [
                ("effect", stats.settled),
                ("duplicate", stats.duplicates),
                ("dead", stats.dead_total()),
                ("other-type", stats.other_types),
            ]
            .map(|(outcome, count)| {
                (vec![("stream", stream.to_string()), ("outcome", outcome.into())], count)
            })
        };
        let samples = self.snapshot.streams.iter().flat_map(of_stream);
        self.counters("events", help::EVENTS, samples)?;
        let unverified = self.snapshot.streams.iter().map(|(stream, stats)| {
            (vec![("stream", stream.to_string())], stats.unverified_duplicates)
        });
        self.counters("unverified_duplicates", help::UNVERIFIED_DUPLICATES, unverified)?;
        let causes = self.snapshot.streams.iter().flat_map(|(stream, stats)| {
            Cause::ALL.map(|cause| {
                let labels = vec![("stream", stream.to_string()), ("cause", cause.name().into())];
                (labels, stats.dead_of(cause))
            })
        });
        self.counters("dead_letters", help::DEAD_LETTERS, causes)?;
        let published = self.snapshot.published_messages.iter();
        let published = published.map(|(sink, count)| (vec![("sink", sink.clone())], *count));
        self.counters("published_messages", help::PUBLISHED_MESSAGES, published)?;
        let unroutable = self.snapshot.unroutable_messages.iter();
        let unroutable = unroutable.map(|(sink, count)| (vec![("sink", sink.clone())], *count));
        self.counters("unroutable_messages", help::UNROUTABLE_MESSAGES, unroutable)?;
        let requests = self.snapshot.requests.iter();
        let requests =
            requests.map(|(status, count)| (vec![("status", status.to_string())], *count));
        self.counters("ingress_requests", help::INGRESS_REQUESTS, requests)?;
        let of_partitions = |count: fn(&PartitionMetrics) -> u64| -> Vec<_> {
            let rows = self.snapshot.partitions.iter().map(|(number, shared, _)| {
                let labels = vec![
                    ("stream", shared.partition().stream.to_string()),
                    ("partition", number.clone()),
                ];
                (labels, count(shared))
            });
            rows.collect()
        };
        let lost = of_partitions(|shared| shared.losses.lost_events());
        let changes = of_partitions(|shared| shared.topology_changes.load(Ordering::Relaxed));
        let moved = of_partitions(|shared| shared.moved_keys.load(Ordering::Relaxed));
        self.counters("events_lost", help::EVENTS_LOST, lost)?;
        let messages = self.snapshot.lost_messages.iter();
        let messages = messages.map(|(stream, count)| (vec![("stream", stream.clone())], *count));
        self.counters("messages_lost", help::MESSAGES_LOST, messages)?;
        self.counters("topology_changes", help::TOPOLOGY_CHANGES, changes)?;
        self.counters("keys_moved", help::KEYS_MOVED, moved)?;
        self.rollbacks()?;
        let kinds = self.snapshot.streams.iter().flat_map(|(stream, stats)| {
            FailureKind::ALL.map(|kind| {
                let name = kind.cause().name().into();
                let labels = vec![("stream", stream.to_string()), ("kind", name)];
                (labels, stats.failures_by_kind[kind as usize])
            })
        });
        self.counters("handler_failures", help::HANDLER_FAILURES, kinds)
    }

    fn rollbacks(&mut self) -> Written {
        let repeated = self
            .snapshot
            .streams
            .iter()
            .map(|(stream, stats)| (vec![("stream", stream.to_string())], stats.recommitted));
        self.counters("commits_repeated", help::COMMITS_REPEATED, repeated)?;
        let rollbacks = self.snapshot.rollbacks.iter().map(|((stream, shard), count)| {
            let labels = vec![("stream", stream.to_string()), ("shard", shard.to_string())];
            (labels, *count)
        });
        self.counters("rollbacks", help::ROLLBACKS, rollbacks)
    }

    fn gaps(&mut self) -> Written {
        let samples = self.snapshot.replays.iter().flat_map(|((stream, source), replays)| {
            let ReplayCounts { found, missing, failed } = *replays;
            [("found", found), ("missing", missing), ("failed", failed)].map(|(result, count)| {
                let labels = vec![
                    ("stream", stream.to_string()),
                    ("source", source.clone()),
                    ("result", result.into()),
                ];
                (labels, count)
            })
        });
        self.counters("gap_rounds", help::GAP_ROUNDS, samples)?;
        let samples = self.snapshot.streams.iter().map(|(stream, stats)| {
            let labels = vec![("stream", stream.to_string())];
            (labels, SampleValue::of_recovery(&stats.recovery_times))
        });
        self.samples("recovery_seconds", help::RECOVERY_SECONDS, MetricType::Histogram, samples)
    }

    fn handlers(&mut self) -> Written {
        let samples = self.snapshot.handlers.iter().map(|(handler, version, times)| {
            let labels = vec![("handler", handler.clone()), ("version", version.clone())];
            (labels, SampleValue::of(times))
        });
        self.samples("handler_seconds", help::HANDLER_SECONDS, MetricType::Histogram, samples)?;
        let refused = self.snapshot.refused.iter().map(|(handler, files)| {
            (vec![("handler", handler.clone())], SampleValue::Gauge(*files as u64))
        });
        self.samples(
            "handler_files_refused",
            help::HANDLER_FILES_REFUSED,
            MetricType::Gauge,
            refused,
        )?;
        let rollout_numbers = self.snapshot.rollouts.iter().map(|(stream, number)| {
            (vec![("stream", stream.clone())], SampleValue::Gauge(*number))
        });
        self.samples(
            "version_generation",
            help::VERSION_GENERATION,
            MetricType::Gauge,
            rollout_numbers,
        )
    }

    fn commits(&mut self) -> Written {
        let samples = self.snapshot.commit_seconds.iter().map(|(stream, seconds)| {
            (vec![("stream", stream.to_string())], SampleValue::of(seconds))
        });
        self.samples("commit_seconds", help::COMMIT_SECONDS, MetricType::Histogram, samples)?;
        let times = &self.snapshot.times;
        for (name, help, histogram) in [
            ("commit_batch_events", help::COMMIT_BATCH_EVENTS, &times.batch),
            (
                "publish_to_commit_seconds",
                help::PUBLISH_TO_COMMIT_SECONDS,
                &times.publish_to_commit,
            ),
        ] {
            let samples = [(Vec::new(), SampleValue::of(histogram))];
            self.samples(name, help, MetricType::Histogram, samples)?;
        }
        Ok(())
    }

    fn keys(&mut self) -> Written {
        self.gauges("lanes", help::LANES, |_, stats| {
            let gauge =
                |state: LaneState| (vec![("state", state.name().into())], stats.lanes_in(state));
            LaneState::ALL.map(gauge).to_vec()
        })?;
        self.gauges("ready_keys", help::READY_KEYS, |_, stats| {
            vec![(Vec::new(), stats.lanes_in(LaneState::Ready))]
        })?;
        self.gauges("blocked_keys", help::BLOCKED_KEYS, |_, stats| {
            [
                ("gap", LaneState::Waiting),
                ("retry", LaneState::Retrying),
                ("parked", LaneState::Parked),
                ("corrupt", LaneState::Broken),
                ("version", LaneState::Version),
            ]
            .map(|(cause, state)| (vec![("cause", cause.into())], stats.lanes_in(state)))
            .to_vec()
        })?;
        self.gauges("full_keys", help::FULL_KEYS, |shared, _| {
            vec![(Vec::new(), usize::from(shared.full_key().is_some()))]
        })?;
        self.gauges("outbox_pending", help::OUTBOX_PENDING, |_, stats| {
            vec![(Vec::new(), stats.outbox)]
        })?;
        self.gauges("partition_lag_events", help::PARTITION_LAG_EVENTS, |shared, _| {
            shared.lag.get().map(|events| (Vec::new(), events as usize)).into_iter().collect()
        })?;
        self.gauges("dropped_messages", help::DROPPED_MESSAGES, |shared, _| {
            shared.dropped.get().map(|dropped| (Vec::new(), dropped as usize)).into_iter().collect()
        })?;
        self.gauges("inbox_events", help::INBOX_EVENTS, |shared, _| {
            let known = shared.inbox.iter().filter_map(|inbox| inbox.get());
            let events = known.reduce(|sum, more| sum + more);
            events.map(|events| (Vec::new(), events as usize)).into_iter().collect()
        })?;
        let MetricsSnapshot { streams, .. } = self.snapshot;
        let samples = streams.iter().map(|(stream, stats)| {
            let keys = self.snapshot.parked_keys(stream, stats);
            (vec![("stream", stream.to_string())], SampleValue::Gauge(keys))
        });
        self.samples(
            "parked_keys",
            help::PARKED_KEYS,
            MetricType::Gauge,
            samples.collect::<Vec<_>>(),
        )?;
        let wanted = self.snapshot.wanted.iter();
        let samples = wanted.map(|(stream, wanted)| {
            (vec![("stream", stream.clone())], SampleValue::Gauge(*wanted))
        });
        self.samples(
            "wanted_instances",
            help::WANTED_INSTANCES,
            MetricType::Gauge,
            samples.collect::<Vec<_>>(),
        )
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (SampleLabels, u64)>,
    ) -> Written {
        let samples =
            samples.into_iter().map(|(labels, count)| (labels, SampleValue::Count(count)));
        self.samples(name, help, MetricType::Counter, samples)
    }

    /// Writes a gauge of the partitions. `of` returns the samples of a partition; this function adds the labels
    /// `stream` and `partition`.
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        of: impl Fn(&PartitionMetrics, &Stats) -> Vec<(SampleLabels, usize)>,
    ) -> Written {
        let samples = self.snapshot.partitions.iter().flat_map(|(number, shared, stats)| {
            of(shared, stats).into_iter().map(move |(mut labels, value)| {
                labels.push(("stream", shared.partition().stream.to_string()));
                labels.push(("partition", number.clone()));
                (labels, SampleValue::Gauge(value as u64))
            })
        });
        self.samples(name, help, MetricType::Gauge, samples)
    }

    fn samples(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (SampleLabels, SampleValue)>,
    ) -> Written {
        let mut metric = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in samples {
            value.encode(&mut metric, &labels)?;
        }
        Ok(())
    }
}

/// The value of a sample. Each bucket of a histogram has its upper bound and the number of values in this bucket alone.
enum SampleValue {
    Count(u64),
    Gauge(u64),
    Histogram { sum: f64, buckets: Vec<(f64, u64)> },
}

impl SampleValue {
    fn of(histogram: &Histogram) -> Self {
        Self::Histogram { sum: histogram.sum(), buckets: histogram.buckets() }
    }

    fn of_recovery(recovery: &RecoveryTimes) -> Self {
        let bounds =
            RecoveryTimes::BOUNDS_MS.iter().map(|ms| *ms as f64 / 1e3).chain([f64::INFINITY]);
        let buckets = bounds.zip(recovery.counts).collect();
        Self::Histogram { sum: recovery.sum_ms as f64 / 1e3, buckets }
    }

    fn encode(self, metric: &mut MetricEncoder<'_>, labels: &SampleLabels) -> Written {
        match self {
            // Without labels, `encode_family` would write empty braces.
            Self::Count(count) if labels.is_empty() => {
                metric.encode_counter::<SampleLabels, _, u64>(&count, None)
            }
            Self::Gauge(value) if labels.is_empty() => metric.encode_gauge(&value),
            Self::Count(count) => ConstCounter::new(count).encode(metric.encode_family(labels)?),
            Self::Gauge(value) => ConstGauge::new(value).encode(metric.encode_family(labels)?),
            Self::Histogram { sum, buckets } => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                if labels.is_empty() {
                    return metric.encode_histogram::<SampleLabels>(sum, count, &buckets, None);
                }
                let mut sample = metric.encode_family(labels)?;
                sample.encode_histogram::<SampleLabels>(sum, count, &buckets, None)
            }
        }
    }
}
