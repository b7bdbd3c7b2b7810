//! The process of a broker, with its own Erlang name service (epmd).

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::console::Console;
use super::options::RabbitOptions;
use super::programs::Programs;
use crate::port::{Port, free_everywhere};
use crate::process::Process;
use crate::running::ServerProcess;
use crate::tls::Certificates;
use crate::wait::wait_within;

/// The time limit of a start. A start takes ten seconds on an idle machine.
const START_TIMEOUT: Duration = Duration::from_mins(2);
/// The time limit within which all queues must have elected leaders after a restart.
const ELECTION_TIMEOUT: Duration = Duration::from_mins(1);
/// The words in the broker's log that mark the end of a start.
const STARTED_WORDS: &str = "Server startup complete";
const CONFIG: &str = "rabbitmq.conf";
/// The file with the secret that the nodes of a cluster share.
const COOKIE: &str = ".erlang.cookie";
const LOG_TAIL_LINES: usize = 30;

/// A broker in a private folder on private ports of 127.0.0.1. Dropping the value kills the broker.
#[derive(Debug)]
pub(super) struct Server {
    /// Declared before the folder: Rust drops fields in the order of their declaration, so the process ends before its
    /// folder is removed.
    pub(super) process: ServerProcess,
    /// The name service that Erlang needs. The broker does not use the machine's own name service. The nodes of a
    /// cluster use the name service of the first node.
    names: Arc<ServerProcess>,
    programs: Programs,
    pub(super) options: RabbitOptions,
    pub(super) port: Port,
    pub(super) tls: Option<(Port, Certificates)>,
    pub(super) management: Option<Port>,
    console: Console,
    distribution: u16,
    epmd: Arc<Port>,
    /// The names of the nodes of the cluster, which a new node joins. Empty if the broker has only this node.
    members: Vec<String>,
    folder: TempDir,
}

impl Server {
    /// Starts a broker, and waits until it accepts connections.
    pub(super) fn start(options: &RabbitOptions) -> Result<Self> {
        let server = Self::new(options)?;
        server.start_names()?;
        server.configure()?;
        server.launch()?;
        Ok(server)
    }

    /// Starts another node, which joins the cluster of a running node, and waits until it accepts connections.
    pub(super) fn join(first: &Self) -> Result<Self> {
        let mut server = Self::new(&first.options)?;
        server.names = Arc::clone(&first.names);
        server.epmd = Arc::clone(&first.epmd);
        server.members = vec![first.node(), server.node()];
        fs::copy(first.folder.path().join(COOKIE), server.folder.path().join(COOKIE))?;
        server.configure()?;
        server.launch()?;
        Ok(server)
    }

