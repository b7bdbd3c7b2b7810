//! Tests of connections on which the broker does not answer, and of a broker whose address changes. The host must
//! replace a silent connection, even if the client library has not detected the silence.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ordain_servers::{Mode, Proxy, SECOND_ADDRESS};
use ordain_tests::host::Home;
use ordain_tests::http::{get, metric, ready};
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::names::{FIRST_ADDRESS, Name};
use ordain_tests::rig::{Rig, config};
use ordain_tests::service::{RUN_WITH_SHORT_WAITS, Service};
use ordain_tests::tally;
use serde_json::json;

/// The host name of the broker whose address changes.
const NAME: &str = "broker.test";
/// The longest allowed time from the moment when new connections to the broker work to the moment when the host uses
/// the broker again. The host waits at most 10 seconds between two attempts to connect.
const RETURN_LIMIT: Duration = Duration::from_secs(45);
/// Settings with which the client library and the broker detect a silent connection only after ten minutes.
const RARE_HEARTBEATS: [&str; 2] = ["[runtime]\nlease = \"10m\"\n", "heartbeat = \"5m\"\n"];
/// The configuration of a second stream with the same sink. The events of this stream come from a file, so the sink
/// gets new messages even if no event arrives from the broker.
const FILE_STREAM: &str = "[streams.lines]\nhandler = \"tally\"\n\
                           source = { kind = \"file\", path = \"lines.ndjson\" }\n";
/// A part of the error after a connection attempt to which the server does not answer.
const NO_ANSWER: &str = "does not answer within 5s";
/// The name of the thread that the client library starts for each connection.
const LIBRARY_THREAD: &str = "lapin-io-loop";
/// The largest number of connections that a host with one queue and one sink may have at one time, including connection
/// attempts. The host uses connections for the queue, the sink, the retries of the sink, and the check of the broker.
const CONNECTION_LIMIT: usize = 8;

/// Returns a configuration with the broker at `url`. The first text of the array has additional sections, and the
/// second text has additional settings of the broker.
fn config_at(url: &str, [sections, broker]: [&str; 2]) -> String {
    let text = config(url, sections, "", "");
    text.replace("[streams.cases]", &format!("{broker}[streams.cases]"))
}

/// Starts a rig, and a proxy through which the host will connect to the broker. [`config_at`] describes `settings`.
fn proxied(settings: [&str; 2]) -> Result<(Rig, Proxy)> {
    let rig = Rig::new()?;
    let proxy = Proxy::start(rig.rabbit.port())?;
    rig.home.write("ordain.toml", config_at(&rig.rabbit.url_at(proxy.port()), settings))?;
    Ok((rig, proxy))
}

/// Starts a host as [`Service::start_by`] does. Publishes the events `first` when the host is ready.
fn start(rig: &Rig, by: &[String], first: &[String]) -> Result<(Service, SocketAddr)> {
    let mut service = Service::start_by(&rig.home, by, &RUN_WITH_SHORT_WAITS)?;
    rig.until_declared()?;
    let address = ready(&mut service)?;
    rig.publish(first)?;
    Ok((service, address))
}

/// Returns the lines of events for the second stream. The keys of these events differ from the keys that [`in_turn`]
/// uses.
fn other_lines(numbers: RangeInclusive<u64>) -> Vec<String> {
    let event =
        |number| (0..10).map(move |key| line(&format!("f{key}"), number, &json!({ "n": number })));
    numbers.flat_map(event).collect()
}

/// Waits until the number of messages in the outbox meets a condition.
fn until_outbox(
    service: &mut Service,
    address: SocketAddr,
    what: &str,
    is_so: impl Fn(u64) -> bool,
) -> Result<()> {
    service.until(what, || {
        metric(address, "ordain_outbox_pending").is_ok_and(|count| count.is_some_and(&is_so))
    })
}

fn until_not_consumed(service: &mut Service, address: SocketAddr) -> Result<()> {
    service.until("the report that the stream receives no events", || {
        let page = get(address, "/readyz");
        page.is_ok_and(|page| {
            let reason = page.problem().unwrap_or_default();
            page.status == 503
                && reason.contains("stream cases: no events have arrived from its source")
        })
    })
}

