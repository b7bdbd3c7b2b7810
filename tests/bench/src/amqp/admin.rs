//! What a host tells over HTTP.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// For an answer of a host that is busy.
const ANSWER: Duration = Duration::from_secs(10);

/// Asks a host that listens on this port of 127.0.0.1 for a page.
pub(crate) async fn get(port: u16, path: &str) -> Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let question = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(question.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(ANSWER, asked).await.context("no answer")??;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer of HTTP")?;
    ensure!(head.split(' ').nth(1) == Some("200"), "{path}: {head}");
    Ok(body.to_owned())
}
