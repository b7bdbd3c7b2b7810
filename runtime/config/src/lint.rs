//! Finds valid but risky settings. With such a setting, an event can be lost or take effect twice, or the broker can
//! close a channel. This module only warns; the module `check` rejects configurations.

use amq_protocol::uri::AMQPScheme;
use ordain_core::OrderingMode;

use super::problem::ConfigProblem;
use super::{
    HashedPart, IdPlace, LoadedConfig, MessageProperty, NumberingPolicy, Place, ResourceName,
    SourceConfig, StreamConfig,
};

/// The default of RabbitMQ's setting `consumer_timeout`, in ms. If a consumer leaves a delivery unacknowledged for this
/// time, RabbitMQ closes the consumer's channel and delivers the message again. A client cannot read the setting over
/// AMQP, so the checks assume the default.
const CONSUMER_TIMEOUT_MS: u64 = 30 * 60_000;

impl LoadedConfig {
    /// Returns the warnings about this configuration, each with its file, line and setting, and with the next step.
    pub fn warnings(&self) -> Vec<String> {
        let mut lint = ConfigLint { loaded: self, problems: Vec::new() };
        for (name, stream) in &self.config.streams {
            lint.gaps(name, stream);
            lint.equal_key_and_id(name, stream);
            lint.moving_keys(name, stream);
            if matches!(stream.source, SourceConfig::Amqp(_)) {
                lint.redelivery(name, stream);
            }
        }
        lint.management();
        lint.problems.sort();
        lint.problems.dedup();
        lint.problems.iter().map(|problem| problem.in_file(&self.file)).collect()
    }
}

struct ConfigLint<'a> {
    loaded: &'a LoadedConfig,
    problems: Vec<ConfigProblem>,
}

