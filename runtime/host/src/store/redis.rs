//! The store in Redis: one server, a master under Sentinel, or a Cluster.
//!
//! **Commits.** One script call commits a batch of one shard (`scripts/commit.lua`), all of whose
//! keys lie in one hash slot. A call that is not answered is answered [`CommitReply::Unknown`], and
//! sent again under the same number: the script recognises it.
//!
//! **Durability** is the server's; it is read when the store is opened, and said.
//!
//! **Foreign and damaged values.** A script looks at the type of what it writes before its first
//! write. What is wrong with one key refuses that key; what is wrong with what all keys of a shard
//! share is an error that names it, and the shard waits until somebody mends it.
//!
//! Policy must never be decided here; what a write does and when it applies stands in the batch.

mod address;
mod commit;
mod link;
mod list;
mod names;
mod read;
mod record;
mod script;
mod server;
mod value;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;
use ordain_core::{Batch, CommitReply, Event, Key, LetterId, Loaded, shard_of};
use redis::{Cmd, RedisError, RedisResult, Value, cmd, pipe};

pub use self::address::Address;

use self::link::Link;
use self::names::Names;
use self::read::{Due, LoadedKey, Numbered};
use self::script::{Script, Scripts};
use self::value::{array, bytes, number, parts, strange, text};
use super::codec::decode_fence;
use super::{
    Claim, Claimed, KEY_SIZE_LIMIT, KeyFilter, KeyRow, MARK_NAME_LIMIT, Mark, OutboxEntry, Page,
    Partition, STREAM_NAME_LIMIT, Store, StoreError, StoredLetter,
};

/// The version of all that is written. One that reads another refuses the store.
const SCHEMA: &str = "1";

/// How long a start waits for servers that do not answer, or are still reading their data.
const START: Duration = Duration::from_secs(30);
/// Between two tries of a start.
const START_RETRY: Duration = Duration::from_millis(500);

/// Between two tries of what the server did not answer: from, to.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Between two warnings.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// How long the server waits for replicas before it says how many have a commit, in ms.
const REPLICAS_WAIT: u64 = 1_000;

/// Bytes of outbox entries read at once, after the first.
const OUTBOX_BYTES: usize = 16 << 20;
/// Entries of an outbox that are asked for at once.
const OUTBOX_READ: usize = 4;
/// Bytes of events found at once, after the first; a later round of replay finds the others.
const FIND_BYTES: usize = 16 << 20;

/// How to open it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it is.
    pub address: Address,
    /// With what the names of all keys begin: no braces, at most 64 bytes.
    pub prefix: String,
    /// Shards; written down at the first use, and to be the same from then on.
    pub shards: u32,
    /// How many replicas must have a commit before it is answered.
    pub replicas: u32,
    /// How long dead letters are kept, in ms.
    pub dead_ttl: u64,
    /// Milliseconds added to the server's time, so that tests can let time pass.
    #[doc(hidden)]
    pub shift: Arc<AtomicU64>,
}

/// A store in Redis.
pub struct Redis {
    link: Link,
    /// For commits that wait for replicas: waiting holds up all that is sent behind it.
    waiting_link: Option<Link>,
    names: Names,
    scripts: Scripts,
    shards: u32,
    replicas: u32,
    dead_ttl: u64,
    shift: Arc<AtomicU64>,
    durability: String,
    told_at: Mutex<Option<Instant>>,
}

impl Redis {
    /// Connects, and refuses servers on which what is acknowledged could vanish silently, and a
    /// store of another schema or shape. Waits half a minute for servers that do not answer.
    pub async fn open(options: Options) -> Result<Self, StoreError> {
        let started = Instant::now();
        loop {
            match Self::try_open(&options).await {
                Err(StoreError::Unavailable(reason)) if started.elapsed() < START => {
                    tracing::warn!("the store at {} is not there yet: {reason}", options.address);
                    tokio::time::sleep(START_RETRY).await;
                }
                opened => return opened,
            }
        }
    }

