//! Settings that a file may contain but that this version of Ordain does not support yet. A commit that implements such
//! a setting must remove its row from [`UNSUPPORTED_FEATURES`]. No other module depends on the list.

use super::problem::{ConfigProblem, SettingLines};
use super::{Config, SourceConfig, StreamConfig};

/// The name of a feature, the paths of its rows in the reference, and a function that returns the names of the settings
/// that request the feature.
type UnsupportedFeature = (&'static str, &'static [&'static str], fn(&Config) -> Vec<String>);

const UNSUPPORTED_FEATURES: &[UnsupportedFeature] = &[
    ("alerts", &["runtime.alerts"], |config| {
        setting_if(config.runtime.alerts.is_some(), "runtime.alerts")
    }),
    ("a file in several partitions", &["streams.source.file.partitions"], |config| {
        sources(config, is_split_file)
    }),
    ("a canary", &["streams.canary", "streams.bake"], |config| {
        streams(config, |stream| stream.canary.is_some(), "canary")
    }),
];

/// Returns the unsupported feature to which a setting belongs; `None` if this version of Ordain supports the setting.
/// `place` is the path of the setting in the printed list of all settings.
pub(super) fn unsupported_feature(place: &str) -> Option<&'static str> {
    UNSUPPORTED_FEATURES
        .iter()
        .find(|(_, places, _)| places.contains(&place))
        .map(|(feature, ..)| *feature)
}

/// Returns the paths of the rows that the reference marks as unsupported.
#[cfg(test)]
pub(super) fn places() -> impl Iterator<Item = &'static str> {
    UNSUPPORTED_FEATURES.iter().flat_map(|(_, places, _)| places.iter().copied())
}

/// Returns an error for each setting of a configuration that this version of Ordain does not support, sorted by line.
pub(super) fn find_unsupported(config: &Config, lines: &SettingLines) -> Vec<ConfigProblem> {
    let mut problems: Vec<ConfigProblem> = UNSUPPORTED_FEATURES
        .iter()
        .flat_map(|(feature, _, find)| {
            find(config).into_iter().map(move |setting| (feature, setting))
        })
        .map(|(feature, setting)| ConfigProblem {
            line: lines.line_of(&setting),
            setting,
            message: format!(
                "this version of Ordain does not support {feature} yet: remove the setting"
            ),
            is_temporary: false,
        })
        .collect();
    problems.sort();
    problems
}

fn setting_if(is_given: bool, setting: &str) -> Vec<String> {
    if is_given { vec![setting.to_owned()] } else { Vec::new() }
}

fn streams(config: &Config, is_affected: fn(&StreamConfig) -> bool, field: &str) -> Vec<String> {
    let affected = config.streams.iter().filter(|(_, stream)| is_affected(stream));
    affected.map(|(name, _)| format!("streams.{name}.{field}")).collect()
}

fn sources(config: &Config, is_affected: fn(&SourceConfig) -> bool) -> Vec<String> {
    let affected = config.streams.iter().filter(|(_, stream)| is_affected(&stream.source));
    affected.map(|(name, _)| format!("streams.{name}.source")).collect()
}

fn is_split_file(source: &SourceConfig) -> bool {
    matches!(source, SourceConfig::File(_)) && source.partitions() > 1
}
