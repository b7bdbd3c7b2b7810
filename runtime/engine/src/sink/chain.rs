//! Messages that pass through the store before they go on: to be numbered, to be kept for replay, to
//! wait for a stream.
//!
//! Each destination is a task, so that one that stands holds up nothing else; a file has none, since what
//! is written there is in the order of its marks. What has come together is given to the store together:
//! of each outbox in its order, different ones side by side.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_all};
use ordain_core::shard_of;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

use super::content::Content;
use super::{PublisherError, Target};
use crate::source::Feeds;
use ordain_amqp::{AmqpSink, Published};
use ordain_config::Passage;
use ordain_store::{
    ASSIGN_BYTES, ASSIGN_LIMIT, Assign, AssignReply, Assigned, Destination, Item, Lot, LotReply,
    Origin, Part, Partition, Place, Store,
};
use ordain_util::log_throttle::LogThrottle;

/// Runs that are given to the store together.
const GROUP: usize = 64;
/// Before a full queue is tried again, unless something is taken from it here.
const FULL: Duration = Duration::from_millis(50);
/// After an error of the store.
const AGAIN: Duration = Duration::from_millis(500);
/// How long it may take to hear of another owner that the store knows.
const FENCED: Duration = Duration::from_secs(30);
/// Time between two warnings that a queue is full, and before the first one.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// A message on its way.
pub(super) struct Passing {
    /// The number of its commit.
    pub(super) commit: u64,
    pub(super) content: Content,
    /// Which of the sinks of its destination it goes to, where they are exchanges.
    pub(super) via: usize,
}

/// Messages of a run.
pub(super) struct Batch {
    pub(super) run: u64,
    pub(super) target: Arc<Target>,
    pub(super) shard: u32,
    pub(super) passing: Vec<Passing>,
}

/// The numbers of a batch's messages; `None`: another owner has gone on, and publishes it.
pub(super) type Numbers = Vec<Option<u64>>;

/// Takes messages for a destination, of all sinks that lead there: they are numbered together, in the order
/// of their outbox.
pub(crate) struct ChainSink {
    to: Destination,
    /// Of the run that is being gathered.
    gathered: Vec<Passing>,
    /// What waits here is of the outbox, which has a limit.
    input: UnboundedSender<Batch>,
    start: Option<(Belt, UnboundedReceiver<Batch>)>,
}

impl ChainSink {
    /// To this destination.
    pub(crate) fn new(passage: Passage, store: &Arc<dyn Store>, feeds: &Arc<Feeds>) -> Self {
        let (input, taken) = mpsc::unbounded_channel();
        let to = passage.to.clone();
        let belt = Belt::new(passage, store, feeds);
        Self { to, gathered: Vec::new(), input, start: Some((belt, taken)) }
    }

    pub(super) fn is_to(&self, to: &Destination) -> bool {
        self.to == *to
    }

    /// Adds a sink that is an exchange; answers which one it is here. Before the start.
    pub(super) fn add_exchange(&mut self, exchange: AmqpSink) -> usize {
        let Some((belt, _)) = &mut self.start else { return 0 };
        belt.exchanges.push(exchange);
        belt.exchanges.len() - 1
    }

    /// Starts the task, and those of its exchanges.
    pub(super) fn start(
        &mut self,
        tasks: &mut JoinSet<Result<(), PublisherError>>,
        published: &UnboundedSender<Published>,
    ) {
        let Some((mut belt, taken)) = self.start.take() else { return };
        for outlet in belt.exchanges.iter_mut().filter_map(|it| it.start(published.clone())) {
            tasks.spawn(async move {
                outlet.await;
                Ok(())
            });
        }
        tasks.spawn(belt.run(taken, published.clone()));
    }

    pub(super) fn put(&mut self, passing: Passing) {
        self.gathered.push(passing);
    }

    /// Lets what was taken go, as the messages of a run.
    pub(super) fn send(&mut self, run: u64, target: &Arc<Target>, shard: u32) {
        if !self.gathered.is_empty() {
            let (target, passing) = (Arc::clone(target), std::mem::take(&mut self.gathered));
            // A task that has ended has failed, and is noticed where it was started.
            let _ = self.input.send(Batch { run, target, shard, passing });
        }
    }
}

/// What carries messages through the store.
pub(super) struct Belt {
    passage: Passage,
    exchanges: Vec<AmqpSink>,
    store: Arc<dyn Store>,
    feeds: Arc<Feeds>,
    /// How far each outbox has given, for each shard of the destination, under which epoch.
    given: HashMap<(Partition, u32, u32), (u64, Place)>,
}

/// Messages of one outbox for one shard.
struct Strand {
    target: Arc<Target>,
    of: u32,
    to: u32,
    parts: Vec<Part>,
    /// Where each of them came from: the batch, and its place there.
    from: Vec<(usize, usize)>,
    /// How many of the parts are done.
    done: usize,
    /// The number of each message of them; the others are another owner's.
    assigned: Vec<Assigned>,
    last: Option<Place>,
    /// Since when the store knows of another owner.
    fenced: Option<Instant>,
}

