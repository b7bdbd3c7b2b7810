//! Checks that no two streams share a queue or a partitioned exchange, and that no dead letter returns to its stream.

use std::collections::{BTreeSet, HashSet};

use super::ConfigChecker;
use crate::template::RoutingKeyTemplate;
use crate::text::ResourceName;
use crate::{AmqpSourceConfig, Config, ExchangeBinding, SinkConfig, SourceConfig};

impl ConfigChecker<'_> {
    /// Checks that each stream of the broker has its own queues, and that a partitioned exchange serves one stream. A
    /// partitioned exchange divides its messages among everything that is bound to it.
    pub(super) fn shared_queues(&mut self) {
        let sources: Vec<_> = amqp_sources(self.config).collect();
        for (index, (name, source)) in sources.iter().enumerate() {
            let at = format!("streams.{name}.source");
            for (other, earlier) in &sources[..index] {
                if let Some(queue) = shared_queue(source, earlier) {
                    let message = format!(
                        "[streams.{other}] also has the queue \"{queue}\": each message would reach only one of \
                         the two streams. Give each stream its own queue; both can read one `exchange` if both \
                         have one partition"
                    );
                    self.report(&format!("{at}.queue"), message);
                }
                if source.exchange.is_some()
                    && source.exchange == earlier.exchange
                    && source.partitions.max(earlier.partitions) > 1
                {
                    let message = format!(
                        "[streams.{other}] also reads this exchange, which divides its messages among all queues \
                         of both streams because of `partitions`: give each stream its own exchange, and `bind` \
                         both exchanges to one that all producers use"
                    );
                    self.report(&format!("{at}.exchange"), message);
                }
            }
            for ExchangeBinding { exchange, .. } in &source.bind {
                let is_divided = |(_, other): &&(_, &AmqpSourceConfig)| {
                    other.partitions > 1 && other.exchange.as_ref() == Some(exchange)
                };
                if let Some((other, _)) = sources.iter().find(is_divided) {
                    let message = format!(
                        "exchange \"{}\" divides its messages among the partitions of [streams.{other}], and this \
                         binding would take a part of them: bind an exchange before it",
                        exchange.0
                    );
                    self.report(&format!("{at}.bind"), message);
                }
            }
        }
    }

    /// Returns whether dead letters of a stream can return to it: directly, or through other streams and exchanges.
    pub(super) fn has_dead_letter_loop(&self, stream: &ResourceName) -> bool {
        let mut reached = BTreeSet::new();
        let mut open = vec![stream];
        while let Some(from) = open.pop() {
            for next in self.dead_letter_readers(from) {
                if reached.insert(next) {
                    open.push(next);
                }
            }
        }
        reached.contains(stream)
    }

    /// Returns the streams that read the dead letters of a stream.
    fn dead_letter_readers(&self, stream: &ResourceName) -> Vec<&ResourceName> {
        let sink = self.config.streams.get(stream).and_then(|stream| stream.dead_letter.as_ref());
        match sink.and_then(|sink| self.config.sinks.get(sink)) {
            Some(SinkConfig::Stream(sink)) => vec![&sink.stream],
            Some(SinkConfig::Amqp(sink)) => self.readers(&sink.exchange.0, &sink.routing_key),
            Some(SinkConfig::File(_)) | None => Vec::new(),
        }
    }

    /// Returns the streams that can receive a message from an exchange, through the exchanges of `bind` as well.
    fn readers(&self, exchange: &str, routing_key: &RoutingKeyTemplate) -> Vec<&ResourceName> {
        let mut readers = Vec::new();
        let mut reached = BTreeSet::from([exchange]);
        let mut open = vec![exchange];
        while let Some(from) = open.pop() {
            for (name, source) in amqp_sources(self.config) {
                let Some(own) = &source.exchange else { continue };
                if own.0 == from {
                    readers.push(name);
                }
                let feeds = |bind: &ExchangeBinding| {
                    bind.exchange.0 == from && can_match(routing_key, &bind.routing_key.0)
                };
                if source.bind.iter().any(feeds) && reached.insert(&own.0) {
                    open.push(&own.0);
                }
            }
        }
        readers
    }
}

fn amqp_sources(config: &Config) -> impl Iterator<Item = (&ResourceName, &AmqpSourceConfig)> {
    config.streams.iter().filter_map(|(name, stream)| match &stream.source {
        SourceConfig::Amqp(source) => Some((name, source)),
        _ => None,
    })
}

/// Returns the names of the queues of a source: of its partitions, and of the messages that the broker drops.
fn queues(source: &AmqpSourceConfig) -> impl Iterator<Item = String> {
    let queue = &source.queue.0;
    let is_single = source.partitions == 1;
    let of_partitions = (0..source.partitions).map(move |partition| {
        if is_single { queue.clone() } else { format!("{queue}.{partition}") }
    });
    of_partitions.chain(source.declare.then(|| format!("{queue}.dropped")))
}

/// Returns the first queue that two sources have in common.
fn shared_queue(source: &AmqpSourceConfig, other: &AmqpSourceConfig) -> Option<String> {
    let others: HashSet<String> = queues(other).collect();
    queues(source).find(|queue| others.contains(queue))
}

/// Returns whether a binding can match a routing key of the template, judged by the fixed text at the beginning of both.
fn can_match(template: &RoutingKeyTemplate, binding: &str) -> bool {
    let fixed = template.0.split('{').next().unwrap_or_default();
    let is_whole = fixed.len() == template.0.len();
    let wanted = binding.split(['*', '#']).next().unwrap_or_default();
    let is_exact = wanted.len() == binding.len();
    // `a.#` also matches `a`.
    let wanted = if is_exact { wanted } else { wanted.trim_end_matches('.') };
    match (is_whole, is_exact) {
        (true, true) => fixed == wanted,
        (true, false) => fixed.starts_with(wanted),
        (false, true) => wanted.starts_with(fixed),
        (false, false) => fixed.starts_with(wanted) || wanted.starts_with(fixed),
    }
}
