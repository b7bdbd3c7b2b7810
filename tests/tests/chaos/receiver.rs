//! A host that receives events. The host's HTTP port for events stays the same after a restart.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ordain_servers::Port;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::incident::{lost_events, records};
use ordain_tests::service::Service;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::routes::{PARTITIONS, Route};

/// Words that two errors contain: the error of a host whose claim the store has lost, and the error of a command whose
/// store went back in time.
pub(crate) const WENT_BACK: &str = "the store went back in time";

/// The beginning of the source of a record. The name of the stream follows.
const SOURCE: &str = "/ordain/";

/// The memory limit of a host. All commits that a store can lose in a round fit into this memory, so a host can repeat
/// them.
const MEMORY_BUDGET: &str = "4GiB";

/// The number of shards of the store.
pub(crate) const SHARDS: u32 = 4;

pub(crate) struct Receiver {
    pub(crate) home: Home,
    pub(crate) service: Service,
    pub(crate) address: SocketAddr,
    /// The program that starts the host, with its arguments. Empty if the test starts the host directly.
    by: Vec<String>,
    args: &'static [&'static str],
    /// The file of the sink; `None` for standard output.
    file: Option<&'static str>,
    /// The host's standard output from its first start until its last restart.
    earlier: String,
    earlier_logs: Vec<String>,
    _port: Port,
}

/// Why many events wait in the store or in the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Backlog {
    #[default]
    None,
    /// The prefetch is low, so the host holds only a few events in memory.
    LowPrefetch,
    /// The host has one worker, and each event takes half a millisecond of the worker's time. The host fills its memory
    /// up to its limits, and spills events into the store.
    SlowHandler,
}

impl Backlog {
    /// Draws a cause at random. Half of the draws result in [`Backlog::None`].
    pub(crate) fn draw(random: &mut ChaCha8Rng) -> Self {
        match random.random_range(0..4) {
            0 => Self::LowPrefetch,
            1 => Self::SlowHandler,
            _ => Self::None,
        }
    }

