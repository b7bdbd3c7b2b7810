//! The partitions of this instance while it runs: takes those that are its share, drives them, and
//! gives those away that are another's.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use ordain_core::Stats;
use ordain_core::ownership::{Candidate, owners};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::streams::Starting;
use super::{Figures, RunError};
use crate::broker::{Reach, watch_reach};
use crate::config::{Name, Source, Stream};
use crate::driver::{Driver, DriverError, Parts};
use crate::instance::{About, Heart, Stage, Tenure};
use crate::store::{InstanceId, Leased, Partition, StoreError, Table};

/// Before a partition that could not be had is asked for again.
const AGAIN: Duration = Duration::from_secs(1);
/// Between two reports of how much is to be done.
const REPORT: Duration = Duration::from_secs(2);
/// How long `run --once` waits for a partition beyond the lease of its holder, who may have died.
const BEYOND: Duration = Duration::from_secs(2);

/// A partition on its way to be ours.
type Coming<'a> = Pin<Box<dyn Future<Output = (Partition, Result<Came, RunError>)> + 'a>>;
/// A partition on its way to be nobody's.
type Going<'a> = Pin<Box<dyn Future<Output = (Partition, Result<(), StoreError>)> + 'a>>;

/// What became of a partition that was asked for.
enum Came {
    /// It is ours, under this epoch.
    Ours(u64, Box<Parts>),
    /// Another instance has it.
    Held,
    /// Another one has claimed it since.
    Lost(u64),
}

/// A partition that is ours, or is about to be or not to be.
struct Mine {
    tenure: Arc<Tenure>,
    /// Of its lease, once there is one.
    epoch: u64,
}

/// The partitions of this instance.
pub(super) struct Owning<'a> {
    starting: &'a Starting<'a>,
    figures: &'a Figures,
    heart: Heart,
    table: watch::Receiver<Arc<Table>>,
    mine: BTreeMap<Partition, Mine>,
    coming: FuturesUnordered<Coming<'a>>,
    drivers: JoinSet<(Partition, Result<Stats, DriverError>)>,
    going: FuturesUnordered<Going<'a>>,
    /// Partitions that could not be had, and when they are asked for again.
    again: BTreeMap<Partition, Instant>,
    /// What is told once.
    waits: BTreeSet<Partition>,
    is_ending: bool,
    /// Messages that drivers left unpublished.
    unpublished: usize,
    started: Instant,
}

impl<'a> Owning<'a> {
    pub(super) fn new(starting: &'a Starting<'a>, figures: &'a Figures, heart: Heart) -> Self {
        Self {
            starting,
            figures,
            table: heart.table(),
            heart,
            mine: BTreeMap::new(),
            coming: FuturesUnordered::new(),
            drivers: JoinSet::new(),
            going: FuturesUnordered::new(),
            again: BTreeMap::new(),
            waits: BTreeSet::new(),
            is_ending: false,
            unpublished: 0,
            started: Instant::now(),
        }
    }

