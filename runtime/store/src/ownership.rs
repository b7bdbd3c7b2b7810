//! The right of this process to act for a partition: to accept its events, commit, and publish.
//!
//! The right ends when this process hands the partition over or loses it. The right depends on a lease, which is valid
//! as long as this process renews its membership. If the process cannot renew the membership in time (measured by its
//! own clock), the right is suspended. While the right is suspended, another instance (process) possibly owns the
//! partition. The store refuses the commits of a process that is no longer the owner. But a broker does not check the
//! ownership: the broker would still deliver events to this process and accept messages from this process. This process
//! therefore accepts no deliveries and publishes no messages while the right is suspended.

use std::sync::OnceLock;
use std::time::Instant;

use tokio::sync::watch;

use crate::{InstanceId, MembershipTable, Partition};
use ordain_util::wait;

/// The time until which the membership of this process is valid. `None` if the membership is valid as long as the
/// process runs.
pub type MembershipExpiry = Option<Instant>;

/// The phase of an ownership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnershipPhase {
    /// This process owns the partition.
    Owned,
    /// This process is handing the partition over. The process accepts no more events, finishes the running turns,
    /// commits their results, and publishes their messages.
    Draining,
    /// This process no longer owns the partition. It drops uncommitted results.
    Lost,
}

/// The right to act for a partition.
#[derive(Debug)]
pub struct Ownership {
    valid_until: watch::Receiver<MembershipExpiry>,
    phase: watch::Sender<OwnershipPhase>,
    lease: OnceLock<LeaseGrant>,
}

/// The lease on which an ownership depends.
#[derive(Debug)]
struct LeaseGrant {
    partition: Partition,
    epoch: u64,
    /// The time when this process learned of the lease.
    learned_at: Instant,
}

impl Ownership {
    /// Creates the ownership of a partition. The ownership is suspended after the time in `valid_until`. Each renewal
    /// of the membership postpones this time.
    pub fn new(valid_until: watch::Receiver<MembershipExpiry>) -> Self {
        Self {
            valid_until,
            phase: watch::Sender::new(OwnershipPhase::Owned),
            lease: OnceLock::new(),
        }
    }

    /// Creates an ownership that is never suspended, for a partition that no other process can own.
    pub fn permanent() -> Self {
        Self::new(watch::Sender::new(None).subscribe())
    }

    /// Records the lease on which the ownership depends.
    pub fn record_lease(&self, partition: Partition, epoch: u64) {
        // Ownership depends on one lease; a second call changes nothing.
        let _ = self.lease.set(LeaseGrant { partition, epoch, learned_at: Instant::now() });
    }

    /// Returns the epoch of the lease; `None` until the lease is recorded.
    pub fn epoch(&self) -> Option<u64> {
        self.lease.get().map(|lease| lease.epoch)
    }

    /// Ends the ownership if `table` shows that this instance no longer owns the partition. `requested_at` is the time
    /// when this instance requested the table. Normally, a table that this instance requested after it got the lease
    /// contains the lease. If the table lacks the lease, or contains only an older lease, the store has gone back in
    /// time (lost its newest writes). In this case, this process hands the partition over in the ordinary way. The
    /// handover detects whether commits are lost too.
    pub fn evaluate(&self, id: InstanceId, table: &MembershipTable, requested_at: Instant) {
        let Some(LeaseGrant { partition, epoch, learned_at: at }) = self.lease.get() else {
            return;
        };
        let found = table.leases.get(partition);
        let is_lost = found.is_some_and(|lease| {
            lease.epoch > *epoch || lease.epoch == *epoch && lease.holder != Some(id)
        });
        if is_lost {
            self.advance_to(OwnershipPhase::Lost);
        } else if found.is_none_or(|lease| lease.epoch < *epoch) && requested_at > *at {
            // The condition excludes a table that this process requested before it got the lease. Such a table may be
            // older than the lease, and then lacks the lease although the store has lost nothing.
            self.advance_to(OwnershipPhase::Draining);
        }
    }

    /// Returns the current phase.
    pub fn phase(&self) -> OwnershipPhase {
        *self.phase.borrow()
    }

    /// Returns whether the ownership has ended.
    pub fn is_lost(&self) -> bool {
        self.phase() == OwnershipPhase::Lost
    }

    /// Returns whether this process may act for the partition now. Returns `false` if the ownership has ended or is
    /// suspended.
    pub fn is_active(&self) -> bool {
        !self.is_lost() && self.valid_until.borrow().is_none_or(|until| Instant::now() < until)
    }

    /// Changes to a later phase. Does nothing if the current phase is the same or later.
    pub fn advance_to(&self, phase: OwnershipPhase) {
        self.phase.send_if_modified(|current| {
            let later = (*current as u8) < phase as u8;
            if later {
                *current = phase;
            }
            later
        });
    }

