//! The instances that use a store, and the owners of partitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{BoundedRows, RowText, time};
use ordain_config::LoadedConfig;
use ordain_store::{InstanceId, MemberRecord, MembershipTable, Partition};
use ordain_store::{InstanceInfo, InstanceReport, PendingWork};

/// The page of all instances.
#[derive(Debug, Serialize, Deserialize)]
pub struct InstancesPage<L = BoundedRows<InstanceRow>> {
    /// A row for each instance and, if partitions have no owner, a row for these partitions.
    pub instances: L,
}

/// An instance with its partitions, or the partitions without an owner. In the row of the partitions without an owner,
/// every optional field is `None`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceRow {
    /// The time, in ms, after which the store removes the instance if the instance sends no further heartbeat. `None`
    /// for the embedded store, which has only one instance.
    pub expires_in_ms: Option<u64>,
    /// The id of the instance.
    #[serde(rename = "instance")]
    pub id: Option<RowText>,
    /// The name of the machine and the id of the process.
    pub name: Option<RowText>,
    /// The handler version that the instance offers for each stream.
    pub offers: BTreeMap<String, RowText>,
    /// The number of elements in `partitions`.
    pub owns: usize,
    /// The partitions that the instance owns, or the partitions without an owner.
    pub partitions: Vec<PartitionRow>,
    /// `runs`, `leaves` (the instance is shutting down), or `alone` (`run --once`).
    pub state: Option<RowText>,
    /// The version of the program `ordain` that the instance runs.
    pub version: Option<RowText>,
}

/// A partition of a stream.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionRow {
    /// The number of keys in the owner's memory that cannot execute their next event now; `None` if the partition has
    /// no owner, or if its owner has not reported this number.
    pub blocked_keys: Option<u64>,
    /// The epoch (number) of the current or last lease of the partition; `None` if no instance has owned the partition
    /// yet.
    pub epoch: Option<u64>,
    /// The number of events that wait for delivery in the broker or in the store; `None` if the partition has no owner,
    /// or if its owner has not reported this number.
    pub lag: Option<u64>,
    /// The number of the partition within its stream, from 0.
    pub partition: u32,
    /// The number of keys in the owner's memory that have an event to execute; `None` if the partition has no owner, or
    /// if its owner has not reported this number.
    pub ready_keys: Option<u64>,
    /// The time at which the lease was granted or released; `None` if no instance has owned the partition yet.
    pub since: Option<RowText>,
    /// The name of the partition's stream.
    pub stream: RowText,
}

/// The decoded [`InstanceInfo`] and [`InstanceReport`] of every instance in a membership table.
pub struct InstanceOverview<'a> {
    loaded: &'a LoadedConfig,
    table: &'a MembershipTable,
    infos: BTreeMap<InstanceId, InstanceInfo>,
    reports: BTreeMap<InstanceId, InstanceReport>,
}

impl<'a> InstanceOverview<'a> {
    /// Decodes the instances of a table.
    pub fn of(loaded: &'a LoadedConfig, table: &'a MembershipTable) -> Self {
        let members = table.members.iter();
        let info =
            |(id, member): (&InstanceId, &MemberRecord)| (*id, InstanceInfo::decode(&member.info));
        let report = |(id, member): (&InstanceId, &MemberRecord)| {
            (*id, member.report.as_deref().map(InstanceReport::decode).unwrap_or_default())
        };
        let infos = members.clone().map(info).collect();
        let reports = members.map(report).collect();
        Self { loaded, table, infos, reports }
    }

    /// Returns the pending work of a partition as its owner reported it; `None` if the partition has no owner, or if
    /// its owner has not reported.
    fn work(&self, partition: &Partition) -> Option<PendingWork> {
        let holder = self.table.holder(partition)?;
        self.reports.get(&holder)?.get(&partition.stream, partition.number)
    }

