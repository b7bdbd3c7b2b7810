//! Helpers that add and remove handler files, and that read the reports of a host about the files.

use std::fs;

use anyhow::{Context, Result};
use ordain_servers::wait_until;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::plugins::plugin_with_note;
use ordain_tests::service::Service;
use serde_json::Value;

/// Writes a version of `tally` into the plugins folder of a host, in two halves with a pause between them. The host may
/// therefore find an incomplete file.
pub(super) fn copy(home: &Home, version: &str) -> Result<()> {
    let component = plugin_with_note("tally", version)?;
    let path = home.path(&format!("plugins/{}.wasm", file(version)));
    let (half, rest) = component.split_at(component.len() / 2);
    fs::write(&path, half)?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    home.append(&format!("plugins/{}.wasm", file(version)), rest)
}

pub(super) fn remove(home: &Home, version: &str) -> Result<()> {
    Ok(fs::remove_file(home.path(&format!("plugins/{}.wasm", file(version))))?)
}

/// Returns the name of the file of a version, without `.wasm`. An empty version stands for a file without a version.
fn file(version: &str) -> String {
    if version.is_empty() { "tally".to_owned() } else { format!("tally@{version}") }
}

pub(super) fn stream(service: &mut Service) -> Result<Value> {
    let streams = http::get(http::admin(service)?, "/v1/streams")?.json()?;
    // The list of streams is empty until the host has opened the store.
    Ok(streams["streams"].get(0).cloned().unwrap_or_default())
}

pub(super) fn until_runs(service: &mut Service, version: &str) -> Result<()> {
    let mut seen = Value::Null;
    let what = format!("{version} runs");
    let runs = wait_until(&what, || {
        seen = stream(service)?;
        Ok(seen["handler"] == version && seen["missing"].is_null())
    });
    runs.with_context(|| format!("{seen}: {}", service.stderr()))
}

/// Returns the value of a metric, summed over all labels.
pub(super) fn metric(service: &mut Service, name: &str) -> Result<Option<u64>> {
    http::metric(http::admin(service)?, name)
}

/// Returns the rows that `ordain plugins list` prints for a host.
pub(super) fn handlers(service: &mut Service) -> Result<Vec<Value>> {
    let mut plugins = http::get(http::admin(service)?, "/v1/plugins")?.json()?;
    let rows = plugins["handlers"].as_array_mut().context("handlers")?;
    Ok(std::mem::take(rows))
}
