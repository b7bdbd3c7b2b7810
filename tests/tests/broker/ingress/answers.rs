//! Tests of refusals that the ingress sends before it has read the whole request. The client must receive a refusal
//! even if the client does not read before it has sent the whole request. The module also tests the answer to a service
//! that requests the permission to send webhooks.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::{self, Answer, send_whole};
use ordain_tests::log::line;
use ordain_tests::service::{Service, wait_until};
use serde_json::json;

use super::support::{EVENT_TYPE, LINES_TYPE, ingress};

const TOKEN: &str = "a-token-of-16-or-more-characters";

const CONFIG: &str = r#"
[ingress]
listen = "127.0.0.1:0"
token = "a-token-of-16-or-more-characters"
request_size = "1MiB"
in_flight = "1MiB"

[streams.cases]
handler = "tally"
source = { kind = "http" }

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

/// Replaces `[sinks` in [`CONFIG`], to add a stream that numbers its events in the order of their arrival.
const WITH_FIFO_STREAM: &str = "[streams.arrivals]\nhandler = \"tally\"\nordering = \"fifo\"\n\
    source = { kind = \"http\" }\n\n[sinks";

/// Returns the beginning of a request: its first line, and all headers except the headers that state the length of the
/// body.
fn head(method: &str, stream: &str, token: &str, kind: &str) -> String {
    format!(
        "{method} /v1/streams/{stream}/events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         authorization: Bearer {token}\r\ncontent-type: {kind}\r\n"
    )
}

/// Sends a request with a body of `size` bytes. With chunked encoding, rounds the size up to whole chunks of 64 KiB.
fn post(address: SocketAddr, head: &str, size: usize, chunked: bool) -> Result<Answer> {
    let mut request = head.as_bytes().to_vec();
    if chunked {
        let chunk = [b"10000\r\n".to_vec(), vec![b'x'; 0x10000], b"\r\n".to_vec()].concat();
        request.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        request.extend(chunk.repeat(size.div_ceil(0x10000)));
        request.extend_from_slice(b"0\r\n\r\n");
    } else {
        write!(request, "content-length: {size}\r\n\r\n")?;
        request.resize(request.len() + size, b'x');
    }
    send_whole(address, &request)
}

#[test]
fn client_receives_the_refusal_of_a_body_of_any_size() -> Result<()> {
    let home = Home::new(&["tally"], CONFIG)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    for size in [100_000, 1_100_000, 3_000_000, 9_000_000, 100_000_000] {
        for chunked in [false, true] {
            for (stream, token, kind, status) in [
                ("cases", "wrong", EVENT_TYPE, 401),
                ("others", TOKEN, EVENT_TYPE, 404),
                ("cases", TOKEN, "text/plain", 415),
                ("cases", TOKEN, LINES_TYPE, if size > 1 << 20 { 413 } else { 400 }),
            ] {
                let answer = post(address, &head("POST", stream, token, kind), size, chunked)?;
                ensure!(answer.status == status, "{size} {chunked} {status}: {answer:?}");
                answer.problem()?;
            }
            let method = post(address, &head("PUT", "cases", TOKEN, EVENT_TYPE), size, chunked)?;
            ensure!(method.status == 405, "{size} {chunked}: {method:?}");
        }
    }
    let head = head("POST", "cases", TOKEN, EVENT_TYPE);
    for chunked in [false, true] {
        wait_until("the refusal of a request because the memory for requests is full", || {
            // Another client occupies the memory for requests. If the host reads the following request first, it
            // refuses that request with 400, and the loop tries again.
            let mut slow = TcpStream::connect(address)?;
            write!(slow, "{head}content-length: 1000000\r\n\r\n")?;
            slow.write_all(&vec![b'x'; 900_000])?;
            let answer = post(address, &head, 1_000_000, chunked)?;
            let waits = answer.head.contains("\r\nretry-after: 1");
            ensure!(answer.status == 400 || (answer.status == 429 && waits), "{answer:?}");
            Ok(answer.status == 429)
        })?;
    }
    service.end()
}