    /// Returns the pending work and the number of wanted instances of a stream; `None` if the stream is not configured.
    pub fn scale(&self, name: &str) -> Option<ScaleReport> {
        let config = self.loaded.config.streams.get(name)?;
        let runs = |info: &&InstanceInfo| info.streams.contains_key(name) && !info.leaving;
        let instances = self.infos.values().filter(runs).count() as u64;
        let partitions = config.source.partitions();
        let stream = Arc::<str>::from(name);
        let mut all = PendingWork::default();
        let mut is_known = true;
        for number in 0..partitions {
            let work = self.work(&Partition { stream: Arc::clone(&stream), number });
            is_known &= work.is_some_and(|work| work.lag.is_some());
            all = all.plus(work.unwrap_or_default());
        }
        // While the lag of a partition is unknown, no running instance that can own a partition should stop.
        let least = if is_known { 1 } else { instances.min(partitions.into()) };
        Some(ScaleReport {
            stream: name.to_owned(),
            lag: all.lag.unwrap_or(0),
            ready_keys: all.ready_keys,
            blocked_keys: all.blocked_keys,
            instances,
            wanted_instances: all.wanted_instances(config.lag_per_instance, partitions).max(least),
        })
    }

    /// Returns the number of wanted instances of each stream.
    pub fn wanted(&self) -> BTreeMap<String, u64> {
        let streams = self.loaded.config.streams.keys().map(ToString::to_string);
        streams
            .filter_map(|name| self.scale(&name).map(|scale| (name, scale.wanted_instances)))
            .collect()
    }

    /// Returns a row for each instance with its partitions. If partitions have no owner, also returns a row for these
    /// partitions. The rows contain the partitions of all streams that are configured here or that an instance runs.
    pub fn rows(&self) -> Vec<InstanceRow> {
        let mut owned: BTreeMap<Option<InstanceId>, Vec<PartitionRow>> = BTreeMap::new();
        for (stream, count) in streams(self.loaded, &self.infos) {
            for number in 0..count {
                let partition = Partition { stream: stream.as_str().into(), number };
                let work = self.work(&partition);
                let lease = self.table.leases.get(&partition);
                let row = PartitionRow {
                    blocked_keys: work.map(|work| work.blocked_keys),
                    epoch: lease.map(|lease| lease.epoch),
                    lag: work.and_then(|work| work.lag),
                    partition: number,
                    ready_keys: work.map(|work| work.ready_keys),
                    since: lease.map(|lease| time(lease.since).into()),
                    stream: stream.as_str().into(),
                };
                owned.entry(self.table.holder(&partition)).or_default().push(row);
            }
        }
        self.instance_rows(owned)
    }

    fn instance_rows(
        &self,
        mut owned: BTreeMap<Option<InstanceId>, Vec<PartitionRow>>,
    ) -> Vec<InstanceRow> {
        let mut rows = Vec::new();
        for (id, info) in &self.infos {
            let partitions = owned.remove(&Some(*id)).unwrap_or_default();
            let state = match (info.alone, info.leaving) {
                (_, true) => "leaves",
                (true, _) => "alone",
                _ => "runs",
            };
            let lasts = self.table.members[id].valid_for;
            let offers = info.offers.iter();
            let offers = offers.map(|(stream, build)| (stream.clone(), (&*build.version).into()));
            rows.push(InstanceRow {
                expires_in_ms: lasts.map(|lasts| lasts.as_millis() as u64),
                id: Some(id.to_string().into()),
                name: Some(info.name.as_str().into()),
                offers: offers.collect(),
                owns: partitions.len(),
                partitions,
                state: Some(state.into()),
                version: Some(info.version.as_str().into()),
            });
        }
        if let Some(partitions) = owned.remove(&None) {
            let owns = partitions.len();
            rows.push(InstanceRow { owns, partitions, ..InstanceRow::default() });
        }
        rows
    }
}

