//! What a run did, for people and for scripts.

use std::fmt;

use ordain_core::{Cause, Stats, Status};

use crate::store::{KeyFilter, Store, StoreError};

/// Keys read at a time while what is held is counted.
const PAGE: usize = 1_000;

/// What a run did and what it left.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What it did.
    pub stats: Stats,
    /// What the store holds at the end, whoever brought it, if it was counted.
    pub held: Option<Held>,
}

/// Keys that stand still, and what is held of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Keys that wait for a missing event.
    pub waiting_keys: u64,
    /// Keys that wait for their next try.
    pub retrying_keys: u64,
    /// Keys that are parked.
    pub parked_keys: u64,
    /// Events of all keys that are held in the store.
    pub events: u64,
}

impl Held {
    /// Counts what a store holds: reads the record of every key.
    pub(super) async fn count(store: &dyn Store) -> Result<Self, StoreError> {
        let mut held = Self::default();
        for stream in store.streams().await? {
            let mut filter = KeyFilter { limit: PAGE, ..KeyFilter::default() };
            loop {
                let page = store.keys(&stream, &filter).await?;
                for job in page.rows.into_iter().filter_map(|row| row.job.ok()) {
                    held.events += job.spilled.count;
                    match job.status {
                        Status::Waiting => held.waiting_keys += 1,
                        Status::Retrying => held.retrying_keys += 1,
                        Status::Parked => held.parked_keys += 1,
                        Status::Active | Status::Completed => {}
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

    fn is_any(self) -> bool {
        self != Self::default()
    }
}

impl Report {
    /// Whether anything is not settled with effect: what `--strict` fails for.
    pub fn has_problems(&self) -> bool {
        self.stats.dead_total() > 0 || self.held.is_some_and(Held::is_any)
    }

    /// As one JSON object.
    pub fn json(&self) -> serde_json::Value {
        let Self { stats, held } = self;
        let dead: serde_json::Map<_, _> =
            causes(stats).map(|(cause, count)| (cause.name().to_owned(), count.into())).collect();
        serde_json::json!({
            "delivered": stats.delivered,
            "settled": stats.settled,
            "duplicates": stats.duplicates,
            "reordered": stats.reordered,
            "messages": stats.messages,
            "lanes_peak": stats.lanes_peak,
            "dead": dead,
            "dead_total": stats.dead_total(),
            "held": held.map(|held| serde_json::json!({
                "events": held.events,
                "waiting_keys": held.waiting_keys,
                "retrying_keys": held.retrying_keys,
                "parked_keys": held.parked_keys,
            })),
        })
    }
}

fn causes(stats: &Stats) -> impl Iterator<Item = (Cause, u64)> {
    let all = Cause::ALL.into_iter().map(|cause| (cause, stats.dead_of(cause)));
    all.filter(|(_, count)| *count > 0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stats, held } = self;
        writeln!(f, "delivered            {:>12}", stats.delivered)?;
        writeln!(f, "settled with effect  {:>12}", stats.settled)?;
        writeln!(f, "duplicates           {:>12}", stats.duplicates)?;
        writeln!(f, "dead letters         {:>12}", stats.dead_total())?;
        for (cause, count) in causes(stats) {
            writeln!(f, "  {:<18} {count:>12}", cause.name())?;
        }
        write!(f, "messages             {:>12}", stats.messages)?;
        let Some(held) = held else { return Ok(()) };
        write!(f, "\nheld in the store    {:>12}", held.events)?;
        for (what, keys) in [
            ("waiting for an event", held.waiting_keys),
            ("waiting to retry", held.retrying_keys),
            ("parked", held.parked_keys),
        ] {
            if keys > 0 {
                write!(f, "\n  {keys} keys {what}: see `ordain keys list`")?;
            }
        }
        Ok(())
    }
}
