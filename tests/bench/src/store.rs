//! `store`: measures commits of batches into each store, and compares them with plain `HSET`s of the same bytes.
//!
//! As in the host, each shard has at most one commit under way. For Redis, the processor time is the time of the Redis
//! server. The embedded store runs in this process, so its processor time is the time of this whole process, including
//! the creation of the batches.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use ordain_core::{
    Batch, CommitReply, EmittedMessage, FileDigest, Key, KeyRecord, KeyWrite, Message,
    MessageParts, Rollout, StateUpdate, WriteCondition, shard_of,
};
use ordain_store::{ClaimedPartition, Partition, Store};
use ordain_store::{RedisAddress, RedisOptions};
use ordain_store_embedded::{self, EmbeddedStore};
use ordain_store_redis::RedisStore;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use crate::CommonArgs;
use crate::process::own_cpu_seconds;
use crate::report::{Report, Row};

/// Sizes of commits: the number of events in one commit, and the total number of events that are committed with this
/// size.
const COMMIT_SIZES: [(usize, usize); 3] = [(1, 30_000), (64, 300_000), (512, 600_000)];
const KEYS: [(&str, usize); 2] = [("10k", 10_000), ("1m", 1_000_000)];
/// Size of a state, and of a message's data, in bytes.
const DATA_BYTES: usize = 256;
/// Number of digests in a key record: the default.
const DIGEST_COUNT: u32 = 64;
/// Maximum number of events in each of the first commits, which create the keys.
const FILL_BATCH: usize = 512;
/// Default number of shards of a store in Redis.
const SHARDS: u32 = 16;

pub(crate) fn bench(common: &CommonArgs) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); 3 * KEYS.len() * COMMIT_SIZES.len()];
    for run in 1..=common.runs {
        let mut at = 0;
        for side in ["embedded", "redis", "hset"] {
            for (name, keys) in KEYS {
                eprintln!("run {run} of {}: {side}, {keys} keys", common.runs);
                for mut row in runtime.block_on(measure(side, keys))? {
                    row.side = format!("{side}_{name}_{}", row.side);
                    eprintln!("{}: {:.0} events/s", row.side, row.events_per_s);
                    rows[at].push(row);
                    at += 1;
                }
            }
        }
    }
    let mut report = Report::new("store", rows.iter().map(|runs| Row::median(runs)).collect());
    for (keys, _) in KEYS {
        report = report.ratio(&format!("redis_{keys}_512"), &format!("hset_{keys}_512"));
        report = report.ratio(&format!("redis_{keys}_512"), &format!("embedded_{keys}_512"));
    }
    Ok(report.note(
        "Rows: store, keys, events of a commit. Each event writes a key record with 64 digests, 256 bytes of state, \
         and a message of 256 bytes, which is then removed. Keys are random. CPU: the server; for `embedded`, this \
         whole process. Redis syncs each commit (appendfsync always). hset: a plain HSET of as many bytes for each \
         event, in pipelines of as many events as a commit has.",
    ))
}

async fn measure(side: &str, keys: usize) -> Result<Vec<Row>> {
    if side == "embedded" {
        let folder = TempDir::new()?;
        let store = Arc::new(EmbeddedStore::open(ordain_store_embedded::EmbeddedOptions::new(
            folder.path(),
        ))?);
        return Sides::new(store, keys).await?.rows(&own_cpu_seconds).await;
    }
    let server = ordain_servers::Redis::start(&[])?;
    let cpu = || server.cpu();
    if side == "hset" {
        return plain(&server.url(), keys, &cpu).await;
    }
    let options = RedisOptions {
        address: RedisAddress::parse(&server.url()).map_err(anyhow::Error::msg)?,
        prefix: "bench".to_owned(),
        shards: SHARDS,
        replicas: 0,
        dead_ttl: u64::MAX >> 12,
        retry_timeout: None,
        reads_only: false,
        clock_offset_ms: Arc::default(),
    };
    let store = Arc::new(RedisStore::open(options).await?);
    Sides::new(store, keys).await?.rows(&cpu).await
}

type Cpu<'a> = &'a (dyn Fn() -> Result<f64> + Sync);

/// Returns the row for the commits of one size.
fn row(size: usize, events: usize, started: Instant, cpu_seconds: f64) -> Row {
    Row {
        side: size.to_string(),
        events_per_s: events as f64 / started.elapsed().as_secs_f64(),
        cpu_s_per_million: Some(cpu_seconds / (events as f64 / 1e6)),
        ..Row::default()
    }
}

/// All keys of a store, by shard. The keys belong to one partition, which one owner has claimed.
struct Sides {
    shards: Vec<Shard>,
}

/// The keys of one shard, and the number of its last commit.
struct Shard {
    store: Arc<dyn Store>,
    partition: Partition,
    claimed: ClaimedPartition,
    slice: u32,
    number: u64,
    /// The keys, with the next sequence of each.
    keys: Vec<(Key, u64)>,
    rng: ChaCha8Rng,
}

