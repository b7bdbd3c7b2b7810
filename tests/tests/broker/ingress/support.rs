//! The address of the ingress, and requests to it.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ordain_tests::http::{self, Answer};
use ordain_tests::log::text;
use ordain_tests::service::Service;

/// Returns the address of the ingress.
pub(super) fn ingress(service: &mut Service) -> Result<SocketAddr> {
    const WORDS: &str = "ingress listening on http://";
    service.until_says(WORDS)?;
    let log = service.stderr();
    let rest = log.split_once(WORDS).context("the line with the address")?.1;
    Ok(rest.split_whitespace().next().context("an address")?.parse()?)
}

/// Posts a body to the stream `cases`.
pub(super) fn post(address: SocketAddr, kind: &str, body: &str) -> Result<Answer> {
    post_with(address, "/v1/streams/cases/events", &[&format!("content-type: {kind}")], body)
}

pub(super) fn post_with(
    address: SocketAddr,
    path: &str,
    headers: &[&str],
    body: &str,
) -> Result<Answer> {
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n");
    for header in headers {
        request += &format!("{header}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    http::send(address, request.as_bytes())
}

pub(super) const LINES: &str = "application/x-ndjson";
pub(super) const ONE: &str = "application/cloudevents+json";
pub(super) const BATCH: &str = "application/cloudevents-batch+json";

/// The listeners for events and for operators.
pub(super) const SECTIONS: &str =
    "[ingress]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";

/// Replaces the sink in a configuration by a file, which needs no broker.
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

/// Returns how many events are not published yet, from the metrics of the process.
pub(super) fn waits(service: &mut Service) -> Result<u64> {
    metric(service, "ordain_inbox_events")
}

/// Returns the sum of a metric of the process over all labels.
pub(super) fn metric(service: &mut Service, name: &str) -> Result<u64> {
    let admin = http::admin(service)?;
    let metrics = http::get(admin, "/metrics")?.body;
    let samples = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let samples = samples.filter(|sample| sample.starts_with(['{', ' ']));
    let values = samples.filter_map(|sample| sample.rsplit_once(' ')?.1.parse::<u64>().ok());
    Ok(values.sum())
}
