//! Messages that pass through the store before they go on: to be numbered, to be kept for replay, to
//! wait for a stream.
//!
//! Each destination is a task, so that one that stands holds up nothing else; a file has none, since what
//! is written there is in the order of its marks. What has come together is given to the store together:
//! of each outbox in its order, different ones side by side.
//!
//! A store that goes back in time may lose messages that their outbox records as published. The belt therefore keeps
//! the messages that it gave last in memory, and gives them again as soon as it finds that the store lacks them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_all};
use ordain_core::shard_of;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, timeout};

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
/// Time between two checks whether the store went back in time.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two checks of an outbox where nothing shows that the store may have gone back.
const CHECK: Duration = Duration::from_secs(5);
/// About how many bytes of given messages stay in memory for each destination: some seconds of a fast stream.
const KEEP_BYTES: usize = 16 << 20;
/// How long they stay there: longer than a failover takes.
const KEEP: Duration = Duration::from_mins(2);
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
    /// What each outbox has given, for each shard of the destination.
    given: HashMap<(Partition, u32, u32), Given>,
}

/// What an owner has given of an outbox for one shard.
struct Given {
    target: Arc<Target>,
    /// The last place that was answered.
    last: Place,
    /// The parts that were given last, oldest first.
    recent: VecDeque<GivenPart>,
    /// The bytes of that.
    bytes: usize,
    /// The last place whose messages have left memory.
    forgotten: Option<Place>,
    /// The value of [`Store::breaks`] before the last answered call, and when that call began.
    breaks: u64,
    asked_at: Instant,
    /// When the last part was given.
    last_at: Instant,
}