    /// Puts any bytes in the place of a job. For tests of what a damaged job does.
    #[doc(hidden)]
    pub async fn overwrite_job(
        &self,
        stream: &str,
        key: &str,
        bytes: Vec<u8>,
    ) -> Result<(), StoreError> {
        let mut put = cmd("HSET");
        put.arg(self.names.of_stream(self.shard_of(key), "jobs", stream)).arg(key).arg(bytes);
        self.ask(&put).await.map(drop)
    }

    async fn try_open(options: &Options) -> Result<Self, StoreError> {
        let link = Link::connect(&options.address).await.map_err(unusable_or_away)?;
        let durability = server::look(&link, options.replicas).await?;
        let waiting_link = match options.replicas {
            0 => None,
            _ => Some(Link::connect(&options.address).await.map_err(unusable_or_away)?),
        };
        let store = Self {
            link,
            waiting_link,
            names: Names::new(&options.prefix),
            scripts: Scripts::new(),
            shards: options.shards.max(1),
            replicas: options.replicas,
            dead_ttl: options.dead_ttl,
            shift: Arc::clone(&options.shift),
            durability,
            told_at: Mutex::default(),
        };
        store.check_shape(&options.address).await?;
        Ok(store)
    }

    /// Writes down what this store is, at its first use.
    async fn check_shape(&self, address: &Address) -> Result<(), StoreError> {
        let key = self.names.common("store");
        let mut call = self.call_of(&self.scripts.open, 0, "", std::slice::from_ref(&key));
        call.arg(SCHEMA).arg(self.shards);
        let found = self.answer(&self.scripts.open, &call).await.map_err(unusable_or_away)?;
        let [schema, shards] = parts(found, "what the store is")?;
        let (schema, shards) = (text(schema), text(shards));
        let written = |it: &Option<String>| it.clone().unwrap_or_else(|| "nothing".to_owned());
        if schema.as_deref() != Some(SCHEMA) {
            return Err(StoreError::Unusable(format!(
                "{key} at {address} says that the store has schema {}, and this version of Ordain \
                 reads schema {SCHEMA}: use the version that wrote it, or another store.prefix",
                written(&schema)
            )));
        }
        if shards != Some(self.shards.to_string()) {
            return Err(StoreError::Unusable(format!(
                "{key} at {address} says that the store has {} shards, and store.shards is {}: set \
                 it to that, or use another store.prefix",
                written(&shards),
                self.shards
            )));
        }
        Ok(())
    }

    /// A call of a script with what all of them have.
    fn call_of(&self, script: &Script, shard: u32, stream: &str, keys: &[String]) -> Cmd {
        let mut call = script.call(keys);
        call.arg(self.names.base(shard)).arg(stream).arg(self.shift.load(Ordering::Relaxed));
        call
    }

    /// Runs a script, again where that may help: all but commits, whose sender knows better when.
    async fn run(&self, script: &Script, call: Cmd) -> Result<Value, StoreError> {
        let mut wait = RETRY_MIN;
        loop {
            let answer = self.answer(script, &call).await.map_err(|error| failed(&error));
            if let Some(answer) = self.settled(answer, &mut wait).await {
                return answer;
            }
        }
    }

    /// Sends a command, again where that may help.
    async fn ask(&self, cmd: &Cmd) -> Result<Value, StoreError> {
        let mut wait = RETRY_MIN;
        loop {
            let answer = self.link.call(cmd).await.map_err(|error| failed(&error));
            if let Some(answer) = self.settled(answer, &mut wait).await {
                return answer;
            }
        }
    }

    /// An answer; `None`, after a while, if there was none and the same is to be asked again:
    /// nothing can go on without it, and whatever is asked this way may be asked twice.
    async fn settled(
        &self,
        answer: Result<Value, StoreError>,
        wait: &mut Duration,
    ) -> Option<Result<Value, StoreError>> {
        let Err(StoreError::Unavailable(reason)) = &answer else { return Some(answer) };
        self.tell(&format!("the store does not answer and is asked again: {reason}"));
        tokio::time::sleep(*wait).await;
        *wait = (2 * *wait).min(RETRY_MAX);
        None
    }

