//! Finds conflicts between several settings. The check of a single setting belongs in the type of the setting, not in
//! this module.

mod location;
mod shared;

use std::collections::HashMap;
use std::net::SocketAddr;

use ordain_core::{OrderingMode, TypePattern};

use super::problem::{ConfigProblem, SettingLines};
use super::text::{FileOrStdio, ResourceName, Secret};
use super::units::Millis;
use super::{
    AmqpSinkConfig, AmqpSourceConfig, Config, FirstSequence, SinkConfig, SourceConfig, StoreConfig,
    StreamConfig, StreamSinkConfig, UnroutablePolicy,
};
use ordain_store::PARTITIONS_LIMIT;
use ordain_store::REDIS_BATCH_LIMIT;

/// Returns the conflicts between settings. Each of these settings is valid by itself.
pub(super) fn check(config: &Config, lines: &SettingLines) -> Vec<ConfigProblem> {
    let mut checks = ConfigChecker { config, lines, problems: Vec::new() };
    checks.process();
    checks.listeners();
    checks.broker();
    for (name, stream) in &config.streams {
        checks.stream(name, stream);
    }
    for (name, sink) in &config.sinks {
        checks.sink(name, sink);
    }
    checks.shared_queues();
    checks.files();
    checks.dev();
    checks.problems
}

struct ConfigChecker<'a> {
    config: &'a Config,
    lines: &'a SettingLines,
    problems: Vec<ConfigProblem>,
}