fn streams(
    loaded: &LoadedConfig,
    infos: &BTreeMap<InstanceId, InstanceInfo>,
) -> BTreeMap<String, u32> {
    let mut streams: BTreeMap<String, u32> = BTreeMap::new();
    let configured = loaded.config.streams.iter();
    let configured =
        configured.map(|(name, stream)| (name.to_string(), stream.source.partitions()));
    let running = infos.values().flat_map(|info| info.streams.clone());
    for (name, count) in configured.chain(running) {
        let most = streams.entry(name).or_default();
        *most = (*most).max(count);
    }
    streams
}

/// The pending work of a stream over all instances, and the number of wanted instances. A tool that starts and stops
/// instances reads this report.
#[derive(Debug, Serialize)]
pub struct ScaleReport {
    stream: String,
    /// The number of events that wait for delivery in the broker or in the store. A partition counts as empty if it has
    /// no owner, or if its owner has not reported this number.
    lag: u64,
    ready_keys: u64,
    blocked_keys: u64,
    /// Number of instances that run the stream and are not shutting down.
    instances: u64,
    /// Number of wanted instances. While the lag (the number of waiting events) of a partition is unknown, this number
    /// is at least the lower of two numbers: `instances`, and the number of partitions.
    pub wanted_instances: u64,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use ordain_store::Lease;

    const CONFIG: &str = "[streams.orders]\nhandler = \"orders\"\nlag_per_instance = 10\n\
        source = { kind = \"file\", path = \"-\", partitions = 3 }\n";

    /// Evaluates a stream that two instances run while a third instance is leaving. The argument has each partition's
    /// owner, and the lag that each instance reports for the partition. Returns the lag, the number of instances, and
    /// the number of wanted instances.
    fn scale(partitions: [(Option<u64>, [Option<u64>; 3]); 3]) -> (u64, u64, u64) {
        let loaded = LoadedConfig::parse(Path::new("ordain.toml"), CONFIG, &|_| None)
            .expect("the configuration is valid");
        let mut table = MembershipTable::default();
        for id in 0..3 {
            let streams = [("orders".to_owned(), 3)].into();
            let info =
                InstanceInfo { streams, leaving: id == 2, ..InstanceInfo::default() }.encode();
            let mut report = InstanceReport::default();
            for (number, (_, lags)) in (0..).zip(&partitions) {
                report.add(
                    "orders",
                    number,
                    PendingWork { lag: lags[id as usize], ..PendingWork::default() },
                );
            }
            let member = MemberRecord { info, report: Some(report.encode()), valid_for: None };
            table.members.insert(InstanceId(id), member);
        }
        for (number, (holder, _)) in (0..).zip(partitions) {
            let partition = Partition { stream: "orders".into(), number };
            let holder = holder.map(InstanceId);
            table.leases.insert(partition, Lease { epoch: 1, holder, since: 0 });
        }
        let scale = InstanceOverview::of(&loaded, &table)
            .scale("orders")
            .expect("the stream is configured");
        (scale.lag, scale.instances, scale.wanted_instances)
    }

    #[test]
    fn unknown_lag_is_no_reason_to_stop_an_instance() {
        let known = [Some(4), None, None];
        assert_eq!(scale([(Some(0), known); 3]), (12, 2, 2));
        let idle = [Some(0), None, None];
        assert_eq!(scale([(Some(0), idle); 3]), (0, 2, 1));
        // The last partition has no owner, or its owner has not reported.
        assert_eq!(scale([(Some(0), idle), (Some(0), idle), (None, idle)]), (0, 2, 2));
        assert_eq!(scale([(Some(0), idle), (Some(0), idle), (Some(1), idle)]), (0, 2, 2));
        // The report of a former owner does not count.
        let before = [Some(0), Some(70), None];
        assert_eq!(scale([(Some(0), before), (Some(0), idle), (Some(0), idle)]), (0, 2, 1));
    }
}
