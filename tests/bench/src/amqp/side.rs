//! Starts and observes a process that the benchmark measures: a consumer that is a part of this program, or the host.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::open::open_store;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum as _;
use ordain_servers::send_signal;
use ordain_store::KeyFilter;
use serde_json::Value;

use super::case::{Case, STREAM};
use super::consumer::Kind;
use super::latency::Latency;
use super::load::{Load, key_name};

/// Interval between two checks of a process that must end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time limit for the end of a process that has no work left.
const EXIT_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum number of key records that the benchmark reads from the store at a time.
const PAGE: usize = 1_000;

/// The program that consumes the events of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SideProgram {
    Consumer(Kind),
    Host,
}

/// A running side. Dropping this value kills the process.
pub(crate) struct RunningSide {
    child: Child,
    out: PathBuf,
    log: PathBuf,
}

impl RunningSide {
    /// Starts a side. `events` is the number of deliveries that the side will receive. The percentiles of a consumer
    /// leave out the first `cold` deliveries.
    pub(crate) fn start(
        who: SideProgram,
        ordain: &Path,
        case: &Case,
        (events, cold): (usize, usize),
    ) -> Result<Self> {
        let command = match who {
            SideProgram::Consumer(kind) => {
                let kind = kind.to_possible_value().context("the kind of consumer has no name")?;
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["side", "amqp", kind.get_name(), "--config"]).arg(case.config());
                command.args(["--redis", &case.redis.url(), "--events", &events.to_string()]);
                command.args(["--cold", &cold.to_string()]);
                command
            }
            SideProgram::Host => {
                let mut command = Command::new(ordain.canonicalize()?);
                command.args(["run", "--json"]);
                command
            }
        };
        Self::spawn(command, case.home.path(), "out", "log")
    }

    /// Starts one of several hosts that share the queues of a measurement. Each host has its own admin port.
    pub(crate) fn host(ordain: &Path, case: &Case, number: usize) -> Result<Self> {
        let file = format!("ordain-{number}.toml");
        let text = fs::read_to_string(case.config())?;
        let admin = format!("127.0.0.1:{}", case.admin);
        fs::write(case.home.path().join(&file), text.replace(&admin, "127.0.0.1:0"))?;
        let mut command = Command::new(ordain.canonicalize()?);
        command.args(["run", &file]);
        let file = |kind: &str| format!("{kind}-{number}");
        Self::spawn(command, case.home.path(), &file("out"), &file("log"))
    }

    /// Starts a host with the configuration in a folder.
    pub(crate) fn on(ordain: &Path, home: &Path) -> Result<Self> {
        let mut command = Command::new(ordain.canonicalize()?);
        command.args(["run"]);
        Self::spawn(command, home, "out", "log")
    }

    fn spawn(mut command: Command, home: &Path, out: &str, log: &str) -> Result<Self> {
        let out = home.join(out);
        let log = home.join(log);
        command.current_dir(home).stdin(Stdio::null());
        command.stdout(File::create(&out)?).stderr(File::create(&log)?);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, out, log })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error if the process has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the process ended with {status}: {}", self.log()),
            None => Ok(()),
        }
    }

    /// Returns whether the process is still running.
    pub(crate) fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends the process. Returns the JSON that the process printed; `null` if it printed nothing.
    pub(crate) fn finish(mut self) -> Result<Value> {
        send_signal(self.id(), "TERM").with_context(|| self.log())?;
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(started.elapsed() < EXIT_TIMEOUT, "the process does not end: {}", self.log());
            std::thread::sleep(POLL_INTERVAL);
        };
        ensure!(status.success(), "the process ended with {status}: {}", self.log());
        let printed = fs::read_to_string(&self.out)?;
        if printed.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&printed).with_context(|| printed.clone())
    }

    /// Ends a consumer. Returns the percentiles that the consumer printed; `None` if it printed none.
    pub(crate) fn finish_with_latency(self) -> Result<Option<Latency>> {
        Ok(serde_json::from_value(self.finish()?)?)
    }
}

impl Drop for RunningSide {
    fn drop(&mut self) {
        // Errors do not matter: the process has already ended, or the benchmark has already failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl SideProgram {
    /// Checks, after the process has ended, that the side executed the whole load. Without this check, a side that
    /// loses events would seem fast.
    pub(crate) async fn check(self, case: &Case, load: &Load, printed: &Value) -> Result<()> {
        match self {
            Self::Host => {
                let settled = &printed["settled"];
                let dead = &printed["dead_total"];
                let expected = load.distinct();
                ensure!(*settled == expected, "the host settled {settled} of {expected} events");
                ensure!(*dead == 0, "the host wrote {dead} dead letters");
                check_store(case, load).await
            }
            Self::Consumer(Kind::Unordered) => check_store(case, load).await,
            Self::Consumer(Kind::Tasks | Kind::Single | Kind::Serial) => {
                let keys =
                    case.redis.command(&["DBSIZE"])?.int().context("DBSIZE returned no number")?;
                // Redis has a mark for each event, and a state for each key.
                let expected = load.distinct() + load.keys() as u64;
                ensure!(keys as u64 == expected, "Redis has {keys} keys instead of {expected}");
                Ok(())
            }
            // [`Case::end`] checks that the queue is empty, which proves that the side consumed the whole load.
            Self::Consumer(Kind::Bare | Kind::BarePublish) => Ok(()),
        }
    }
}

/// Checks that the next sequence of every key follows the sequence of the key's last event, and that the store has no
/// other keys.
async fn check_store(case: &Case, load: &Load) -> Result<()> {
    let store = open_store(&case.loaded, Some(EXIT_TIMEOUT)).await?;
    let mut filter = KeyFilter { limit: PAGE, ..KeyFilter::default() };
    let mut found = std::collections::BTreeMap::new();
    loop {
        let page = store.keys(STREAM, &filter).await?;
        for row in page.rows {
            let record = row.record.map_err(anyhow::Error::msg)?;
            found.insert(row.key.to_string(), record.next);
        }
        filter.cursor = page.cursor;
        if filter.cursor.is_none() {
            break;
        }
    }
    for (key, events) in (0..).zip(&load.events).filter(|(_, events)| **events > 0) {
        let key = key_name(key);
        let expected = u64::from(*events) + 1;
        let next = found.remove(&key);
        ensure!(
            next == Some(expected),
            "the next sequence of key {key} is {next:?} instead of {expected}"
        );
    }
    ensure!(found.is_empty(), "the store has keys that were never published: {found:?}");
    Ok(())
}
