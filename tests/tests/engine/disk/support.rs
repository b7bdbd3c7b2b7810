//! A host that has its store and its sink's file on one disk, and a producer that repeats each request until the host
//! accepts it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ordain_servers::Port;
use ordain_tests::host::Home;
use ordain_tests::http::{self, Answer};
use ordain_tests::log::{by_key, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::synced::SyncedDisk;

pub(super) const DISK: &str = "disk";
pub(super) const STORE: &str = "disk/store";
pub(super) const SINK_FILE: &str = "disk/out/out.ndjson";
/// A part of the log line that a host writes after it has opened its store.
pub(super) const LISTENING_WORDS: &str = "ingress listening on http://";
const KEYS: usize = 20;
const REQUEST_EVENTS: usize = 10;
/// The time for which the producer repeats the same request before the test fails.
const ACCEPT_TIMEOUT: Duration = Duration::from_mins(1);
/// The delay between two attempts to send a request.
const RETRY_DELAY: Duration = Duration::from_millis(10);

pub(super) struct Rig {
    pub(super) home: Home,
    pub(super) disk: SyncedDisk,
    pub(super) service: Service,
    port: Port,
}

impl Rig {
    /// Starts a host on a new disk that keeps only synced data.
    pub(super) fn start() -> Result<Self> {
        Self::start_by(|home, disk| Service::start_with(home, &["run"], &disk.env()))
    }

    /// Starts a host on a new disk that keeps only synced data. The first sync of a file or folder whose path ends with
    /// `ending` fails.
    pub(super) fn with_failing_sync(ending: &str) -> Result<Self> {
        Self::start_by(|home, disk| {
            disk.fail_next_sync(ending)?;
            Service::start_with(home, &["run"], &disk.env())
        })
    }

    /// Starts a host on a new disk that keeps all data.
    pub(super) fn on_good_disk() -> Result<Self> {
        Self::start_by(|home, _| Service::start(home, &["run"]))
    }

    fn start_by(start: impl FnOnce(&Home, &SyncedDisk) -> Result<Service>) -> Result<Self> {
        let port = Port::take()?;
        let home = home(&port)?;
        let disk = SyncedDisk::create(&home, DISK, &["store", "out"])?;
        let service = start(&home, &disk)?;
        Ok(Self { home, disk, service, port })
    }

    /// Starts the host again after its end, on the disk that keeps only synced data.
    pub(super) fn start_again(&mut self) -> Result<()> {
        self.service = Service::start_with(&self.home, &["run"], &self.disk.env())?;
        Ok(())
    }

    /// Starts the host again after its end, on a disk that keeps all data.
    pub(super) fn start_on_good_disk(&mut self) -> Result<()> {
        self.service = Service::start(&self.home, &["run"])?;
        Ok(())
    }

    pub(super) fn cut_power(&mut self) -> Result<()> {
        self.service.kill()?;
        self.disk.cut_power()
    }

    /// Waits until a failed call has ended the host. The exit code must be `code`, and the log must contain `words`.
    pub(super) fn until_failed(&mut self, code: i32, words: &str) -> Result<()> {
        let status = self.service.wait()?;
        let log = self.service.stderr();
        ensure!(self.disk.has_failed(), "no sync failed: {log}");
        ensure!(status.code() == Some(code), "the host ended with {status}: {log}");
        for words in ["Input/output error", words] {
            ensure!(log.contains(words), "the log lacks {words:?}: {log}");
        }
        Ok(())
    }

    /// Waits until the host has accepted this number of new events.
    pub(super) fn until_accepted(&mut self, producer: &Producer, more: usize) -> Result<()> {
        let wanted = producer.accepted() + more;
        self.service.until("accepted events", || producer.accepted() >= wanted)
    }

    /// Sends events while `meanwhile` runs. When `meanwhile` ends, the host must be running. Returns the accepted
    /// events in order.
    pub(super) fn while_producing(
        &mut self,
        padding: usize,
        meanwhile: impl FnOnce(&mut Self, &Producer) -> Result<()>,
    ) -> Result<Vec<String>> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port.number()));
        let producer = Producer::new(address, padding);
        std::thread::scope(|scope| {
            let producing = scope.spawn(|| producer.run());
            let done = meanwhile(self, &producer);
            producer.is_over.store(true, Ordering::SeqCst);
            let sent = producing.join();
            let sent = sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.and(sent)
        })?;
        Ok(producer.events(producer.accepted()))
    }

    /// Waits until the accepted events have taken effect, and stops the host. Checks that the sink's file has one
    /// message for each accepted event, in order within each key.
    pub(super) fn check(&mut self, accepted: &[String]) -> Result<()> {
        let home = &self.home;
        self.service.until("all effects", || home.lines(SINK_FILE) >= accepted.len())?;
        self.service.end()?;
        tally::check(&by_key(accepted)?, &self.home.read(SINK_FILE))
    }
}

