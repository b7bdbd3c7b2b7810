//! The losses of events that the hosts of a round report, and a check of the reported numbers.
//!
//! The hosts report the losses of each shard in records in their logs (`docs/guide/redis.md`). A log survives the end
//! of its host, so this module reads the records of all processes of all hosts. The test computes the shard of each key
//! with the function that the host uses, and compares the reported numbers with its own numbers for each shard.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use ordain_core::shard_of;
use ordain_tests::host::Home;
use ordain_tests::incident::records;
use serde_json::Value;

use super::events::{AcceptedEvent, SentEvents};
use super::receiver::{Receiver, SHARDS};

/// A part of the log line about events that another process may have read before the store lost them.
const POSSIBLE_LOSS: &str = "events that this process accepted may be lost";
const STREAM: &str = "/ordain/cases";
const LOST_TYPE: &str = "ordain.events.lost";
/// The type of a record about the events that waited during a loss.
const SAFE_TYPE: &str = "ordain.events.safe";

/// The fate of a key's events: how many took effect, and how many wait in the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KeyFate {
    /// The number of events that took effect.
    pub(crate) taken: u64,
    /// The number of events that wait in the store for an earlier event of the key.
    pub(crate) held: u64,
}

pub(crate) type KeyFates = BTreeMap<String, KeyFate>;

/// Reads the fates of the events from the store that the configuration in `home` names.
pub(crate) fn stored_fates(home: &Home) -> Result<KeyFates> {
    let rows = home.rows(&["keys", "list", "cases", "--json", "--limit", "1000000"])?;
    let fate = |row: &Value| -> Result<(String, KeyFate)> {
        let key = row["key"].as_str().context("a key")?.to_owned();
        let next = row["next"].as_u64().context("a sequence")?;
        let held = row["held"]["count"].as_u64().context("a number of events")?;
        Ok((key, KeyFate { taken: next.saturating_sub(1), held }))
    };
    rows.iter().map(fate).collect()
}

/// The reports of losses that must be exact. An exact report does not count an event that has an effect or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExactReports {
    All,
    /// The reports of processes that read the partition themselves.
    OfReaders,
    None,
}

#[derive(Debug)]
struct ReportedLoss {
    shard: u32,
    events: u64,
    /// The time when the host accepted the first of the events, in ms since 1970.
    since: i64,
    /// True if the process that reports the loss read the partition itself.
    is_of_reader: bool,
}

#[derive(Debug)]
pub(crate) struct ReportedLosses(Vec<ReportedLoss>);

/// The number of events of one shard, by their fates.
#[derive(Debug, Default)]
pub(crate) struct ShardBalance {
    accepted: u64,
    taken: u64,
    held: u64,
    /// The number of events that the hosts reported as lost.
    reported: u64,
    /// The part of `reported` that comes from processes that read the partition themselves.
    reported_by_readers: u64,
    /// The number of accepted events that the servers could lose.
    at_risk: u64,
    /// The part of `at_risk` that was sent before the last end of a host. The hosts need not report these events,
    /// because the process that accepted them may have ended.
    excused: u64,
}

impl ReportedLoss {
    /// Returns the loss that a record reports; `None` if the record is about something else.
    fn of(record: &Value, is_of_reader: bool) -> Result<Option<Self>> {
        if record["type"] != LOST_TYPE {
            return Ok(None);
        }
        ensure!(record["source"] == STREAM, "the record is about another stream: {record}");
        let data = &record["data"];
        let since: Timestamp = data["since"].as_str().context("a time")?.parse()?;
        Ok(Some(Self {
            shard: u32::try_from(data["shard"].as_u64().context("a shard")?)?,
            events: data["events"].as_u64().context("a number of events")?,
            since: since.as_millisecond(),
            is_of_reader,
        }))
    }
}

