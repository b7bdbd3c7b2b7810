//! A small evaluator for the alerting rules in `docs/alerts.yaml`. The evaluator checks the condition of a rule against
//! the metrics of a real process. It ignores the duration for which the condition must hold (`for`).

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use yaml_rust2::YamlLoader;

use crate::plugins::root;

/// Compares the value of a metric, or the increase of a counter, with a number.
struct Condition<'a> {
    name: &'a str,
    /// The labels that a sample must have, each in the form `label="value"`.
    labels: Vec<&'a str>,
    is_increase: bool,
    operator: &'a str,
    limit: f64,
}

impl<'a> Condition<'a> {
    /// Accepts an expression such as `metric{label="value"} > 0` or `increase(metric[10m]) > 0`, and returns `None` for
    /// any other form.
    fn parse(expression: &'a str) -> Option<Self> {
        let mut parts = expression.rsplitn(3, ' ');
        let limit = parts.next()?.parse().ok()?;
        let operator = parts.next()?;
        let value = parts.next()?;
        let (selector, is_increase) = match value.strip_prefix("increase(") {
            Some(range) => (range.split_once('[')?.0, true),
            None => (value, false),
        };
        if selector.contains(['(', ' ']) {
            return None;
        }
        let (name, labels) = selector.split_once('{').unwrap_or((selector, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        Some(Self { name, labels: labels.collect(), is_increase, operator, limit })
    }

    /// Returns the names with labels, and the values.
    fn samples<'p>(&self, page: &'p str) -> Vec<(&'p str, f64)> {
        let sample = |line: &'p str| {
            let (sample, value) = line.rsplit_once(' ')?;
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            let is_selected =
                name == self.name && self.labels.iter().all(|label| labels.contains(label));
            is_selected.then_some((sample, value.parse().ok()?))
        };
        page.lines().filter_map(sample).collect()
    }

    /// Returns whether the condition holds for a sample of the page `now`. The condition on an increase can hold only
    /// if the page `earlier` contains a sample of the counter: Prometheus cannot compute an increase without an earlier
    /// sample.
    fn holds(&self, earlier: &str, now: &str) -> bool {
        let before = self.samples(earlier);
        let compared = self.samples(now).into_iter().filter_map(|(sample, value)| {
            if !self.is_increase {
                return Some(value);
            }
            let (_, from) = before.iter().find(|(name, _)| *name == sample)?;
            Some(value - from)
        });
        let limit = self.limit;
        let is_met = |value: f64| match self.operator {
            "==" => (value - limit).abs() < f64::EPSILON,
            ">" => value > limit,
            operator => panic!("an alerting rule has the operator {operator}"),
        };
        compared.into_iter().any(is_met)
    }
}

/// Returns the names of the alerts whose conditions hold. `earlier` and `now` are pages of metrics of the same process.
/// Skips rules whose expressions combine several metrics or functions.
pub fn firing(earlier: &str, now: &str) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(root().join("docs/alerts.yaml"))?;
    let documents = YamlLoader::load_from_str(&text)?;
    let rules = documents[0]["groups"][0]["rules"].as_vec().context("rules")?;
    let mut firing = BTreeSet::new();
    for rule in rules {
        let expression = rule["expr"].as_str().context("an expression")?;
        if Condition::parse(expression).is_some_and(|condition| condition.holds(earlier, now)) {
            firing.insert(rule["alert"].as_str().context("the name of an alert")?.to_owned());
        }
    }
    Ok(firing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_evaluated() {
        let earlier = "a 1\nb{s=\"x\",p=\"0\"} 3\n";
        let now = "a 0\nb{s=\"x\",p=\"0\"} 4\nb{s=\"y\",p=\"0\"} 7\nab 5\n";
        for (expression, holds) in [
            ("a == 0", Some(true)),
            ("a > 0", Some(false)),
            ("b{s=\"x\"} > 3", Some(true)),
            ("b{s=\"z\"} > 3", Some(false)),
            ("increase(b{s=\"x\"}[10m]) > 0", Some(true)),
            ("increase(b{s=\"y\"}[10m]) > 0", Some(false)),
            ("up{job=\"ordain\"} == 0", Some(false)),
            ("min_over_time(a[10m]) > 0 and deriv(a[10m]) > 0", None),
        ] {
            let condition = Condition::parse(expression);
            let found = condition.map(|condition| condition.holds(earlier, now));
            assert_eq!(found, holds, "{expression}");
        }
    }
}
