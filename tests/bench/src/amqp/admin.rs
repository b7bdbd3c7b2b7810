//! Requests to a host's admin server.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Time limit for the answer of a busy host.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests a page from a host that listens on this port of 127.0.0.1, and returns the body of the response.
pub(crate) async fn get(port: u16, path: &str) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, exchange).await.context("no response")??;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP response")?;
    ensure!(head.split(' ').nth(1) == Some("200"), "{path}: {head}");
    Ok(body.to_owned())
}

/// Returns the number of events of a stream that have taken effect since the start of the host.
pub(crate) async fn effects(port: u16, stream: &str) -> Result<u64> {
    let name = format!("ordain_events_total{{stream=\"{stream}\",outcome=\"effect\"}} ");
    let metrics = get(port, "/metrics").await?;
    let effects = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok());
    effects.with_context(|| format!("no sample {name}in the metrics {metrics}"))
}
