//! A host that receives events over HTTP, at a port that stays the same after a restart.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ordain_servers::Port;
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::service::Service;

/// A host and the address for its events.
pub(crate) struct Receiver {
    pub(crate) home: Home,
    pub(crate) service: Service,
    pub(crate) address: SocketAddr,
    /// The program that starts the host, with its arguments; empty if the host is started directly.
    by: Vec<String>,
    /// The file of the sink; `None` for standard output.
    file: Option<&'static str>,
    /// The standard output before the last restart.
    earlier: String,
    _port: Port,
}

/// The properties of a host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kind {
    pub(crate) is_fifo: bool,
    /// True if the host takes few events at a time, so that many wait in the store.
    pub(crate) has_backlog: bool,
    /// The section of the store.
    pub(crate) store: String,
    /// More settings of the stream.
    pub(crate) stream: String,
    /// The file of the sink; `None` for standard output.
    pub(crate) file: Option<&'static str>,
}

impl Receiver {
    /// Starts a host, and waits until it is ready.
    pub(crate) fn start(kind: &Kind) -> Result<Self> {
        Self::start_by(kind, |_| Ok(Vec::new()))
    }

    /// Starts a host through another program, and waits until the host is ready. The other program gets the host's
    /// command after its own arguments.
    pub(crate) fn start_by(
        kind: &Kind,
        by: impl FnOnce(&Home) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let port = Port::take()?;
        let home = Home::new(&["tally"], &config(kind, port.number()))?;
        let by = by(&home)?;
        let mut service = Service::start_by(&home, &by, &["run"])?;
        http::ready(&mut service)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let file = kind.file;
        let earlier = String::new();
        Ok(Self { home, service, address, by, file, earlier, _port: port })
    }

    /// Starts the host again after its end, and waits until it is ready.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.begin_again()?;
        http::ready(&mut self.service).map(drop)
    }

    /// Starts the host again after its end.
    pub(crate) fn begin_again(&mut self) -> Result<()> {
        self.earlier = self.output();
        self.service = Service::start_by(&self.home, &self.by, &["run"])?;
        Ok(())
    }

    /// Returns the published messages, in whole lines.
    pub(crate) fn output(&self) -> String {
        let out = self.file.map_or_else(|| self.service.stdout(), |file| self.home.read(file));
        let whole = out.rfind('\n').map_or(0, |at| at + 1);
        match self.file {
            Some(_) => out[..whole].to_owned(),
            None => format!("{}{}", self.earlier, &out[..whole]),
        }
    }

    /// Checks how many events the host has counted as lost since its start.
    pub(crate) fn check_lost(&mut self, lost: usize) -> Result<()> {
        let counted = self.lost()?;
        ensure!(counted == lost as u64, "{lost} events are lost, but the host counted {counted}");
        Ok(())
    }

    fn lost(&mut self) -> Result<u64> {
        let metrics = http::get(http::admin(&mut self.service)?, "/metrics")?.body;
        let lost = metrics.lines().filter(|line| line.starts_with("ordain_events_lost_total{"));
        Ok(lost.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
    }
}

fn config(kind: &Kind, port: u16) -> String {
    let prefetch = if kind.has_backlog { 4 } else { 500 };
    let ordering = if kind.is_fifo { "fifo" } else { "sequenced" };
    format!(
        "[runtime]\nlease = \"2s\"\n[ingress]\nlisten = \"127.0.0.1:{port}\"\n\
         [store]\n{}\n\
         [streams.cases]\nhandler = \"tally\"\nordering = \"{ordering}\"\n{}\n\
         source = {{ kind = \"http\", partitions = 2, prefetch = {prefetch} }}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"{}\"\n",
        kind.store,
        kind.stream,
        kind.file.unwrap_or("-")
    )
}
