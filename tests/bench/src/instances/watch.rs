//! Consumes messages as they arrive, and records the age of their events.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::StreamExt as _;
use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use ordain_servers::Rabbit;
use tokio::task::JoinHandle;

use crate::amqp::case::OUT_NAME;
use crate::amqp::latency::{STAMP_BYTES, now_us};

/// Interval at which [`Watch::until`] counts the messages.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The messages that have arrived.
#[derive(Debug, Default)]
struct Arrivals {
    /// The start of the measurement, in µs since the Unix epoch. Events that were published earlier do not count.
    since: u64,
    /// The age of each counted message at its arrival, in µs.
    ages: Vec<f64>,
    /// The ids of all messages that arrived.
    ids: HashSet<String>,
    /// Number of messages that arrived although a message with the same id had already arrived.
    repeats: usize,
}

pub(crate) struct Watch {
    seen: Arc<Mutex<Arrivals>>,
    consuming: JoinHandle<Result<()>>,
}

impl Watch {
    pub(crate) async fn start(rabbit: &Rabbit) -> Result<Self> {
        let connection =
            Connection::connect(&rabbit.url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let nothing = FieldTable::default();
        let mut messages =
            channel.basic_consume(OUT_NAME.into(), "".into(), options, nothing).await?;
        let seen = Arc::new(Mutex::new(Arrivals { since: u64::MAX, ..Arrivals::default() }));
        let arrivals = Arc::clone(&seen);
        let consuming = tokio::spawn(async move {
            // Keeps the connection open while messages arrive.
            let _connection = connection;
            while let Some(message) = messages.next().await {
                let message = message?;
                let id = message.properties.message_id().as_ref().map(ToString::to_string);
                let stamp = message.data.get(STAMP_BYTES).and_then(|bytes| bytes.try_into().ok());
                let (Some(id), Some(stamp)) = (id, stamp.map(u64::from_le_bytes)) else {
                    anyhow::bail!("a message arrived without an id or a time of publication")
                };
                let mut seen = lock(&arrivals);
                if !seen.ids.insert(id) {
                    seen.repeats += 1;
                } else if stamp >= seen.since {
                    seen.ages.push(now_us().saturating_sub(stamp) as f64);
                }
            }
            Ok(())
        });
        Ok(Self { seen, consuming })
    }

    /// Starts the measurement: only events published from now on count.
    pub(crate) fn begin(&self) {
        lock(&self.seen).since = now_us();
    }

    /// Waits until `count` different messages have arrived. Fails if the wait takes longer than `timeout`.
    pub(crate) async fn until(&self, count: usize, timeout: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            let arrived = lock(&self.seen).ids.len();
            if arrived >= count {
                return Ok(());
            }
            ensure!(
                !self.consuming.is_finished(),
                "the consumer ended after {arrived} of {count} messages"
            );
            ensure!(started.elapsed() < timeout, "only {arrived} of {count} messages arrived");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns how many messages arrived although a message with the same id had already arrived.
    pub(crate) fn repeats(&self) -> usize {
        lock(&self.seen).repeats
    }

    /// Returns the ages of the counted messages, in µs, ascending.
    pub(crate) fn end(self) -> Result<Vec<f64>> {
        self.consuming.abort();
        let mut ages = std::mem::take(&mut lock(&self.seen).ages);
        ages.sort_by(f64::total_cmp);
        ensure!(!ages.is_empty(), "no measured message arrived");
        Ok(ages)
    }
}

fn lock(seen: &Mutex<Arrivals>) -> MutexGuard<'_, Arrivals> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
