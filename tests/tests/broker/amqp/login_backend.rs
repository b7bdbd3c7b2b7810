//! Tests of a broker that checks each login and each right with a server over HTTP (the plugin
//! `rabbitmq_auth_backend_http`). In the tests, this server is down for a while. The broker then refuses each login and
//! each right. The refusal is temporary: a running stream must wait, and a start must wait too.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_servers::{Port, Rabbit, RabbitOptions};
use ordain_tests::http::{admin, get, ready};
use ordain_tests::log::{by_key, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::{Service, wait_until};
use ordain_tests::tally;

/// The time limit for a request of the broker. After it has connected, the broker sends its request immediately.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const REFUSAL: &str = "ACCESS_REFUSED - Login was refused";

/// A server that allows each user everything. The broker queries it about users and rights.
struct LoginBackend {
    port: Port,
    running: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl LoginBackend {
    fn start() -> Result<Self> {
        let mut backend = Self { port: Port::take()?, running: None };
        backend.restart()?;
        Ok(backend)
    }

    /// Starts the server again on the same port.
    fn restart(&mut self) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port.number()))?;
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stopped);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_stopped.load(Ordering::Relaxed) {
                    return;
                }
                // A request fails if the broker closes its connection. The broker then sends the request again.
                let _ = stream.and_then(allow);
            }
        });
        self.running = Some((stopped, thread));
        Ok(())
    }

    /// Stops the server: from now on, connections to its port are refused.
    fn stop(&mut self) -> Result<()> {
        let (stopped, thread) = self.running.take().context("the login backend is not running")?;
        stopped.store(true, Ordering::Relaxed);
        // The thread waits for its next connection, and this connection ends the wait. A connection of the broker may
        // have ended the wait already.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.number()));
        ensure!(thread.join().is_ok(), "the login backend panicked");
        Ok(())
    }

    /// Returns the options of a broker that uses this server for all logins and rights.
    fn options(&self) -> RabbitOptions {
        let mut options = RabbitOptions::new()
            .plugin("rabbitmq_auth_backend_http")
            .line("auth_backends.1 = http");
        for path in ["user", "vhost", "resource", "topic"] {
            let port = self.port.number();
            options =
                options.line(&format!("auth_http.{path}_path = http://127.0.0.1:{port}/{path}"));
        }
        options
    }
}

fn allow(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? > 0 {
        request.push(byte[0]);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nallow")
}

/// Waits until `/readyz` names the words with which the broker refuses the login, and the time since which the stream
/// receives no events. `detail` is the beginning of the response's `detail`. The response must contain neither the name
/// of the user nor the address of the broker.
fn until_refusal_is_named(service: &mut Service, detail: &str) -> Result<()> {
    let address = admin(service)?;
    let mut last = None;
    service.until("the words of the broker at /readyz", || {
        let Ok(page) = get(address, "/readyz") else { return false };
        let body = page.json().unwrap_or_default();
        let stream = &body["streams"][0];
        let reason = stream["reason"].as_str().unwrap_or_default();
        let is_named = page.status == 503
            && body["detail"].as_str().is_some_and(|text| text.starts_with(detail))
            && body["detail"].as_str().is_some_and(|text| text.contains(REFUSAL))
            && stream["stream"] == "cases"
            && reason.starts_with("no events have arrived from its source since 20")
            && reason.contains(REFUSAL);
        last = Some(page.body);
        is_named
    })?;
    let body = last.context("a response")?;
    ensure!(!body.contains("guest") && !body.contains("127.0.0.1"), "{body}");
    Ok(())
}

/// Connects to the broker, which may still wait for an answer of the former login backend and refuse a login.
fn reconnect(rig: &mut Rig) -> Result<()> {
    wait_until("a login of the producer", || Ok(rig.reconnect().is_ok()))
}

/// The broker closes its connections while its login backend is down.
#[test]
fn streams_wait_for_the_login_backend_of_the_broker() -> Result<()> {
    for ordering in ["", "ordering = \"fifo\""] {
        let mut backend = LoginBackend::start()?;
        let mut rig = Rig::on(Rabbit::with(&backend.options())?, "", ordering, "")?;
        let mut service = Service::start(&rig.home, &["run"])?;
        ready(&mut service)?;
        rig.until_declared()?;
        let lines = in_turn(10, 6);
        let mut out = Vec::new();
        rig.publish(&lines[..20])?;
        rig.take(&mut out, 20)?;

        backend.stop()?;
        rig.rabbit.close_connections()?;
        service.until_says(REFUSAL)?;
        until_refusal_is_named(&mut service, "not ready: stream cases: no events have arrived")?;
        let address = admin(&mut service)?;
        let listed = get(address, "/v1/streams")?.json()?;
        let reason = listed["streams"][0]["reason"].as_str().unwrap_or_default();
        ensure!(reason.contains(REFUSAL) && reason.contains("guest"), "{listed}");
        backend.restart()?;
        ready(&mut service)?;
        reconnect(&mut rig)?;
        rig.publish(&lines[20..40])?;
        rig.take(&mut out, 40)?;
        service.end()?;

        // A start must wait too.
        backend.stop()?;
        let mut service = Service::start(&rig.home, &["run"])?;
        service.until_says(REFUSAL)?;
        until_refusal_is_named(&mut service, "not ready: the process has waited for the broker")?;
        backend.restart()?;
        ready(&mut service)?;
        reconnect(&mut rig)?;
        rig.publish(&lines[40..])?;
        rig.take(&mut out, lines.len())?;
        tally::check(&by_key(&lines)?, &out.join("\n"))?;
        service.end()?;
    }
    Ok(())
}
