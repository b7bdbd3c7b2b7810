//! The membership of instances, and their leases. Only one process can open the folder. Members and leases are
//! therefore in the memory of this process, and an instance is a member until it leaves or its process ends. In a test,
//! one process may run several instances. After the end of the process, only the rollouts remain, as marks in the
//! store. A rollout names the handler version that executes the events of a stream.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ordain_core::Rollout;

use super::EmbeddedStore;
use super::request::WriterRequest;
use ordain_store::{
    HeartbeatReply, HeartbeatRequest, InstanceId, Lease, LeaseReply, LeaseStore, MemberRecord,
    MembershipTable,
};
use ordain_store::{Mark, MarkStore, Partition, StoreError, versions};

/// The prefix of the names of marks that contain rollouts.
pub(super) const ROLLOUT_MARK_PREFIX: &str = "decided/";

#[derive(Debug, Default)]
pub(super) struct MembershipRegistry {
    table: Mutex<MembershipTable>,
    rollout_lock: tokio::sync::Mutex<()>,
}

impl MembershipRegistry {
    /// Creates a registry with the stored rollouts. `encoded_rollouts` contains each stream with the stored form of its
    /// rollout. Omits unreadable rollouts.
    pub(super) fn new(encoded_rollouts: impl Iterator<Item = (String, Vec<u8>)>) -> Self {
        let rollouts = encoded_rollouts.filter_map(|(stream, text)| {
            let rollout = versions::decode(std::str::from_utf8(&text).ok()?)?;
            Some((stream.into(), rollout.into()))
        });
        let table = Mutex::new(MembershipTable {
            versions: rollouts.collect(),
            ..MembershipTable::default()
        });
        Self { table, ..Self::default() }
    }

    fn table(&self) -> MutexGuard<'_, MembershipTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LeaseStore for EmbeddedStore {
    async fn heartbeat(&self, request: HeartbeatRequest<'_>) -> Result<HeartbeatReply, StoreError> {
        let mut table = self.registry.table();
        let before = table.members.get(&request.id);
        if before.is_none_or(|member| member.info != request.info) {
            table.membership_version = rand::random();
        }
        let report = request.report.map(ToOwned::to_owned);
        let report = report.or_else(|| table.members.get(&request.id)?.report.clone());
        let member = MemberRecord { info: request.info.to_owned(), report, valid_for: None };
        table.members.insert(request.id, member);
        let is_new = table.membership_version != request.known_version;
        Ok(HeartbeatReply { valid_for: None, table: is_new.then(|| table.clone()) })
    }

    async fn lease(&self, partition: &Partition, to: InstanceId) -> Result<LeaseReply, StoreError> {
        let queried = partition.clone();
        let newest = self
            .send_request(|answer| WriterRequest::NewestEpoch { partition: queried, answer })
            .await?;
        let mut table = self.registry.table();
        if !table.members.contains_key(&to) {
            return Ok(LeaseReply::NotMember);
        }
        match table.holder(partition) {
            Some(holder) if holder != to => return Ok(LeaseReply::HeldBy(holder)),
            _ => {}
        }
        let given = table.leases.get(partition).map_or(0, |lease| lease.epoch);
        let epoch = newest.max(given).saturating_add(1);
        let lease = Lease { epoch, holder: Some(to), since: self.shared.clock.now() };
        table.leases.insert(partition.clone(), lease);
        table.membership_version = rand::random();
        Ok(LeaseReply::Granted(epoch))
    }

    async fn release(
        &self,
        partition: &Partition,
        holder: InstanceId,
        epoch: u64,
    ) -> Result<(), StoreError> {
        let mut table = self.registry.table();
        let now = self.shared.clock.now();
        if let Some(lease) = table.leases.get_mut(partition)
            && (lease.holder, lease.epoch) == (Some(holder), epoch)
        {
            lease.holder = None;
            lease.since = now;
            table.membership_version = rand::random();
        }
        Ok(())
    }

    async fn remove_instance(&self, id: InstanceId) -> Result<(), StoreError> {
        let mut table = self.registry.table();
        let now = self.shared.clock.now();
        table.members.remove(&id);
        for lease in table.leases.values_mut().filter(|lease| lease.holder == Some(id)) {
            lease.holder = None;
            lease.since = now;
        }
        table.membership_version = rand::random();
        Ok(())
    }

    async fn start_rollout(
        &self,
        stream: &str,
        before: Option<&Rollout>,
        rollout: &Rollout,
    ) -> Result<bool, StoreError> {
        let _rollout_guard = self.registry.rollout_lock.lock().await;
        let found = self.registry.table().versions.get(stream).cloned();
        if found.as_deref() == Some(rollout) {
            return Ok(true);
        }
        if found.as_deref() != before {
            return Ok(false);
        }
        let mark = Mark {
            name: format!("{ROLLOUT_MARK_PREFIX}{stream}"),
            value: versions::encode(rollout).into(),
        };
        // In the journal, the mark precedes every commit that depends on the rollout. The mark therefore becomes
        // durable no later than these commits.
        self.put_marks(&[mark]).await?;
        let mut table = self.registry.table();
        table.versions.insert(stream.into(), rollout.clone().into());
        table.membership_version = rand::random();
        Ok(true)
    }

    async fn table(&self) -> Result<MembershipTable, StoreError> {
        Ok(self.registry.table().clone())
    }
}
