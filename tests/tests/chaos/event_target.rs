//! The targets to which a producer sends its events.

use std::net::SocketAddr;
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail, ensure};
use ordain_tests::amqp::{Client, Outgoing, from_line};
use ordain_tests::host::Home;
use ordain_tests::http::{self, Answer};
use ordain_tests::incident::{lost_events, records};
use ordain_tests::log::text;
use ordain_tests::rig::Rig;
use ordain_tests::service::wait_until;

use super::events::SentEvents;
use super::receiver::{Kind, Receiver, WENT_BACK};
use super::routes::Route;

/// The number of events per request when a round sends all events again.
const REQUEST_EVENTS: usize = 500;
/// The file that `ordain publish` publishes.
const FILE: &str = "events.ndjson";
/// The option that a refusal of `ordain publish` names as the next step after the store lost numbers.
const REUSE: &str = "--reuse-lost-numbers";
/// A part of the refusal of an event because of numbers that the store does not have.
const NOT_GIVEN: &str = "sequences that the store did not give";
/// A part of the refusal of an event that is published with the option [`REUSE`].
const NOT_EXECUTED: &str = "has not executed the event yet";
/// A publisher keeps at least this number of a round's events in memory. If the store loses events of a larger file,
/// `ordain publish` may report events that it has dropped from memory.
const KEPT_EVENTS: usize = 10_000;
/// The exit code of a command that waited too long for an unavailable server.
const TEMPFAIL: i32 = 75;
/// The error code that a new connection to a split-off master gets. The test splits a master off with a password that
/// new clients do not have.
const CUT_OFF: &str = "NOAUTH";

pub(crate) enum EventTarget {
    /// Hosts to which the producer posts its requests in turn, and the number of requests so far.
    Hosts(Vec<SocketAddr>, AtomicUsize),
    /// The exchange `cases`, to which a client of the broker publishes.
    Exchange(Arc<Rig>),
    /// The exchange `cases` of a broker that may refuse events, and close connections, at any time.
    DisturbedExchange(Box<DisturbedExchange>),
    /// A file in a home in which `ordain publish` runs, and the number of lines of the file.
    File(Home, AtomicUsize),
}

impl Default for EventTarget {
    fn default() -> Self {
        Self::Hosts(Vec::new(), AtomicUsize::new(0))
    }
}

impl EventTarget {
    /// Creates the target of a producer whose events reach these hosts on the route of `kind`. `rig` holds the broker,
    /// if the events pass through one. For a target of the kind [`EventTarget::File`], creates an empty file.
    pub(crate) fn new(kind: &Kind, rig: Option<&Arc<Rig>>, hosts: &[Receiver]) -> Result<Self> {
        match rig {
            _ if kind.route.is_file() => {
                let home = Home::new(&["tally"], &kind.config(0))?;
                home.write(FILE, "")?;
                Ok(Self::File(home, AtomicUsize::new(0)))
            }
            Some(rig) if kind.route == Route::Exchange => Ok(Self::Exchange(Arc::clone(rig))),
            _ => {
                let addresses = hosts.iter().map(|host| host.address).collect();
                Ok(Self::Hosts(addresses, AtomicUsize::new(0)))
            }
        }
    }

    pub(crate) fn use_first_host(&mut self) {
        if let Self::Hosts(addresses, _) = self {
            addresses.truncate(1);
        }
    }

    /// Tries to send events. Returns whether the target accepted the events. `attempt` is the number of earlier
    /// attempts to send these events. A target of the kind [`EventTarget::File`] appends the events to its file only in
    /// attempt 0.
    pub(crate) fn try_send(&self, lines: &[String], attempt: usize) -> Result<bool> {
        match self {
            Self::Hosts(addresses, requests) => {
                ensure!(!addresses.is_empty(), "the producer has no host");
                let turn = requests.fetch_add(1, Ordering::SeqCst) % addresses.len();
                match post(addresses[turn], &text(lines)) {
                    Ok(Answer { status: 202, .. }) => Ok(true),
                    Ok(Answer { status: 429 | 500..=599, .. }) | Err(_) => Ok(false),
                    Ok(other) => bail!("{other:?}"),
                }
            }
            Self::Exchange(rig) => rig.publish(lines).map(|()| true),
            Self::DisturbedExchange(exchange) => exchange.try_publish(lines),
            Self::File(home, count) => {
                if attempt == 0 {
                    home.append(FILE, text(lines))?;
                    count.fetch_add(lines.len(), Ordering::SeqCst);
                }
                publish(home, count.load(Ordering::SeqCst))
            }
        }
    }