impl ConfigLint<'_> {
    fn report(&mut self, setting: &str, message: String) {
        let line = self.loaded.lines.line_of(setting);
        self.problems.push(ConfigProblem {
            line,
            setting: setting.to_owned(),
            message,
            is_temporary: false,
        });
    }

    /// Warns if Ordain sends the password of the broker to the management API in clear text, although the connection to
    /// the broker is encrypted. Does not warn if `broker.url` does not use TLS, because the connection to the broker
    /// then shows the password too.
    fn management(&mut self) {
        let Some(broker) = &self.loaded.config.broker else { return };
        let Some(management) = &broker.management else { return };
        let is_tls = broker.url.newest().uri.scheme == AMQPScheme::AMQPS;
        if is_tls && management.0.starts_with("http:") {
            let message = "Ordain sends the password of `broker.url` to this URL in clear text, although `broker.url` \
                           uses TLS; use https://";
            self.report("broker.management", message.to_owned());
        }
    }

    /// Warns if the store may remove an event too early: before the longest search for missing events has requested the
    /// event from the store. Also warns if the store may remove a dead letter before this search replays the event in
    /// the letter.
    fn gaps(&mut self, name: &ResourceName, stream: &StreamConfig) {
        if stream.ordering != OrderingMode::Sequenced {
            return;
        }
        let search = longest_search(stream);
        let needed = in_words(search);
        let next_step = format!(
            "set at least \"{needed}\", or lower `gap.timeout`, `gap.attempts` or `gap.backoff`"
        );
        let (setting, kept) = retention(stream);
        if kept < search && NumberingPolicy::replay_log(name, stream).is_some() {
            let message = format!(
                "the store keeps an event for replay for only {}, but the last round of requests for a missing event \
                 can begin {needed} after Ordain detects the gap. The store may remove the event before Ordain \
                 requests it; {next_step}",
                in_words(kept)
            );
            self.report(&format!("streams.{name}.{setting}"), message);
        }
        let dead_ttl = self.loaded.config.store.dead_ttl().0;
        if dead_ttl < search {
            let message = format!(
                "the store keeps a dead letter for only {}, but the last round of requests for a missing event of \
                 stream {name} can begin {needed} after Ordain detects the gap. The store may remove a dead letter \
                 `far-ahead` or `overflow` before Ordain replays the event in the letter; {next_step}",
                in_words(dead_ttl)
            );
            self.report("store.dead_ttl", message);
        }
    }

    /// Warns if the key of each event of a `fifo` stream is also the event's id. The stream recognises repeats by the
    /// id, so only the first event of each key would take effect.
    fn equal_key_and_id(&mut self, name: &ResourceName, stream: &StreamConfig) {
        let Some(place) = key_place(&stream.source) else { return };
        if stream.ordering != OrderingMode::Fifo
            || id_place(&stream.source).as_ref() != Some(&place)
        {
            return;
        }
        let field = if stream.source.locations().id.is_some() { "id" } else { "key" };
        let message = format!(
            "{place} contains both the key and the id of an event. A fifo stream recognises a repeated event by its \
             id, so only the first event of each key takes effect. Let `id` name a place that has another value in \
             each event, or set id = \"content\""
        );
        self.report(&format!("streams.{name}.source.{field}"), message);
    }

    /// Warns if a restart of the broker can move the keys of a `fifo` stream to other partitions. The exchange type
    /// `x-consistent-hash` assigns the keys to the queues anew at each start of the broker.
    fn moving_keys(&mut self, name: &ResourceName, stream: &StreamConfig) {
        let SourceConfig::Amqp(source) = &stream.source else { return };
        let hashes_routing_key =
            matches!(source.hashed_part(), None | Some(HashedPart::RoutingKey));
        if stream.ordering != OrderingMode::Fifo || source.partitions == 1 || hashes_routing_key {
            return;
        }
        let message = "a restart of RabbitMQ can move keys to other partitions, because the exchange hashes the key in \
                       another place than the routing key. Events of a fifo stream can then be executed out of order. \
                       Use one partition, or key = \"routing-key\", or restart RabbitMQ only while the queues of the \
                       stream are empty";
        self.report(&format!("streams.{name}.source.partitions"), message.to_owned());
    }

    /// Warns if Ordain may forget a key (`complete_ttl`, `key_ttl`) while RabbitMQ can still redeliver an event of the
    /// key (for the default `consumer_timeout` after the first delivery). Also warns if Ordain may hold an event
    /// unacknowledged for more than half of the broker's time limit.
    fn redelivery(&mut self, name: &ResourceName, stream: &StreamConfig) {
        let timeout = in_words(CONSUMER_TIMEOUT_MS);
        for (setting, ttl) in
            [("complete_ttl", Some(stream.complete_ttl)), ("key_ttl", stream.key_ttl.0)]
        {
            if let Some(ttl) = ttl.filter(|ttl| ttl.0 < CONSUMER_TIMEOUT_MS) {
                let message = format!(
                    "Ordain forgets a key after {}, but RabbitMQ can deliver an event again up to {timeout} after its \
                     first delivery (the default of RabbitMQ's `consumer_timeout`). The event of a forgotten key then \
                     takes effect a second time: set at least \"{timeout}\"",
                    in_words(ttl.0)
                );
                self.report(&format!("streams.{name}.{setting}"), message);
            }
        }
        let unacknowledged = self.loaded.config.longest_unacknowledged(stream).0;
        // The other half of `consumer_timeout` is left for loads, commits and the processing of other keys.
        if unacknowledged > CONSUMER_TIMEOUT_MS / 2 {
            let message = format!(
                "an event can stay unacknowledged for {} (`spill_after` plus `plugins.timeout`). This time is more \
                 than half of RabbitMQ's default `consumer_timeout` of {timeout}, so the broker can close the AMQP \
                 channel and deliver all unacknowledged events of the channel again. Lower one of the two settings, or \
                 raise `consumer_timeout` in rabbitmq.conf",
                in_words(unacknowledged)
            );
            self.report(&format!("streams.{name}.spill_after"), message);
        }
    }
}

/// Returns the single place that contains the whole key; `None` if there is no such place.
fn key_place(source: &SourceConfig) -> Option<Place> {
    match (source.locations().key, source) {
        (Some(key), _) => key.single().cloned(),
        (None, SourceConfig::Amqp(_)) => Some(Place::RoutingKey),
        (None, _) => None,
    }
}

/// Returns the first place in which a source looks for the id; `None` if there is no such place.
fn id_place(source: &SourceConfig) -> Option<Place> {
    match (source.locations().id, source) {
        (Some(id), _) => match id.0.into_iter().next() {
            Some(IdPlace::Place(place)) => Some(place),
            Some(IdPlace::Content | IdPlace::Unique) | None => None,
        },
        (None, SourceConfig::Amqp(_)) => Some(Place::Property(MessageProperty::MessageId)),
        (None, SourceConfig::Http(_) | SourceConfig::File(_)) => {
            Some(Place::Attribute("id".to_owned()))
        }
        (None, SourceConfig::Stream(_)) => None,
    }
}

