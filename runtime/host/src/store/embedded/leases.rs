//! The one process that has the folder is the one instance: it is heard of as long as it runs, and
//! nothing of it is left when it ends. In tests there may be several in the process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::Embedded;
use super::writer::Request;
use crate::store::leases::{Beat, Beaten, InstanceId, Lease, Leased, Leases, Member, Table};
use crate::store::{Partition, StoreError};

#[derive(Debug, Default)]
pub(super) struct Registry(Mutex<Table>);

impl Registry {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Leases for Embedded {
    async fn beat(&self, beat: Beat<'_>) -> Result<Beaten, StoreError> {
        let mut table = self.registry.table();
        let before = table.members.get(&beat.id);
        if before.is_none_or(|it| it.about != beat.about) {
            table.generation = rand::random();
        }
        let report = beat.report.map(ToOwned::to_owned);
        let report = report.or_else(|| table.members.get(&beat.id)?.report.clone());
        let member = Member { about: beat.about.to_owned(), report, lasts: None };
        table.members.insert(beat.id, member);
        let is_new = table.generation != beat.seen;
        Ok(Beaten { lasts: None, table: is_new.then(|| table.clone()) })
    }

    async fn lease(&self, partition: &Partition, to: InstanceId) -> Result<Leased, StoreError> {
        let asked = partition.clone();
        let newest = self.ask(|answer| Request::NewestEpoch { partition: asked, answer }).await?;
        let mut table = self.registry.table();
        if !table.members.contains_key(&to) {
            return Ok(Leased::Unheard);
        }
        match table.holder(partition) {
            Some(holder) if holder != to => return Ok(Leased::Held(holder)),
            _ => {}
        }
        let given = table.leases.get(partition).map_or(0, |it| it.epoch);
        let epoch = newest.max(given).saturating_add(1);
        let lease = Lease { epoch, holder: Some(to), since: self.shared.clock.now() };
        table.leases.insert(partition.clone(), lease);
        table.generation = rand::random();
        Ok(Leased::Given(epoch))
    }

    async fn release(
        &self,
        partition: &Partition,
        holder: InstanceId,
        epoch: u64,
    ) -> Result<(), StoreError> {
        let (mut table, now) = (self.registry.table(), self.shared.clock.now());
        if let Some(lease) = table.leases.get_mut(partition)
            && (lease.holder, lease.epoch) == (Some(holder), epoch)
        {
            (lease.holder, lease.since) = (None, now);
            table.generation = rand::random();
        }
        Ok(())
    }

    async fn forget(&self, id: InstanceId) -> Result<(), StoreError> {
        let (mut table, now) = (self.registry.table(), self.shared.clock.now());
        table.members.remove(&id);
        for lease in table.leases.values_mut().filter(|it| it.holder == Some(id)) {
            (lease.holder, lease.since) = (None, now);
        }
        table.generation = rand::random();
        Ok(())
    }

    async fn table(&self) -> Result<Table, StoreError> {
        Ok(self.registry.table().clone())
    }
}