    /// Runs a script once. One that the server does not know is sent whole.
    async fn answer(&self, script: &Script, call: &Cmd) -> RedisResult<Value> {
        match self.link.call(call).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.link.call(&script.with_text(call)).await
            }
            answer => answer,
        }
    }

    /// Sends a commit, and waits for replicas where that is asked for; `None` where too few have
    /// it in time.
    async fn run_commit(&self, call: Cmd) -> Result<Option<Value>, StoreError> {
        let script = &self.scripts.commit;
        let Some(link) = &self.waiting_link else {
            let answer = self.answer(script, &call).await;
            return answer.map(Some).map_err(|error| failed(&error));
        };
        let with_wait = |call: Cmd| {
            let mut both = pipe();
            both.add_command(call).cmd("WAIT").arg(self.replicas).arg(REPLICAS_WAIT);
            both
        };
        let whole = script.with_text(&call);
        let answers = match link.pipe(&with_wait(call)).await {
            Err(error) if has_code(&error, "NOSCRIPT") => link.pipe(&with_wait(whole)).await,
            answers => answers,
        };
        let answers = answers.map_err(|error| failed(&error))?;
        let [reply, replicas] =
            answers.try_into().map_err(|_| strange("a commit that waits for replicas"))?;
        let enough = number(&replicas).is_some_and(|count| count >= u64::from(self.replicas));
        Ok(enough.then_some(reply))
    }

    /// Says what is wrong, now and then.
    fn tell(&self, words: &str) {
        let mut told_at = self.told_at.lock().unwrap_or_else(PoisonError::into_inner);
        if told_at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            *told_at = Some(Instant::now());
            tracing::warn!("{words}");
        }
    }

    fn shard_of(&self, key: &str) -> u32 {
        shard_of(key, self.shards)
    }

    fn of_stream<const N: usize>(&self, shard: u32, stream: &str, kinds: [&str; N]) -> [String; N] {
        kinds.map(|kind| self.names.of_stream(shard, kind, stream))
    }

    /// The keys of each shard, by their position.
    fn by_shard(&self, keys: &[Key]) -> Vec<(u32, Vec<usize>)> {
        let mut shards = vec![Vec::new(); self.shards as usize];
        for (at, key) in keys.iter().enumerate() {
            shards[self.shard_of(key) as usize].push(at);
        }
        (0..).zip(shards).filter(|(_, keys)| !keys.is_empty()).collect()
    }

    /// Loads jobs as they are, whatever their partition: a beginning of those of each shard.
    async fn load_shard(
        &self,
        stream: &str,
        shard: u32,
        keys: impl Iterator<Item = &Key>,
        bytes: usize,
    ) -> Result<Vec<LoadedKey>, StoreError> {
        let script = &self.scripts.load;
        let names = self.of_stream(shard, stream, ["jobs", "states"]);
        let mut call = self.call_of(script, shard, stream, &names);
        call.arg(bytes);
        for key in keys {
            // No job has a longer key.
            let key = &key[..key.floor_char_boundary(KEY_SIZE_LIMIT + 1)];
            call.arg(key.as_bytes());
        }
        let mut answers = array(self.run(script, call).await?, script.name)?.into_iter();
        let now = answers.next().as_ref().and_then(number).ok_or_else(|| strange(script.name))?;
        Ok(answers.map(|answer| read::loaded(answer, now)).collect())
    }

    /// Loads as many of the keys, in order, as have so many bytes together.
    async fn load_some(
        &self,
        stream: &str,
        keys: &[Key],
        bytes: usize,
    ) -> Result<Vec<LoadedKey>, StoreError> {
        let shards = self.by_shard(keys);
        let loads = shards.iter().map(|(shard, positions)| {
            // Together they may have that much; each at least one.
            let part = bytes / keys.len().max(1) * positions.len();
            let keys = positions.iter().map(|at| &keys[*at]);
            self.load_shard(stream, *shard, keys, if shards.len() == 1 { bytes } else { part })
        });
        let mut all: Vec<Option<LoadedKey>> = keys.iter().map(|_| None).collect();
        for ((_, positions), jobs) in shards.iter().zip(try_join_all(loads).await?) {
            for (at, job) in positions.iter().zip(jobs) {
                all[*at] = Some(job);
            }
        }
        let mut read = 0;
        let mut loaded = Vec::with_capacity(all.len());
        for (key, job) in keys.iter().zip(all) {
            let Some(job) = job else { break };
            read += job.as_ref().map_or(0, |job| job.as_ref().map_or(0, |job| job.memory()));
            loaded.push(if key.len() > KEY_SIZE_LIMIT { Err(too_long(key)) } else { job });
            if read >= bytes {
                break;
            }
        }
        Ok(loaded)
    }

    async fn take_over(&self, partition: &Partition, keys: &[Key]) -> Result<(), StoreError> {
        let script = &self.scripts.take_over;
        for (shard, positions) in self.by_shard(keys) {
            let [jobs] = self.of_stream(shard, &partition.stream, ["jobs"]);
            let due = self.names.of_partition(shard, "due", partition);
            let mut call = self.call_of(script, shard, &partition.stream, &[jobs, due]);
            call.arg(&partition.number.to_le_bytes()[..]).arg(partition.number);
            for at in positions {
                call.arg(keys[at].as_bytes());
            }
            self.run(script, call).await?;
        }
        Ok(())
    }

    /// Spilled events between two bounds, of at most so many bytes after the first, and whether
    /// there are none after them.
    async fn spilled(
        &self,
        partition: &Partition,
        key: &Key,
        (from, to): (Vec<u8>, Vec<u8>),
        limit: usize,
        bytes: usize,
    ) -> Result<(Vec<Numbered>, bool), StoreError> {
        let script = &self.scripts.spill;
        let shard = self.shard_of(key);
        let names = self.of_stream(shard, &partition.stream, ["jobs"]);
        let mut call = self.call_of(script, shard, &partition.stream, &names);
        call.arg(key.as_bytes()).arg(limit).arg(bytes).arg(from).arg(to);
        let [end, members] = parts(self.run(script, call).await?, script.name)?;
        let members = array(members, script.name)?.into_iter();
        let events: Result<_, _> = members.map(|member| read::spilled(key, member)).collect();
        Ok((events?, number(&end) == Some(1)))
    }

    async fn due_of_shard(
        &self,
        partition: &Partition,
        shard: u32,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<Due, StoreError> {
        let script = &self.scripts.due;
        let [jobs] = self.of_stream(shard, &partition.stream, ["jobs"]);
        let due = self.names.of_partition(shard, "due", partition);
        let mut call = self.call_of(script, shard, &partition.stream, &[jobs, due]);
        call.arg(limit).arg(u8::from(all));
        match after {
            None => call.arg("").arg(""),
            Some((at, key)) => call.arg(at).arg(key.as_bytes()),
        };
        Due::read(self.run(script, call).await?)
    }

    /// The highest epoch that any shard has seen of a partition.
    async fn newest_epoch(&self, partition: &Partition) -> Result<u64, StoreError> {
        let fences = (0..self.shards).map(async |shard| {
            let key = self.names.of_partition(shard, "fence", partition);
            let fence = self.ask(cmd("GET").arg(&key)).await?;
            let Some(fence) = bytes(fence) else { return Ok(0) };
            match decode_fence(&fence) {
                Ok(fence) => Ok(fence.claim.epoch),
                Err(error) => Err(StoreError::Corrupt(format!("{key}: {error}"))),
            }
        });
        Ok(try_join_all(fences).await?.into_iter().max().unwrap_or_default())
    }

    /// Writes a claim into a shard's fence; the number of its last commit.
    async fn claim_shard(
        &self,
        partition: &Partition,
        shard: u32,
        claim: Claim,
    ) -> Result<u64, StoreError> {
        let script = &self.scripts.claim;
        let key = self.names.of_partition(shard, "fence", partition);
        let mut call = self.call_of(script, shard, &partition.stream, std::slice::from_ref(&key));
        call.arg(&commit::claim_bytes(claim)[..]);
        let fence = bytes(self.run(script, call).await?).ok_or_else(|| strange(script.name))?;
        let fence =
            decode_fence(&fence).map_err(|error| StoreError::Corrupt(format!("{key}: {error}")))?;
        if fence.claim == claim {
            return Ok(fence.number);
        }
        Err(StoreError::InUse(format!(
            "another process has just taken partition {} of stream {:?}: one at a time may have \
             it. If none is running, start again",
            partition.number, partition.stream
        )))
    }
}

