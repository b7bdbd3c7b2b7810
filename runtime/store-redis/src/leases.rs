//! The memberships, the leases, and the rollouts of handler versions. All this data is in the slot of shard 0.
//!
//! The sorted set `instances` contains the expiry time of each membership. The hash `about` contains, for each
//! instance, its information (field: the id), its report (field: `r` and the id) and the duration of its lease (field:
//! `l` and the id). The field `generation` of this hash contains the version of the membership table. The hash `leases`
//! contains, for each partition, the epoch and the holder of the last lease, and the time when this lease was granted
//! or released. The hash `versions` contains the rollout of each stream.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use ordain_core::Rollout;
use rand::RngExt as _;
use redis::{Value, cmd};

use super::RedisStore;
use super::claim::{EPOCH_LIMIT, forget_registrations, newest_epoch};
use super::names::RedisKeyKind;
use super::value::{array, bytes, number, parts, text, unexpected_reply};
use ordain_store::{
    HeartbeatReply, HeartbeatRequest, InstanceId, Lease, LeaseReply, LeaseStore, MemberRecord,
    MembershipTable, MembershipVersion,
};
use ordain_store::{Partition, StoreError, versions};

/// The text in the place of the holder, in a released lease.
const NO_HOLDER: &str = "-";

fn lease_field(Partition { stream, number }: &Partition) -> String {
    format!("{number}:{stream}")
}

fn random_version() -> MembershipVersion {
    // The version is not 0, because version 0 means that there is no table. The version has at most 19 digits, as the
    // scripts require.
    rand::rng().random_range(1..10_u64.pow(19))
}

#[async_trait]
impl LeaseStore for RedisStore {
    async fn heartbeat(&self, request: HeartbeatRequest<'_>) -> Result<HeartbeatReply, StoreError> {
        let script = &self.scripts.heartbeat;
        let keys = [RedisKeyKind::Instances, RedisKeyKind::InstanceInfo]
            .map(|kind| self.names.in_common_shard(kind));
        let mut call = self.script_call(script, &keys);
        call.arg(request.id.to_string()).arg(request.info).arg(request.report.unwrap_or_default());
        call.arg(request.lease.as_millis() as u64).arg(random_version());
        let [lasts, membership_version] = parts(self.run_script(script, call).await?, script.name)?;
        let lasts = number(&lasts);
        let membership_version = number(&membership_version);
        let (lasts, membership_version) =
            lasts.zip(membership_version).ok_or_else(|| unexpected_reply(script.name))?;
        let table = if membership_version == request.known_version {
            None
        } else {
            // The version also changes if the store has lost all its data. After this call, the process checks the
            // record of the store again before it adds entries to a queue. It therefore accepts no events into a store
            // without a record.
            forget_registrations(self);
            Some(self.table().await?)
        };
        Ok(HeartbeatReply { valid_for: Some(Duration::from_millis(lasts)), table })
    }

    async fn lease(&self, partition: &Partition, to: InstanceId) -> Result<LeaseReply, StoreError> {
        let floor = newest_epoch(self, partition).await?;
        let script = &self.scripts.lease;
        let kinds = [RedisKeyKind::Leases, RedisKeyKind::Instances, RedisKeyKind::InstanceInfo];
        let mut call =
            self.script_call(script, &kinds.map(|kind| self.names.in_common_shard(kind)));
        call.arg(lease_field(partition)).arg(to.to_string()).arg(floor).arg(random_version());
        let [outcome, answer] = parts(self.run_script(script, call).await?, script.name)?;
        let answer = match number(&outcome) {
            Some(1) => number(&answer).map(LeaseReply::Granted),
            Some(_) => text(answer).and_then(|id| id.parse().ok()).map(LeaseReply::HeldBy),
            None => Some(LeaseReply::NotMember),
        };
        answer.ok_or_else(|| unexpected_reply(script.name))
    }

    async fn release(
        &self,
        partition: &Partition,
        holder: InstanceId,
        epoch: u64,
    ) -> Result<(), StoreError> {
        let script = &self.scripts.release;
        let keys = [RedisKeyKind::Leases, RedisKeyKind::InstanceInfo]
            .map(|kind| self.names.in_common_shard(kind));
        let mut call = self.script_call(script, &keys);
        call.arg(lease_field(partition)).arg(holder.to_string()).arg(epoch).arg(random_version());
        self.run_script(script, call).await.map(drop)
    }