    /// Takes, drives and gives away until the end that was asked for; with `once`, until all have been
    /// driven to their end. Tells how many messages are left unpublished.
    pub(super) async fn run(
        mut self,
        mut shutdown: watch::Receiver<bool>,
    ) -> Result<usize, RunError> {
        let once = self.starting.once;
        let mut ended = BTreeSet::new();
        let mut reach = self.watch_reach();
        let mut report = interval(REPORT);
        report.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let share = self.rebalance(&ended)?;
            self.show(&share);
            let is_idle = self.mine.is_empty();
            if is_idle && (self.is_ending || once && ended == self.all()) {
                return Ok(self.unpublished);
            }
            let again = self.again.values().min().copied();
            tokio::select! {
                Ok(()) = self.table.changed() => {}
                Some((partition, came)) = self.coming.next() => self.came(partition, came?),
                Some(done) = self.drivers.join_next() => {
                    let (partition, result) = done.map_err(RunError::Panic)?;
                    if self.driven(&partition, result)? && once {
                        ended.insert(partition);
                    }
                }
                Some((partition, gone)) = self.going.next() => {
                    gone?;
                    self.mine.remove(&partition);
                    self.heart.beat_soon();
                }
                stop = shutdown.wait_for(|stop| *stop), if !self.is_ending => match stop {
                    Ok(_) => self.begin_end(),
                    // Nobody can ask any more.
                    Err(_) => std::future::pending().await,
                },
                () = wait_until(again) => {
                    self.again.retain(|_, at| *at > Instant::now());
                }
                Ok(()) = reach.changed() => {
                    let now = *reach.borrow_and_update();
                    self.heart.reaches_broker(now);
                    if now == Reach::Lost {
                        tracing::warn!(
                            "the broker has not been reached for longer than the lease: instances that \
                             reach it take this one's partitions"
                        );
                    }
                }
                _ = report.tick() => {
                    let driven = self.mine.keys().filter(|it| self.drives(it));
                    self.heart.report(self.figures.report(driven).encode());
                }
            }
        }
    }

    /// Whether the broker is reached, where events come from there.
    fn watch_reach(&self) -> watch::Receiver<Reach> {
        let Starting { loaded, broker, .. } = self.starting;
        let of_broker = |it: &Stream| matches!(it.source, Source::Amqp(_));
        let lease = Duration::from_millis(loaded.config.runtime.lease.0);
        match broker {
            Some(broker) if loaded.config.streams.values().any(of_broker) => {
                watch_reach(broker, lease)
            }
            _ => watch::Sender::new(Reach::Reached).subscribe(),
        }
    }

    /// All partitions of the streams that are configured.
    fn all(&self) -> BTreeSet<Partition> {
        let streams = self.starting.loaded.config.streams.iter();
        let of = |(name, stream): (&Name, &Stream)| {
            let (name, partitions) = (name.shared(), stream.source.partitions());
            (0..partitions).map(move |number| Partition { stream: Arc::clone(&name), number })
        };
        streams.flat_map(of).collect()
    }

    /// Those that are this instance's share, as the table says.
    fn share(&self, table: &Table) -> BTreeSet<Partition> {
        if self.starting.once {
            return self.all();
        }
        let abouts: Vec<(u64, About)> =
            table.members.iter().map(|(id, member)| (id.0, About::decode(&member.about))).collect();
        // Whoever does not reach the broker takes no part, unless nobody does.
        let is_reached = abouts.iter().any(|(_, it)| it.broker == Reach::Reached && !it.leaving);
        let takes_part = |it: &&(u64, About)| {
            let is_cut_off = is_reached && it.1.broker == Reach::Lost;
            !(it.1.alone || it.1.leaving || is_cut_off)
        };
        let candidates: Vec<Candidate<'_>> = abouts
            .iter()
            .filter(takes_part)
            .map(|(id, about)| Candidate {
                id: *id,
                streams: about.streams.iter().map(|(name, count)| (&**name, *count)).collect(),
            })
            .collect();
        let held = table.leases.iter().filter_map(|(partition, lease)| {
            Some(((&*partition.stream, partition.number), lease.holder?.0))
        });
        let owners = owners(&candidates, &held.collect());
        let all = self.all();
        let is_ours =
            |it: &Partition| owners.get(&(&*it.stream, it.number)) == Some(&self.heart.id().0);
        all.into_iter().filter(is_ours).collect()
    }

    /// Lets go of what is another's, and asks for what is ours.
    fn rebalance(&mut self, ended: &BTreeSet<Partition>) -> Result<BTreeSet<Partition>, RunError> {
        let table = Arc::clone(&self.table.borrow_and_update());
        let id = self.heart.id();
        for (partition, mine) in &self.mine {
            let Some(lease) = table.leases.get(partition) else { continue };
            let is_newer = mine.epoch > 0 && lease.epoch > mine.epoch;
            let is_taken = lease.epoch == mine.epoch && lease.holder != Some(id);
            if is_newer || is_taken {
                mine.tenure.set(Stage::Over);
            }
        }
        if self.is_ending {
            return Ok(BTreeSet::new());
        }
        let mut share = self.share(&table);
        share.retain(|it| !ended.contains(it));
        for (partition, mine) in &self.mine {
            if !share.contains(partition) && mine.tenure.stage() == Stage::Held {
                tracing::info!(
                    stream = &*partition.stream,
                    partition = partition.number,
                    "handing the partition over to another instance"
                );
                mine.tenure.set(Stage::Leaving);
            }
        }
        for partition in &share {
            if self.mine.contains_key(partition) || self.again.contains_key(partition) {
                continue;
            }
            match table.holder(partition) {
                Some(holder) if holder != id => self.wait_for(partition.clone(), &table, holder)?,
                _ => self.ask_for(partition.clone()),
            }
        }
        Ok(share)
    }

    /// Another instance still has what is to be ours.
    fn wait_for(
        &mut self,
        partition: Partition,
        table: &Table,
        holder: InstanceId,
    ) -> Result<(), RunError> {
        if !self.starting.once {
            return Ok(());
        }
        let name = table.members.get(&holder).map(|it| About::decode(&it.about).name);
        let name = name.unwrap_or_else(|| holder.to_string());
        let Partition { stream, number } = &partition;
        let lease = Duration::from_millis(self.starting.loaded.config.runtime.lease.0);
        if self.started.elapsed() > lease + BEYOND {
            return Err(RunError::Store(StoreError::InUse(format!(
                "the process {name} runs stream {stream}, and --once needs all of its partitions: end \
                 that one first, or run without --once beside it"
            ))));
        }
        if self.waits.insert(partition.clone()) {
            tracing::info!(
                stream = &**stream,
                partition = number,
                "waiting for the process {name}, which has the partition, to give it back"
            );
        }
        self.again.insert(partition, Instant::now() + AGAIN);
        Ok(())
    }

    fn ask_for(&mut self, partition: Partition) {
        let tenure = Arc::new(self.heart.tenure());
        self.mine.insert(partition.clone(), Mine { tenure: Arc::clone(&tenure), epoch: 0 });
        let (starting, id) = (self.starting, self.heart.id());
        let progress = self.figures.of(&partition);
        self.coming.push(Box::pin(async move {
            let came = async {
                let epoch = match starting.store.lease(&partition, id).await? {
                    Leased::Given(epoch) => epoch,
                    Leased::Held(_) => return Ok(Came::Held),
                };
                let parts = starting.bring_up(&partition, epoch, tenure, &progress).await?;
                Ok(match parts {
                    Some(parts) => Came::Ours(epoch, Box::new(parts)),
                    None => Came::Lost(epoch),
                })
            };
            let came = came.await;
            (partition, came)
        }));
    }

    fn came(&mut self, partition: Partition, came: Came) {
        let Some(mine) = self.mine.get_mut(&partition) else { return };
        match came {
            Came::Ours(epoch, parts) if mine.tenure.stage() == Stage::Held => {
                mine.epoch = epoch;
                self.drivers.spawn(async move { (partition, Driver::run(*parts).await) });
            }
            Came::Ours(epoch, _) | Came::Lost(epoch) => {
                mine.tenure.set(Stage::Over);
                self.give_back(partition, epoch);
            }
            Came::Held => {
                self.mine.remove(&partition);
                self.again.insert(partition, Instant::now() + AGAIN);
            }
        }
        self.heart.beat_soon();
    }

    /// A driver has ended; whether in order.
    fn driven(
        &mut self,
        partition: &Partition,
        result: Result<Stats, DriverError>,
    ) -> Result<bool, RunError> {
        let failed = |source| {
            let stream = Arc::clone(&partition.stream);
            Err(RunError::Driver { stream, source })
        };
        self.figures.of(partition).over();
        let Some(mine) = self.mine.get(partition) else { return Ok(false) };
        mine.tenure.set(Stage::Over);
        let epoch = mine.epoch;
        match result {
            Ok(stats) => {
                self.unpublished += stats.outbox;
                self.give_back(partition.clone(), epoch);
                Ok(true)
            }
            Err(DriverError::Fenced) if !self.starting.once => {
                tracing::warn!(
                    stream = &*partition.stream,
                    partition = partition.number,
                    "another process has taken the partition over; what was not committed here is dropped"
                );
                self.again.insert(partition.clone(), Instant::now() + AGAIN);
                self.give_back(partition.clone(), epoch);
                Ok(false)
            }
            Err(error) => failed(error),
        }
    }

    fn give_back(&mut self, partition: Partition, epoch: u64) {
        let (store, id) = (Arc::clone(self.starting.store), self.heart.id());
        self.going.push(Box::pin(async move {
            let gone = store.release(&partition, id, epoch).await;
            (partition, gone)
        }));
    }

    fn begin_end(&mut self) {
        self.is_ending = true;
        self.heart.leave();
        self.again.clear();
        // What is only on its way is given back with the last word to the store.
        self.coming = FuturesUnordered::new();
        self.mine.retain(|_, mine| {
            let is_driven = mine.epoch > 0;
            mine.tenure.set(if is_driven { Stage::Leaving } else { Stage::Over });
            is_driven
        });
    }

    /// Shows how much of its share this instance has.
    fn show(&self, share: &BTreeSet<Partition>) {
        let has = share.iter().filter(|it| self.drives(it)).count();
        self.figures.drives(has, share.len());
    }

    fn drives(&self, partition: &Partition) -> bool {
        let mine = self.mine.get(partition);
        mine.is_some_and(|it| it.epoch > 0 && it.tenure.stage() == Stage::Held)
    }
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
