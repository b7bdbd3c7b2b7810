//! What can be configured and this build cannot run yet. Whoever builds one of them removes its
//! row from [`NOT_YET`]; nothing else knows of the list.

use super::problem::{Lines, Problem};
use super::{Config, Replay, Sink, Source, Stream};

/// What it is, its places in the reference, and the settings of a configuration that ask for it.
type NotYet = (&'static str, &'static [&'static str], fn(&Config, &Lines) -> Vec<String>);

const NOT_YET: &[NotYet] = &[
    ("events over HTTP", &["ingress"], |it, _| given(it.ingress.is_some(), "ingress")),
    ("alerts", &["runtime.alerts"], |it, _| given(it.runtime.alerts.is_some(), "runtime.alerts")),
    ("a source of kind \"http\"", &["streams.source.http"], |it, _| {
        sources(it, |it| matches!(it, Source::Http(_)))
    }),
    ("a source of kind \"stream\"", &["streams.source.stream"], |it, _| {
        sources(it, |it| matches!(it, Source::Stream(_)))
    }),
    ("a sink of kind \"stream\"", &["sinks.stream"], |it, _| {
        sinks(it, |it| matches!(it, Sink::Stream(_)), "")
    }),
    (
        "a sequenced sink",
        &["sinks.amqp.sequenced", "sinks.file.sequenced", "sinks.stream.sequenced"],
        |it, _| sinks(it, Sink::sequenced, ".sequenced"),
    ),
    ("replay over HTTP", &["streams.gap.replay"], |it, _| streams(it, asks_http, "gap.replay")),
    ("a file in several partitions", &["streams.source.file.partitions"], |it, _| {
        sources(it, is_split_file)
    }),
    (
        "a log of events that can be replayed",
        &["streams.retain", "streams.retain_events"],
        |it, lines| {
            let fields = ["retain", "retain_events"];
            let settings = it
                .streams
                .keys()
                .flat_map(|name| fields.iter().map(move |field| format!("streams.{name}.{field}")));
            settings.filter(|setting| lines.has(setting)).collect()
        },
    ),
    ("a canary", &["streams.canary", "streams.bake"], |it, _| {
        streams(it, |it| it.canary.is_some(), "canary")
    }),
];

/// What of a setting, by its place in the reference, this build cannot do.
pub(super) fn not_yet(place: &str) -> Option<&'static str> {
    NOT_YET.iter().find(|(_, places, _)| places.contains(&place)).map(|(what, ..)| *what)
}

/// Every place in the reference that is marked.
#[cfg(test)]
pub(super) fn places() -> impl Iterator<Item = &'static str> {
    NOT_YET.iter().flat_map(|(_, places, _)| places.iter().copied())
}

/// What the configuration asks for and this build cannot do, by line.
pub(super) fn unsupported(config: &Config, lines: &Lines) -> Vec<Problem> {
    let mut problems: Vec<Problem> = NOT_YET
        .iter()
        .flat_map(|(what, _, find)| {
            find(config, lines).into_iter().map(move |setting| (what, setting))
        })
        .map(|(what, setting)| Problem {
            line: lines.of(&setting),
            setting,
            message: format!("this build cannot do {what} yet: leave it out"),
        })
        .collect();
    problems.sort();
    problems
}

fn given(is_given: bool, setting: &str) -> Vec<String> {
    if is_given { vec![setting.to_owned()] } else { Vec::new() }
}

fn streams(config: &Config, asks: fn(&Stream) -> bool, field: &str) -> Vec<String> {
    let asking = config.streams.iter().filter(|(_, stream)| asks(stream));
    asking.map(|(name, _)| format!("streams.{name}.{field}")).collect()
}

fn sources(config: &Config, asks: fn(&Source) -> bool) -> Vec<String> {
    let asking = config.streams.iter().filter(|(_, stream)| asks(&stream.source));
    asking.map(|(name, _)| format!("streams.{name}.source")).collect()
}

fn sinks(config: &Config, asks: fn(&Sink) -> bool, field: &str) -> Vec<String> {
    let asking = config.sinks.iter().filter(|(_, sink)| asks(sink));
    asking.map(|(name, _)| format!("sinks.{name}{field}")).collect()
}

fn is_split_file(source: &Source) -> bool {
    matches!(source, Source::File(_)) && source.partitions() > 1
}

fn asks_http(stream: &Stream) -> bool {
    stream.gap.replay.iter().any(|it| matches!(it, Replay::Http(_)))
}