impl ConfigChecker<'_> {
    fn report(&mut self, setting: &str, message: impl Into<String>) {
        let line = self.lines.line_of(setting);
        self.problems.push(ConfigProblem {
            line,
            setting: setting.to_owned(),
            message: message.into(),
            is_temporary: false,
        });
    }

    fn dev(&mut self) {
        if self.config.dev.is_some()
            && !self.config.streams.is_empty()
            && let Err(message) = self.config.dev_stream()
        {
            self.report("dev.stream", message);
        }
    }

    fn process(&mut self) {
        let Config { runtime, plugins, streams, .. } = self.config;
        // An invalid stream is missing from `streams`. The reader has already reported the error of the stream.
        if streams.is_empty() && !self.lines.has_inside("streams") {
            let example = "[streams.orders] with `handler` and `source`";
            self.report("streams", format!("at least one stream is needed, such as {example}"));
        }
        if self.config.partitions() as u64 > PARTITIONS_LIMIT {
            let message =
                format!("all streams together must have at most {PARTITIONS_LIMIT} partitions");
            self.report("streams", message);
        }
        let room = runtime.memory_budget.0 / 4;
        for (name, size) in [
            ("runtime.event_size", runtime.event_size.0),
            ("runtime.batch_size", runtime.batch_size.0),
            ("plugins.state_size", plugins.state_size.0),
            ("plugins.messages_size", plugins.messages_size.0),
        ] {
            if size > room {
                let message = format!(
                    "must be at most a quarter of runtime.memory_budget, here {room} bytes"
                );
                self.report(name, message);
            }
        }
        if matches!(self.config.store, StoreConfig::Redis(_)) && runtime.batch > REDIS_BATCH_LIMIT {
            let message = format!("must be at most {REDIS_BATCH_LIMIT} with a Redis store");
            self.report("runtime.batch", message);
        }
        if plugins.state_size.0 >= plugins.memory.0 {
            let message = "must be below plugins.memory: a handler holds the state in its memory";
            self.report("plugins.state_size", message);
        }
        if let Some(sink) = &runtime.alerts {
            self.require_sink("runtime.alerts", sink);
        }
    }

    fn listeners(&mut self) {
        let Config { admin, ingress, .. } = self.config;
        if let Some(admin) = admin {
            self.check_listener("admin", admin.listen, admin.token.as_ref());
        }
        if let Some(ingress) = ingress {
            self.check_listener("ingress", ingress.listen, ingress.token.as_ref());
            if ingress.request_size.0 > ingress.in_flight.0 {
                let message =
                    "must be at most ingress.in_flight: a larger request could never be accepted";
                self.report("ingress.request_size", message);
            }
        }
        if let (Some(admin), Some(ingress)) = (admin, ingress)
            && admin.listen == ingress.listen
            && admin.listen.port() != 0
        {
            self.report(
                "ingress.listen",
                "is also the address of [admin]: each listener needs its own address",
            );
        }
    }

    fn check_listener(&mut self, table: &str, listen: SocketAddr, token: Option<&Secret>) {
        // If the file sets an invalid token, `token` is `None`, and the reader has already reported the error.
        if !listen.ip().is_loopback()
            && token.is_none()
            && !self.lines.has(&format!("{table}.token"))
        {
            let message =
                format!("{listen} is reachable from other machines: [{table}] needs a `token`");
            self.report(&format!("{table}.listen"), message);
        }
    }

    fn broker(&mut self) {
        let Config { broker, runtime, .. } = self.config;
        let Some(Millis(heartbeat)) = broker.as_ref().and_then(|broker| broker.heartbeat) else {
            return;
        };
        let half = runtime.lease.0 / 2;
        if heartbeat > half {
            let message = format!(
                "must be at most half of runtime.lease, here {half}ms. Other instances take over the partitions when \
                 the lease ends, but RabbitMQ detects a dead connection only after two to three heartbeats"
            );
            self.report("broker.heartbeat", message);
        }
        if heartbeat % 1_000 != 0 {
            self.report("broker.heartbeat", "must be whole seconds: AMQP has no smaller unit");
        }
    }

    fn stream(&mut self, name: &ResourceName, stream: &StreamConfig) {
        let at = |field: &str| format!("streams.{name}.{field}");
        let fifo = stream.ordering == OrderingMode::Fifo;
        if fifo && self.lines.has(&at("first")) {
            let message = "applies to sequenced streams only: in a fifo stream Ordain numbers the events from 1";
            self.report(&at("first"), message);
        }
        if stream.first == FirstSequence::Any
            && let Some(sink) = self.numbering_sink(name)
        {
            let message = format!(
                "must be 0 or 1, because sink \"{sink}\" numbers the events of this stream, and gives the first event \
                 of each key this number. With `any`, Ordain would not detect the loss of that event"
            );
            self.report(&at("first"), message);
        }
        let repeats = stream.source.redelivery_limit(self.config.ingress.is_some());
        if fifo && self.lines.has(&at("id_window")) && stream.id_window < repeats {
            let message = format!(
                "must be at least {repeats}, because up to this number of events can arrive again after a crash or a \
                 lost response"
            );
            self.report(&at("id_window"), message);
        }
        if let Some(sink) = &stream.dead_letter {
            self.require_sink(&at("dead_letter"), sink);
            if self.leads_back(name, sink) {
                let message = "leads back to this stream: a dead letter that the stream cannot process would circulate forever";
                self.report(&at("dead_letter"), message);
            }
        }
        if let Some(sink) = &stream.other_types {
            self.other_types(name, stream, sink);
        }
        if stream.key_ttl.0.is_some()
            && let Some(sink) = self.numbering_sink(name)
        {
            let message = format!(
                "must be \"off\", because sink \"{sink}\" numbers the events of this stream. If `key_ttl` removed a \
                 key, the sink would continue the key's numbers, and the key would wait for the earlier numbers"
            );
            self.report(&at("key_ttl"), message);
        }
        if stream.bake.is_some() != stream.canary.is_some() {
            let (here, missing) =
                if stream.bake.is_some() { ("bake", "canary") } else { ("canary", "bake") };
            self.report(
                &at(here),
                format!("has no effect without `{missing}`: set both or neither"),
            );
        }
        self.locations(name, stream);
        if let SourceConfig::Amqp(source) = &stream.source {
            self.amqp_source(&at("source"), source);
        }
    }

    fn other_types(&mut self, name: &ResourceName, stream: &StreamConfig, sink: &ResourceName) {
        let at = format!("streams.{name}.other_types");
        self.require_sink(&at, sink);
        let types = format!("streams.{name}.types");
        if !self.lines.has(&types) {
            let message =
                "needs `types`: without `types`, the handler executes events of all types";
            self.report(&at, message);
        }
        let is_catch_all = |pattern: &TypePattern| pattern.as_str() == "*";
        if stream.types.iter().flatten().any(is_catch_all) {
            let message = "has no effect, because the pattern \"*\" in `types` matches every type: remove \
                           `other_types` or this pattern";
            self.report(&at, message);
        }
        if self.leads_back(name, sink) {
            let message = "leads back to this stream: an event of a type that no stream of the circle executes would \
                           circulate forever";
            self.report(&at, message);
        }
    }

    fn amqp_source(&mut self, at: &str, source: &AmqpSourceConfig) {
        if source.exchange.is_none() && source.partitions > 1 {
            self.report(
                &format!("{at}.partitions"),
                "more than one partition needs an `exchange` that spreads the events",
            );
        }
        if source.exchange.is_none() && !source.bind.is_empty() {
            self.report(&format!("{at}.bind"), "needs an `exchange` to bind to");
        }
        self.require_broker(at);
    }

    fn require_broker(&mut self, at: &str) {
        if self.config.broker.is_none() && !self.lines.has("broker") {
            self.report(at, "kind = \"amqp\" needs [broker] with a `url`");
        }
    }

    fn sink(&mut self, name: &ResourceName, sink: &SinkConfig) {
        let at = format!("sinks.{name}");
        match sink {
            SinkConfig::Amqp(sink) => self.amqp_sink(name, &at, sink),
            SinkConfig::File(file)
                if file.path != FileOrStdio::Stdio
                    && !matches!(self.config.store, StoreConfig::Embedded(_)) =>
            {
                let message = "a file sink needs the embedded store, which records the length of the file: \
                               use path = \"-\", another kind of sink, or [store] kind = \"embedded\"";
                self.report(&format!("{at}.path"), message);
            }
            SinkConfig::File(_) => {}
            SinkConfig::Stream(sink) => self.stream_sink(&at, sink),
        }
    }

    fn amqp_sink(&mut self, name: &ResourceName, at: &str, sink: &AmqpSinkConfig) {
        self.require_broker(at);
        if sink.is_default_exchange() && !self.lines.has(&format!("{at}.routing_key")) {
            let message = "is the default exchange, which delivers a message to the queue that the routing key names: \
                           set `routing_key` to the name of a queue, or for replies to \"{property:reply_to}\"";
            self.report(&format!("{at}.exchange"), message);
        }
        if !sink.sequenced {
            return;
        }
        let numbered = format!("{at}.sequenced");
        if sink.is_default_exchange() {
            let message = "needs a named `exchange`: the streams that read the exchange determine how the sink numbers \
                           its messages";
            self.report(&numbered, message);
        }
        if sink.unroutable_policy() == UnroutablePolicy::Drop {
            let message = "needs `unroutable = \"keep\"`: a reader of the numbers would wait for a dropped message";
            self.report(&numbered, message);
        }
        if let Some((stream, setting, other)) = self.config.numbering_conflict(&sink.exchange.0) {
            let message = format!(
                "must have the same value as in [streams.{other}]. Both streams read the exchange of sink \"{name}\", \
                 and this sink gives each message one number for both streams"
            );
            self.report(&format!("streams.{stream}.{setting}"), message);
        }
    }

    fn stream_sink(&mut self, at: &str, sink: &StreamSinkConfig) {
        let target = &sink.stream;
        let setting = format!("{at}.stream");
        // If the sink has no `stream`, the reader has already reported the error.
        if self.lines.has(&setting) && !self.lines.has(&format!("streams.{target}")) {
            let known = self.config.streams.keys().map(|name| &**name);
            let hint = match super::suggest::nearest(target, known) {
                Some(meant) => format!("did you mean \"{meant}\"?"),
                None => "add it, with source = { kind = \"stream\" }".to_owned(),
            };
            self.report(&setting, format!("[streams.{target}] is not defined; {hint}"));
        }
        let Some(stream) = self.config.streams.get(target) else { return };
        let differs = |other: &SinkConfig| matches!(other, SinkConfig::Stream(other) if other.stream == *target && other.sequenced != sink.sequenced);
        if !sink.sequenced
            && let Some((other, _)) = self.config.sinks.iter().find(|entry| differs(entry.1))
        {
            let message = format!(
                "must have the same value as in [sinks.{other}], because both sinks feed one stream: either all events \
                 of a key have numbers, or none has"
            );
            self.report(&format!("{at}.sequenced"), message);
        }
        if !matches!(stream.source, SourceConfig::Stream(_)) {
            let message = format!(
                "the source of [streams.{target}] is of another kind: it must have kind = \"stream\""
            );
            self.report(&setting, message);
        } else if stream.ordering == OrderingMode::Sequenced && !sink.sequenced {
            let message = format!(
                "[streams.{target}] needs numbered events: set sequenced = true here, or ordering = \"fifo\" \
                 in the stream"
            );
            self.report(at, message);
        }
    }

    /// Returns the first sink that numbers the events of a stream; `None` if no sink does.
    fn numbering_sink(&self, stream: &ResourceName) -> Option<&ResourceName> {
        let exchange = match &self.config.streams.get(stream)?.source {
            SourceConfig::Amqp(source) => source.exchange.as_ref(),
            _ => None,
        };
        let feeds = |sink: &SinkConfig| match sink {
            SinkConfig::Stream(sink) => sink.sequenced && sink.stream == *stream,
            SinkConfig::Amqp(sink) => {
                sink.sequenced && exchange.is_some_and(|exchange| exchange.0 == sink.exchange.0)
            }
            SinkConfig::File(_) => false,
        };
        self.config.sinks.iter().find(|(_, sink)| feeds(sink)).map(|(name, _)| name)
    }

    /// Reports the setting `at` if the file does not define its sink, or if the sink does not keep every message. The
    /// sink receives dead letters, events of other types, or alerts. Such messages must not be lost, and name no queue
    /// for a reply. An invalid sink counts as defined, because the reader has already reported the error of the sink.
    fn require_sink(&mut self, at: &str, sink: &ResourceName) {
        if let Some(SinkConfig::Amqp(config)) = self.config.sinks.get(sink) {
            if config.routing_key.names_reply_queue() {
                let message = format!(
                    "sink \"{sink}\" publishes only replies, because its `routing_key` contains {{property:reply_to}}: \
                     name another sink"
                );
                self.report(at, message);
            } else if config.unroutable_policy() == UnroutablePolicy::Drop {
                let message = format!(
                    "sink \"{sink}\" drops messages that no queue accepts: set `unroutable = \"keep\"` in \
                     [sinks.{sink}], or name another sink"
                );
                self.report(at, message);
            }
        }
        if !self.lines.has(&format!("sinks.{sink}")) {
            let known: Vec<&str> = self.config.sinks.keys().map(|name| &**name).collect();
            let hint = match super::suggest::nearest(sink, known.iter().copied()) {
                Some(meant) => format!("did you mean \"{meant}\"?"),
                None => format!("add [sinks.{sink}]"),
            };
            self.report(at, format!("sink \"{sink}\" is not defined; {hint}"));
        }
    }

    /// Checks that each file has at most one sink, that no stream reads the file of a sink, and that at most one stream
    /// reads standard input.
    fn files(&mut self) {
        let mut read: HashMap<&FileOrStdio, String> = HashMap::new();
        for (name, stream) in &self.config.streams {
            let SourceConfig::File(source) = &stream.source else { continue };
            let at = format!("streams.{name}.source.path");
            if let (FileOrStdio::Stdio, Some(other)) = (&source.path, read.get(&source.path)) {
                self.report(&at, format!("standard input is already read by {other}"));
            }
            read.entry(&source.path).or_insert(at);
        }
        let mut written: HashMap<&FileOrStdio, String> = HashMap::new();
        for (name, sink) in &self.config.sinks {
            let SinkConfig::File(sink) = sink else { continue };
            if sink.path == FileOrStdio::Stdio {
                continue;
            }
            let at = format!("sinks.{name}.path");
            if let Some(other) = written.get(&sink.path) {
                self.report(
                    &at,
                    format!("is already written by {other}: each sink needs its own file"),
                );
            }
            if let Some(other) = read.get(&sink.path) {
                self.report(
                    &at,
                    format!(
                        "is the same file as {other}: a sink needs a file that no stream reads"
                    ),
                );
            }
            written.entry(&sink.path).or_insert(at);
        }
    }
}