impl Belt {
    pub(super) fn new(passage: Passage, store: &Arc<dyn Store>, feeds: &Arc<Feeds>) -> Self {
        let (store, feeds) = (Arc::clone(store), Arc::clone(feeds));
        Self { passage, exchanges: Vec::new(), store, feeds, given: HashMap::new() }
    }

    async fn run(
        mut self,
        mut input: UnboundedReceiver<Batch>,
        published: UnboundedSender<Published>,
    ) -> Result<(), PublisherError> {
        let mut group = Vec::with_capacity(GROUP);
        while input.recv_many(&mut group, GROUP).await > 0 {
            let numbers = self.pass(&group).await?;
            for (batch, numbers) in group.drain(..).zip(numbers) {
                self.forward(batch, &numbers, &published);
            }
        }
        Ok(())
    }

    /// Gives batches to the store.
    pub(super) async fn pass(&mut self, batches: &[Batch]) -> Result<Vec<Numbers>, PublisherError> {
        let strands = self.strands(batches).into_values();
        let given =
            strands.map(async |mut strands| self.give(&mut strands).await.map(|()| strands));
        let given: Vec<_> = join_all(given).await.into_iter().collect::<Result<_, _>>()?;
        let mut numbers: Vec<Numbers> =
            batches.iter().map(|batch| vec![None; batch.passing.len()]).collect();
        for strand in given.into_iter().flatten() {
            for ((batch, at), assigned) in strand.from.iter().zip(&strand.assigned) {
                numbers[*batch][*at] = Some(assigned.sequence());
            }
            if let Some(last) = strand.last {
                let from = strand.target.partition.clone();
                let epoch = strand.target.claim.epoch;
                self.given.insert((from, strand.of, strand.to), (epoch, last));
            }
        }
        Ok(numbers)
    }

    /// What is to be given, by shard and outbox.
    fn strands(&self, batches: &[Batch]) -> BTreeMap<u32, Vec<Strand>> {
        let shards = self.store.shards();
        let mut places = HashMap::new();
        let mut all: BTreeMap<u32, Vec<Strand>> = BTreeMap::new();
        for (index, batch) in batches.iter().enumerate() {
            if batch.target.tenure.is_over() {
                continue;
            }
            for (at, Passing { commit, content, .. }) in batch.passing.iter().enumerate() {
                let event = content.event(&batch.target.partition.stream);
                let (of, to) = (batch.shard, shard_of(event.key(), shards));
                let strands = all.entry(to).or_default();
                let name = (Arc::as_ptr(&batch.target), of, to);
                let strand = *places.entry(name).or_insert_with(|| {
                    strands.push(self.strand(&batch.target, of, to));
                    strands.len() - 1
                });
                let partition = shard_of(event.key(), self.passage.partitions);
                let item = Item { event: Arc::new(event), partition };
                strands[strand].put(*commit, item);
                strands[strand].from.push((index, at));
            }
        }
        all
    }

    fn strand(&self, target: &Arc<Target>, of: u32, to: u32) -> Strand {
        let given = self.given.get(&(target.partition.clone(), of, to));
        let last = given.filter(|(epoch, _)| *epoch == target.claim.epoch).map(|(_, last)| *last);
        let target = Arc::clone(target);
        let (parts, from, assigned) = (Vec::new(), Vec::new(), Vec::new());
        Strand { target, of, to, parts, from, done: 0, assigned, last, fenced: None }
    }