    /// Returns a receiver of the phases.
    pub fn phases(&self) -> PhaseReceiver {
        PhaseReceiver(self.phase.subscribe())
    }

    /// Waits until the ownership has ended or is suspended.
    pub async fn wait_inactive(&self) {
        let mut until = self.valid_until.clone();
        while self.is_active() {
            let at = *until.borrow_and_update();
            tokio::select! {
                () = wait::sleep_until(at) => {}
                Ok(()) = until.changed() => {}
                () = self.wait_lost() => {}
            }
        }
    }

    /// Waits until the ownership is active or has ended.
    pub async fn wait_active(&self) {
        let mut until = self.valid_until.clone();
        while !self.is_active() && !self.is_lost() {
            tokio::select! {
                changed = until.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                () = self.wait_lost() => {}
            }
        }
    }

    async fn wait_lost(&self) {
        let mut phases = self.phases();
        let mut phase = OwnershipPhase::Owned;
        while phase != OwnershipPhase::Lost {
            phase = phases.changed_from(phase).await;
        }
    }
}

/// A receiver of the phases of an ownership.
#[derive(Debug)]
pub struct PhaseReceiver(watch::Receiver<OwnershipPhase>);

impl PhaseReceiver {
    /// Waits until the phase differs from `phase`, and returns the new phase.
    pub async fn changed_from(&mut self, phase: OwnershipPhase) -> OwnershipPhase {
        // If the `Ownership` was dropped, this process is no longer allowed to act for the partition.
        self.0.wait_for(|now| *now != phase).await.map_or(OwnershipPhase::Lost, |now| *now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::Lease;

    const TEST_TIMEOUT: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn unrenewed_ownership_is_suspended_and_resumes() {
        let valid_until = watch::Sender::new(Some(Instant::now() + Duration::from_millis(50)));
        let ownership = Ownership::new(valid_until.subscribe());
        assert!(ownership.is_active());
        timeout(TEST_TIMEOUT, ownership.wait_inactive()).await.expect("the ownership is suspended");
        assert!(!ownership.is_active() && !ownership.is_lost());
        valid_until.send_replace(Some(Instant::now() + TEST_TIMEOUT));
        timeout(TEST_TIMEOUT, ownership.wait_active()).await.expect("the ownership resumes");
        assert!(
            timeout(Duration::from_millis(50), ownership.wait_inactive()).await.is_err(),
            "the ownership ended too early"
        );
    }

    #[test]
    fn newer_lease_ends_the_ownership_and_older_table_does_not() {
        let id = InstanceId(1);
        let other = InstanceId(2);
        let partition = Partition { stream: "s".into(), number: 0 };
        let before = Instant::now();
        let phase_after = |row: Option<(u64, Option<InstanceId>)>, is_newer: bool| {
            let ownership = Ownership::permanent();
            ownership.record_lease(partition.clone(), 5);
            let mut table = MembershipTable::default();
            let row = row.map(|(epoch, holder)| Lease { epoch, holder, since: 0 });
            table.leases.extend(row.map(|row| (partition.clone(), row)));
            let requested_at = if is_newer { Instant::now() + TEST_TIMEOUT } else { before };
            ownership.evaluate(id, &table, requested_at);
            ownership.phase()
        };
        for (is_newer, went_back) in
            [(false, OwnershipPhase::Owned), (true, OwnershipPhase::Draining)]
        {
            assert_eq!(phase_after(Some((5, Some(id))), is_newer), OwnershipPhase::Owned);
            assert_eq!(phase_after(Some((5, Some(other))), is_newer), OwnershipPhase::Lost);
            assert_eq!(phase_after(Some((5, None)), is_newer), OwnershipPhase::Lost);
            assert_eq!(phase_after(Some((6, Some(id))), is_newer), OwnershipPhase::Lost);
            assert_eq!(phase_after(Some((4, Some(id))), is_newer), went_back);
            assert_eq!(phase_after(None, is_newer), went_back);
        }
    }

    #[tokio::test]
    async fn ownership_ends_once() {
        let ownership = Ownership::permanent();
        ownership.advance_to(OwnershipPhase::Draining);
        let mut stages = ownership.phases();
        assert_eq!(
            timeout(TEST_TIMEOUT, stages.changed_from(OwnershipPhase::Owned)).await,
            Ok(OwnershipPhase::Draining)
        );
        assert!(ownership.is_active());
        ownership.advance_to(OwnershipPhase::Lost);
        ownership.advance_to(OwnershipPhase::Owned);
        timeout(TEST_TIMEOUT, ownership.wait_inactive()).await.expect("the ownership has ended");
        assert_eq!(ownership.phase(), OwnershipPhase::Lost);
        timeout(TEST_TIMEOUT, ownership.wait_active())
            .await
            .expect("ended ownership does not wait");
    }
}
