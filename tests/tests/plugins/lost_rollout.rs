//! A test in which Redis loses the rollout of a stream: the record that names the version of the handler that executes
//! the stream's events. An instance then assigns the number of this rollout to another version.

use std::fs;

use anyhow::{Result, ensure};
use ordain_servers::{Redis, wait_until};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::plugins::plugin_with_note;
use ordain_tests::service::Service;
use serde_json::Value;

/// Creates a home with one version of `tally`, and with a stream whose events arrive over HTTP.
fn home(redis: &Redis, version: &str) -> Result<Home> {
    let home = Home::new(
        &[],
        &format!(
            "[ingress]\nlisten = \"127.0.0.1:0\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\n\
             [streams.cases]\nhandler = \"tally\"\nsource = {{ kind = \"http\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"-\"\n",
            redis.url()
        ),
    )?;
    add(&home, version)?;
    Ok(home)
}

fn add(home: &Home, version: &str) -> Result<()> {
    Ok(fs::write(
        home.path(&format!("plugins/tally@{version}.wasm")),
        plugin_with_note("tally", version)?,
    )?)
}

fn stream(service: &mut Service) -> Result<Value> {
    let streams = http::get(http::admin(service)?, "/v1/streams")?.json()?;
    Ok(streams["streams"].get(0).cloned().unwrap_or_default())
}

/// Waits until a host reports that it executes events with `version`. Returns the number of the rollout.
fn until_runs(service: &mut Service, version: &str) -> Result<u64> {
    let mut number = None;
    wait_until(&format!("{version} runs"), || {
        let seen = stream(service)?;
        number = seen["generation"].as_u64();
        Ok(seen["handler"] == version && seen["missing"].is_null() && number.is_some())
    })?;
    Ok(number.unwrap_or_default())
}

/// While one instance is paused, the store loses the rollout that this instance knows, and another instance assigns the
/// number of this rollout to another version. Afterwards, both instances must execute events with the version in the
/// store, under the same rollout number.
#[test]
fn instances_agree_after_a_rollout_number_was_assigned_twice() -> Result<()> {
    let redis = Redis::start(&[])?;
    let homes = [home(&redis, "1.0.0")?, home(&redis, "2.0.0")?];
    let mut first = Service::start(&homes[0], &["run"])?;
    ensure!(until_runs(&mut first, "tally@1.0.0")? == 1);
    // The instance must have its claims before the snapshot, because an instance ends if the store loses one of its
    // claims.
    http::ready(&mut first)?;
    let early = redis.snapshot()?;
    add(&homes[0], "1.5.0")?;
    ensure!(until_runs(&mut first, "tally@1.5.0")? == 2);
    first.pause()?;
    redis.go_back(&early)?;
    let mut second = Service::start(&homes[1], &["run"])?;
    ensure!(
        until_runs(&mut second, "tally@2.0.0")? == 2,
        "the second instance must assign number 2 again"
    );
    add(&homes[0], "2.0.0")?;
    first.resume()?;
    until_runs(&mut first, "tally@2.0.0")?;
    wait_until("the same rollout of both instances", || {
        let rows = [stream(&mut first)?, stream(&mut second)?];
        let is_same = rows[0]["generation"] == rows[1]["generation"];
        Ok(is_same && rows.iter().all(|row| row["handler"] == "tally@2.0.0"))
    })?;
    first.end()?;
    second.end()
}
