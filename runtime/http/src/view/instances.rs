//! All instances of a store, and who has what.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Rows, Text, time};
use ordain_config::Loaded;
use ordain_store::{About, Report, Work};
use ordain_store::{InstanceId, Member, Partition, Table};

/// All instances.
#[derive(Debug, Serialize, Deserialize)]
pub struct InstancesPage<L = Rows<InstanceRow>> {
    /// The rows.
    pub instances: L,
}

/// An instance with its partitions, or the partitions without an owner.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceRow {
    /// The time after which it is removed without another heartbeat; `None` in a store for one process.
    pub expires_in_ms: Option<u64>,
    /// The id; `None` for partitions without an owner.
    #[serde(rename = "instance")]
    pub id: Option<Text>,
    /// The names of the host and the process.
    pub name: Option<Text>,
    /// The handler version that it has for each stream.
    pub offers: BTreeMap<String, Text>,
    /// The number of its partitions.
    pub owns: usize,
    /// The partitions.
    pub partitions: Vec<PartitionRow>,
    /// `runs`, `leaves`, or `alone` (`run --once`).
    pub state: Option<Text>,
    /// The version of the program.
    pub version: Option<Text>,
}

/// A partition of a stream.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionRow {
    /// Keys in memory that are blocked, if its owner has reported.
    pub blocked_keys: Option<u64>,
    /// The epoch of the lease.
    pub epoch: Option<u64>,
    /// Events that wait in the broker, if its owner has reported.
    pub lag: Option<u64>,
    /// The number.
    pub partition: u32,
    /// Keys in memory with an event that can run, if its owner has reported.
    pub ready_keys: Option<u64>,
    /// When the lease was granted or returned.
    pub since: Option<Text>,
    /// The stream.
    pub stream: Text,
}

/// What the instances of a store say of themselves.
pub struct Instances<'a> {
    loaded: &'a Loaded,
    table: &'a Table,
    abouts: BTreeMap<InstanceId, About>,
    reports: BTreeMap<InstanceId, Report>,
}

impl<'a> Instances<'a> {
    /// Those of a table.
    pub fn of(loaded: &'a Loaded, table: &'a Table) -> Self {
        let members = table.members.iter();
        let about = |(id, member): (&InstanceId, &Member)| (*id, About::decode(&member.about));
        let report = |(id, member): (&InstanceId, &Member)| {
            (*id, member.report.as_deref().map(Report::decode).unwrap_or_default())
        };
        let (abouts, reports) =
            (members.clone().map(about).collect(), members.map(report).collect());
        Self { loaded, table, abouts, reports }
    }

    /// What whoever has a partition has to do of it, if that is known.
    fn work(&self, partition: &Partition) -> Option<Work> {
        let holder = self.table.holder(partition)?;
        self.reports.get(&holder)?.of(&partition.stream, partition.number)
    }

    /// What all have to do of a stream; `None` if it is not configured.
    pub fn scale(&self, name: &str) -> Option<Scale> {
        let config = self.loaded.config.streams.get(name)?;
        let runs = |about: &&About| about.streams.contains_key(name) && !about.leaving;
        let instances = self.abouts.values().filter(runs).count() as u64;
        let partitions = config.source.partitions();
        let (stream, mut all, mut is_known) = (Arc::<str>::from(name), Work::default(), true);
        for number in 0..partitions {
            let work = self.work(&Partition { stream: Arc::clone(&stream), number });
            is_known &= work.is_some_and(|work| work.lag.is_some());
            all = all.and(work.unwrap_or_default());
        }
        // What nobody knows of is no reason to end one.
        let least = if is_known { 1 } else { instances.min(partitions.into()) };
        Some(Scale {
            stream: name.to_owned(),
            lag: all.lag.unwrap_or(0),
            ready_keys: all.ready_keys,
            blocked_keys: all.blocked_keys,
            instances,
            wanted_instances: all.wanted_instances(config.lag_per_instance, partitions).max(least),
        })
    }

    /// The instances that each stream wants.
    pub fn wanted(&self) -> BTreeMap<String, u64> {
        let streams = self.loaded.config.streams.keys().map(ToString::to_string);
        streams.filter_map(|name| self.scale(&name).map(|it| (name, it.wanted_instances))).collect()
    }