impl ReportedLosses {
    /// Reads the records in the logs of all processes of these hosts. Checks that each record has an id of its own.
    pub(crate) fn of(hosts: &[Receiver]) -> Result<Self> {
        let mut losses = Vec::new();
        let mut ids = BTreeSet::new();
        for log in hosts.iter().flat_map(Receiver::logs) {
            let mut unstated = BTreeMap::new();
            for line in log.split_inclusive('\n') {
                for record in records(line)? {
                    let id = record["id"].as_str().context("an id")?.to_owned();
                    ensure!(ids.insert(id), "another record has the id of {record}");
                    check_recount(&mut unstated, &record)?;
                    losses.extend(ReportedLoss::of(&record, !line.contains(POSSIBLE_LOSS))?);
                }
            }
        }
        Ok(Self(losses))
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|loss| loss.events).sum()
    }

    /// Checks the time in each report. At this time, the producer must have been sending an event of the shard that the
    /// servers could lose.
    pub(crate) fn check_times(&self, sent: &SentEvents) -> Result<()> {
        for loss in &self.0 {
            let is_first = |event: &AcceptedEvent| {
                let times = event.sent_at..=event.accepted_at;
                event.is_at_risk && times.contains(&loss.since)
            };
            let of_shard = sent.iter().filter(|(key, _)| shard_of(key, SHARDS) == loss.shard);
            ensure!(
                of_shard.flat_map(|(_, events)| events).any(is_first),
                "no event that the servers could lose was sent at the time in {loss:?}"
            );
        }
        Ok(())
    }

    /// Returns the balance of each shard, in order. `ended_at` is the time of the last end of a host.
    pub(crate) fn balances(
        &self,
        sent: &SentEvents,
        fates: &KeyFates,
        ended_at: Option<i64>,
    ) -> Result<Vec<ShardBalance>> {
        let mut balances: Vec<ShardBalance> =
            (0..SHARDS).map(|_| ShardBalance::default()).collect();
        for (key, events) in sent {
            let balance = &mut balances[shard_of(key, SHARDS) as usize];
            balance.add(events, fates.get(key).copied().unwrap_or_default(), ended_at);
        }
        for ReportedLoss { shard, events, is_of_reader, .. } in &self.0 {
            let balance = balances.get_mut(*shard as usize).context("an unknown shard")?;
            balance.reported += events;
            balance.reported_by_readers += if *is_of_reader { *events } else { 0 };
        }
        Ok(balances)
    }
}

impl ShardBalance {
    fn add(&mut self, events: &[AcceptedEvent], fate: KeyFate, ended_at: Option<i64>) {
        self.accepted += events.len() as u64;
        self.taken += fate.taken;
        self.held += fate.held;
        for event in events.iter().filter(|event| event.is_at_risk) {
            self.at_risk += 1;
            self.excused += u64::from(ended_at.is_some_and(|ended_at| event.sent_at <= ended_at));
        }
    }

    /// Compares the numbers by three rules:
    ///
    /// - Each event has an effect, waits, is reported as lost, or is excused.
    /// - The hosts report only events that the servers could lose.
    /// - The reports in `exact` count only events that neither have an effect nor wait.
    pub(crate) fn check(&self, exact: ExactReports) -> Result<()> {
        let Self { accepted, taken, held, reported, at_risk, excused, .. } = *self;
        ensure!(
            taken + held + reported + excused >= accepted,
            "the hosts reported too few lost events: {self:?}"
        );
        ensure!(reported <= at_risk, "the hosts reported events that cannot be lost: {self:?}");
        let exact_reports = match exact {
            ExactReports::All => reported,
            ExactReports::OfReaders => self.reported_by_readers,
            ExactReports::None => 0,
        };
        ensure!(
            taken + held + exact_reports <= accepted,
            "the hosts reported too many lost events, or an event took effect twice: {self:?}"
        );
        Ok(())
    }
}

/// Checks the number of lost events in a record of the type [`SAFE_TYPE`]. This number must not exceed the sum of the
/// lost events in the earlier records of the type [`LOST_TYPE`] about the same queue. `unstated` contains this sum for
/// each queue. A record that states how many events are safe sets the sum to 0.
fn check_recount(unstated: &mut BTreeMap<String, u64>, record: &Value) -> Result<()> {
    let data = &record["data"];
    let queue = format!("{} {} {}", record["source"], record["subject"], data["shard"]);
    let unstated = unstated.entry(queue).or_default();
    if record["type"] == LOST_TYPE && data["safe"].is_null() {
        *unstated += data["events"].as_u64().context("a number of events")?;
    } else if record["type"] == LOST_TYPE {
        *unstated = 0;
    } else if record["type"] == SAFE_TYPE {
        let lost = data["lost"].as_u64().context("a number of lost events")?;
        let reported = std::mem::take(unstated);
        ensure!(lost <= reported, "earlier records state {reported} lost events, unlike {record}");
    }
    Ok(())
}
