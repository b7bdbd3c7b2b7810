//! A real `rabbitmq-server` of one's own, with a name service of its own.
//!
//! Every method takes `&self`, so that a test can kill a broker while others talk to it.

mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use programs::Programs;
pub use programs::rabbit_version;

use crate::port::{Port, free_everywhere};
use crate::process::Process;
use crate::running::Running;
use crate::tls::Certificates;
use crate::wait::wait_within;

/// A start takes ten seconds on an idle machine.
const START: Duration = Duration::from_mins(2);
/// For the elections of all queues.
const LEADERS: Duration = Duration::from_mins(1);
/// What it says when it is there.
const STARTED: &str = "Server startup complete";
const CONFIG: &str = "rabbitmq.conf";
/// Lines of the log that an error shows.
const TAIL: usize = 30;

/// What a broker shall be.
#[derive(Debug, Clone, Default)]
pub struct RabbitOptions {
    lines: Vec<String>,
    tls: bool,
    plain: bool,
}

impl RabbitOptions {
    /// A broker with `rabbitmq_sharding`, user `guest`, without TLS.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line of `rabbitmq.conf`.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// It speaks TLS as well, on another port.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// It has no plugins.
    #[must_use]
    pub fn without_plugins(mut self) -> Self {
        self.plain = true;
        self
    }
}

/// A broker in a private folder on private ports of 127.0.0.1. Dropping it kills it.
#[derive(Debug)]
pub struct Rabbit {
    /// Before the folder, so that it ends first.
    process: Running,
    /// The name service that Erlang needs; the machine's own is not touched.
    names: Running,
    programs: Programs,
    port: Port,
    tls: Option<(Port, Certificates)>,
    distribution: u16,
    epmd: Port,
    folder: TempDir,
}

impl Rabbit {
    /// Starts a broker, and waits until it takes connections.
    pub fn start() -> Result<Self> {
        Self::with(&RabbitOptions::new())
    }

    /// The same with options.
    pub fn with(options: &RabbitOptions) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ordain-rabbit-").tempdir()?;
        let (port, epmd, distribution) = (Port::take()?, Port::take()?, free_everywhere()?);
        let tls = if options.tls {
            Some((Port::take()?, Certificates::make(&folder.path().join("tls"))?))
        } else {
            None
        };
        for name in ["data", "log"] {
            fs::create_dir(folder.path().join(name))?;
        }
        let plugins = if options.plain { "[]." } else { "[rabbitmq_sharding]." };
        fs::write(folder.path().join("plugins"), plugins)?;
        let mut lines = vec![
            format!("listeners.tcp.1 = 127.0.0.1:{}", port.number()),
            "log.console = true".to_owned(),
            "log.file = false".to_owned(),
            // Of the log that all quorum queues share: the default writes half a gigabyte of zeros.
            "raft.wal_max_size_bytes = 32000000".to_owned(),
        ];
        if let Some((port, certificates)) = &tls {
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
        lines.extend(options.lines.iter().cloned());
        fs::write(folder.path().join(CONFIG), lines.join("\n") + "\n")?;
        let (process, names, programs) =
            (Running::default(), Running::default(), Programs::find()?);
        let rabbit = Self { process, names, programs, port, tls, distribution, epmd, folder };
        rabbit.start_names()?;
        rabbit.launch()?;
        Ok(rabbit)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its address, over TLS where it speaks that.
    pub fn url(&self) -> String {
        match &self.tls {
            Some((port, _)) => format!("amqps://guest:guest@localhost:{}", port.number()),
            None => self.url_at(self.port()),
        }
    }

    /// The same at another port, such as that of a proxy before it, without TLS.
    pub fn url_at(&self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}")
    }

    /// The certificates, where it speaks TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// Whether it runs, or stands still.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Ends it at once by SIGKILL. Nothing where it does not run.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// Ends it in order by SIGTERM, and waits for that.
    pub fn stop(&self) -> Result<()> {
        self.process.stop().map(drop)
    }

    /// Lets it stand still by SIGSTOP: connections are accepted by the system, and nothing answers.
    pub fn pause(&self) -> Result<()> {
        self.process.set_paused(true)
    }

