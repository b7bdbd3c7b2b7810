//! Callers that send garbage, much, or nothing hold up neither the run nor other callers.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::{get, ready, send};
use ordain_tests::log::{in_turn, text};
use ordain_tests::service::Service;
use ordain_tests::tally;

#[test]
fn garbage_is_refused() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    let long = |bytes: usize| "x".repeat(bytes);
    let many = "h: 1\r\n".repeat(1_000);
    for (request, status) in [
        ("\r\n\0\x01\u{fffd} garbage\r\n\r\n".to_owned(), 400),
        ("GET\r\n\r\n".to_owned(), 400),
        ("GET /metrics HTTP/9.9\r\n\r\n".to_owned(), 400),
        (format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", long(1 << 20)), 431),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\nx: {}\r\n\r\n", long(1 << 20)), 431),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"), 431),
        ("POST /v1/dead HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n".to_owned(), 400),
    ] {
        let answer = send(address, request.as_bytes());
        // Where it closes before it has read all, its answer may be lost on the way.
        if let Ok(answer) = answer {
            ensure!(answer.status == status, "{request:.50}: {answer:?}");
        }
        assert_eq!(get(address, "/healthz")?.status, 200);
    }
    ensure!(
        service.is_running()? && !service.stderr().contains("panicked"),
        "{}",
        service.stderr()
    );
    Ok(())
}

#[test]
fn callers_who_hold_their_connections_hold_up_nothing() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    // More than there are places: the others wait in the system.
    let mut held = Vec::new();
    for at in 0..100 {
        let mut stream = TcpStream::connect(address)?;
        match at % 3 {
            0 => {}
            1 => stream.write_all(b"GET /metrics HTT")?,
            _ => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?,
        }
        held.push(stream);
    }
    home.append("events.ndjson", text(&in_turn(100, 20)))?;
    service.until("the messages", || home.lines("out.ndjson") == 2_000)?;
    // Those who say nothing more are sent away, and others have their places.
    service.until("a place", || get(address, "/healthz").is_ok_and(|it| it.status == 200))?;
    let mut silent = &held[0];
    assert_eq!(silent.read(&mut [0; 1_024]).unwrap_or(0), 0, "it has been sent away");
    service.signal("TERM")?;
    ensure!(service.wait()?.success(), "{}", service.stderr());
    Ok(())
}