/// Services that send webhooks send a request with the method `OPTIONS` before they send events, as the CloudEvents
/// specification defines. The ingress must permit these services to send events if they send the token.
#[test]
fn webhook_sender_with_the_token_may_send_events() -> Result<()> {
    let home = Home::new(&["tally"], CONFIG)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let options = |stream: &str, token: &str, headers: &str| {
        let head = head("OPTIONS", stream, token, EVENT_TYPE);
        http::send(address, format!("{head}{headers}\r\n").as_bytes())
    };
    let origin = "WebHook-Request-Origin: events.example.com\r\n";
    for headers in [
        origin.to_owned(),
        format!("{origin}WebHook-Request-Rate: 120\r\n"),
        format!("{origin}WebHook-Request-Callback: https://events.example.com/confirm?id=1\r\n"),
    ] {
        let answer = options("cases", TOKEN, &headers)?;
        ensure!(answer.status == 200 && answer.body.is_empty(), "{answer:?}");
        for header in [
            "allow: post, options",
            "webhook-allowed-origin: events.example.com",
            "webhook-allowed-rate: *",
        ] {
            ensure!(answer.head.contains(&format!("\r\n{header}")), "{header}: {answer:?}");
        }
    }
    let plain = options("cases", TOKEN, "")?;
    ensure!(plain.status == 200 && !plain.head.contains("webhook"), "{plain:?}");
    for (stream, token, status) in [("cases", "wrong", 401), ("others", TOKEN, 404)] {
        let answer = options(stream, token, origin)?;
        ensure!(answer.status == status && !answer.head.contains("webhook"), "{answer:?}");
    }
    let event = line("k", 1, &json!({ "n": 1 }));
    let headers = format!("{origin}content-length: {}\r\n\r\n{event}", event.len());
    let head = head("POST", "cases", TOKEN, &format!("{EVENT_TYPE}; charset=utf-8"));
    let answer = http::send(address, format!("{head}{headers}").as_bytes())?;
    ensure!(answer.status == 202, "{answer:?}");
    service.end()
}

/// Services that send webhooks use the forms of requests that their providers have chosen. The ingress must accept
/// batches with a parameter of the content type. It must refuse a token in the URL, other methods, other paths, and
/// events that a `sequenced` stream cannot order. A `fifo` stream must accept these events.
#[test]
fn requests_of_webhook_senders_are_accepted_or_explained() -> Result<()> {
    let home = Home::new(&["tally"], &CONFIG.replace("[sinks", WITH_FIFO_STREAM))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let batch = format!("[{}]", line("k", 1, &json!({ "n": 1 })));
    // An event without a sequence, as Azure Event Grid sends it.
    let grid = json!({
        "specversion": "1.0", "id": "9aeb0fdf", "type": "Microsoft.Storage.BlobCreated",
        "source": "/subscriptions/1/blobs", "subject": "blobServices/default/new-file.txt",
        "time": "2026-11-25T12:00:00.123456Z", "data": { "api": "PutBlockList" },
    })
    .to_string();
    let batch_type = "Application/CloudEvents-Batch+JSON; charset=UTF-8";
    let send = |head: &str, body: &str| {
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        http::send(address, request.as_bytes())
    };
    let post = |stream: &str, token: &str, kind: &str| head("POST", stream, token, kind);
    let slash = post("cases", TOKEN, batch_type).replace("/events ", "/events/ ");
    let with_query = post("cases", "", batch_type)
        .replace("authorization: Bearer \r\n", "")
        .replace("/events ", &format!("/events?access_token={TOKEN} "));
    for (head, body, status, words) in [
        (post("cases", TOKEN, batch_type), &batch, 202, ""),
        (post("arrivals", TOKEN, EVENT_TYPE), &grid, 202, ""),
        (post("cases", TOKEN, EVENT_TYPE), &grid, 400, "no `sequence`"),
        (with_query, &batch, 401, "Authorization: Bearer"),
        (slash, &batch, 404, "send events with POST"),
        (head("PUT", "cases", TOKEN, batch_type), &batch, 405, "use POST"),
    ] {
        let answer = send(&head, body)?;
        ensure!(answer.status == status, "{head}: {answer:?}");
        ensure!(answer.body.contains(words), "{words}: {answer:?}");
    }
    service.until("both effects", || home.lines("out.ndjson") == 2)?;
    service.end()
}