impl Sides {
    async fn new(store: Arc<dyn Store>, keys: usize) -> Result<Self> {
        let partition = Partition { stream: "orders".into(), number: 0 };
        // The store is new, so the first epoch is free.
        let claimed = store.claim(&partition, 1).await?;
        let mut shards: Vec<Shard> = (0..store.shards())
            .map(|shard| Shard {
                store: Arc::clone(&store),
                partition: partition.clone(),
                claimed: claimed.clone(),
                slice: shard,
                number: 0,
                keys: Vec::new(),
                rng: ChaCha8Rng::seed_from_u64(u64::from(shard)),
            })
            .collect();
        for number in 0..keys {
            let key: Key = format!("order-{number}").into();
            let shard = shard_of(&key, store.shards()) as usize;
            shards[shard].keys.push((key, 1));
        }
        let mut sides = Self { shards };
        let fills = sides.shards.iter_mut().map(Shard::fill);
        futures_util::future::try_join_all(fills).await?;
        Ok(sides)
    }

    async fn rows(mut self, cpu: Cpu<'_>) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (size, events) in COMMIT_SIZES {
            let each = events / self.shards.len() / size;
            ensure!(each > 0, "too few events for {} shards", self.shards.len());
            let started = Instant::now();
            let before = cpu()?;
            let commits = self.shards.iter_mut().map(|shard| shard.commits(each, size));
            futures_util::future::try_join_all(commits).await?;
            rows.push(row(size, each * size * self.shards.len(), started, cpu()? - before));
        }
        Ok(rows)
    }
}

impl Shard {
    /// Commits the first event of each key.
    async fn fill(&mut self) -> Result<()> {
        for from in (0..self.keys.len()).step_by(FILL_BATCH) {
            let to = (from + FILL_BATCH).min(self.keys.len());
            self.commit((from..to).collect()).await?;
        }
        Ok(())
    }

    /// Makes `count` commits, each of `size` random keys, or of all keys if the shard has fewer keys.
    async fn commits(&mut self, count: usize, size: usize) -> Result<()> {
        for _ in 0..count {
            let mut keys = std::collections::BTreeSet::new();
            while keys.len() < size.min(self.keys.len()) {
                keys.insert(self.rng.random_range(0..self.keys.len()));
            }
            self.commit(keys.into_iter().collect()).await?;
        }
        Ok(())
    }

    async fn commit(&mut self, keys: Vec<usize>) -> Result<()> {
        self.number += 1;
        let mut writes = Vec::with_capacity(keys.len());
        for at in keys {
            let (key, next) = &mut self.keys[at];
            writes.push(write(key, *next));
            *next += 1;
        }
        let shard = self.slice;
        let number = self.number;
        let batch =
            Batch { shard, number, writes, letters: Vec::new(), forward: false, repeated: false };
        let reply = self.store.commit(&self.partition, self.claimed.claim, batch.into()).await;
        match reply {
            CommitReply::Applied(applied) if applied.refused.is_empty() => {}
            other => bail!("commit {number} of shard {shard} failed: {other:?}"),
        }
        self.store.outbox_done(&self.partition, self.claimed.claim, shard, number, &[]).await?;
        Ok(())
    }
}

fn write(key: &Key, next: u64) -> KeyWrite {
    let message = Message::new(&MessageParts {
        sink: "receipts",
        kind: "receipt",
        content_type: "application/json",
        data: &[b'm'; DATA_BYTES],
        ..MessageParts::default()
    });
    let mut record = KeyRecord::new(next + 1, 0);
    record.incarnation = 1;
    record.digests = (0..DIGEST_COUNT).collect();
    record.rollout = Some(Rollout::first("orders@1.0.0", FileDigest([0; 32])));
    KeyWrite {
        key: Arc::clone(key),
        condition: if next == 1 { WriteCondition::Absent } else { WriteCondition::Next(next) },
        record,
        state: StateUpdate::Put(vec![b's'; DATA_BYTES].into()),
        messages: vec![EmittedMessage { sequence: next, index: 0, event_digest: 0, message }],
        letters: Vec::new(),
        removed_letters: Vec::new(),
        spill: Vec::new(),
        ids: std::iter::empty().collect(),
        due_in: None,
        expire_in: None,
    }
}

/// Number of bytes that a commit writes for an event: the key record of about 360 bytes, the state and the message.
const PLAIN_BYTES: usize = 360 + DATA_BYTES + DATA_BYTES;

async fn plain(url: &str, keys: usize, cpu: Cpu<'_>) -> Result<Vec<Row>> {
    let client = ::redis::Client::open(url)?;
    let config = ::redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    put(connection.clone(), (0..keys).collect(), FILL_BATCH).await?;
    let mut rows = Vec::new();
    for (size, events) in COMMIT_SIZES {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let started = Instant::now();
        let before = cpu()?;
        let each = events / SHARDS as usize;
        let puts = (0..SHARDS).map(|_| {
            let chosen = (0..each).map(|_| rng.random_range(0..keys)).collect();
            put(connection.clone(), chosen, size)
        });
        futures_util::future::try_join_all(puts).await?;
        rows.push(row(size, each * SHARDS as usize, started, cpu()? - before));
    }
    Ok(rows)
}

async fn put(
    mut connection: ::redis::aio::MultiplexedConnection,
    keys: Vec<usize>,
    size: usize,
) -> Result<()> {
    let value = vec![b'v'; PLAIN_BYTES];
    for chunk in keys.chunks(size) {
        let mut pipe = ::redis::pipe();
        for key in chunk {
            pipe.cmd("HSET").arg("plain").arg(format!("order-{key}")).arg(&value).ignore();
        }
        let () = pipe.query_async(&mut connection).await.context("a plain HSET failed")?;
    }
    Ok(())
}
