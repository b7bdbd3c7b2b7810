//! Takes messages as they come, and notes how old their events are.

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

use crate::amqp::case::OUT;
use crate::amqp::latency::{STAMP, now_us};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// What has come.
#[derive(Debug, Default)]
struct Seen {
    /// Of what was published from then on, in us since the Unix epoch.
    since: u64,
    /// How old it was when it came, in us.
    ages: Vec<f64>,
    /// All that came, once.
    ids: HashSet<String>,
    /// How many came again.
    again: usize,
}

pub(crate) struct Watch {
    seen: Arc<Mutex<Seen>>,
    taking: JoinHandle<Result<()>>,
}

impl Watch {
    pub(crate) async fn start(rabbit: &Rabbit) -> Result<Self> {
        let connection =
            Connection::connect(&rabbit.url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let nothing = FieldTable::default();
        let mut messages = channel.basic_consume(OUT.into(), "".into(), options, nothing).await?;
        let seen = Arc::new(Mutex::new(Seen { since: u64::MAX, ..Seen::default() }));
        let noted = Arc::clone(&seen);
        let taking = tokio::spawn(async move {
            // As long as messages are taken.
            let _connection = connection;
            while let Some(message) = messages.next().await {
                let message = message?;
                let id = message.properties.message_id().as_ref().map(ToString::to_string);
                let stamp = message.data.get(STAMP).and_then(|it| it.try_into().ok());
                let (Some(id), Some(stamp)) = (id, stamp.map(u64::from_le_bytes)) else {
                    anyhow::bail!("a message of another form came")
                };
                let mut seen = lock(&noted);
                if !seen.ids.insert(id) {
                    seen.again += 1;
                } else if stamp >= seen.since {
                    seen.ages.push(now_us().saturating_sub(stamp) as f64);
                }
            }
            Ok(())
        });
        Ok(Self { seen, taking })
    }

    /// From now on it counts.
    pub(crate) fn begin(&self) {
        lock(&self.seen).since = now_us();
    }

    /// Waits until so many have come.
    pub(crate) async fn until(&self, count: usize, patience: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            let came = lock(&self.seen).ids.len();
            if came >= count {
                return Ok(());
            }
            ensure!(
                !self.taking.is_finished(),
                "messages are taken no more, after {came} of {count}"
            );
            ensure!(started.elapsed() < patience, "{came} messages came of {count}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// How many messages came more than once.
    pub(crate) fn again(&self) -> usize {
        lock(&self.seen).again
    }

    /// How old they were, in us, ascending.
    pub(crate) fn end(self) -> Result<Vec<f64>> {
        self.taking.abort();
        let mut ages = std::mem::take(&mut lock(&self.seen).ages);
        ages.sort_by(f64::total_cmp);
        ensure!(!ages.is_empty(), "nothing came");
        Ok(ages)
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
