//! Helpers for a stream with the default settings and a store in Redis: events of 60 keys in turn, and a check of their
//! effects.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, line, text};
use ordain_tests::service::{Service, wait_until};
use ordain_tests::tally;
use serde_json::{Value, json};

use super::support::{SECTIONS, ingress, post_all};

pub(super) const KEYS: usize = 60;

/// Creates a home with a stream that has this ordering and the default settings. `store` holds settings of the store in
/// Redis.
pub(super) fn default_home(ordering: &str, store: &str) -> Result<Home> {
    let config = format!(
        "{SECTIONS}[store]\nkind = \"redis\"\n{store}\
         [streams.cases]\nhandler = \"tally\"\nordering = \"{ordering}\"\n\
         source = {{ kind = \"http\" }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"-\"\n"
    );
    Home::new(&["tally"], &config)
}

/// Returns `count` events of 60 keys in turn. All keys begin with `name`.
pub(super) fn events_in_turn(name: &str, count: usize) -> Vec<String> {
    let event = |at: usize| {
        line(&format!("{name}{}", at % KEYS), (at / KEYS) as u64 + 1, &json!({ "n": at }))
    };
    (0..count).map(event).collect()
}

/// Returns the messages of the keys that begin with `name`, each message once, even if the host has published the
/// message several times.
pub(super) fn messages(service: &Service, name: &str) -> Result<Vec<String>> {
    let mut ids = BTreeSet::new();
    let mut messages = Vec::new();
    for line in service.stdout().split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let message: Value = serde_json::from_str(line).context("a message")?;
        let subject = message["subject"].as_str().context("a key")?;
        if subject.starts_with(name) && ids.insert(message["id"].to_string()) {
            messages.push(line.trim_end().to_owned());
        }
    }
    Ok(messages)
}

/// Checks that each event of `lines` took effect once, in the order of its key. The keys of these events, and no other
/// keys, begin with `name`.
pub(super) fn check_effects(service: &Service, name: &str, lines: &[String]) -> Result<()> {
    tally::check(&by_key(lines)?, &text(&messages(service, name)?))
}

/// Posts events, and waits until each event has taken effect. The keys of these events, and no other keys, begin with
/// `name`.
pub(super) fn post_until_effects(
    service: &mut Service,
    name: &str,
    lines: &[String],
) -> Result<()> {
    post_all(ingress(service)?, lines).with_context(|| service.stderr())?;
    wait_until(&format!("the effects of all events {name}"), || {
        Ok(messages(service, name)?.len() >= lines.len())
    })
    .with_context(|| service.stderr())?;
    check_effects(service, name, lines)
}
