//! A broker, a client of it, and a home of a host between two of its queues.

use anyhow::Result;
use lapin::ExchangeKind;
use ordain_servers::{Rabbit, wait_until};
use ordain_tests::amqp::{Client, Outgoing, from_line, to_line};
use ordain_tests::host::Home;
use ordain_tests::log::by_key;
use ordain_tests::tally;

pub(crate) struct Rig {
    pub(crate) rabbit: Rabbit,
    pub(crate) client: Client,
    pub(crate) home: Home,
}

/// The configuration of a stream from the queue `cases` to the exchange `out`.
pub(crate) fn config(url: &str, store: &str, stream: &str, source: &str) -> String {
    format!(
        "{store}\n[broker]\nurl = \"{url}\"\n\
         [streams.cases]\nhandler = \"tally\"\n{stream}\n\
         source = {{ kind = \"amqp\", exchange = \"cases\", queue = \"cases\", {source} }}\n\
         [sinks.tally]\nkind = \"amqp\"\nexchange = \"out\"\n"
    )
}

impl Rig {
    /// On the embedded store, with defaults.
    pub(crate) fn new() -> Result<Self> {
        Self::with("", "", "prefetch = 500")
    }

    /// With a store, settings of the stream and of its source. Behind `out` is a queue `out`.
    pub(crate) fn with(store: &str, stream: &str, source: &str) -> Result<Self> {
        Self::on(Rabbit::start()?, store, stream, source)
    }

    pub(crate) fn on(rabbit: Rabbit, store: &str, stream: &str, source: &str) -> Result<Self> {
        let client = Client::connect(&rabbit.url_at(rabbit.port()))?;
        client.exchange("out", ExchangeKind::Topic)?;
        client.queue("out")?;
        client.bind("out", "out", "#")?;
        let home = Home::new(&["tally", "faulty"], &config(&rabbit.url(), store, stream, source))?;
        Ok(Self { rabbit, client, home })
    }

    /// Waits until the host has declared its queues, with what leads to them, and the broker has
    /// that on its disk.
    pub(crate) fn until_declared(&self) -> Result<()> {
        self.until_bound("cases", &["cases", "cases.3"])?;
        self.rabbit.sync()
    }

    /// Waits until a binding leads from an exchange to one of these queues and exchanges.
    pub(crate) fn until_bound(&self, from: &str, to: &[&str]) -> Result<()> {
        wait_until(&format!("a binding from {from} to {to:?}"), || {
            let bindings =
                self.rabbit.ctl(&["list_bindings", "source_name", "destination_name"])?;
            let mut bindings = bindings.lines().filter_map(|it| it.split_once('\t'));
            Ok(bindings.any(|it| it.0 == from && to.contains(&it.1)))
        })
    }

    /// A new client, after the old one was cut off.
    pub(crate) fn reconnect(&mut self) -> Result<()> {
        self.client = Client::connect(&self.rabbit.url_at(self.rabbit.port()))?;
        Ok(())
    }

    /// Publishes lines of a file as events.
    pub(crate) fn publish(&self, lines: &[String]) -> Result<()> {
        let messages: Vec<Outgoing> =
            lines.iter().map(|it| from_line(it)).collect::<Result<_>>()?;
        self.client.publish("cases", &messages)
    }

    /// Takes messages until there is one for each of these events, and checks them. One that comes
    /// again, after something was lost, has the id of the first.
    pub(crate) fn check(&self, lines: &[String]) -> Result<()> {
        let mut out: Vec<String> = Vec::new();
        while out.len() < lines.len() {
            for delivery in self.client.take("out", lines.len() - out.len())? {
                let line = to_line(&delivery)?;
                if !out.contains(&line) {
                    out.push(line);
                }
            }
        }
        tally::check(&by_key(lines)?, &out.join("\n"))
    }

    /// Waits until all that was delivered is acknowledged.
    pub(crate) fn until_empty(&self) -> Result<()> {
        wait_until("all acknowledged", || {
            let queues = self.rabbit.queues()?;
            let cases =
                |(name, _): &(&String, _)| name.starts_with("cases") && !name.ends_with("dropped");
            Ok(queues.iter().filter(cases).all(|(_, left)| *left == (0, 0)))
        })
    }
}
