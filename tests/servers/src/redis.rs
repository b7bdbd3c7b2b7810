//! A real `redis-server` for one test.
//!
//! The methods of a running server take `&self`, so that a test can kill the server while other threads use it.

mod life;
mod options;
mod snapshot;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use options::{Kind, Ports};
pub use options::{Options, SECOND_ADDRESS};
pub use snapshot::Snapshot;

use crate::port::Port;
use crate::resp::{Connection, Reply};
use crate::running::ServerProcess;
use crate::tls::Certificates;
use crate::wait::wait_until;

/// Another attempt follows only if another process took the port just before the server could use it.
const START_LIMIT: u32 = 5;
pub(crate) const CONFIG: &str = "redis.conf";
const LOG_TAIL_LINES: usize = 20;

/// A Redis in a private folder on a private port of 127.0.0.1. Dropping the value kills the server.
#[derive(Debug)]
pub struct Redis {
    /// Declared before the folder: Rust drops fields in the order of their declaration, so the process ends before its
    /// folder is removed.
    process: ServerProcess,
    port: Port,
    tls: Option<(Port, Certificates)>,
    /// The port for connections between the nodes of a Cluster. The port stays reserved until the `Redis` value is
    /// dropped, because the server may restart.
    bus: Option<Port>,
    options: Options,
    folder: TempDir,
}

impl Redis {
    /// Starts a durable server with additional lines of `redis.conf`, and waits until it replies.
    pub fn start(lines: &[&str]) -> Result<Self> {
        Self::with(&lines.iter().fold(Options::new(), |options, line| options.line(line)))
    }

    /// Starts a server with options, and waits until it replies. If the server is a replica, also waits as
    /// [`Self::until_in_step`] does.
    pub fn with(options: &Options) -> Result<Self> {
        let mut tries = 1;
        loop {
            let redis = Self::prepare(options.clone())?;
            match redis.launch() {
                // Another process of the machine took the port, so try again with another port.
                Err(_) if tries < START_LIMIT && redis.log().contains("Address already in use") => {
                    tries += 1;
                }
                Err(error) => return Err(error),
                Ok(()) => {
                    if redis.options.is_follower() {
                        redis.until_in_step()?;
                    }
                    return Ok(redis);
                }
            }
        }
    }

    fn prepare(options: Options) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ordain-redis-").tempdir()?;
        fs::create_dir(folder.path().join("data"))?;
        let port = Port::take()?;
        let bus = (options.kind() == Kind::Node).then(Port::take).transpose()?;
        let certificates = match options.certificates() {
            Some(certificates) => Some(certificates.clone()),
            None if options.has_tls() => Some(Certificates::make(&folder.path().join("tls"))?),
            None => None,
        };
        let tls = match certificates {
            Some(certificates) => Some((Port::take()?, certificates)),
            None => None,
        };
        let ports = Ports {
            plain: port.number(),
            tls: tls.as_ref().map(|(port, _)| port.number()),
            bus: bus.as_ref().map(Port::number),
        };
        let config = options.config(&ports, tls.as_ref().map(|(_, certificates)| certificates));
        fs::write(folder.path().join(CONFIG), config)?;
        Ok(Self { process: ServerProcess::default(), port, tls, bus, options, folder })
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the port for TLS and the certificates, if TLS was requested.
    pub fn tls(&self) -> Option<(u16, &Certificates)> {
        self.tls.as_ref().map(|(port, certificates)| (port.number(), certificates))
    }

    /// The other nodes connect as clients to the port for TLS if TLS was requested, and otherwise to the plain port.
    pub(crate) fn peer_port(&self) -> u16 {
        self.tls.as_ref().map_or_else(|| self.port(), |(port, _)| port.number())
    }

    /// Returns the port for connections between the nodes, if the server is a node of a Cluster.
    pub(crate) fn bus_port(&self) -> Option<u16> {
        self.bus.as_ref().map(Port::number)
    }

    /// Returns the URL of the server, such as `redis://127.0.0.1:20001`, with the password of the user `default`, if
    /// any. If the server offers TLS, the URL has `rediss://` and the port for TLS.
    pub fn url(&self) -> String {
        match &self.tls {
            Some((port, _)) => format!("rediss://{}127.0.0.1:{}", self.login(), port.number()),
            None => self.url_at(self.port()),
        }
    }

    /// Returns the URL at another port, such as the port of a proxy in front of the server, without TLS.
    pub fn url_at(&self, port: u16) -> String {
        format!("redis://{}127.0.0.1:{port}", self.login())
    }

    fn login(&self) -> String {
        self.password().map(|password| format!(":{password}@")).unwrap_or_default()
    }

    /// Returns the password of the user `default`.
    pub fn password(&self) -> Option<&str> {
        self.options.password_of_default()
    }

    /// Opens a connection to the server, logged in as `default`.
    pub fn connect(&self) -> Result<Connection> {
        let mut connection = Connection::open(self.port())?;
        if let Some(password) = self.password() {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Sends a command over a new connection. Returns an error if the reply is an error.
    pub fn command(&self, command: &[&str]) -> Result<Reply> {
        self.connect()?.command(command)
    }

    /// Sends a command over a new connection. Returns the reply, even if it is an error.
    pub fn attempt(&self, command: &[&str]) -> Result<Reply> {
        self.connect()?.attempt(command)
    }

    /// Returns the fields of a section of `INFO`.
    pub fn info(&self, section: &str) -> Result<BTreeMap<String, String>> {
        let reply = self.command(&["INFO", section])?;
        let text = reply.text().context("the reply to INFO is not a text")?;
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Returns the processor time that the server has used since its start, in seconds.
    pub fn cpu(&self) -> Result<f64> {
        let info = self.info("cpu")?;
        let seconds = |name: &str| -> Result<f64> {
            Ok(info.get(name).with_context(|| format!("INFO has no {name}"))?.parse()?)
        };
        Ok(seconds("used_cpu_user")? + seconds("used_cpu_sys")?)
    }

    /// Waits until this replica is in step with its master: the replica has loaded the data of its master, receives
    /// each later write, and has written a complete append-only file. After a full copy, a replica writes this file in
    /// the background. If a test killed the replica before the file is complete, the replica would be empty after a
    /// restart.
    pub fn until_in_step(&self) -> Result<()> {
        wait_until("a replica in step with its master", || {
            ensure!(self.is_running(), "the replica has ended");
            // This command may fail: a Sentinel that assigns another master to the replica closes the connections of
            // the replica's clients.
            let Ok(info) = self.info("everything") else { return Ok(false) };
            let is = |name: &str, value: &str| info.get(name).is_some_and(|other| other == value);
            Ok(is("master_link_status", "up")
                && is("aof_rewrite_in_progress", "0")
                && is("aof_rewrite_scheduled", "0"))
        })
        .with_context(|| format!("the server's log ends:\n{}", self.log_tail()))
    }

    /// Changes a setting to a value of one word, now and for every later start.
    pub fn configure(&self, name: &str, value: &str) -> Result<()> {
        self.command(&["CONFIG", "SET", name, value])?;
        self.configure_later(&format!("{name} \"{value}\""))
    }

    /// Adds a line to the configuration, which takes effect at the next start.
    pub(crate) fn configure_later(&self, line: &str) -> Result<()> {
        let mut file = fs::File::options().append(true).open(self.folder.path().join(CONFIG))?;
        Ok(writeln!(file, "{line}")?)
    }

    /// Returns the end of the server's log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("redis.log")
    }

    /// Returns the folder of the server's data.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}