/// A part, and the numbers that its messages have got.
struct GivenPart {
    part: Part,
    numbers: Vec<u64>,
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
    /// The last place that was answered, or that the store has now.
    last: Option<Place>,
    /// The parts that were given before.
    given: Option<Given>,
    /// Messages that the store has lost. They are given again before any new ones.
    again: VecDeque<GivenPart>,
    /// Whether the next call checks that the store still has all given messages, even if there is no new one.
    asks: bool,
    /// Whether the partition is given up.
    is_over: bool,
    /// The value of [`Store::breaks`] before the first call, and when that was.
    breaks: u64,
    asked_at: Instant,
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
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                taken = input.recv_many(&mut group, GROUP) => {
                    if taken == 0 {
                        return Ok(());
                    }
                    let numbers = self.pass(&group).await?;
                    for (batch, numbers) in group.drain(..).zip(numbers) {
                        self.forward(batch, &numbers, &published);
                    }
                }
                _ = look.tick(), if self.store.may_go_back() => self.look_back().await?,
            }
        }
    }

    /// Gives again what the store has lost, if it may have gone back in time since it was given.
    async fn look_back(&mut self) -> Result<(), PublisherError> {
        self.given.retain(|_, given| !given.target.tenure.is_over());
        let breaks = self.store.breaks();
        let mut strands: BTreeMap<u32, Vec<Strand>> = BTreeMap::new();
        let in_doubt = self.given.extract_if(|_, given| given.is_in_doubt(breaks));
        for ((_, of, to), given) in in_doubt.collect::<Vec<_>>() {
            let target = Arc::clone(&given.target);
            let strand = Strand { asks: true, ..self.strand(target, of, to, Some(given)) };
            strands.entry(to).or_default().push(strand);
        }
        self.give_all(strands).await.map(drop)
    }

    /// Gives batches to the store.
    pub(super) async fn pass(&mut self, batches: &[Batch]) -> Result<Vec<Numbers>, PublisherError> {
        let strands = self.strands(batches);
        let mut numbers: Vec<Numbers> =
            batches.iter().map(|batch| vec![None; batch.passing.len()]).collect();
        for strand in self.give_all(strands).await? {
            for ((batch, at), assigned) in strand.from.iter().zip(&strand.assigned) {
                numbers[*batch][*at] = Some(assigned.sequence());
            }
        }
        Ok(numbers)
    }

    /// Gives strands to the store, shards side by side, and notes how far that has come.
    async fn give_all(
        &mut self,
        strands: BTreeMap<u32, Vec<Strand>>,
    ) -> Result<Vec<Strand>, PublisherError> {
        let giving = strands
            .into_values()
            .map(async |mut strands| self.give(&mut strands).await.map(|()| strands));
        let given: Vec<_> = join_all(giving).await.into_iter().collect::<Result<_, _>>()?;
        let mut given: Vec<Strand> = given.into_iter().flatten().collect();
        for strand in &mut given {
            if let Some(mut given) = strand.given.take() {
                (given.breaks, given.asked_at) = (strand.breaks, strand.asked_at);
                let from = strand.target.partition.clone();
                self.given.insert((from, strand.of, strand.to), given);
            }
        }
        self.forget();
        Ok(given)
    }

    /// Forgets the oldest parts of the largest strands, until the others have room.
    fn forget(&mut self) {
        let mut bytes: usize = self.given.values().map(|it| it.bytes).sum();
        while bytes > KEEP_BYTES
            && let Some(largest) = self.given.values_mut().max_by_key(|it| it.bytes)
        {
            bytes -= largest.forget_oldest();
        }
    }

    /// What is to be given, by shard and outbox.
    fn strands(&mut self, batches: &[Batch]) -> BTreeMap<u32, Vec<Strand>> {
        let shards = self.store.shards();
        let mut places: HashMap<_, usize> = HashMap::new();
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
                    let given = self.given.remove(&(batch.target.partition.clone(), of, to));
                    strands.push(self.strand(Arc::clone(&batch.target), of, to, given));
                    strands.len() - 1
                });
                let partition = shard_of(event.key(), self.passage.partitions);
                let item = Item { event: Arc::new(event), partition, number: 0 };
                strands[strand].put(*commit, item);
                strands[strand].from.push((index, at));
            }
        }
        all
    }

    fn strand(&self, target: Arc<Target>, of: u32, to: u32, given: Option<Given>) -> Strand {
        // Places given under an earlier claim do not count under this one.
        let given = given.filter(|it| it.target.claim.epoch == target.claim.epoch);
        Strand {
            target,
            of,
            to,
            parts: Vec::new(),
            from: Vec::new(),
            done: 0,
            assigned: Vec::new(),
            last: given.as_ref().map(|it| it.last),
            given,
            again: VecDeque::new(),
            asks: false,
            is_over: false,
            // Read before the first call, so that a break during the call is not missed.
            breaks: self.store.breaks(),
            asked_at: Instant::now(),
            fenced: None,
        }
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
                        is_on |= self.take(&mut strands[*at], lot, reply).await?;
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
            if tenure.is_over() || strand.is_over {
                continue;
            }
            let again = strand.again.iter().map(|it| &it.part);
            // Lost parts go first, in calls of their own: they have their numbers.
            let new = if strand.again.is_empty() { &strand.parts[strand.done..] } else { &[] };
            let fits = again.chain(new).take_while(|part| {
                let is_first = items == 0;
                items += part.items.len();
                bytes += part.items.iter().map(|item| item.event.memory()).sum::<usize>();
                is_first || (items <= ASSIGN_LIMIT && bytes <= ASSIGN_BYTES)
            });
            let parts: Vec<Part> = fits.cloned().collect();
            if parts.is_empty() && !strand.asks {
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
        (Arc::new(Assign { to, shard, rules, witness: None, lots }), given)
    }

    /// Notes what became of a lot. Whether its strand goes on.
    async fn take(
        &self,
        strand: &mut Strand,
        lot: &Lot,
        reply: LotReply,
    ) -> Result<bool, PublisherError> {
        let stream = strand.target.partition.stream.to_string();
        let (to, shard) = (self.passage.to.to_string(), strand.to);
        match reply {
            LotReply::Done(assigned) => {
                strand.done(lot, &assigned, self.store.may_go_back());
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
            LotReply::WentBack(last) => {
                // Messages of commits that the store will not have again must not be given again: the next owner makes
                // them anew, in other commits.
                match timeout(FENCED, strand.target.has_all_commits()).await {
                    Ok(true) => {}
                    Ok(false) => {
                        strand.is_over = true;
                        return Ok(true);
                    }
                    Err(_) => return Ok(false),
                }
                let Some(messages) = strand.give_again_behind(last) else {
                    return Err(PublisherError::WentBack { stream, to, shard });
                };
                tracing::warn!(
                    stream,
                    to,
                    shard,
                    messages,
                    "the store went back in time and lost messages of this stream: they are given to it again \
                     from memory"
                );
                Ok(true)
            }
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
        let _ = timeout(FULL, room).await;
    }

    /// Notifies the readers in this process that more messages wait. Reports no places: if the store loses messages,
    /// this belt gives them again from memory, so the reader must not count them as lost.
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

    /// Notes that a lot is done. Its parts stay in memory if the store may lose them.
    fn done(&mut self, lot: &Lot, assigned: &[Assigned], keeps: bool) {
        (self.fenced, self.asks) = (None, false);
        let Some(last) = lot.parts.last().map(|part| part.place) else { return };
        self.last = Some(last);
        let given = self.given.get_or_insert_with(|| Given {
            target: Arc::clone(&self.target),
            last,
            recent: VecDeque::new(),
            bytes: 0,
            forgotten: None,
            breaks: self.breaks,
            asked_at: self.asked_at,
            last_at: self.asked_at,
        });
        (given.last, given.last_at) = (last, Instant::now());
        if self.again.is_empty() {
            self.assigned.extend(assigned);
            self.done += lot.parts.len();
        }
        let (mut assigned, mut changed) = (assigned, 0);
        for part in &lot.parts {
            if !keeps {
                given.forgotten = Some(part.place);
                continue;
            }
            let (of_part, rest) = assigned.split_at(part.items.len());
            assigned = rest;
            let numbers: Vec<u64> = of_part.iter().map(|it| it.sequence()).collect();
            if let Some(before) = self.again.pop_front() {
                changed += numbers.iter().zip(&before.numbers).filter(|(a, b)| a != b).count();
            }
            given.keep(GivenPart { part: part.clone(), numbers });
        }
        if changed > 0 {
            tracing::error!(
                stream = &*self.target.partition.stream,
                shard = self.to,
                messages = changed,
                "messages that the store had lost got new numbers, because it gave their numbers to other messages \
                 meanwhile: check the receivers of the last minutes for numbers that two messages share"
            );
        }
    }

    /// Prepares to give again all messages behind `last`, the last place that the store has. Returns their number, or
    /// `None` if memory does not have all of them.
    fn give_again_behind(&mut self, last: Option<Place>) -> Option<usize> {
        let given = self.given.as_mut()?;
        if given.forgotten > last {
            return None;
        }
        let at = given.recent.partition_point(|it| Some(it.part.place) <= last);
        let behind = given.recent.split_off(at);
        given.bytes = given.recent.iter().map(GivenPart::bytes).sum();
        let messages = behind.iter().map(|it| it.part.items.len()).sum();
        // They go in front of the parts that are already waiting to be given again.
        for mut part in behind.into_iter().rev() {
            for (item, number) in part.part.items.iter_mut().zip(&part.numbers) {
                item.number = *number;
            }
            self.again.push_front(part);
        }
        (self.last, self.asks) = (last, false);
        Some(messages)
    }
}

impl Given {
    fn keep(&mut self, part: GivenPart) {
        self.bytes += part.bytes();
        self.recent.push_back(part);
    }

    /// Forgets the oldest part, and returns its bytes.
    fn forget_oldest(&mut self) -> usize {
        let Some(oldest) = self.recent.pop_front() else {
            return std::mem::take(&mut self.bytes);
        };
        let bytes = oldest.bytes();
        self.bytes -= bytes;
        self.forgotten = Some(oldest.part.place);
        bytes
    }

    /// Returns whether the store may lack parts that were given before; `breaks` is its present count.
    fn is_in_doubt(&mut self, breaks: u64) -> bool {
        if self.last_at.elapsed() >= KEEP {
            while !self.recent.is_empty() {
                self.forget_oldest();
            }
        }
        !self.recent.is_empty() && (self.breaks != breaks || self.asked_at.elapsed() >= CHECK)
    }
}

impl GivenPart {
    fn bytes(&self) -> usize {
        self.part.items.iter().map(|item| item.event.memory()).sum()
    }
}
