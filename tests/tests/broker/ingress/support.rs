//! Helpers for tests of the HTTP listener for events (the ingress): its address, and requests to it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ordain_tests::http;
pub(super) use ordain_tests::http::{LINES, ingress, post, post_with};
use ordain_tests::log::text;
use ordain_tests::service::Service;

pub(super) const ONE: &str = "application/cloudevents+json";
pub(super) const BATCH: &str = "application/cloudevents-batch+json";

/// The configuration of two HTTP listeners: for events, and for operators.
pub(super) const SECTIONS: &str =
    "[ingress]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";

/// Replaces the sink in a configuration by a sink that writes to a file, and so does not depend on the broker.
pub(super) fn into_file(text: &str, path: &str) -> String {
    let sink = "kind = \"amqp\"\nexchange = \"out\"";
    text.replace(sink, &format!("kind = \"file\"\npath = \"{path}\""))
}

pub(super) fn post_all(address: SocketAddr, lines: &[String]) -> Result<()> {
    for chunk in lines.chunks(200) {
        let answer = post(address, LINES, &text(chunk))?;
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