    async fn remove_instance(&self, id: InstanceId) -> Result<(), StoreError> {
        let script = &self.scripts.forget;
        let mut call = self.script_call(script, &self.table_keys());
        call.arg(id.to_string()).arg(random_version());
        self.run_script(script, call).await.map(drop)
    }

    async fn start_rollout(
        &self,
        stream: &str,
        before: Option<&Rollout>,
        rollout: &Rollout,
    ) -> Result<bool, StoreError> {
        let script = &self.scripts.start_rollout;
        let keys = [RedisKeyKind::Versions, RedisKeyKind::InstanceInfo]
            .map(|kind| self.names.in_common_shard(kind));
        let mut get = cmd("HGET");
        get.arg(&keys[0]).arg(stream);
        let row = versions::encode(rollout);
        let found = bytes(self.run_command(&get).await?);
        let found = found.unwrap_or_default();
        // An unreadable value counts as no rollout. If `before` is `None`, the new rollout therefore replaces the
        // value.
        let last = std::str::from_utf8(&found).ok().and_then(versions::decode);
        if last.as_ref() != before && found != row {
            return Ok(false);
        }
        let mut call = self.script_call(script, &keys);
        call.arg(stream).arg(&found[..]).arg(row).arg(random_version());
        let answer = self.run_script(script, call).await?;
        number(&answer).map(|changed| changed == 1).ok_or_else(|| unexpected_reply(script.name))
    }

    async fn table(&self) -> Result<MembershipTable, StoreError> {
        let script = &self.scripts.table;
        let answer = self.run_script(script, self.script_call(script, &self.table_keys())).await?;
        let [membership_version, members, leases, versions] = parts(answer, script.name)?;
        let membership_version =
            number(&membership_version).ok_or_else(|| unexpected_reply(script.name))?;
        let members = array(members, script.name)?.into_iter().map(|row| member(row, script.name));
        let mut table = MembershipTable {
            membership_version,
            members: members.filter_map(Result::transpose).collect::<Result<_, _>>()?,
            leases: BTreeMap::new(),
            versions: BTreeMap::new(),
        };
        let mut lease_rows = array(leases, script.name)?.into_iter();
        while let (Some(of), Some(row)) = (lease_rows.next(), lease_rows.next()) {
            let of = text(of).unwrap_or_default();
            let row = text(row).unwrap_or_default();
            // Omit an unreadable lease. A request for the lease of that partition reports the damage.
            table.leases.extend(read_lease(&of, &row));
        }
        let mut version_rows = array(versions, script.name)?.into_iter();
        while let (Some(stream), Some(row)) = (version_rows.next(), version_rows.next()) {
            let rollout = text(row).and_then(|row| versions::decode(&row));
            table.versions.extend(
                text(stream).zip(rollout).map(|(stream, rollout)| (stream.into(), rollout.into())),
            );
        }
        Ok(table)
    }
}

impl RedisStore {
    fn table_keys(&self) -> [String; 4] {
        [
            RedisKeyKind::Instances,
            RedisKeyKind::InstanceInfo,
            RedisKeyKind::Leases,
            RedisKeyKind::Versions,
        ]
        .map(|kind| self.names.in_common_shard(kind))
    }
}

/// Decodes a member from a row of the membership table. Returns `None` for a row with an invalid id: another program
/// has written such a row, and no lease names its id.
fn member(row: Value, what: &str) -> Result<Option<(InstanceId, MemberRecord)>, StoreError> {
    let [id, lasts, info, report] = parts(row, what)?;
    let Some(id) = text(id).and_then(|id| id.parse().ok()) else { return Ok(None) };
    let lasts = number(&lasts).map(Duration::from_millis);
    let words = |value| bytes(value).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let info = words(info).unwrap_or_default();
    let report = words(report);
    Ok(Some((id, MemberRecord { info, report, valid_for: lasts })))
}

/// Decodes a lease from its field and value. Returns `None` if the lease is not valid.
pub fn read_lease(field: &str, row: &str) -> Option<(Partition, Lease)> {
    let (number, stream) = field.split_once(':')?;
    let partition = Partition { stream: stream.into(), number: number.parse().ok()? };
    let words: Vec<&str> = row.split(' ').collect();
    let [epoch, holder, since] = words[..] else { return None };
    let holder = if holder == NO_HOLDER { None } else { Some(holder.parse().ok()?) };
    let epoch = epoch.parse().ok().filter(|epoch| *epoch < EPOCH_LIMIT)?;
    Some((partition, Lease { epoch, holder, since: since.parse().ok()? }))
}