#[async_trait]
impl Store for Redis {
    fn shards(&self) -> u32 {
        self.shards
    }

    fn durability(&self) -> String {
        self.durability.clone()
    }

    async fn claim(&self, partition: &Partition) -> Result<Claimed, StoreError> {
        let length = partition.stream.len();
        if length > STREAM_NAME_LIMIT {
            return Err(StoreError::Unusable(format!(
                "the name of a stream has {length} bytes; {STREAM_NAME_LIMIT} are allowed"
            )));
        }
        let Partition { stream, number } = partition;
        let mut note = cmd("SADD");
        note.arg(self.names.common("partitions")).arg(format!("{number}:{stream}"));
        self.ask(&note).await?;

        let floor = self.newest_epoch(partition).await?;
        let script = &self.scripts.epoch;
        let mut call = self.call_of(script, 0, stream, &[self.names.epoch(partition)]);
        call.arg(floor);
        let epoch = value::number(&self.run(script, call).await?);
        let epoch = epoch.ok_or_else(|| strange(script.name))?;
        let claim = Claim { epoch, random: rand::random() };
        let claims = (0..self.shards).map(|shard| self.claim_shard(partition, shard, claim));
        Ok(Claimed { claim, commits: try_join_all(claims).await? })
    }

    async fn load(
        &self,
        partition: &Partition,
        keys: &[Key],
        bytes: usize,
    ) -> Result<Vec<Result<Option<Box<Loaded>>, String>>, StoreError> {
        let mut loaded = self.load_some(&partition.stream, keys, bytes).await?;
        let is_foreign = |job: &LoadedKey| matches!(job, Ok(Some(loaded)) if loaded.job.partition != partition.number);
        let foreign: Vec<usize> =
            (0..loaded.len()).filter(|index| is_foreign(&loaded[*index])).collect();
        if foreign.is_empty() {
            return Ok(loaded);
        }
        // Read again afterwards: the one that had it may have committed in between.
        let taken: Vec<Key> = foreign.iter().map(|index| keys[*index].clone()).collect();
        self.take_over(partition, &taken).await?;
        let again = self.load_some(&partition.stream, &taken, usize::MAX).await?;
        for (index, job) in foreign.into_iter().zip(again) {
            loaded[index] = job;
        }
        Ok(loaded)
    }

