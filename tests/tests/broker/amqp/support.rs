//! The set-up of tests that change the broker while a host runs: users, queues and exchanges of other programs, and
//! events before and after the change.

use anyhow::Result;
use lapin::ExchangeKind;
use lapin::types::FieldTable;
use ordain_tests::log::by_key;
use ordain_tests::rig::{Rig, config};
use ordain_tests::tally;

pub(super) const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";
pub(super) const FIFO: &str = "ordering = \"fifo\"";

/// Writes the configuration that [`config`] returns, with the login of a user whose password is `guest`.
pub(super) fn log_in(
    rig: &Rig,
    user: &str,
    sections: &str,
    stream: &str,
    source: &str,
) -> Result<()> {
    let url = rig.rabbit.url().replace("guest:guest", &format!("{user}:guest"));
    rig.home.write("ordain.toml", config(&url, sections, stream, source))
}

/// Starts a rig whose host logs in as a new user with all rights.
pub(super) fn rig_of_user(user: &str, sections: &str, stream: &str) -> Result<Rig> {
    let rig = Rig::new()?;
    rig.rabbit.add_user(user, "guest", ".*")?;
    log_in(&rig, user, sections, stream, "")?;
    Ok(rig)
}

/// Declares the queue `cases` with these arguments, and binds it to the exchange `cases`.
pub(super) fn declare_queue(rig: &Rig, arguments: FieldTable) -> Result<()> {
    rig.client.queue_with("cases", arguments)?;
    rig.client.bind("cases", "cases", "")
}

/// Declares the exchange `cases` and a queue `cases` with these arguments, and binds the queue to the exchange. For a
/// stream with `declare = false`, another program does the same.
pub(super) fn declare_exchange_and_queue(rig: &Rig, arguments: FieldTable) -> Result<()> {
    rig.client.exchange("cases", ExchangeKind::Fanout)?;
    declare_queue(rig, arguments)
}

/// Events that a test publishes in two halves, before and after a change in the broker.
pub(super) struct Halves {
    lines: Vec<String>,
    out: Vec<String>,
}

impl Halves {
    /// Publishes the first half of the events, and waits until each of them has taken effect.
    pub(super) fn begin(rig: &Rig, lines: Vec<String>) -> Result<Self> {
        let first = &lines[..lines.len() / 2];
        rig.publish(first)?;
        let mut out = Vec::new();
        rig.take(&mut out, first.len())?;
        Ok(Self { lines, out })
    }

    pub(super) fn second(&self) -> &[String] {
        &self.lines[self.lines.len() / 2..]
    }

    /// Publishes the second half of the events. Checks that each event of both halves has taken effect once.
    pub(super) fn end(mut self, rig: &Rig) -> Result<()> {
        rig.publish(self.second())?;
        rig.take(&mut self.out, self.lines.len())?;
        tally::check(&by_key(&self.lines)?, &self.out.join("\n"))
    }
}
