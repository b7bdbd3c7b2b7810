//! The time in which this process may act for a partition: take its events, commit, publish.
//!
//! It ends when the partition is handed over or lost. And it is suspended while the lease has run
//! out by this process's own clock, since nobody was there to renew it: then another instance may
//! have the partition. Commits are refused by the fence in any case. What the fence cannot refuse,
//! deliveries of a broker and messages to it, is left alone meanwhile.

use std::sync::OnceLock;
use std::time::Instant;

use tokio::sync::watch;

use crate::{InstanceId, Partition, Table};
use ordain_util::wait;

/// Until when this process is heard of; `None`: as long as it runs.
pub type Until = Option<Instant>;

/// How far a tenure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The partition is this process's.
    Held,
    /// It is being handed over: what runs is finished, committed and published, and no more taken.
    Leaving,
    /// It is another's: whatever is not committed is dropped.
    Over,
}

/// The right to act for a partition.
#[derive(Debug)]
pub struct Tenure {
    until: watch::Receiver<Until>,
    stage: watch::Sender<Stage>,
    lease: OnceLock<Leased>,
}

/// The lease that it rests on.
#[derive(Debug)]
struct Leased {
    partition: Partition,
    epoch: u64,
    /// When that was known.
    at: Instant,
}

impl Tenure {
    /// One that begins, and lasts as long as the process is heard of.
    pub fn new(until: watch::Receiver<Until>) -> Self {
        Self { until, stage: watch::Sender::new(Stage::Held), lease: OnceLock::new() }
    }

    /// One that nobody can take away.
    pub fn sole() -> Self {
        Self::new(watch::Sender::new(None).subscribe())
    }

    /// Notes the lease that it rests on.
    pub fn leased(&self, partition: Partition, epoch: u64) {
        // It rests on one.
        let _ = self.lease.set(Leased { partition, epoch, at: Instant::now() });
    }

    /// The epoch of the lease, once there is one.
    pub fn epoch(&self) -> Option<u64> {
        self.lease.get().map(|lease| lease.epoch)
    }

    /// Ends it if the partition is not this instance's any more, by a table that was asked for then.
    /// Where the store went back behind the lease it is handed over in order, in which it is found out
    /// whether the store has lost anything.
    pub fn judge(&self, id: InstanceId, table: &Table, asked: Instant) {
        let Some(Leased { partition, epoch, at }) = self.lease.get() else { return };
        let found = table.leases.get(partition);
        let is_lost = found.is_some_and(|lease| {
            lease.epoch > *epoch || lease.epoch == *epoch && lease.holder != Some(id)
        });
        if is_lost {
            self.set(Stage::Over);
        } else if found.is_none_or(|lease| lease.epoch < *epoch) && asked > *at {
            // An older table says nothing of the lease.
            self.set(Stage::Leaving);
        }
    }

    /// How far it is.
    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.stage() == Stage::Over
    }

    /// Whether it has neither ended nor is suspended.
    pub fn is_on(&self) -> bool {
        !self.is_over() && self.until.borrow().is_none_or(|until| Instant::now() < until)
    }

    /// Goes on to a later stage.
    pub fn set(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let later = (*now as u8) < stage as u8;
            if later {
                *now = stage;
            }
            later
        });
    }

    /// Its stages, to wait for the next one.
    pub fn stages(&self) -> Stages {
        Stages(self.stage.subscribe())
    }

    /// Waits until it has ended or is suspended.
    pub async fn off(&self) {
        let mut until = self.until.clone();
        while self.is_on() {
            let at = *until.borrow_and_update();
            tokio::select! {
                () = wait::until(at) => {}
                Ok(()) = until.changed() => {}
                () = self.over() => {}
            }
        }
    }

    /// Waits until it is on, or has ended.
    pub async fn on(&self) {
        let mut until = self.until.clone();
        while !self.is_on() && !self.is_over() {
            tokio::select! {
                changed = until.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                () = self.over() => {}
            }
        }
    }

    async fn over(&self) {
        let mut stages = self.stages();
        let mut stage = Stage::Held;
        while stage != Stage::Over {
            stage = stages.past(stage).await;
        }
    }
}

/// The stages of a tenure.
#[derive(Debug)]
pub struct Stages(watch::Receiver<Stage>);

impl Stages {
    /// Waits until it is at another stage than this one.
    pub async fn past(&mut self, stage: Stage) -> Stage {
        // Where the tenure is gone nobody may act any more.
        self.0.wait_for(|now| *now != stage).await.map_or(Stage::Over, |now| *now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::Lease;

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn it_is_suspended_when_nobody_renews_it_and_goes_on() {
        let heard = watch::Sender::new(Some(Instant::now() + Duration::from_millis(50)));
        let tenure = Tenure::new(heard.subscribe());
        assert!(tenure.is_on());
        timeout(SOON, tenure.off()).await.expect("it runs out");
        assert!(!tenure.is_on() && !tenure.is_over());
        heard.send_replace(Some(Instant::now() + SOON));
        timeout(SOON, tenure.on()).await.expect("it goes on");
        assert!(timeout(Duration::from_millis(50), tenure.off()).await.is_err(), "it lasts");
    }

    #[test]
    fn a_newer_lease_ends_it_and_an_older_table_does_not() {
        let (id, other) = (InstanceId(1), InstanceId(2));
        let partition = Partition { stream: "s".into(), number: 0 };
        let before = Instant::now();
        let stage = |row: Option<(u64, Option<InstanceId>)>, is_newer: bool| {
            let tenure = Tenure::sole();
            tenure.leased(partition.clone(), 5);
            let mut table = Table::default();
            let row = row.map(|(epoch, holder)| Lease { epoch, holder, since: 0 });
            table.leases.extend(row.map(|row| (partition.clone(), row)));
            let asked = if is_newer { Instant::now() + SOON } else { before };
            tenure.judge(id, &table, asked);
            tenure.stage()
        };
        for (is_newer, went_back) in [(false, Stage::Held), (true, Stage::Leaving)] {
            assert_eq!(stage(Some((5, Some(id))), is_newer), Stage::Held);
            assert_eq!(stage(Some((5, Some(other))), is_newer), Stage::Over);
            assert_eq!(stage(Some((5, None)), is_newer), Stage::Over);
            assert_eq!(stage(Some((6, Some(id))), is_newer), Stage::Over);
            assert_eq!(stage(Some((4, Some(id))), is_newer), went_back);
            assert_eq!(stage(None, is_newer), went_back);
        }
    }

    #[tokio::test]
    async fn it_ends_once() {
        let tenure = Tenure::sole();
        tenure.set(Stage::Leaving);
        let mut stages = tenure.stages();
        assert_eq!(timeout(SOON, stages.past(Stage::Held)).await, Ok(Stage::Leaving));
        assert!(tenure.is_on());
        tenure.set(Stage::Over);
        tenure.set(Stage::Held);
        timeout(SOON, tenure.off()).await.expect("it has ended");
        assert_eq!(tenure.stage(), Stage::Over);
        timeout(SOON, tenure.on()).await.expect("there is nothing to wait for");
    }
}
