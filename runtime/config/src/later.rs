//! What can be configured and this build cannot run yet. Whoever builds one of them removes its
//! row from [`NOT_YET`]; nothing else knows of the list.

use super::problem::{Lines, Problem};
use super::{Config, Source, Stream};

/// What it is, its places in the reference, and the settings of a configuration that ask for it.
type NotYet = (&'static str, &'static [&'static str], fn(&Config) -> Vec<String>);

const NOT_YET: &[NotYet] = &[
    ("alerts", &["runtime.alerts"], |it| given(it.runtime.alerts.is_some(), "runtime.alerts")),
    ("a file in several partitions", &["streams.source.file.partitions"], |it| {
        sources(it, is_split_file)
    }),
    ("a canary", &["streams.canary", "streams.bake"], |it| {
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
        .flat_map(|(what, _, find)| find(config).into_iter().map(move |setting| (what, setting)))
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

fn is_split_file(source: &Source) -> bool {
    matches!(source, Source::File(_)) && source.partitions() > 1
}
