//! The environment of a test with a broker: the broker, a client of the broker, and the home of a host that consumes
//! one queue and publishes to another.

use anyhow::Result;
use lapin::ExchangeKind;
use ordain_servers::{Rabbit, wait_until};

use crate::amqp::{Client, Outgoing, from_line, to_line};
use crate::host::Home;
use crate::log::by_key;
use crate::tally;

/// A broker, a client of the broker, and the home of a host that consumes one queue and publishes to another.
pub struct Rig {
    /// The broker, which other tests may share (see [`Rig::with`]).
    pub rabbit: Rabbit,
    /// The client of the broker, without TLS.
    pub client: Client,
    /// The home, with the handlers `tally` and `faulty`.
    pub home: Home,
}

/// Returns the configuration of a stream that consumes the queue `cases` and publishes to the exchange `out`.
/// `sections` are sections that precede the stream, for example the section of a store. `stream` and `source` are
/// additional settings of the stream and of its source.
pub fn config(url: &str, sections: &str, stream: &str, source: &str) -> String {
    format!(
        "{sections}\n[broker]\nurl = \"{url}\"\n\
         [streams.cases]\nhandler = \"tally\"\n{stream}\n\
         source = {{ kind = \"amqp\", exchange = \"cases\", queue = \"cases\", {source} }}\n\
         [sinks.tally]\nkind = \"amqp\"\nexchange = \"out\"\n"
    )
}

impl Rig {
    /// Starts a rig with the embedded store and default settings, on a broker that other tests share.
    pub fn new() -> Result<Self> {
        Self::with("", "", "")
    }

    /// Starts a rig with the arguments of [`config`], on a broker that other tests share. The queue `out` is bound to
    /// the exchange `out`.
    pub fn with(sections: &str, stream: &str, source: &str) -> Result<Self> {
        Self::on(Rabbit::shared()?, sections, stream, source)
    }

    /// Starts a rig as [`Self::with`] does, on a broker that a test may kill, pause or configure.
    pub fn with_private_broker(sections: &str, stream: &str, source: &str) -> Result<Self> {
        Self::on(Rabbit::start()?, sections, stream, source)
    }

    /// Starts a rig as [`Self::with`] does, on the broker `rabbit`.
    pub fn on(rabbit: Rabbit, sections: &str, stream: &str, source: &str) -> Result<Self> {
        let client = Client::connect(&rabbit.url_at(rabbit.port()))?;
        client.exchange("out", ExchangeKind::Topic)?;
        client.queue("out")?;
        client.bind("out", "out", "#")?;
        let home =
            Home::new(&["tally", "faulty"], &config(&rabbit.url(), sections, stream, source))?;
        Ok(Self { rabbit, client, home })
    }

    /// Waits until the host has declared its queues and their bindings, and the broker has written these declarations
    /// to its disk. Works only for a stream with one or four partitions, whose last queue is `cases` or `cases.3`.
    pub fn until_declared(&self) -> Result<()> {
        self.until_bound("cases", &["cases", "cases.3"])?;
        self.rabbit.sync()
    }

    /// Waits until at least one of the queues and exchanges `to` is bound to the exchange `from`.
    pub fn until_bound(&self, from: &str, to: &[&str]) -> Result<()> {
        wait_until(&format!("a binding from {from} to {to:?}"), || {
            let bound = self.rabbit.bound(from)?;
            Ok(bound.iter().any(|name| to.contains(&name.as_str())))
        })
    }

    /// Waits until the host has recorded the marker of an exchange: another exchange, which the broker deletes together
    /// with the marked exchange. The host declares and records a missing marker in each check of its topology. The end
    /// of a subscription interrupts a check. This method therefore waits until the next check begins in the same
    /// subscription.
    pub fn until_marked(&self, exchange: &str) -> Result<()> {
        let bound = || anyhow::Ok(!self.rabbit.bound_to_exchange(exchange)?.is_empty());
        wait_until("the marker", bound)?;
        let checks = || self.rabbit.opened_connections_since("ordain cases 0", "cases topology");
        let seen = checks();
        wait_until("a further check of the topology", || {
            let now = checks();
            Ok(now > 1 && now != seen)
        })
    }

    /// Replaces the client after its connection was closed.
    pub fn reconnect(&mut self) -> Result<()> {
        self.client = self.connect()?;
        Ok(())
    }

    /// Opens another connection to the broker.
    pub fn connect(&self) -> Result<Client> {
        Client::connect(&self.rabbit.url_at(self.rabbit.port()))
    }

    /// Publishes lines of a file as events to the exchange `cases`.
    pub fn publish(&self, lines: &[String]) -> Result<()> {
        let messages: Vec<Outgoing> =
            lines.iter().map(|line| from_line(line)).collect::<Result<_>>()?;
        self.client.publish("cases", &messages)
    }

    /// Receives as many different messages as `lines` has lines, and checks that they are the messages for the events
    /// in these lines. The lines must have different events.
    pub fn check(&self, lines: &[String]) -> Result<()> {
        let mut out = Vec::new();
        self.take(&mut out, lines.len())?;
        tally::check(&by_key(lines)?, &out.join("\n"))
    }

    /// Receives messages and adds them to `out`, until `out` has `count` different messages. The host may publish a
    /// message twice. The method does not add a message that equals a message in `out`.
    pub fn take(&self, out: &mut Vec<String>, count: usize) -> Result<()> {
        let missing = count.saturating_sub(out.len());
        self.client.take_counted("out", missing, |delivery| {
            let line = to_line(delivery)?;
            let is_new = !out.contains(&line);
            if is_new {
                out.push(line);
            }
            Ok(is_new)
        })?;
        Ok(())
    }

    /// Waits until the queues of the stream `cases` are empty and the host has acknowledged all deliveries.
    pub fn until_empty(&self) -> Result<()> {
        wait_until("the acknowledgement of all deliveries", || {
            let queues = self.rabbit.queues()?;
            let cases =
                |(name, _): &(&String, _)| name.starts_with("cases") && !name.ends_with("dropped");
            Ok(queues.iter().filter(cases).all(|(_, left)| *left == (0, 0)))
        })
    }
}
