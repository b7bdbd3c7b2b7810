//! Checks that no two streams share a queue, and that no two streams share an exchange that divides its messages among
//! several queues. Also finds settings `dead_letter` and `other_types` whose events can return to their stream.

use std::collections::{BTreeSet, HashSet};

use super::ConfigChecker;
use crate::queue_names::{dropped_queue, partition_queue};
use crate::template::RoutingKeyTemplate;
use crate::text::ResourceName;
use crate::{AmqpSourceConfig, Config, ExchangeBinding, SinkConfig, SourceConfig};

impl ConfigChecker<'_> {
    /// Checks that no two streams that read from the broker share a queue. Also checks that an exchange whose stream
    /// has several partitions serves only this stream. Such an exchange divides its messages among all bound queues and
    /// exchanges, so a second stream would take messages from the first.
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
                    && (source.declare || earlier.declare)
                    && source.partitions.max(earlier.partitions) > 1
                {
                    let message = format!(
                        "[streams.{other}] also reads this exchange. Because of `partitions`, the exchange divides its \
                         messages among the queues of both streams. Give each stream its own exchange, and `bind` both \
                         exchanges to one exchange that all producers use"
                    );
                    self.report(&format!("{at}.exchange"), message);
                }
            }
            for ExchangeBinding { exchange, .. } in &source.bind {
                let is_divided = |(_, other): &&(_, &AmqpSourceConfig)| {
                    other.declare
                        && other.partitions > 1
                        && other.exchange.as_ref() == Some(exchange)
                };
                if let Some((other, _)) = sources.iter().find(is_divided) {
                    let message = format!(
                        "exchange \"{}\" divides its messages among the partitions of [streams.{other}], and this \
                         binding would take a part of these messages: bind to an exchange that feeds \"{}\"",
                        exchange.0, exchange.0
                    );
                    self.report(&format!("{at}.bind"), message);
                }
            }
        }
    }

    /// Returns whether the events that a stream sends to `sink` can return to the stream: directly, or through
    /// exchanges and the settings `dead_letter` and `other_types` of other streams.
    pub(super) fn leads_back(&self, stream: &ResourceName, sink: &ResourceName) -> bool {
        let mut reached = BTreeSet::new();
        let mut open = vec![sink];
        while let Some(sink) = open.pop() {
            for next in self.sink_readers(sink) {
                if reached.insert(next)
                    && let Some(next) = self.config.streams.get(next)
                {
                    open.extend(next.dead_letter.iter().chain(&next.other_types));
                }
            }
        }
        reached.contains(stream)
    }

    /// Returns the streams that can receive the messages of a sink.
    fn sink_readers(&self, sink: &ResourceName) -> Vec<&ResourceName> {
        match self.config.sinks.get(sink) {
            Some(SinkConfig::Stream(sink)) => vec![&sink.stream],
            Some(SinkConfig::Amqp(sink)) if sink.is_default_exchange() => {
                self.queue_readers(&sink.routing_key)
            }
            Some(SinkConfig::Amqp(sink)) => self.readers(&sink.exchange.0, &sink.routing_key),
            Some(SinkConfig::File(_)) | None => Vec::new(),
        }
    }

    /// Returns the streams with a queue to which the default exchange can deliver a message with `routing_key`.
    fn queue_readers(&self, routing_key: &RoutingKeyTemplate) -> Vec<&ResourceName> {
        let mut readers = Vec::new();
        for (name, source) in amqp_sources(self.config) {
            if queues(source).any(|queue| routing_key.can_be(&queue)) {
                readers.push(name);
            }
        }
        readers
    }

    /// Returns the streams that can receive a message that Ordain publishes to `exchange` with `routing_key`. The
    /// message reaches a stream directly, or through the exchanges that the settings `bind` connect.
    fn readers(&self, exchange: &str, routing_key: &RoutingKeyTemplate) -> Vec<&ResourceName> {
        let mut readers = Vec::new();
        let mut reached = BTreeSet::from([exchange]);
        let mut open = vec![exchange];
        while let Some(from) = open.pop() {
            for (name, source) in amqp_sources(self.config) {
                let Some(own) = &source.exchange else { continue };
                // If Ordain does not declare the queue of a stream, Ordain does not know the bindings of the queue. The
                // result does not contain such a stream.
                if own.0 == from && source.declare {
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

/// Returns the names of the queues of a source's partitions.
fn queues(source: &AmqpSourceConfig) -> impl Iterator<Item = String> {
    let queue = &source.queue.0;
    let partitions = source.partitions;
    (0..partitions).map(move |partition| partition_queue(queue, partitions, partition))
}

/// Returns the first queue that two sources have in common. If Ordain declares the queues of both sources, the
/// comparison includes their queues `{queue}.dropped`. Otherwise the comparison omits `{queue}.dropped`, because one
/// stream may read the `{queue}.dropped` of the other stream on purpose.
fn shared_queue(source: &AmqpSourceConfig, other: &AmqpSourceConfig) -> Option<String> {
    let both_declare = source.declare && other.declare;
    let dropped = |source: &AmqpSourceConfig| {
        both_declare.then(|| dropped_queue(&source.queue.0)).into_iter()
    };
    let others: HashSet<String> = queues(other).chain(dropped(other)).collect();
    queues(source).chain(dropped(source)).find(|queue| others.contains(queue))
}

/// Returns whether a binding of a topic exchange can match a routing key of the template. If the template has
/// placeholders, this function compares only the fixed texts at the beginning of the template and of the binding.
fn can_match(template: &RoutingKeyTemplate, binding: &str) -> bool {
    let Some((fixed, _)) = template.0.split_once('{') else {
        return topic_matches(binding, &template.0);
    };
    let (wanted, is_exact) = match binding.find(['*', '#']) {
        Some(end) => (&binding[..end], false),
        None => (binding, true),
    };
    wanted.starts_with(fixed) || (!is_exact && fixed.starts_with(wanted))
}

/// Returns whether a binding matches a routing key: `*` stands for one word, `#` for any number of words.
fn topic_matches(binding: &str, routing_key: &str) -> bool {
    let words: Vec<&str> = routing_key.split('.').collect();
    // Each word of the binding is a pattern. `reached[n]` is true if the patterns before the current pattern match
    // exactly the first n words of the routing key.
    let mut reached = vec![false; words.len() + 1];
    reached[0] = true;
    for pattern in binding.split('.') {
        if pattern == "#" {
            let first = reached.iter().position(|is_reached| *is_reached).unwrap_or(reached.len());
            reached[first..].fill(true);
            continue;
        }
        for index in (0..words.len()).rev() {
            reached[index + 1] = reached[index] && (pattern == "*" || pattern == words[index]);
        }
        reached[0] = false;
    }
    reached[words.len()]
}

#[test]
fn bindings_match_as_in_the_broker() {
    for (binding, routing_key, is_match) in [
        ("#", "", true),
        ("#", "a.b", true),
        ("a.#", "a", true),
        ("a.#", "a.b.c", true),
        ("a.#", "ab", false),
        ("a.*", "a", false),
        ("a.*", "a.b", true),
        ("a.*", "a.b.c", false),
        ("*.b", "a.b", true),
        ("*.b", "a-b", false),
        ("#.b.#", "a.b", true),
        ("#.b.#.c", "b.a.b.d.c", true),
        ("#.b.#.c", "b.a.b.d", false),
        ("a", "a", true),
        ("a", "b", false),
    ] {
        assert_eq!(topic_matches(binding, routing_key), is_match, "{binding} {routing_key}");
    }
}