    fn new(options: &RabbitOptions) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ordain-rabbit-").tempdir()?;
        let tls = if options.tls {
            Some((Port::take()?, Certificates::make(&folder.path().join("tls"))?))
        } else {
            None
        };
        for name in ["data", "log"] {
            fs::create_dir(folder.path().join(name))?;
        }
        fs::write(folder.path().join("plugins"), enabled_plugins(options))?;
        Ok(Self {
            process: ServerProcess::default(),
            names: Arc::default(),
            programs: Programs::find()?,
            options: options.clone(),
            port: Port::take()?,
            tls,
            management: options.management.then(Port::take).transpose()?,
            console: Console::new()?,
            distribution: free_everywhere()?,
            epmd: Arc::new(Port::take()?),
            members: Vec::new(),
            folder,
        })
    }

    /// Returns the name of the node.
    pub(super) fn node(&self) -> String {
        format!("ordain-{}@localhost", self.port.number())
    }

    fn configure(&self) -> Result<()> {
        let mut lines = vec![
            format!("listeners.tcp.1 = 127.0.0.1:{}", self.port.number()),
            "log.console = true".to_owned(),
            "log.file = false".to_owned(),
            // Limits the write-ahead log that all quorum queues share: with the default, the broker writes half a
            // gigabyte of zeros.
            "raft.wal_max_size_bytes = 32000000".to_owned(),
        ];
        if let Some((port, certificates)) = &self.tls {
            lines.push(format!("listeners.ssl.1 = 127.0.0.1:{}", port.number()));
            let files = [
                ("cacertfile", certificates.authority()),
                ("certfile", certificates.certificate()),
                ("keyfile", certificates.key()),
            ];
            lines.extend(
                files.map(|(name, path)| format!("ssl_options.{name} = {}", path.display())),
            );
            lines.push("ssl_options.verify = verify_none".to_owned());
        }
        if let Some(port) = &self.management {
            lines.push("management.tcp.ip = 127.0.0.1".to_owned());
            lines.push(format!("management.tcp.port = {}", port.number()));
        }
        if !self.members.is_empty() {
            lines.push("cluster_formation.peer_discovery_backend = classic_config".to_owned());
        }
        for (number, name) in (1..).zip(&self.members) {
            lines.push(format!("cluster_formation.classic_config.nodes.{number} = {name}"));
        }
        lines.extend(self.options.lines.iter().cloned());
        Ok(fs::write(self.folder.path().join(CONFIG), lines.join("\n") + "\n")?)
    }

    /// Keeps the folder and the port, and waits until the queues have leaders. If the broker is running, kills it
    /// first.
    pub(super) fn restart(&self) -> Result<()> {
        self.process.kill()?;
        self.launch()?;
        self.until_led()
    }

    /// Evaluates Erlang expressions inside the broker, and returns the value of the last expression.
    pub(super) fn evaluate(&self, expressions: &str) -> Result<String> {
        self.console.evaluate(expressions)
    }

    pub(super) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    pub(super) fn log(&self) -> String {
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("rabbit.log")
    }

    fn start_names(&self) -> Result<()> {
        let port = self.epmd.number().to_string();
        let folder = self.folder.path();
        let log = folder.join("epmd.log");
        let args = ["-port", &port, "-address", "127.0.0.1"];
        self.names.set(Process::start(&self.programs.epmd, &args, &[], folder, &log)?);
        Ok(())
    }

    fn launch(&self) -> Result<()> {
        let before = self.log().matches(STARTED_WORDS).count();
        let folder = self.folder.path();
        let log = self.log_file();
        let server = &self.programs.server;
        let console = self.console.arguments(folder)?;
        // With `RABBITMQ_ALLOW_INPUT` (see `env`), the process of the script becomes the broker instead of starting a
        // second process. `-noinput` then keeps the broker from reading the input.
        let mut args = vec!["-noinput"];
        args.extend(console.iter().map(String::as_str));
        for [name, value] in &self.options.parameters {
            args.extend(["-rabbit", name, value]);
        }
        self.process.set(Process::start(server, &args, &self.env(), folder, &log)?);
        wait_within(START_TIMEOUT, "the start of rabbitmq-server", || {
            if let Some(Some(status)) = self.process.ended().transpose()? {
                bail!("rabbitmq-server ended ({status})");
            }
            let is_started = self.log().matches(STARTED_WORDS).count() > before;
            Ok((is_started && self.evaluate("ok.").is_ok()).then_some(()))
        })
        .with_context(|| format!("the server's log ends:\n{}", self.log_tail()))
    }

    /// The leader must reply. Requests an election for each queue that has no leader: a queue that was declared shortly
    /// before the broker was killed never holds an election by itself.
    fn until_led(&self) -> Result<()> {
        let expression = "lists:all(fun(Queue) -> Leader = amqqueue:get_pid(Queue), \
                   case ra:members(Leader, 1000) of {ok, _, _} -> true; \
                   _ -> ra:trigger_election(Leader), false end end, \
                   [Queue || Queue <- rabbit_amqqueue:list(), amqqueue:is_quorum(Queue)]).";
        wait_within(ELECTION_TIMEOUT, "leaders of the queues", || {
            Ok((self.evaluate(expression)? == "true").then_some(()))
        })
    }

    fn env(&self) -> Vec<(String, String)> {
        let place = |name: &str| self.folder.path().join(name).display().to_string();
        let given = [
            ("PATH", std::env::var("PATH").unwrap_or_default()),
            ("LANG", "C.UTF-8".to_owned()),
            // Erlang keeps its cookie in this folder.
            ("HOME", place("")),
            ("ERL_EPMD_PORT", self.epmd.number().to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_ALLOW_INPUT", "1".to_owned()),
            ("RABBITMQ_NODENAME", self.node()),
            ("RABBITMQ_MNESIA_BASE", place("data")),
            ("RABBITMQ_LOG_BASE", place("log")),
            ("RABBITMQ_DIST_PORT", self.distribution.to_string()),
            ("RABBITMQ_PID_FILE", place("pid")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", place("plugins")),
            ("RABBITMQ_CONFIG_FILE", place(CONFIG)),
            ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
        ];
        given.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

/// Returns the content of the file that names the enabled plugins: an Erlang list.
fn enabled_plugins(options: &RabbitOptions) -> String {
    let mut names: Vec<&str> = Vec::new();
    if !options.plain {
        names.extend(["rabbitmq_sharding", "rabbitmq_consistent_hash_exchange"]);
        names.extend(options.management.then_some("rabbitmq_management"));
        names.extend(options.plugins.iter().map(String::as_str));
    }
    format!("[{}].", names.join(", "))
}