fn until_ready(service: &mut Service, address: SocketAddr) -> Result<()> {
    let started = Instant::now();
    service.until("readiness", || get(address, "/readyz").is_ok_and(|page| page.status == 200))?;
    let took = started.elapsed();
    println!("the host was ready after {took:?}");
    ensure!(took < RETURN_LIMIT, "{took:?}: {}", service.stderr());
    Ok(())
}

/// Returns the number of threads that the client library runs in the host.
fn library_threads(service: &Service) -> Result<usize> {
    let mut count = 0;
    for task in std::fs::read_dir(format!("/proc/{}/task", service.id()))? {
        // If a thread has ended meanwhile, its file is missing.
        let name = std::fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        count += usize::from(name.trim() == LIBRARY_THREAD);
    }
    Ok(count)
}

/// Silences only the connection of the sink, for the rest of the test. The sink must connect again, and all messages
/// must arrive, in order within each key. While the sink has no working connection, the stream must continue to execute
/// events, and the messages must wait in the outbox.
fn silent_sink_connects_again(settings: [&str; 2]) -> Result<()> {
    let (rig, proxy) = proxied(settings)?;
    let lines = in_turn(20, 60);
    let (first, rest) = lines.split_at(lines.len() / 2);
    let (mut service, address) = start(&rig, &[], first)?;
    let mut out = Vec::new();
    rig.take(&mut out, first.len())?;
    until_outbox(&mut service, address, "an empty outbox", |count| count == 0)?;

    ensure!(
        proxy.silence("ordain sink tally") == 1,
        "the sink does not have exactly one connection"
    );
    rig.publish(rest)?;
    let started = Instant::now();
    until_outbox(&mut service, address, "messages in the outbox", |count| count > 0)?;
    // The connection of the source still works: the host acknowledges the events when their effects are durable.
    rig.until_empty()?;
    ensure!(get(address, "/readyz")?.status == 200, "{}", service.stderr());
    ensure!(metric(address, "ordain_broker_connected")? == Some(1), "{}", service.stderr());
    service.until_says("Ordain keeps them and tries again")?;
    rig.take(&mut out, lines.len())?;
    let took = started.elapsed();
    println!("all messages arrived after {took:?}");
    ensure!(took < RETURN_LIMIT, "{took:?}: {}", service.stderr());
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    until_outbox(&mut service, address, "an empty outbox", |count| count == 0)?;
    service.until_says("publishing of messages works again")?;
    service.end()
}

#[test]
fn sink_with_a_silent_connection_connects_again() -> Result<()> {
    silent_sink_connects_again(["", ""])
}

/// The sink's own time limit for the broker's answers does not depend on the heartbeats of the client library.
#[test]
fn sink_with_a_silent_connection_connects_again_without_heartbeats() -> Result<()> {
    silent_sink_connects_again(RARE_HEARTBEATS)
}

/// Silences only the connection of the source, for the rest of the test. The source must subscribe on a new connection.
/// Each event takes effect once.
#[test]
fn source_with_a_silent_connection_subscribes_again() -> Result<()> {
    let (rig, proxy) = proxied(["", ""])?;
    let lines = in_turn(20, 60);
    let (first, rest) = lines.split_at(lines.len() / 2);
    let (mut service, address) = start(&rig, &[], first)?;
    let mut out = Vec::new();
    rig.take(&mut out, first.len())?;
    // After its first events, the source subscribes again with another prefetch. The test waits until this change is
    // complete.
    rig.until_empty()?;

    ensure!(
        proxy.silence("ordain cases 0") == 1,
        "the source does not have exactly one connection"
    );
    rig.publish(rest)?;
    service.until_says("queue consumed again")?;
    until_ready(&mut service, address)?;
    rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    rig.until_empty()?;
    service.end()
}