    async fn commit(&self, partition: &Partition, claim: Claim, batch: Arc<Batch>) -> CommitReply {
        let (shard, number) = (batch.shard, batch.number);
        let stream = &partition.stream;
        let mut keys = vec![self.names.of_partition(shard, "fence", partition)];
        keys.extend(self.of_stream(shard, stream, ["jobs", "states"]));
        keys.push(self.names.of_partition(shard, "outbox", partition));
        keys.push(self.names.of_partition(shard, "due", partition));
        let rest = ["expiry", "letters", "letters-order", "letters-age"];
        keys.extend(self.of_stream(shard, stream, rest));
        let mut call = self.call_of(&self.scripts.commit, shard, stream, &keys);
        commit::put(&mut call, partition.number, claim, &batch, self.dead_ttl);
        let reason = match self.run_commit(call).await {
            Ok(Some(answer)) => match commit::reply(answer, claim, number) {
                Some(reply) => return reply,
                None => "the answer has another form".to_owned(),
            },
            Ok(None) => format!("fewer than {} replicas have it", self.replicas),
            Err(error) => error.to_string(),
        };
        self.tell(&format!(
            "a commit of stream {stream:?} (partition {}, shard {shard}) is not answered and is \
             sent again: {reason}",
            partition.number
        ));
        CommitReply::Unknown
    }