    pub(crate) fn send_again(&self, route: Route, sent: &SentEvents) -> Result<()> {
        let mut all = Vec::new();
        for (key, events) in sent {
            for event in events {
                all.push(route.event(key, event.number)?);
            }
        }
        // The file already contains all events, and one run of `ordain publish` publishes the whole file.
        let size = if route.is_file() { all.len().max(1) } else { REQUEST_EVENTS };
        for chunk in all.chunks(size) {
            let mut attempt = 0;
            wait_until("events that are accepted again", || {
                attempt += 1;
                self.try_send(chunk, attempt)
            })?;
        }
        Ok(())
    }
}

/// The exchange `cases`, and a connection to its broker. After a failure, the next attempt opens another connection.
pub(crate) struct DisturbedExchange {
    rig: Arc<Rig>,
    /// `None` if no connection is open.
    client: Mutex<Option<Client>>,
}

impl DisturbedExchange {
    /// Creates the target without a connection. The first attempt to publish opens a connection.
    pub(crate) fn new(rig: Arc<Rig>) -> Self {
        Self { rig, client: Mutex::default() }
    }

    /// Publishes without retries. Returns whether the broker confirmed all events and returned none. If the result is
    /// false, some of the events may nevertheless be in a queue.
    fn try_publish(&self, lines: &[String]) -> Result<bool> {
        let messages = lines.iter().map(|line| from_line(line));
        let messages: Vec<Outgoing> = messages.collect::<Result<_>>()?;
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let connected = client.take().map_or_else(|| self.rig.connect(), Ok);
        let Ok(connected) = connected else { return Ok(false) };
        let is_accepted = connected.try_publish("cases", &messages).unwrap_or_default();
        // If a full queue has refused a message, RabbitMQ refuses all later messages of the channel, even after the
        // removal of the queue's limit. The next attempt therefore opens another connection.
        if is_accepted {
            *client = Some(connected);
        }
        Ok(is_accepted)
    }
}

/// Posts the lines in `body` to a host in one request, without retries. Returns the response.
pub(crate) fn post(address: SocketAddr, body: &str) -> Result<Answer> {
    http::post(address, http::LINES_TYPE, body)
}

/// Runs `ordain publish`. Returns true if the command published the whole file, and false if the store was unavailable,
/// cut off, or had gone back in time. If the command failed for another reason, for example because two events have the
/// same number, returns an error.
///
/// The store may have lost the numbers of events that the hosts executed only after the loss. The command then refuses
/// the first of these events. This function follows the advice of the refusal: it publishes the file once more, with
/// the option that the refusal names. If the store refuses an event despite the option, the stream may not have
/// executed this event yet. This function then returns false, so that the caller tries again.
///
/// A run must report no lost event, because it publishes each lost event again: from memory, or by reading the file
/// again. `lines` is the number of lines of the file. This rule does not apply to a file of more than [`KEPT_EVENTS`]
/// lines.
fn publish(home: &Home, lines: usize) -> Result<bool> {
    let run = |args: &[&str]| -> Result<Output> {
        let output = home.output(args)?;
        let log = String::from_utf8_lossy(&output.stderr);
        let reported = lost_events(&records(&log)?);
        ensure!(
            reported == 0 || lines > KEPT_EVENTS,
            "`ordain publish` reported {reported} lost events of {lines}: {log}"
        );
        Ok(output)
    };
    let output = run(&["publish", "cases", FILE])?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && log.contains(NOT_GIVEN) && log.contains(REUSE) {
        let output = run(&["publish", "cases", FILE, REUSE])?;
        let log = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() && log.contains(NOT_EXECUTED) {
            eprintln!("`ordain publish` refused an event with {REUSE}: {log}");
            return Ok(false);
        }
        return is_published(&output);
    }
    is_published(&output)
}

/// Returns whether a run of `ordain publish` published the whole file. Returns an error if the command failed for a
/// reason that [`publish`] does not list.
fn is_published(output: &Output) -> Result<bool> {
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success()
            || output.status.code() == Some(TEMPFAIL)
            || log.contains(WENT_BACK)
            || log.contains(CUT_OFF),
        "`ordain publish` ended with {}: {log}",
        output.status
    );
    Ok(output.status.success())
}