pub(super) fn home(port: &Port) -> Result<Home> {
    let config = format!(
        "[ingress]\nlisten = \"127.0.0.1:{}\"\n[store]\nkind = \"embedded\"\npath = \"{STORE}\"\n\
         [streams.cases]\nhandler = \"tally\"\nsource = {{ kind = \"http\" }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"{SINK_FILE}\"\n",
        port.number()
    );
    Home::new(&["tally"], &config)
}

/// A producer that sends numbered events, in order within each key.
pub(super) struct Producer {
    address: SocketAddr,
    /// The number of random bytes in each event.
    padding: usize,
    accepted: AtomicUsize,
    accepted_at: Mutex<Option<Instant>>,
    /// The answers that reported an error of the host.
    errors: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Producer {
    fn new(address: SocketAddr, padding: usize) -> Self {
        Self {
            address,
            padding,
            accepted: AtomicUsize::new(0),
            accepted_at: Mutex::new(None),
            errors: Mutex::default(),
            is_over: AtomicBool::new(false),
        }
    }

    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Returns the time when the host accepted the newest events.
    pub(super) fn accepted_at(&self) -> Option<Instant> {
        *self.accepted_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn events(&self, count: usize) -> Vec<String> {
        (0..count).map(|number| self.event(number)).collect()
    }

    fn event(&self, number: usize) -> String {
        let mut padding = vec![0; self.padding];
        ChaCha8Rng::seed_from_u64(number as u64).fill_bytes(&mut padding);
        let data = json!({ "n": number, "padding": STANDARD.encode(padding) });
        line(&format!("k{}", number % KEYS), (number / KEYS) as u64 + 1, &data)
    }

    fn run(&self) -> Result<()> {
        while !self.is_over.load(Ordering::SeqCst) {
            let first = self.accepted();
            let batch: Vec<String> =
                (first..first + REQUEST_EVENTS).map(|number| self.event(number)).collect();
            self.post_until_accepted(&text(&batch))?;
            *self.accepted_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            self.accepted.store(first + REQUEST_EVENTS, Ordering::SeqCst);
        }
        Ok(())
    }

    fn post_until_accepted(&self, body: &str) -> Result<()> {
        let started = Instant::now();
        loop {
            match http::post(self.address, http::LINES_TYPE, body) {
                Ok(Answer { status: 202, .. }) => return Ok(()),
                Ok(Answer { status: 500..=599, body, .. }) => {
                    self.errors.lock().unwrap_or_else(PoisonError::into_inner).push(body);
                    sleep(RETRY_DELAY);
                }
                Ok(Answer { status: 429, .. }) | Err(_) => sleep(RETRY_DELAY),
                Ok(other) => bail!("unexpected answer: {other:?}"),
            }
            ensure!(
                started.elapsed() < ACCEPT_TIMEOUT,
                "the host has accepted no events for {ACCEPT_TIMEOUT:?}"
            );
        }
    }
}