    /// Returns the prefetch of a host whose events arrive on this route.
    pub(crate) fn prefetch(self, route: Route) -> u32 {
        if self == Self::LowPrefetch { route.low_prefetch() } else { 500 }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Kind {
    pub(crate) route: Route,
    pub(crate) is_fifo: bool,
    pub(crate) backlog: Backlog,
    pub(crate) store: String,
    /// The URL of the broker, if the events pass through one.
    pub(crate) broker: Option<String>,
    pub(crate) stream: String,
    /// The number of partitions of each stream; `None` for [`PARTITIONS`].
    pub(crate) partitions: Option<u32>,
    /// True if the host waits only a twentieth of the usual time for brokers and stores. The host then checks its
    /// queues and its exchange every three seconds.
    pub(crate) has_short_waits: bool,
    /// The setting `runtime.lease`; `None` for two seconds.
    pub(crate) lease: Option<&'static str>,
    /// The file of the sink; `None` for standard output.
    pub(crate) file: Option<&'static str>,
}

impl Receiver {
    pub(crate) fn start(kind: &Kind) -> Result<Self> {
        Self::start_by(kind, |_| Ok(Vec::new()))
    }

    /// Starts a host through another program, and waits until the host is ready. `by` returns this program and its
    /// arguments, to which the command line of the host is appended.
    pub(crate) fn start_by(
        kind: &Kind,
        by: impl FnOnce(&Home) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let port = Port::take()?;
        let home = Home::new(&["tally", "faulty"], &kind.config(port.number()))?;
        let by = by(&home)?;
        let args = kind.args();
        let mut service = Service::start_by(&home, &by, args)?;
        http::ready(&mut service)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let file = kind.file;
        let earlier = String::new();
        let earlier_logs = Vec::new();
        Ok(Self { home, service, address, by, args, file, earlier, earlier_logs, _port: port })
    }

    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.begin_again()?;
        http::ready(&mut self.service).map(drop)
    }

    pub(crate) fn begin_again(&mut self) -> Result<()> {
        self.earlier = self.output();
        self.earlier_logs.push(self.service.stderr());
        self.service = Service::start_by(&self.home, &self.by, self.args)?;
        Ok(())
    }

    /// Returns the published messages, without an incomplete last line.
    pub(crate) fn output(&self) -> String {
        let out = self.file.map_or_else(|| self.service.stdout(), |file| self.home.read(file));
        let whole = out.rfind('\n').map_or(0, |at| at + 1);
        match self.file {
            Some(_) => out[..whole].to_owned(),
            None => format!("{}{}", self.earlier, &out[..whole]),
        }
    }

    pub(crate) fn logs(&self) -> Vec<String> {
        let mut logs = self.earlier_logs.clone();
        logs.push(self.service.stderr());
        logs
    }

    pub(crate) fn log(&self) -> String {
        self.logs().join("\n---- restarted ----\n")
    }

    pub(crate) fn is_ready(&mut self) -> bool {
        let answer = http::admin(&mut self.service).and_then(|admin| http::get(admin, "/readyz"));
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// Checks that the host has counted `lost` events as lost since its last start.
    pub(crate) fn check_lost(&mut self, lost: usize) -> Result<()> {
        let counted = self.lost_and_logged()?;
        ensure!(counted == lost as u64, "{lost} events are lost, but the host counted {counted}");
        Ok(())
    }

    /// Returns how many events the host has counted as lost since its last start. Returns an error if the records in
    /// the host's log state another number.
    pub(crate) fn lost_and_logged(&mut self) -> Result<u64> {
        let counted = self.lost()?;
        let stated = lost_events(&records(&self.service.stderr())?);
        ensure!(stated == counted, "the host counted {counted} lost events, but logged {stated}");
        Ok(counted)
    }

    /// Compares the metrics of the host with the records that it has logged since its last start. The counter of lost
    /// events must equal the number of lost events in the records. The metrics must show each shard that the records
    /// name.
    pub(crate) fn check_counters(&mut self) -> Result<()> {
        self.lost_and_logged()?;
        self.check_rollbacks()
    }

    /// Checks that the metrics of the host show each shard that the records in its log name: each shard that has lost
    /// events or commits since the last start.
    pub(crate) fn check_rollbacks(&mut self) -> Result<()> {
        let address = http::admin(&mut self.service)?;
        let page = http::get(address, "/metrics")?.body;
        for record in records(&self.service.stderr())? {
            let Some(stream) = record["source"].as_str().and_then(|name| name.strip_prefix(SOURCE))
            else {
                continue;
            };
            let data = &record["data"];
            let shards = match record["type"].as_str() {
                Some("ordain.events.lost") => vec![&data["shard"]],
                Some("ordain.commits.repeated") => data["shards"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|lost| &lost["shard"])
                    .collect(),
                _ => Vec::new(),
            };
            for shard in shards {
                let sample =
                    format!("ordain_rollbacks_total{{stream=\"{stream}\",shard=\"{shard}\"}} ");
                ensure!(page.contains(&sample), "the metrics lack {sample:?} for {record}");
            }
        }
        Ok(())
    }

    /// Checks that the metrics of the host show no shard that went back in time since the last start.
    pub(crate) fn check_no_rollbacks(&mut self) -> Result<()> {
        let address = http::admin(&mut self.service)?;
        let rollbacks = http::metric(address, "ordain_rollbacks_total")?;
        ensure!(
            rollbacks.is_none(),
            "the host counted {rollbacks:?} rollbacks, but nothing is lost"
        );
        Ok(())
    }

    pub(crate) fn lost(&mut self) -> Result<u64> {
        let address = http::admin(&mut self.service)?;
        Ok(http::metric(address, "ordain_events_lost_total")?.unwrap_or(0))
    }
}

impl Kind {
    fn args(&self) -> &'static [&'static str] {
        if self.has_short_waits { &["--wait-divisor=20", "run"] } else { &["run"] }
    }

    /// Returns the configuration of a host that accepts events over HTTP at `port`.
    pub(crate) fn config(&self, port: u16) -> String {
        let prefetch = self.backlog.prefetch(self.route);
        let workers = if self.backlog == Backlog::SlowHandler { "workers = 1\n" } else { "" };
        let ordering = if self.is_fifo { "fifo" } else { "sequenced" };
        let partitions = self.partitions.unwrap_or(PARTITIONS);
        let streams = self.route.config(ordering, &self.stream, partitions, prefetch, port);
        let broker = self.broker.as_ref().map(|url| format!("[broker]\nurl = \"{url}\"\n"));
        format!(
            "[runtime]\nlease = \"{}\"\nmemory_budget = \"{MEMORY_BUDGET}\"\n{workers}{}[store]\n{}\n{streams}\
             [sinks.tally]\nkind = \"file\"\npath = \"{}\"\n",
            self.lease.unwrap_or("2s"),
            broker.unwrap_or_default(),
            self.store,
            self.file.unwrap_or("-")
        )
    }
}

pub(crate) fn redis(url: &str) -> String {
    format!("kind = \"redis\"\nurl = \"{url}\"\nshards = {SHARDS}")
}

pub(crate) fn explain(settings: &impl fmt::Debug, hosts: &[Receiver]) -> String {
    let logs: Vec<String> = hosts.iter().map(Receiver::log).collect();
    format!("{settings:?}\n{}", logs.join("\n----\n"))
}