/// Returns the length of the longest search for missing events, in ms. The search begins with the arrival of the first
/// event after the gap. The search ends when the final round requests the missing events from the store, which is the
/// first source of each round.
fn longest_search(stream: &StreamConfig) -> u64 {
    let requests: u64 = stream
        .replay_servers()
        .map(|server| u64::try_from(server.query_timeout().as_millis()).unwrap_or(u64::MAX))
        .fold(0, u64::saturating_add);
    let earlier_rounds = u64::from(stream.gap.attempts.saturating_sub(1));
    stream.gap_settings().longest_wait().saturating_add(requests.saturating_mul(earlier_rounds))
}

/// Returns the time for which the store keeps an event for replay, in ms, and the setting that determines this time.
fn retention(stream: &StreamConfig) -> (&'static str, u64) {
    let settings = [
        ("retain", Some(stream.retain)),
        ("complete_ttl", Some(stream.complete_ttl)),
        ("key_ttl", stream.key_ttl.0),
    ];
    let times = settings.into_iter().filter_map(|(name, time)| Some((name, time?.0)));
    times.min_by_key(|(_, time)| *time).expect("a stream has the setting `retain`")
}

/// Returns a duration in a unit of the configuration, rounded up.
fn in_words(ms: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    match UNITS.iter().find(|(_, unit)| ms >= 2 * unit || ms == *unit) {
        Some((name, unit)) => format!("{}{name}", ms.div_ceil(*unit)),
        None => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn warnings(text: &str) -> Vec<String> {
        let loaded = LoadedConfig::parse(Path::new("ordain.toml"), text, &|_| None);
        loaded.expect("a valid configuration").warnings()
    }

    /// Returns a configuration with one stream that reads from the broker. The settings in `stream` begin in line 6.
    fn amqp(stream: &str) -> String {
        format!(
            "[broker]\nurl = \"amqp://h\"\n[streams.a]\nhandler = \"x\"\n\
             source = {{ kind = \"amqp\", exchange = \"a\", queue = \"a\" }}\n{stream}"
        )
    }

    /// The defaults and the smallest sufficient values cause no warning.
    #[test]
    fn sufficient_settings_cause_no_warning() {
        for stream in [
            "",
            "complete_ttl = \"30m\"\nkey_ttl = \"30m\"",
            "spill_after = \"10m\"",
            // Without the store as a replay source, `retain` has no effect.
            "retain = \"1s\"\ngap = { replay = [] }",
            "ordering = \"fifo\"\nretain = \"1s\"",
            // The longest search takes exactly 5 s: `gap.timeout` of 2 s, and four pauses of at most 0.2, 0.4, 0.8 and
            // 1.6 s.
            "retain = \"5s\"",
        ] {
            assert_eq!(warnings(&amqp(stream)), [] as [&str; 0], "{stream}");
        }
    }

    /// Each warning names the line and the setting, and either a sufficient value or the setting of RabbitMQ that
    /// limits the value.
    #[test]
    fn risky_settings_are_named_with_a_sufficient_value() {
        for (stream, parts) in [
            ("retain = \"4s\"", ["ordain.toml:6: streams.a.retain: ", "only 4s", "\"5s\""]),
            (
                "gap = { timeout = \"1h\", attempts = 3, backoff = \"1h..2h\" }\nretain = \"3h\"",
                ["ordain.toml:7: streams.a.retain: ", "only 3h", "\"4h\""],
            ),
            // The search has five rounds. Each of the first four rounds may wait 30 s for the server.
            (
                "retain = \"2m\"\ngap = { replay = [\"store\", \"http://h/{key}/{sequence}\"] }",
                ["ordain.toml:6: streams.a.retain: ", "only 2m", "\"3m\""],
            ),
            (
                "complete_ttl = \"29m\"",
                ["ordain.toml:6: streams.a.complete_ttl: ", "after 29m", "at least \"30m\""],
            ),
            (
                "key_ttl = \"1m\"",
                ["ordain.toml:6: streams.a.key_ttl: ", "after 1m", "at least \"30m\""],
            ),
            (
                "spill_after = \"10m\"\n[plugins]\ntimeout = \"6m\"",
                ["ordain.toml:6: streams.a.spill_after: ", "for 16m", "consumer_timeout"],
            ),
            (
                "gap = { timeout = \"7d\" }\nretain = \"30d\"\ncomplete_ttl = \"30d\"\n[store]\n\
                 kind = \"embedded\"\ndead_ttl = \"1d\"",
                ["ordain.toml:11: store.dead_ttl: ", "stream a", "\"8d\""],
            ),
        ] {
            let found = warnings(&amqp(stream));
            assert_eq!(found.len(), 1, "{found:?}");
            for part in parts {
                assert!(found[0].contains(part), "{part:?} is not in {found:?}");
            }
        }
    }

    #[test]
    fn password_of_an_encrypted_connection_must_not_be_sent_in_clear_text() {
        let broker = |url: &str, management: &str| {
            let text = format!("[broker]\nurl = \"{url}\"\nmanagement = \"{management}\"\n");
            let stream = "[streams.a]\nhandler = \"x\"\nsource = { kind = \"http\" }\n";
            warnings(&format!("{text}{stream}"))
        };
        let warning = "ordain.toml:3: broker.management: Ordain sends the password of `broker.url` to this URL in \
                       clear text, although `broker.url` uses TLS; use https://";
        for management in ["http://host:15672", "HTTP://host:15672", "http://localhost:15672"] {
            let found = broker("amqps://u:p@host", management);
            assert!(
                matches!(&found[..], [one] if one.contains(warning)),
                "{management}: {found:?}"
            );
        }
        for (url, management) in [
            ("amqps://u:p@host", "https://host:15671"),
            ("amqp://u:p@host", "https://host:15671"),
            ("amqp://u:p@host", "http://host:15672"),
        ] {
            assert_eq!(broker(url, management), [] as [&str; 0], "{url} {management}");
        }
    }

    #[test]
    fn key_that_is_also_the_id_is_named() {
        let found = |ordering: &str, source: &str| {
            let broker = "[broker]\nurl = \"amqp://h\"\n";
            let stream = format!("[streams.a]\nhandler = \"x\"\nordering = \"{ordering}\"\n");
            warnings(&format!("{broker}{stream}source = {{ {source} }}\n"))
        };
        let amqp = "kind = \"amqp\", exchange = \"a\", queue = \"a\"";
        for (source, setting, place) in [
            ("key = \"property:message_id\"", "key", "the property message_id"),
            ("key = \"data:/a\", id = [\"data:/a\", \"content\"]", "id", "the data at \"/a\""),
            ("id = \"routing-key\"", "id", "the routing key"),
        ] {
            let source = format!("{amqp}, {source}");
            let warning =
                format!("ordain.toml:6: streams.a.source.{setting}: {place} contains both");
            let found_warnings = found("fifo", &source);
            assert!(
                matches!(&found_warnings[..], [one] if one.contains(&warning)),
                "{source}: {found_warnings:?}"
            );
            assert_eq!(found("sequenced", &source), [] as [&str; 0], "{source}");
        }
        let http = found("fifo", "kind = \"http\", key = \"attribute:id\"");
        assert!(http.len() == 1 && http[0].contains("the attribute \"id\""), "{http:?}");
        for source in ["key = \"header:a\"", "key = \"data:/a\", id = \"content\""] {
            assert_eq!(found("fifo", &format!("{amqp}, {source}")), [] as [&str; 0], "{source}");
        }
    }

    #[test]
    fn keys_that_a_restart_of_the_broker_moves_are_named() {
        let found = |ordering: &str, source: &str| {
            warnings(&format!(
                "[broker]\nurl = \"amqp://h\"\n[streams.a]\nhandler = \"x\"\nordering = \"{ordering}\"\n\
                 source = {{ kind = \"amqp\", exchange = \"a\", queue = \"a\", {source} }}\n"
            ))
        };
        let hashed = "key = \"header:a\", partitions = 2";
        let fifo = found("fifo", hashed);
        assert!(fifo.len() == 1 && fifo[0].contains("a restart of RabbitMQ can move"), "{fifo:?}");
        for (ordering, source) in
            [("sequenced", hashed), ("fifo", "key = \"header:a\""), ("fifo", "partitions = 2")]
        {
            assert_eq!(found(ordering, source), [] as [&str; 0], "{ordering} {source}");
        }
    }

    /// The `consumer_timeout` of RabbitMQ does not concern a stream that does not read from the broker.
    #[test]
    fn broker_times_affect_only_broker_streams() {
        let text = "[streams.a]\nhandler = \"x\"\nsource = { kind = \"http\" }\ncomplete_ttl = \"1m\"\n\
                    [plugins]\ntimeout = \"1h\"";
        assert_eq!(warnings(text), [] as [&str; 0]);
    }
}