    /// Each instance with its partitions, and then those that nobody has, if there are any: of streams
    /// that are configured here or that an instance runs.
    pub fn rows(&self) -> Vec<InstanceRow> {
        let mut owned: BTreeMap<Option<InstanceId>, Vec<PartitionRow>> = BTreeMap::new();
        for (stream, count) in streams(self.loaded, &self.abouts) {
            for number in 0..count {
                let partition = Partition { stream: stream.as_str().into(), number };
                let (work, lease) = (self.work(&partition), self.table.leases.get(&partition));
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
        self.with(owned)
    }

    fn with(&self, mut owned: BTreeMap<Option<InstanceId>, Vec<PartitionRow>>) -> Vec<InstanceRow> {
        let mut rows = Vec::new();
        for (id, about) in &self.abouts {
            let partitions = owned.remove(&Some(*id)).unwrap_or_default();
            let state = match (about.alone, about.leaving) {
                (_, true) => "leaves",
                (true, _) => "alone",
                _ => "runs",
            };
            let lasts = self.table.members[id].lasts;
            let offers = about.offers.iter();
            let offers = offers.map(|(stream, build)| (stream.clone(), (&*build.version).into()));
            rows.push(InstanceRow {
                expires_in_ms: lasts.map(|lasts| lasts.as_millis() as u64),
                id: Some(id.to_string().into()),
                name: Some(about.name.as_str().into()),
                offers: offers.collect(),
                owns: partitions.len(),
                partitions,
                state: Some(state.into()),
                version: Some(about.version.as_str().into()),
            });
        }
        if let Some(partitions) = owned.remove(&None) {
            let owns = partitions.len();
            rows.push(InstanceRow { owns, partitions, ..InstanceRow::default() });
        }
        rows
    }
}

fn streams(loaded: &Loaded, abouts: &BTreeMap<InstanceId, About>) -> BTreeMap<String, u32> {
    let mut streams: BTreeMap<String, u32> = BTreeMap::new();
    let here = loaded.config.streams.iter();
    let here = here.map(|(name, stream)| (name.to_string(), stream.source.partitions()));
    let there = abouts.values().flat_map(|it| it.streams.clone());
    for (name, count) in here.chain(there) {
        let most = streams.entry(name).or_default();
        *most = (*most).max(count);
    }
    streams
}

/// What all instances have to do of a stream, and how many are wanted for that: what something that
/// starts and ends instances goes by.
#[derive(Debug, Serialize)]
pub struct Scale {
    stream: String,
    /// Events that wait in the broker to be delivered, as far as is known.
    lag: u64,
    ready_keys: u64,
    blocked_keys: u64,
    /// How many there are.
    instances: u64,
    /// How many are wanted: at least as many as there are while it is not known of each partition what
    /// waits there.
    pub wanted_instances: u64,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use ordain_store::Lease;

    const CONFIG: &str = "[streams.orders]\nhandler = \"orders\"\nlag_per_instance = 10\n\
        source = { kind = \"file\", path = \"-\", partitions = 3 }\n";

    /// Two run the stream and one is leaving. Of each partition: who has it, and what everybody says of
    /// its lag.
    fn scale(partitions: [(Option<u64>, [Option<u64>; 3]); 3]) -> (u64, u64, u64) {
        let loaded =
            Loaded::parse(Path::new("ordain.toml"), CONFIG, &|_| None).expect("it is right");
        let mut table = Table::default();
        for id in 0..3 {
            let streams = [("orders".to_owned(), 3)].into();
            let about = About { streams, leaving: id == 2, ..About::default() }.encode();
            let mut report = Report::default();
            for (number, (_, lags)) in (0..).zip(&partitions) {
                report.add("orders", number, Work { lag: lags[id as usize], ..Work::default() });
            }
            let member = Member { about, report: Some(report.encode()), lasts: None };
            table.members.insert(InstanceId(id), member);
        }
        for (number, (holder, _)) in (0..).zip(partitions) {
            let partition = Partition { stream: "orders".into(), number };
            let holder = holder.map(InstanceId);
            table.leases.insert(partition, Lease { epoch: 1, holder, since: 0 });
        }
        let scale = Instances::of(&loaded, &table).scale("orders").expect("it is configured");
        (scale.lag, scale.instances, scale.wanted_instances)
    }

    #[test]
    fn what_nobody_knows_of_is_no_reason_to_end_one() {
        let known = [Some(4), None, None];
        assert_eq!(scale([(Some(0), known); 3]), (12, 2, 2));
        let idle = [Some(0), None, None];
        assert_eq!(scale([(Some(0), idle); 3]), (0, 2, 1));
        // Nobody has the last, or who has it has not said.
        assert_eq!(scale([(Some(0), idle), (Some(0), idle), (None, idle)]), (0, 2, 2));
        assert_eq!(scale([(Some(0), idle), (Some(0), idle), (Some(1), idle)]), (0, 2, 2));
        // Who had it does not count.
        let before = [Some(0), Some(70), None];
        assert_eq!(scale([(Some(0), before), (Some(0), idle), (Some(0), idle)]), (0, 2, 1));
    }
}