    /// Lets it go on by SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.process.set_paused(false)
    }

    /// Starts it in the same folder on the same port, and waits until its queues have leaders. One
    /// that runs is killed before.
    pub fn restart(&self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.until_led()
    }

    /// Runs `rabbitmqctl`; what it prints.
    pub fn ctl(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.programs.ctl);
        command.env_clear().envs(self.env()).arg("--quiet").args(args);
        let output = command.current_dir(self.folder.path()).output()?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`rabbitmqctl {}`: {told}", args.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until what is declared is on its disk. It writes that up to two seconds late: a queue
    /// that a kill finds younger has lost all that it had confirmed.
    pub fn sync(&self) -> Result<()> {
        let sync = "ok = mnesia:sync_log(), [ok = dets:sync(Table) || Table <- dets:all()], ok.";
        let done = self.ctl(&["eval", sync])?;
        ensure!(done.trim() == "ok", "mnesia:sync_log, dets:sync: {done}");
        Ok(())
    }

    /// Messages in each queue: those ready, and those delivered and not acknowledged.
    pub fn queues(&self) -> Result<BTreeMap<String, (u64, u64)>> {
        let columns = ["list_queues", "--no-table-headers", "name", "messages_ready"];
        let listed = self.ctl(&[&columns[..], &["messages_unacknowledged"]].concat())?;
        let row = |line: &str| {
            let mut parts = line.split('\t');
            let name = parts.next()?.to_owned();
            Some((name, (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?)))
        };
        Ok(listed.lines().filter_map(row).collect())
    }

    /// Adds a line to its configuration, which counts from its next start on.
    pub fn configure_later(&self, line: &str) -> Result<()> {
        let mut file = fs::File::options().append(true).open(self.folder.path().join(CONFIG))?;
        Ok(writeln!(file, "{line}")?)
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// The id of its process, where it was started.
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("rabbit.log")
    }

    fn start_names(&self) -> Result<()> {
        let port = self.epmd.number().to_string();
        let (folder, log) = (self.folder.path(), self.folder.path().join("epmd.log"));
        let args = ["-port", &port, "-address", "127.0.0.1"];
        self.names.set(Process::start(&self.programs.epmd, &args, &[], folder, &log)?);
        Ok(())
    }

    fn launch(&self) -> Result<()> {
        let before = self.log().matches(STARTED).count();
        let (folder, log) = (self.folder.path(), self.log_file());
        let server = &self.programs.server;
        // With input allowed the script becomes the broker, and starts none beside itself.
        self.process.set(Process::start(server, &["-noinput"], &self.env(), folder, &log)?);
        wait_within(START, "the start of rabbitmq-server", || {
            if let Some(Some(status)) = self.process.ended().transpose()? {
                bail!("rabbitmq-server ended ({status})");
            }
            Ok((self.log().matches(STARTED).count() > before).then_some(()))
        })
        .with_context(|| format!("its log ends:\n{}", self.log_tail()))
    }

    /// Waits until each quorum queue has a leader that answers. A queue that was declared shortly
    /// before a kill holds no election by itself, however often the broker is started again.
    fn until_led(&self) -> Result<()> {
        let ask = "lists:all(fun(Queue) -> Leader = amqqueue:get_pid(Queue), \
                   case ra:members(Leader, 1000) of {ok, _, _} -> true; \
                   _ -> ra:trigger_election(Leader), false end end, \
                   [Queue || Queue <- rabbit_amqqueue:list(), amqqueue:is_quorum(Queue)]).";
        wait_within(LEADERS, "leaders of the queues", || {
            Ok((self.ctl(&["eval", ask])?.trim() == "true").then_some(()))
        })
    }

    fn env(&self) -> Vec<(String, String)> {
        let place = |name: &str| self.folder.path().join(name).display().to_string();
        let given = [
            ("PATH", std::env::var("PATH").unwrap_or_default()),
            ("LANG", "C.UTF-8".to_owned()),
            // The cookie lies there.
            ("HOME", place("")),
            ("ERL_EPMD_PORT", self.epmd.number().to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_ALLOW_INPUT", "1".to_owned()),
            ("RABBITMQ_NODENAME", format!("ordain-{}@localhost", self.port.number())),
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