    async fn read_spill(
        &self,
        partition: &Partition,
        key: &Key,
        from: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<(Vec<(u64, Arc<Event>)>, bool), StoreError> {
        let bounds = (inclusive(from), b"+".to_vec());
        let (read, end) = self.spilled(partition, key, bounds, limit, bytes).await?;
        let (mut events, mut memory) = (Vec::new(), 0);
        for (sequence, event) in read {
            memory += event.memory();
            if !events.is_empty() && memory > bytes {
                return Ok((events, false));
            }
            events.push((sequence, event));
        }
        Ok((events, end))
    }

    async fn find(
        &self,
        partition: &Partition,
        key: &Key,
        missing: &[RangeInclusive<u64>],
        within: u64,
    ) -> Result<Vec<(u64, Arc<Event>)>, StoreError> {
        let (mut found, mut memory) = (Vec::new(), 0);
        for range in missing {
            let first = found.len();
            let bounds = (inclusive(*range.start()), up_to(*range.end()));
            let many = usize::MAX >> 16;
            found.extend(self.spilled(partition, key, bounds, many, FIND_BYTES).await?.0);
            found.extend(self.far_ahead(partition, key, range, within).await?);
            // A stable sort: what is spilled stays before a letter of the same sequence.
            found[first..].sort_by_key(|(sequence, _)| *sequence);
            memory += found[first..].iter().map(|(_, event)| event.memory()).sum::<usize>();
            if memory >= FIND_BYTES {
                break;
            }
        }
        found.dedup_by_key(|(sequence, _)| *sequence);
        Ok(found)
    }

    async fn due(
        &self,
        partition: &Partition,
        after: Option<&(u64, Key)>,
        limit: usize,
        all: bool,
    ) -> Result<(Vec<(u64, Key)>, Option<u64>), StoreError> {
        // Those of one shard are few of them, mostly.
        let some = limit / self.shards as usize * 2 + 16;
        let shards = (0..self.shards)
            .map(|shard| self.due_of_shard(partition, shard, after, some.min(limit), all));
        Ok(Due::merge(try_join_all(shards).await?, limit))
    }

    async fn outbox(
        &self,
        partition: &Partition,
        shard: u32,
        after: u64,
        limit: usize,
    ) -> Result<Vec<OutboxEntry>, StoreError> {
        let key = self.names.of_partition(shard, "outbox", partition);
        let (mut entries, mut after, mut size) = (Vec::new(), after, 0);
        while entries.len() < limit.max(1) && size < OUTBOX_BYTES {
            let some = OUTBOX_READ.min(limit.max(1) - entries.len());
            let mut read = cmd("XRANGE");
            read.arg(&key).arg(format!("({after}")).arg("+").arg("COUNT").arg(some);
            let read = self.ask(&read).await?;
            let read = read::outbox(partition, shard, read)?;
            let Some(last) = read.last() else { break };
            after = last.number;
            let is_end = read.len() < some;
            size += read.iter().map(list::size_of_entry).sum::<usize>();
            entries.extend(read);
            if is_end {
                break;
            }
        }
        Ok(entries)
    }

    async fn outbox_done(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        through: u64,
        marks: &[Mark],
    ) -> Result<(), StoreError> {
        if !marks.is_empty() {
            // It may lie on another server than the outbox, and two servers have no one write.
            return Err(StoreError::Unusable(
                "what is published to a file must be noted in one write with the outbox, which only \
                 the embedded store can do"
                    .to_owned(),
            ));
        }
        let script = &self.scripts.done;
        let keys = ["fence", "outbox"].map(|it| self.names.of_partition(shard, it, partition));
        let mut call = self.call_of(script, shard, &partition.stream, &keys);
        call.arg(&commit::claim_bytes(claim)[..]);
        call.arg(format!("{}-0", through.saturating_add(1)));
        self.run(script, call).await.map(drop)
    }

    async fn put_marks(&self, marks: &[Mark]) -> Result<(), StoreError> {
        if let Some(mark) = marks.iter().find(|mark| mark.name.len() > MARK_NAME_LIMIT) {
            return Err(StoreError::Unusable(format!(
                "the name of a mark has {} bytes; {MARK_NAME_LIMIT} are allowed",
                mark.name.len()
            )));
        }
        if marks.is_empty() {
            return Ok(());
        }
        let mut put = cmd("HSET");
        put.arg(self.names.common("marks"));
        for mark in marks {
            put.arg(&mark.name).arg(&mark.value[..]);
        }
        self.ask(&put).await.map(drop)
    }

    async fn mark(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        let mut get = cmd("HGET");
        get.arg(self.names.common("marks")).arg(name);
        self.ask(&get).await.map(bytes)
    }

    /// Each answer says that what was asked is as durable as the server makes it.
    async fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn streams(&self) -> Result<Vec<Arc<str>>, StoreError> {
        list::streams(self).await
    }

    async fn keys(&self, stream: &str, filter: &KeyFilter) -> Result<Page<KeyRow>, StoreError> {
        list::keys(self, stream, filter).await
    }

    async fn key(
        &self,
        stream: &str,
        key: &str,
    ) -> Result<Option<(KeyRow, Option<Bytes>)>, StoreError> {
        list::key(self, stream, key).await
    }

    async fn letters(
        &self,
        stream: &str,
        key: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<StoredLetter>, StoreError> {
        list::letters(self, stream, key, cursor, limit).await
    }

    async fn letter(
        &self,
        stream: &str,
        id: &LetterId,
    ) -> Result<Option<StoredLetter>, StoreError> {
        list::letter(self, stream, id).await
    }
}

/// From a sequence on, as a bound of spilled events.
fn inclusive(sequence: u64) -> Vec<u8> {
    let mut bound = b"[".to_vec();
    bound.extend_from_slice(&sequence.to_be_bytes());
    bound
}

/// Up to a sequence, as a bound of spilled events.
fn up_to(sequence: u64) -> Vec<u8> {
    let Some(after) = sequence.checked_add(1) else { return b"+".to_vec() };
    let mut bound = b"(".to_vec();
    bound.extend_from_slice(&after.to_be_bytes());
    bound
}

fn too_long(key: &str) -> String {
    format!("the key has {} bytes; {KEY_SIZE_LIMIT} are allowed", key.len())
}

/// Whether a command, or one of a pipeline, failed for this reason.
fn has_code(error: &RedisError, code: &str) -> bool {
    let of_one = |errors: Arc<[(usize, redis::ServerError)]>| {
        errors.iter().any(|(_, error)| error.code() == code)
    };
    error.code() == Some(code) || error.clone().into_server_errors().is_some_and(of_one)
}

/// Why something was not done: what is stored is of another form, or what asking again may mend,
/// be it that somebody gives a right back.
fn failed(error: &RedisError) -> StoreError {
    let words = error.to_string();
    if ["WRONGTYPE", "CORRUPT"].into_iter().any(|code| has_code(error, code)) {
        return StoreError::Corrupt(words);
    }
    StoreError::Unavailable(words)
}

/// Why a start did not go on: what another try cannot mend ends it.
#[allow(clippy::needless_pass_by_value, reason = "it is an argument of `map_err`")]
fn unusable_or_away(error: RedisError) -> StoreError {
    let words = error.to_string();
    let refused = matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM" | "WRONGTYPE"))
        || matches!(
            error.kind(),
            redis::ErrorKind::InvalidClientConfig | redis::ErrorKind::AuthenticationFailed
        );
    // A script that may not do all that it does is a plain error, whose words depend on the version.
    let forbids = ["The user executing the script", "ACL failure in script"];
    if refused || forbids.iter().any(|forbidding| words.contains(forbidding)) {
        return StoreError::Unusable(words);
    }
    if error.is_io_error() && words.contains("certificate") {
        return StoreError::Unusable(format!(
            "{words}. The server's certificate must be vouched for by one that the system trusts, \
             or by one in the file that SSL_CERT_FILE names"
        ));
    }
    failed(&error)
}
