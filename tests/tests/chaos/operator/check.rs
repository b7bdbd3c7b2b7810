//! The requirements on the events at the end of a round.

use anyhow::{Context as _, Result, ensure};
use ordain_servers::{wait_for_command, wait_until};

use super::super::effects::{Counts, Demands, taken};
use super::super::event_target::EventTarget;
use super::super::events::SentEvents;
use super::super::losses::{KeyFate, KeyFates, stored_fates};
use super::{MESSAGES_DROPPED, ROUTE, Round};

impl Round {
    /// Checks the losses and the effects of all events. Between the two checks, sends all events of a `sequenced`
    /// stream again. Returns the counts from the time before this repetition.
    pub(super) fn check(&mut self, target: &EventTarget, sent: &SentEvents) -> Result<Counts> {
        let counts = counts_of(sent, &self.settled_fates(sent)?);
        self.check_loss(&counts)?;
        let mut effects = counts.accepted - counts.lost;
        if !self.settings.is_fifo {
            target.send_again(ROUTE, sent)?;
            self.rig.until_empty()?;
            effects = counts.accepted;
        }
        let mut last = None;
        let published = wait_until("the messages of all effects", || {
            last = Some(self.check_effects(sent, effects));
            Ok(matches!(last, Some(Ok(()))))
        });
        published.with_context(|| format!("{last:?}"))?;
        // No host may report that the store has lost events.
        self.fleet.hosts.iter_mut().try_for_each(|host| host.check_lost(0))?;
        self.fleet.hosts.iter_mut().try_for_each(|host| host.service.end())?;
        // A host publishes all its messages before it ends, so this check also finds an event that took effect twice.
        self.check_effects(sent, effects)?;
        Ok(counts)
    }

    /// Waits until the hosts have acknowledged all events, and until the fates of the events in the store no longer
    /// change. Each event then has an effect, waits in the store for an earlier event of its key, or is lost. Returns
    /// the fates.
    fn settled_fates(&self, sent: &SentEvents) -> Result<KeyFates> {
        self.rig.until_empty()?;
        let home = &self.fleet.hosts.first().context("a host")?.home;
        let mut fates = KeyFates::new();
        let mut last = None;
        let settled = wait_for_command("the effects of all safe events that are not held", || {
            let before = std::mem::replace(&mut fates, stored_fates(home)?);
            last = Some(self.check_fates(sent, &fates));
            Ok(matches!(last, Some(Ok(()))) && before == fates)
        });
        settled.with_context(|| format!("{last:?}"))?;
        Ok(fates)
    }

    /// Checks each key: the number of its events that have an effect, or wait for a lost event, must be at least the
    /// number of its safe events. No event of a `fifo` stream may wait.
    fn check_fates(&self, sent: &SentEvents, fates: &KeyFates) -> Result<()> {
        for (key, events) in sent {
            let KeyFate { taken, held } = fates.get(key).copied().unwrap_or_default();
            let safe = events.iter().filter(|event| event.is_safe).count() as u64;
            ensure!(
                taken + held >= safe,
                "key {key}: {safe} events are safe, but {taken} took effect and {held} wait"
            );
            ensure!(!self.settings.is_fifo || held == 0, "key {key}: {held} events wait");
        }
        Ok(())
    }

    /// Checks that the hosts have reported the cause of each loss. The broker drops an expired message only when the
    /// message reaches the head of its queue, and the hosts count the dropped messages repeatedly. So the last mishap
    /// of a round may end before the broker drops its messages. This method therefore waits for both.
    fn check_loss(&self, counts: &Counts) -> Result<()> {
        let lost = counts.lost as u64;
        let mut dropped = 0;
        let explained = wait_until("the dropped messages that explain the lost events", || {
            dropped = self.dropped()?;
            Ok(self.has_lost_queue || lost <= dropped)
        });
        explained.with_context(|| {
            format!("{lost} events are lost, and the broker dropped {dropped} messages")
        })?;
        let reported = wait_for_command("a report of the dropped messages", || {
            Ok(self.dropped()? == 0 || self.lines_with(MESSAGES_DROPPED, "") > 0)
        });
        reported.with_context(|| format!("the broker dropped {dropped} messages"))
    }

    /// Checks that no event took effect twice or out of order, and that `count` events took effect.
    fn check_effects(&self, sent: &SentEvents, count: usize) -> Result<()> {
        let demands = Demands {
            wants_all: !self.settings.is_fifo,
            is_exact: true,
            route: ROUTE,
            ..Demands::default()
        };
        let taken: usize = taken(&self.fleet.hosts, sent, demands)?.values().sum();
        ensure!(taken == count, "the output has {taken} effects instead of {count}");
        Ok(())
    }
}

/// Returns how many events were accepted, how many of them are safe (accepted while the broker could not lose them),
/// and how many are lost. An event that waits in the store is not lost.
fn counts_of(sent: &SentEvents, fates: &KeyFates) -> Counts {
    let all = sent.values().flatten();
    let kept: u64 = fates.values().map(|fate| fate.taken + fate.held).sum();
    let accepted = all.clone().count();
    let safe = all.filter(|event| event.is_safe).count();
    Counts { accepted, safe, lost: accepted.saturating_sub(kept as usize) }
}
