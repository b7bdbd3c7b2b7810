//! The report of a run, for people and for scripts.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_core::{Cause, KeyStatus, Stats};

use ordain_store::{KeyFilter, Store, StoreError};
use ordain_util::command::PrintedCommand;
use ordain_util::text::pluralized;

const KEY_PAGE_LIMIT: usize = 1_000;

const STREAM_LIMIT: usize = 10;

/// The result of a run.
#[derive(Debug, Clone, Default)]
pub struct RunReport {
    /// The statistics of the run, summed over all partitions.
    pub stats: Stats,
    /// The totals of held events and blocked keys in the store at the end of the run. The totals include the events of
    /// earlier runs. `None` if this run did not count the totals.
    pub held: Option<HeldTotals>,
}

/// The totals of held events and of blocked keys. The store keeps a held event for a key that cannot process it yet. A
/// blocked key waits for an event, waits to retry, or is parked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldTotals {
    /// The number of events that the store holds for all keys.
    pub events: u64,
    /// The number of blocked keys for each status and stream. The status is an index into [`BLOCKED_STATUSES`].
    keys: BTreeMap<(usize, Arc<str>), u64>,
}

/// The statuses of blocked keys. Each entry has the status, its name in commands, and its text in the report.
const BLOCKED_STATUSES: [(KeyStatus, &str, &str); 3] = [
    (KeyStatus::Waiting, "waiting", "waiting for an event"),
    (KeyStatus::Retrying, "retrying", "waiting to retry"),
    (KeyStatus::Parked, "parked", "parked"),
];

impl HeldTotals {
    /// Reads the record of every key.
    pub(super) async fn count(store: &dyn Store) -> Result<Self, StoreError> {
        let mut held = Self::default();
        for stream in store.streams().await? {
            let mut filter = KeyFilter { limit: KEY_PAGE_LIMIT, ..KeyFilter::default() };
            loop {
                let page = store.keys(&stream, &filter).await?;
                for record in page.rows.into_iter().filter_map(|row| row.record.ok()) {
                    held.events += record.spilled.count;
                    if let Some(status_index) =
                        BLOCKED_STATUSES.iter().position(|(status, ..)| *status == record.status)
                    {
                        *held.keys.entry((status_index, Arc::clone(&stream))).or_default() += 1;
                    }
                }
                filter.cursor = page.cursor;
                if filter.cursor.is_none() {
                    break;
                }
            }
        }
        Ok(held)
    }

    fn has_any(&self) -> bool {
        *self != Self::default()
    }

    fn streams(&self, status_index: usize) -> impl Iterator<Item = (&str, u64)> {
        let entries = self.keys.iter().filter(move |((status, _), _)| *status == status_index);
        entries.map(|((_, stream), keys)| (&**stream, *keys))
    }
}

impl RunReport {
    /// Returns whether any event became a dead letter, or the store holds events or blocked keys. A run with `--strict`
    /// fails if this method returns true.
    pub fn has_problems(&self) -> bool {
        self.stats.dead_total() > 0 || self.held.as_ref().is_some_and(HeldTotals::has_any)
    }

    /// Returns the report as a JSON object.
    pub fn json(&self) -> serde_json::Value {
        let Self { stats, held } = self;
        let dead: serde_json::Map<_, _> =
            causes(stats).map(|(cause, count)| (cause.name().to_owned(), count.into())).collect();
        serde_json::json!({
            "delivered": stats.delivered,
            "settled": stats.settled,
            "other_types": stats.other_types,
            "duplicates": stats.duplicates,
            "reordered": stats.reordered,
            "messages": stats.messages,
            "lanes_peak": stats.lanes_peak,
            "dead": dead,
            "dead_total": stats.dead_total(),
            "held": held.as_ref().map(|held| {
                let mut json = serde_json::json!({ "events": held.events });
                for (status_index, (_, name, _)) in BLOCKED_STATUSES.iter().enumerate() {
                    let keys: u64 = held.streams(status_index).map(|(_, keys)| keys).sum();
                    json[format!("{name}_keys")] = keys.into();
                }
                json
            }),
        })
    }
}

fn causes(stats: &Stats) -> impl Iterator<Item = (Cause, u64)> {
    let all = Cause::ALL.into_iter().map(|cause| (cause, stats.dead_of(cause)));
    all.filter(|(_, count)| *count > 0)
}

impl RunReport {
    /// Returns the report as text for people. The text includes commands that show more details.
    pub fn text(&self) -> String {
        let Self { stats, held } = self;
        let mut text = String::new();
        let mut line = |what: &str, number: u64| text += &format!("{what:<20} {number:>12}\n");
        line("delivered", stats.delivered);
        line("settled with effect", stats.settled);
        if stats.other_types > 0 {
            line("other types", stats.other_types);
        }
        line("duplicates", stats.duplicates);
        line("dead letters", stats.dead_total());
        causes(stats).for_each(|(cause, number)| line(&format!("  {cause}"), number));
        line("messages", stats.messages);
        let Some(held) = held else { return text };
        line("held in the store", held.events);
        for (status_index, (_, status, what)) in BLOCKED_STATUSES.iter().enumerate() {
            let all = held.streams(status_index).count();
            for (stream, keys) in held.streams(status_index).take(STREAM_LIMIT) {
                let keys = pluralized(keys, "key");
                let command =
                    PrintedCommand::new("keys list").argument(stream).choice("status", status);
                text += &format!("  {keys} {what}: see {command}\n");
            }
            if all > STREAM_LIMIT {
                text += &format!(
                    "  and keys {what} in {}\n",
                    pluralized((all - STREAM_LIMIT) as u64, "more stream")
                );
            }
        }
        text
    }
}