    /// Gives strands of one shard to the store, as much of them at a time as may be, until all is done
    /// that is not another owner's.
    async fn give(&self, strands: &mut [Strand]) -> Result<(), PublisherError> {
        let mut started = Instant::now();
        let mut throttle = LogThrottle::new(WARN_INTERVAL);
        loop {
            let (assign, given) = self.next_call(strands);
            let Some(&first) = given.first() else { return Ok(()) };
            let (stream, to) =
                (Arc::clone(&strands[first].target.partition.stream), &self.passage.to);
            match self.store.assign(Arc::clone(&assign)).await {
                Ok(AssignReply::Lots(replies, _)) => {
                    started = Instant::now();
                    self.tell(&assign);
                    let mut is_on = false;
                    for ((at, lot), reply) in given.iter().zip(&assign.lots).zip(replies) {
                        is_on |= self.take(&mut strands[*at], lot, reply)?;
                    }
                    if !is_on {
                        tokio::time::sleep(FULL).await;
                    }
                }
                Ok(AssignReply::Full) => {
                    // For a moment that is nothing to speak of.
                    if started.elapsed() >= WARN_INTERVAL && throttle.allow() {
                        tracing::warn!(
                            stream = &*stream, to = %to,
                            "as many events wait there as may (`source.queue`): what is committed for \
                             it waits until some of them are taken"
                        );
                    }
                    self.room(&assign).await;
                }
                Err(error) => {
                    if throttle.allow() {
                        tracing::error!(
                            stream = &*stream, to = %to, %error,
                            "messages cannot be numbered, and wait until they can"
                        );
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    /// What is given next, and of which strands.
    fn next_call(&self, strands: &[Strand]) -> (Arc<Assign>, Vec<usize>) {
        let (mut lots, mut given, mut items, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
        // Those that are fenced last: they would take the room of the others.
        let (fenced, others): (Vec<_>, Vec<_>) =
            strands.iter().enumerate().partition(|(_, strand)| strand.fenced.is_some());
        for (at, strand) in others.into_iter().chain(fenced) {
            let Target { partition, claim, tenure, found, done, .. } = &*strand.target;
            // Before it is seen whose it is: another owner's is done here as well.
            let done = done[strand.of as usize].through();
            if tenure.is_over() {
                continue;
            }
            let fits = strand.parts[strand.done..].iter().take_while(|part| {
                let is_first = items == 0;
                items += part.items.len();
                bytes += part.items.iter().map(|item| item.event.memory()).sum::<usize>();
                is_first || (items <= ASSIGN_LIMIT && bytes <= ASSIGN_BYTES)
            });
            let parts: Vec<Part> = fits.cloned().collect();
            if parts.is_empty() {
                continue;
            }
            let origin = Some(Origin {
                partition: partition.clone(),
                shard: strand.of,
                epoch: claim.epoch,
                found: found[strand.of as usize],
                before: strand.last,
                done,
            });
            lots.push(Lot { origin, parts });
            given.push(at);
        }
        let (to, rules) = (self.passage.to.clone(), self.passage.rules);
        let shard = strands.first().map_or(0, |strand| strand.to);
        (Arc::new(Assign { to, shard, rules, lots }), given)
    }

    /// Notes what became of a lot. Whether its strand goes on.
    fn take(
        &self,
        strand: &mut Strand,
        lot: &Lot,
        reply: LotReply,
    ) -> Result<bool, PublisherError> {
        let stream = strand.target.partition.stream.to_string();
        let (to, shard) = (self.passage.to.to_string(), strand.to);
        match reply {
            LotReply::Done(assigned) => {
                strand.assigned.extend(assigned);
                strand.done += lot.parts.len();
                strand.last = lot.parts.last().map(|part| part.place);
                strand.fenced = None;
                Ok(true)
            }
            // Whoever has the partition now: it is about to be heard here.
            LotReply::Fenced => {
                let since = *strand.fenced.get_or_insert_with(Instant::now);
                if since.elapsed() >= FENCED {
                    return Err(PublisherError::Fenced { stream, to, shard });
                }
                Ok(false)
            }
            LotReply::WentBack => Err(PublisherError::WentBack { stream, to, shard }),
        }
    }

    /// Waits until there may be room.
    async fn room(&self, assign: &Assign) {
        let Destination::Stream(stream) = &assign.to else { return };
        let partitions: BTreeSet<u32> = assign.items().map(|item| item.partition).collect();
        let feeds: Vec<_> = partitions
            .into_iter()
            .map(|number| self.feeds.of(&Partition { stream: Arc::clone(stream), number }))
            .collect();
        let room = select_all(feeds.iter().map(|feed| Box::pin(feed.room())));
        let _ = tokio::time::timeout(FULL, room).await;
    }

    /// Tells whoever reads here that more waits. What of it the store may lose is given again from the outbox, so
    /// that nobody is to miss it.
    fn tell(&self, assign: &Assign) {
        let Destination::Stream(stream) = &assign.to else { return };
        let partitions: BTreeSet<u32> = assign.items().map(|item| item.partition).collect();
        for number in partitions {
            let partition = Partition { stream: Arc::clone(stream), number };
            self.feeds.of(&partition).put(assign.shard, None);
        }
    }

    /// Lets a batch go on with its numbers. What has none is another owner's.
    fn forward(&mut self, batch: Batch, numbers: &Numbers, published: &UnboundedSender<Published>) {
        let Batch { run, target, passing, .. } = batch;
        let mut here = passing.len();
        if !self.exchanges.is_empty() {
            let stream = &target.partition.stream;
            for (Passing { content, via, .. }, number) in passing.iter().zip(numbers) {
                let Some(number) = *number else { continue };
                here -= 1;
                content.put(&mut self.exchanges[*via], stream, Some(number));
            }
            self.exchanges.iter_mut().for_each(|it| it.send(run, &target.tenure));
        }
        if here > 0 {
            // Whoever hears of it may be gone; then it does not matter.
            let _ = published.send((run, here));
        }
    }
}

impl Strand {
    /// Adds a message: a commit has as many parts as it takes, of a size that never changes.
    fn put(&mut self, commit: u64, item: Item) {
        let part = match self.parts.last_mut() {
            Some(last) if last.place.commit == commit && last.items.len() < ASSIGN_LIMIT => {
                last.items.push(item);
                return;
            }
            Some(last) if last.place.commit == commit => last.place.part + 1,
            _ => 0,
        };
        self.parts.push(Part { place: Place { commit, part }, items: vec![item] });
    }
}
