//! The names, labels and help texts of all metrics.

use std::fmt::Result as Written;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ordain_core::{Cause, FailureKind, LaneState, RecoveryTimes, ReplayCounts, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::MetricsSnapshot;
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

/// The encoder of one response, and the metrics that the response contains.
struct MetricsEncoder<'e, 's> {
    encoder: DescriptorEncoder<'e>,
    snapshot: &'s MetricsSnapshot,
}

impl MetricsEncoder<'_, '_> {
    fn build(&mut self) -> Written {
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        let help = "Always 1; the label `version` contains the version of the program";
        self.samples("build_info", help, MetricType::Gauge, [(version, SampleValue::Gauge(1))])
    }

    fn log(&mut self) -> Written {
        let help = "Lines that this process did not write to standard error, because standard error accepted no data \
                    in time or returned an error";
        let dropped = [(Vec::new(), self.snapshot.dropped_lines)];
        self.counters("log_lines_dropped", help, dropped)
    }

    fn connections(&mut self) -> Written {
        let gauge = |value| (Vec::new(), SampleValue::Gauge(u64::from(value)));
        let help = "1 while the store accepts writes, 0 otherwise";
        let writable = [gauge(self.snapshot.is_store_writable)];
        self.samples("store_writable", help, MetricType::Gauge, writable)?;
        let help = "1 while the broker responds to this process, 0 otherwise";
        let connected = self.snapshot.is_broker_connected.map(gauge);
        self.samples("broker_connected", help, MetricType::Gauge, connected)?;
        let sinks = self.snapshot.accepted_sinks.iter().map(|(sink, is_accepted)| {
            (vec![("sink", sink.clone())], SampleValue::Gauge(u64::from(*is_accepted)))
        });
        let help = "For each sink of kind `amqp`: 0 while the broker refuses the exchange of the sink, for example \
                    because the exchange is missing; 1 otherwise";
        self.samples("sink_accepted", help, MetricType::Gauge, sinks)?;
        let help = "For each partition that this process owns: 1 while the partition's source can deliver events, even \
                    if it has none to deliver; 0 otherwise. Also 0 while a stopped key with `spill_limit` events in \
                    the store blocks the partition";
        self.gauges("stream_consuming", help, |shared, _| match shared.intake() {
            SourceState::Inactive => Vec::new(),
            state => vec![(Vec::new(), usize::from(state == SourceState::Consuming))],
        })
    }

    fn events(&mut self) -> Written {
        let help = "Events that ended durably: with effect, as a duplicate, as a dead letter, or without a call of the \
                    handler because of their type";
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
        self.counters("events", help, samples)?;
        let unverified = self.snapshot.streams.iter().map(|(stream, stats)| {
            (vec![("stream", stream.to_string())], stats.unverified_duplicates)
        });
        let help = "Store-numbered events that ended as duplicates although Ordain no longer knew the event that it \
                    had settled with the same sequence";
        self.counters("unverified_duplicates", help, unverified)?;
        let causes = self.snapshot.streams.iter().flat_map(|(stream, stats)| {
            Cause::ALL.map(|cause| {
                let labels = vec![("stream", stream.to_string()), ("cause", cause.name().into())];
                (labels, stats.dead_of(cause))
            })
        });
        self.counters("dead_letters", "Dead letters written", causes)?;
        let published = self.snapshot.published_messages.iter();
        let published = published.map(|(sink, count)| (vec![("sink", sink.clone())], *count));
        let help = "Messages, and forwarded dead letters, that this process has published";
        self.counters("published_messages", help, published)?;
        let unroutable = self.snapshot.unroutable_messages.iter();
        let unroutable = unroutable.map(|(sink, count)| (vec![("sink", sink.clone())], *count));
        let help = "For each sink of kind `amqp`: messages that the sink has dropped, because no queue accepted them";
        self.counters("unroutable_messages", help, unroutable)?;
        let requests = self.snapshot.requests.iter();
        let requests =
            requests.map(|(status, count)| (vec![("status", status.to_string())], *count));
        self.counters("ingress_requests", "Requests to the ingress, by response status", requests)?;
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
        let help = "Events over HTTP that this process accepted, but that the store lost before the stream read \
                    them, because the store went back in time";
        self.counters("events_lost", help, lost)?;
        let messages = self.snapshot.lost_messages.iter();
        let messages = messages.map(|(stream, count)| (vec![("stream", stream.clone())], *count));
        let help = "Messages that a sink file contained at the start although the store lacked them, because the store had \
                    gone back in time";
        self.counters("messages_lost", help, messages)?;
        let help = "How often this process has found a fault of the stream's topology in the broker while the stream \
                    ran. In the first kind of fault, an exchange, queue or binding of the stream was missing or \
                    replaced. In the second kind, another queue, exchange or program took events from the stream. In \
                    the third kind, the broker refused to declare or bind an exchange or queue, for example because of \
                    another form or a missing permission";
        self.counters("topology_changes", help, changes)?;
        let help = "Keys that a partition of this process took over from another partition";
        self.counters("keys_moved", help, moved)?;
        self.rollbacks()?;
        let kinds = self.snapshot.streams.iter().flat_map(|(stream, stats)| {
            FailureKind::ALL.map(|kind| {
                let name = kind.cause().name().into();
                let labels = vec![("stream", stream.to_string()), ("kind", name)];
                (labels, stats.failures_by_kind[kind as usize])
            })
        });
        self.counters("handler_failures", "Failed attempts to execute events", kinds)
    }

    fn rollbacks(&mut self) -> Written {
        let repeated = self
            .snapshot
            .streams
            .iter()
            .map(|(stream, stats)| (vec![("stream", stream.to_string())], stats.recommitted));
        let help = "Commits that the store lost, and that Ordain then repeated from memory";
        self.counters("commits_repeated", help, repeated)?;
        let rollbacks = self.snapshot.rollbacks.iter().map(|((stream, shard), count)| {
            let labels = vec![("stream", stream.to_string()), ("shard", shard.to_string())];
            (labels, *count)
        });
        let help = "How often this process has found that a shard went back in time and lost data of the stream";
        self.counters("rollbacks", help, rollbacks)
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
        let help = "Requests for missing events, by replay source";
        self.counters("gap_rounds", help, samples)?;
        let help = "Seconds from the detection of a gap (usually at the arrival of a later event) to the arrival of \
            the first missing event";
        let samples = self.snapshot.streams.iter().map(|(stream, stats)| {
            let labels = vec![("stream", stream.to_string())];
            (labels, SampleValue::of_recovery(&stats.recovery_times))
        });
        self.samples("recovery_seconds", help, MetricType::Histogram, samples)
    }

    fn handlers(&mut self) -> Written {
        let samples = self.snapshot.handlers.iter().map(|(handler, version, times)| {
            let labels = vec![("handler", handler.clone()), ("version", version.clone())];
            (labels, SampleValue::of(times))
        });
        let help = "Seconds that a handler took for an event: the average over the events of a turn (events of one \
                    key, executed back to back)";
        self.samples("handler_seconds", help, MetricType::Histogram, samples)?;
        let refused = self.snapshot.refused.iter().map(|(handler, files)| {
            (vec![("handler", handler.clone())], SampleValue::Gauge(*files as u64))
        });
        let help = "Unusable handler files, as listed by the command `plugins list`";
        self.samples("handler_files_refused", help, MetricType::Gauge, refused)?;
        let rollout_numbers = self.snapshot.rollouts.iter().map(|(stream, number)| {
            (vec![("stream", stream.clone())], SampleValue::Gauge(*number))
        });
        let help = "Number of the rollout (choice of a handler version) under which the stream's events are executed";
        self.samples("version_generation", help, MetricType::Gauge, rollout_numbers)
    }

    fn commits(&mut self) -> Written {
        let samples = self.snapshot.commit_seconds.iter().map(|(stream, seconds)| {
            (vec![("stream", stream.to_string())], SampleValue::of(seconds))
        });
        let help = "Seconds until the store answered a commit";
        self.samples("commit_seconds", help, MetricType::Histogram, samples)?;
        let times = &self.snapshot.times;
        for (name, help, histogram) in [
            ("commit_batch_events", "Number of events that a commit settled", &times.batch),
            (
                "publish_to_commit_seconds",
                "Seconds from the producer's timestamp of an event to the commit of the event",
                &times.publish_to_commit,
            ),
        ] {
            let samples = [(Vec::new(), SampleValue::of(histogram))];
            self.samples(name, help, MetricType::Histogram, samples)?;
        }
        Ok(())
    }

    fn keys(&mut self) -> Written {
        self.gauges("lanes", "Keys in memory", |_, stats| {
            let gauge =
                |state: LaneState| (vec![("state", state.name().into())], stats.lanes_in(state));
            LaneState::ALL.map(gauge).to_vec()
        })?;
        self.gauges("ready_keys", "Keys in memory with an event that can run", |_, stats| {
            vec![(Vec::new(), stats.lanes_in(LaneState::Ready))]
        })?;
        let help = "Keys in memory that are blocked: an event is missing, another partition has the key, an attempt \
                    failed, the key is parked or unreadable, or the handler version is missing";
        self.gauges("blocked_keys", help, |_, stats| {
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
        let help = "1 while the partition accepts no events because the store holds `spill_limit` events of a stopped \
                    key, 0 otherwise";
        self.gauges("full_keys", help, |shared, _| {
            vec![(Vec::new(), usize::from(shared.full_key().is_some()))]
        })?;
        let help =
            "Messages, and dead letters to be forwarded, that are committed but not yet published";
        self.gauges("outbox_pending", help, |_, stats| vec![(Vec::new(), stats.outbox)])?;
        let help = "Events that wait for delivery in the broker or in the store";
        self.gauges("partition_lag_events", help, |shared, _| {
            shared.lag.get().map(|events| (Vec::new(), events as usize)).into_iter().collect()
        })?;
        let help = "Messages in the queue `{queue}.dropped`: the broker has dropped them from the queues of the stream";
        self.gauges("dropped_messages", help, |shared, _| {
            shared.dropped.get().map(|dropped| (Vec::new(), dropped as usize)).into_iter().collect()
        })?;
        let help = "Events received over HTTP and not yet published to the broker";
        self.gauges("inbox_events", help, |shared, _| {
            let known = shared.inbox.iter().filter_map(|inbox| inbox.get());
            let events = known.reduce(|sum, more| sum + more);
            events.map(|events| (Vec::new(), events as usize)).into_iter().collect()
        })?;
        let MetricsSnapshot { streams, .. } = self.snapshot;
        let samples = streams.iter().map(|(stream, stats)| {
            let keys = self.snapshot.parked_keys(stream, stats);
            (vec![("stream", stream.to_string())], SampleValue::Gauge(keys))
        });
        let help = "Parked keys: the higher of the number at the last count in the store and the number in memory";
        self.samples("parked_keys", help, MetricType::Gauge, samples.collect::<Vec<_>>())?;
        let wanted = self.snapshot.wanted.iter();
        let samples = wanted.map(|(stream, wanted)| {
            (vec![("stream", stream.clone())], SampleValue::Gauge(*wanted))
        });
        let help = "Number of instances that the lag of a stream requires; while the lag is unknown, at least the number \
                    of running instances, up to the number of partitions. GET /v1/scale/STREAM returns the same number";
        self.samples("wanted_instances", help, MetricType::Gauge, samples.collect::<Vec<_>>())
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

    /// Writes one metric with the gauges of all partitions. `of` returns the gauges of a partition; this function adds
    /// the labels `stream` and `partition`.
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