/// The address of the broker changes. At first, the host name of the broker does not resolve, and the old address
/// refuses connections. Later, the name resolves to another address. The source and the sink must resolve the name
/// again for each attempt. No event may be lost or take effect twice.
#[test]
fn broker_that_moves_to_another_address_is_found() -> Result<()> {
    let name = Name(NAME);
    let rig = Rig::new()?;
    let old = Proxy::start(rig.rabbit.port())?;
    let new = old.start_beside(SECOND_ADDRESS.parse::<Ipv4Addr>()?)?;
    let url = rig.rabbit.url_at(old.port()).replace(FIRST_ADDRESS, NAME);
    rig.home.write("ordain.toml", config_at(&url, ["", ""]) + FILE_STREAM)?;
    let others = other_lines(1..=40);
    let (other_first, other_rest) = others.split_at(others.len() / 2);
    rig.home.write("lines.ndjson", text(other_first))?;
    let by = name.prepare(&rig.home)?;
    let lines = in_turn(20, 60);
    let (first, rest) = lines.split_at(lines.len() / 2);
    let (mut service, address) = start(&rig, &by, first)?;

    name.resolve(&rig.home, None)?;
    old.set(Mode::Refuse)?;
    rig.publish(rest)?;
    rig.home.append("lines.ndjson", text(other_rest))?;
    let reason = "failed to lookup address information";
    service.until_lines(1, &["queue not consumed", NAME, reason])?;
    service.until_lines(1, &["messages not published", NAME, reason])?;
    until_not_consumed(&mut service, address)?;
    ensure!(metric(address, "ordain_broker_connected")? == Some(0), "{}", service.stderr());
    ensure!(new.counts().accepted == 0, "the host connected to an address without a name");

    name.resolve(&rig.home, Some(SECOND_ADDRESS))?;
    until_ready(&mut service, address)?;
    rig.check(&[lines, others].concat())?;
    rig.until_empty()?;
    ensure!(new.counts().accepted > 0, "the host did not use the new address");
    service.end()
}

/// A server accepts connections but never answers a login. A starting host must try to log in repeatedly, and must end
/// after the time limit for a start. Each attempt has a time limit too, which the log states.
#[test]
fn start_ends_if_logins_stay_unanswered() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let server = listener.local_addr()?;
    let home = Home::new(&["tally"], &config(&format!("amqp://{server}"), "", "", ""))?;
    let mut service = Service::start(&home, &RUN_WITH_SHORT_WAITS)?;
    let status = service.wait()?;
    let log = service.stderr();
    ensure!(status.code() == Some(75), "{status}: {log}");
    let waits = format!("broker unavailable: amqp://{server} {NO_ANSWER}; waiting for it");
    let gives_up = format!("amqp://{server} {NO_ANSWER}. The broker stayed unavailable");
    ensure!(log.contains(&waits) && log.contains(&gives_up), "{log}");
    listener.set_nonblocking(true)?;
    let attempts = std::iter::from_fn(|| listener.accept().ok()).count();
    ensure!(attempts >= 2, "{attempts} attempts: {log}");
    Ok(())
}

/// While a running host connects again, the server accepts connections but never answers a login. Each attempt must end
/// after a time limit, which the log states. An abandoned attempt must leave no thread of the client library behind.
/// The host must continue when the server answers.
#[test]
fn unanswered_login_is_abandoned_and_retried() -> Result<()> {
    let (rig, proxy) = proxied(["", ""])?;
    rig.home.append("ordain.toml", FILE_STREAM)?;
    let others = other_lines(1..=40);
    let (other_first, other_rest) = others.split_at(others.len() / 2);
    rig.home.write("lines.ndjson", text(other_first))?;
    let lines = in_turn(20, 60);
    let (first, rest) = lines.split_at(lines.len() / 2);
    let (mut service, address) = start(&rig, &[], first)?;

    proxy.set(Mode::HalfOpen)?;
    let before = proxy.counts().accepted;
    proxy.cut();
    rig.publish(rest)?;
    rig.home.append("lines.ndjson", text(other_rest))?;
    let server = format!("amqp://{FIRST_ADDRESS}:{}", proxy.port());
    service.until_lines(1, &["queue not consumed", &server, NO_ANSWER])?;
    service.until_lines(1, &["messages not published", &server, "does not answer within"])?;
    until_not_consumed(&mut service, address)?;
    let attempts = 2 * CONNECTION_LIMIT as u64;
    service.until("more attempts", || proxy.counts().accepted >= before + attempts)?;
    let threads = library_threads(&service)?;
    ensure!(
        threads <= CONNECTION_LIMIT,
        "{threads} threads for connections after {attempts} attempts"
    );

    proxy.set(Mode::Pass)?;
    until_ready(&mut service, address)?;
    rig.check(&[lines, others].concat())?;
    rig.until_empty()?;
    service.end()
}
