//! All instances of a store, and who has what.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::time;
use crate::config::Loaded;
use crate::instance::{About, Report, Work};
use crate::store::{InstanceId, Member, Partition, Table};

/// An instance with its partitions, or the partitions that nobody has.
#[derive(Debug, Serialize)]
pub struct Instance {
    #[serde(rename = "instance")]
    id: Option<String>,
    name: Option<String>,
    version: Option<String>,
    /// What it does: `runs`, `leaves`, or `alone` (`run --once`).
    state: Option<&'static str>,
    /// Without another sign of life it is forgotten after so long; never where there is one process.
    expires_in_ms: Option<u64>,
    /// How many partitions it has.
    owns: usize,
    partitions: Vec<Value>,
}

/// Each instance with its partitions, and then those that nobody has, if there are any: of streams
/// that are configured here or that an instance runs.
pub fn instances(loaded: &Loaded, table: &Table) -> Vec<Instance> {
    let abouts: BTreeMap<InstanceId, About> =
        table.members.iter().map(|(id, member)| (*id, About::decode(&member.about))).collect();
    let reports: BTreeMap<InstanceId, Report> =
        table.members.iter().map(|(id, member)| (*id, report_of(member))).collect();
    let mut owned: BTreeMap<Option<InstanceId>, Vec<Value>> = BTreeMap::new();
    for (stream, count) in streams(loaded, &abouts) {
        for number in 0..count {
            let partition = Partition { stream: stream.as_str().into(), number };
            let holder = table.holder(&partition);
            let work = holder.and_then(|id| reports[&id].of(&stream, number));
            let lease = table.leases.get(&partition);
            let row = json!({
                "stream": stream,
                "partition": number,
                "since": lease.map(|it| time(it.since)),
                "epoch": lease.map(|it| it.epoch),
                "lag": work.and_then(|it| it.lag),
                "ready_keys": work.map(|it| it.ready_keys),
                "blocked_keys": work.map(|it| it.blocked_keys),
            });
            owned.entry(holder).or_default().push(row);
        }
    }
    let mut rows = Vec::new();
    for (id, about) in abouts {
        let partitions = owned.remove(&Some(id)).unwrap_or_default();
        let state = match (about.alone, about.leaving) {
            (_, true) => "leaves",
            (true, _) => "alone",
            _ => "runs",
        };
        let lasts = table.members[&id].lasts;
        rows.push(Instance {
            id: Some(id.to_string()),
            name: Some(about.name),
            version: Some(about.version),
            state: Some(state),
            expires_in_ms: lasts.map(|it| it.as_millis() as u64),
            owns: partitions.len(),
            partitions,
        });
    }
    if let Some(partitions) = owned.remove(&None) {
        let owns = partitions.len();
        let (id, name, version, state, expires_in_ms) = (None, None, None, None, None);
        rows.push(Instance { id, name, version, state, expires_in_ms, owns, partitions });
    }
    rows
}

fn report_of(member: &Member) -> Report {
    member.report.as_deref().map(Report::decode).unwrap_or_default()
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

/// Looks at all instances for the sake of a stream; `None` if it is not configured.
pub fn scale(loaded: &Loaded, table: &Table, stream: &str) -> Option<Scale> {
    let config = loaded.config.streams.get(stream)?;
    let partitions = config.source.partitions();
    let (mut work, mut known, mut instances) = (Work::default(), 0, 0);
    for member in table.members.values() {
        let about = About::decode(&member.about);
        instances += u64::from(about.streams.contains_key(stream) && !about.leaving);
        for of_partition in report_of(member).partitions.get(stream).into_iter().flatten() {
            known += u32::from(of_partition.1.lag.is_some());
            work = work.and(*of_partition.1);
        }
    }
    // What nobody knows of is no reason to end one.
    let least = if known < partitions { instances.min(partitions.into()) } else { 1 };
    let wanted = work.wanted_instances(config.lag_per_instance, partitions).max(least);
    Some(Scale {
        stream: stream.to_owned(),
        lag: work.lag.unwrap_or(0),
        ready_keys: work.ready_keys,
        blocked_keys: work.blocked_keys,
        instances,
        wanted_instances: wanted,
    })
}
