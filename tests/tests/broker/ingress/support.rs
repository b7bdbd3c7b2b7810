//! Helpers for tests of the HTTP listener for events (the ingress), for example its address, requests to it, and the
//! events that wait or were lost.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ordain_servers::Connection;
use ordain_tests::http;
pub(super) use ordain_tests::http::{LINES_TYPE, ingress, post, post_with};
use ordain_tests::log::{line, text};
use ordain_tests::queue::redis_key;
use ordain_tests::service::Service;
use serde_json::json;

pub(super) const EVENT_TYPE: &str = "application/cloudevents+json";
pub(super) const BATCH_TYPE: &str = "application/cloudevents-batch+json";

pub(super) const SECTIONS: &str =
    "[ingress]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";

/// The largest number of events that a host reads from the store in advance: four batches of 256 events. The driver has
/// one batch, the channel contains two batches, and one batch waits for space in the channel. A few more events may be
/// on the way between these places.
pub(super) const READ_AHEAD: usize = 4 * 256 + 64;

/// Returns events that each have their own key, so that a key in the output identifies the event that took effect. All
/// keys begin with `name`.
pub(super) fn events(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| line(&format!("{name}{at}"), 1, &json!({ "n": at }))).collect()
}

/// Replaces the sink in a configuration by a sink that writes to a file, and therefore does not depend on the broker.
pub(super) fn into_file(text: &str, path: &str) -> String {
    let sink = "kind = \"amqp\"\nexchange = \"out\"";
    text.replace(sink, &format!("kind = \"file\"\npath = \"{path}\""))
}

/// Posts events in requests of 200 events. The host must accept all of them.
pub(super) fn post_all(address: SocketAddr, lines: &[String]) -> Result<()> {
    for chunk in lines.chunks(200) {
        let answer = post(address, LINES_TYPE, &text(chunk))?;
        ensure!(answer.status == 202, "{answer:?}");
    }
    Ok(())
}

/// Returns the complete lines that the services have printed, each line once. After a crash, a process may print a line
/// again.
pub(super) fn printed(services: &[Service]) -> String {
    let mut seen = BTreeSet::new();
    let mut all = String::new();
    for service in services {
        let output = service.stdout();
        let lines = output.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        all.extend(lines.filter(|line| seen.insert((*line).to_owned())));
    }
    all
}

/// Returns how many events wait in the inbox, according to the metrics of the process.
pub(super) fn inbox_events(service: &mut Service) -> Result<u64> {
    metric(service, "ordain_inbox_events")
}

/// Returns the value of a metric of the process, summed over all labels.
pub(super) fn metric(service: &mut Service, name: &str) -> Result<u64> {
    Ok(http::metric(http::admin(service)?, name)?.unwrap_or(0))
}

pub(super) fn lost_events(admin: SocketAddr) -> Result<usize> {
    let lost = http::metric(admin, "ordain_events_lost_total")?.unwrap_or(0);
    Ok(usize::try_from(lost)?)
}

/// Returns how many events of the stream `cases` wait in each shard of a store in Redis.
pub(super) fn waiting(master: &mut Connection, shards: u32) -> Result<Vec<u64>> {
    let mut counts = Vec::new();
    for shard in 0..shards {
        let reply = master.command(&["HGET", &redis_key("cases", shard), "w"])?;
        counts.push(reply.text().map_or(Ok(0), str::parse)?);
    }
    Ok(counts)
}
