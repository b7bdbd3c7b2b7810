//! A Redis server that only one test uses, so that the test can make the server fail. The module also contains helpers
//! for such tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ordain_core::{
    AppliedCommit, Batch, Cause, CommitReply, DeadLetter, EmittedMessage, KeyWrite, LetterContent,
    LetterId, Message, MessageParts,
};
use ordain_servers::Reply;
use ordain_store::RedisOptions;
use ordain_store::{OutboxEntry, Store};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, first_write, next_write};

use super::support::options;

/// A Redis server. The alias avoids confusion with the store in Redis.
pub(super) type Server = ordain_servers::Redis;

/// The time limit of each wait in these tests. Only a failing test reaches it.
pub(super) const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_DELAY: Duration = Duration::from_millis(2);

pub(super) struct DedicatedStore {
    pub(super) server: Server,
    pub(super) options: RedisOptions,
    pub(super) store: RedisStore,
}

impl DedicatedStore {
    /// Starts a durable server with default options. Creates a new store on it.
    pub(super) async fn start() -> Self {
        Self::on(Server::start(&[]).expect("a server")).await
    }

    pub(super) async fn on(server: Server) -> Self {
        let options = options(&server.url());
        let store = RedisStore::open(options.clone()).await.expect("a new store");
        Self { server, options, store }
    }

    /// Returns the name of a Redis key of the store in the shard `shard`. `rest` is the part of the name after the
    /// shard.
    pub(super) fn name(&self, shard: u32, rest: &str) -> String {
        format!("{}:{{{shard}}}:{rest}", self.options.prefix)
    }

    /// Sends a command directly to the server.
    pub(super) fn command(&self, command: &[&str]) -> Reply {
        self.server.command(command).expect("an answer")
    }

    /// Runs Lua code on the server. The code finds the given Redis key in the variable `name`, and the given bytes in
    /// the variable `bytes`.
    pub(super) fn lua(&self, body: &str, name: &str, bytes: &[u8]) -> Reply {
        let script = format!(
            "local name = KEYS[1] local bytes = string.gsub(ARGV[1], '..', function(two) \
             return string.char(tonumber(two, 16)) end) {body}"
        );
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.command(&["EVAL", &script, "1", name, &hex.concat()])
    }

    /// Returns the value of the Lua expression `value`, in which `name` is the given Redis key.
    pub(super) fn bytes(&self, value: &str, name: &str) -> Vec<u8> {
        let body = format!(
            "return (string.gsub({value}, '.', function(one) \
             return string.format('%02x', string.byte(one)) end))"
        );
        let reply = self.lua(&body, name, b"");
        let hex = reply.text().expect("a value");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    pub(super) fn put_field(&self, name: &str, field: &[u8], bytes: &[u8]) {
        let count = field.len();
        let put = format!(
            "redis.call('HSET', name, string.sub(bytes, 1, {count}), string.sub(bytes, {count} + 1))"
        );
        self.lua(&put, name, &[field, bytes].concat());
    }

    pub(super) fn bytes_of_field(&self, name: &str, field: &[u8]) -> Vec<u8> {
        let escaped: Vec<String> = field.iter().map(|byte| format!("\\{byte:03}")).collect();
        self.bytes(&format!("redis.call('HGET', name, '{}')", escaped.concat()), name)
    }

    pub(super) fn digest(&self) -> String {
        self.command(&["DEBUG", "DIGEST"]).text().expect("a digest").to_owned()
    }
}

/// Returns a write that settles one event of a key and emits one message. The data of the message is the sequence of
/// the event.
pub(super) fn step(key: &str, sequence: u64) -> KeyWrite {
    let mut write = if sequence == 1 { first_write(key) } else { next_write(key, sequence) };
    let data = sequence.to_string();
    let message = Message::new(&MessageParts {
        sink: "out",
        data: data.as_bytes(),
        ..MessageParts::default()
    });
    write.messages = vec![EmittedMessage { sequence, index: 0, event_digest: 0, message }];
    write
}

pub(super) fn letter(key: &str, sequence: u64, tag: u64) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: key.into(), sequence, tag },
        cause: Cause::Rejected,
        error: "no".to_owned(),
        origin: None,
        version: None,
        content: LetterContent::Nothing,
    }
}

/// Sends a batch repeatedly, until the store answers it. Returns [`CommitReply::Unknown`] if the store has not answered
/// within [`WAIT_TIMEOUT`].
pub(super) async fn until_answered(
    store: &dyn Store,
    owner: &Owner,
    batch: &Arc<Batch>,
) -> CommitReply {
    let started = Instant::now();
    loop {
        match owner.send(store, batch).await {
            CommitReply::Unknown if started.elapsed() < WAIT_TIMEOUT => {
                tokio::time::sleep(RETRY_DELAY).await;
            }
            reply => return reply,
        }
    }
}

/// Sends a batch repeatedly, until the store answers it or the time [`WAIT_TIMEOUT`] is over. Checks that the store has
/// applied the batch.
pub(super) async fn until_applied(
    store: &dyn Store,
    owner: &Owner,
    batch: &Arc<Batch>,
) -> AppliedCommit {
    match until_answered(store, owner, batch).await {
        CommitReply::Applied(applied) => applied,
        other => panic!("commit {} of shard {}: {other:?}", batch.number, batch.shard),
    }
}

/// Returns the next sequence of a key, or 1 if the key has no record.
pub(super) async fn next_of(store: &dyn Store, key: &str) -> u64 {
    let row = store.key("s", key).await.expect("a read");
    row.map_or(1, |(row, _)| row.record.expect("a key record that can be read").next)
}

pub(super) async fn outbox(store: &dyn Store, owner: &Owner, shard: u32) -> Vec<OutboxEntry> {
    store.outbox(&owner.partition, shard, 0, usize::MAX).await.expect("the outbox")
}

/// Returns the numbers of the commits in the outbox of the shard that contains `key`.
pub(super) async fn numbers(store: &dyn Store, owner: &Owner, key: &str) -> Vec<u64> {
    let entries = outbox(store, owner, owner.shard(key)).await;
    entries.iter().map(|entry| entry.number).collect()
}
