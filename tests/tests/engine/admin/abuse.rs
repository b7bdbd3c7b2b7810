//! Tests of clients that send invalid requests or nothing, hold many connections, or do not read responses. These
//! clients must delay neither events nor other clients, and must not make the host use much memory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::http::{get, ready, send};
use ordain_tests::log::{in_turn, text};
use ordain_tests::service::Service;
use ordain_tests::tally;

const LETTERS_PAGE: &str = "/v1/dead?stream=cases";

/// Starts a host with this input, and waits until it is ready.
fn start(input: &str) -> Result<(Home, Service, SocketAddr)> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", input)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    Ok((home, service, address))
}

#[test]
fn malformed_requests_are_rejected() -> Result<()> {
    let (_home, mut service, address) = start("")?;
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
        // The response may be lost, because the host may close the connection before it has read the whole request.
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

/// Clients hold more connections than the soft limit of open files permits. The host must raise this limit, because it
/// needs files of its own to execute events.
#[test]
fn open_connections_use_up_no_files_of_the_host() -> Result<()> {
    const SOFT_LIMIT: usize = 70;
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    let limited = format!("ulimit -Sn {SOFT_LIMIT}; exec \"$0\" \"$@\"");
    let by = ["sh".to_owned(), "-c".to_owned(), limited];
    let mut service = Service::start_by(&home, &by, &["run"])?;
    let address = ready(&mut service)?;
    let connections = (0..60).map(|_| TcpStream::connect(address));
    let _held: Vec<TcpStream> = connections.collect::<Result<_, _>>()?;
    let open = format!("/proc/{}/fd", service.id());
    service.until("the connections", || {
        std::fs::read_dir(&open).is_ok_and(|open| open.count() >= SOFT_LIMIT)
    })?;
    let lines = in_turn(3, 3);
    home.append("events.ndjson", text(&lines))?;
    service.until("all messages", || home.lines("out.ndjson") == lines.len())?;
    service.end()
}

#[test]
fn open_connections_block_neither_events_nor_requests() -> Result<()> {
    let (home, mut service, address) = start("")?;
    // The test opens more connections than the host accepts at one time. The remaining connections wait in the backlog
    // of the operating system.
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
    // The host closes idle connections, so that it can accept other connections.
    service.until("a free connection", || {
        get(address, "/healthz").is_ok_and(|response| response.status == 200)
    })?;
    let mut silent = &held[0];
    assert_eq!(
        silent.read(&mut [0; 1_024]).unwrap_or(0),
        0,
        "the host must close an idle connection"
    );
    service.end()
}

#[test]
fn idle_connections_are_closed_for_new_ones() -> Result<()> {
    let (_home, mut service, address) = start("")?;
    let mut held = Vec::new();
    let mut rounds = 0;
    // If the host kept idle connections until their timeout, this wait would take minutes.
    service.until("20 responses despite many idle connections", || {
        held.extend((0..64).filter_map(|_| TcpStream::connect(address).ok()));
        rounds +=
            usize::from(get(address, "/healthz").is_ok_and(|response| response.status == 200));
        rounds == 20
    })
}

/// Starts a host that reads eight invalid events, and waits for the dead letters of these events. Each event has nearly
/// the maximum size of an event (1 MiB), and consists of many small JSON objects, which take much memory when they are
/// parsed. The page [`LETTERS_PAGE`] contains the dead letters of all eight events.
fn start_with_large_letters() -> Result<(Home, Service, SocketAddr)> {
    let line = format!("[{}0]\n", "{\"a\":0},".repeat((1 << 20) / 8 - 1));
    let (home, mut service, address) = start(&line.repeat(8))?;
    service.until("all dead letters", || {
        get(address, LETTERS_PAGE).is_ok_and(|response| response.body.len() > 7 << 20)
    })?;
    Ok((home, service, address))
}

#[test]
fn large_page_is_created_without_parsing_its_events() -> Result<()> {
    let (_home, mut service, address) = start_with_large_letters()?;
    let body = get(address, LETTERS_PAGE)?.json()?;
    ensure!(
        body["dead"][0]["raw"][0]["a"] == 0,
        "the dead letter does not contain the event as JSON"
    );
    service.signal("TERM")?;
    let peak = service.peak_memory()? >> 10;
    // A host that parsed the events of a page would need 600 MiB.
    ensure!(peak < 500, "the host used up to {peak} MiB");
    Ok(())
}

#[test]
fn requests_are_refused_while_too_many_pages_are_unread() -> Result<()> {
    let (_home, mut service, address) = start_with_large_letters()?;
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(address)?;
        let request = format!("GET {LETTERS_PAGE} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        // The response has begun, so the host has created the page.
        stream.read_exact(&mut [0; 1_024])?;
        held.push(stream);
    }
    let refused = get(address, "/v1/streams")?;
    ensure!(refused.status == 503 && refused.problem()?.contains("others read"), "{refused:?}");
    assert_eq!(get(address, "/healthz")?.status, 200);
    drop(held);
    service.until("room for another response", || {
        get(address, "/v1/streams").is_ok_and(|response| response.status == 200)
    })
}
