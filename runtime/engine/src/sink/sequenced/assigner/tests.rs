//! Tests of a destination whose store loses messages, with a real server.

use std::sync::atomic::{AtomicBool, AtomicU64};

use ordain_core::{EmittedMessage, Message, MessageParts};
use ordain_servers::{Redis, Snapshot};
use ordain_store::{
    Claim, DestinationRules, NumberingSettings, OutboxMessage, Ownership, RedisAddress,
    RedisOptions,
};
use ordain_store_redis::RedisStore;
use tokio::sync::mpsc;

use super::*;
use crate::completion::Completion;
use crate::sink::PublishWatermark;
use crate::sink::content::SinkContent;

/// The fence timeout of the assigner of a test: the time limit of a wait for the driver of a partition.
const TEST_TIMEOUT: Duration = Duration::from_millis(200);

/// A Redis server, and a sequence assigner with messages of one partition. A test can roll the server back to the
/// moment after message 4.
struct Rig {
    redis: Redis,
    snapshot: Snapshot,
    assigner: SequenceAssigner,
    handle: Arc<PartitionHandle>,
    completions: mpsc::Receiver<Completion>,
}

impl Rig {
    /// Assigns messages 1 to 4, copies the data of the server, and assigns messages 5 and 6.
    async fn start(is_driven: bool) -> Self {
        let redis = Redis::start(&[]).expect("a server");
        let options = RedisOptions {
            address: RedisAddress::parse(&redis.url()).expect("a URL"),
            prefix: "test".to_owned(),
            shards: 1,
            replicas: 0,
            dead_ttl: 100_000,
            retry_timeout: None,
            reads_only: false,
            clock_offset_ms: Arc::default(),
        };
        let store: Arc<dyn Store> = Arc::new(RedisStore::open(options).await.expect("a store"));
        let policy = NumberingPolicy {
            destination: Destination::Exchange("orders".into()),
            rules: DestinationRules {
                numbering: Some(NumberingSettings::default()),
                queue_limit: None,
            },
            partitions: 1,
            readers: Vec::new(),
        };
        let (sender, completions) = mpsc::channel(1);
        let handle = Arc::new(PartitionHandle {
            partition: Partition { stream: "cases".into(), number: 0 },
            claim: Claim { epoch: 1, random: 0 },
            dead_letter: None,
            completions: sender,
            ownership: Arc::new(Ownership::permanent()),
            claimed_commits: Box::new([0]),
            watermarks: Box::new([PublishWatermark::default()]),
            durable_commits: Box::new([AtomicU64::new(0)]),
            rollbacks: AtomicU64::default(),
            losses: Arc::default(),
            driven: AtomicBool::new(is_driven),
        });
        let mut assigner = SequenceAssigner::new(policy, &store, &Arc::default());
        assigner.fence_timeout = TEST_TIMEOUT;
        let snapshot = redis.snapshot().expect("a snapshot");
        let mut rig = Self { redis, snapshot, assigner, handle, completions };
        assert_eq!(rig.assign(&[1, 2, 3, 4]).await, [Some(1), Some(2), Some(3), Some(4)]);
        rig.snapshot = rig.redis.snapshot().expect("a snapshot");
        assert_eq!(rig.assign(&[5, 6]).await, [Some(5), Some(6)]);
        rig
    }

    fn go_back(&self) {
        self.redis.go_back(&self.snapshot).expect("an earlier time");
    }

    async fn assign(&mut self, commits: &[u64]) -> MessageNumbers {
        let messages = commits.iter().map(|commit| {
            let message = Message::new(&MessageParts { sink: "out", ..MessageParts::default() });
            let emitted = EmittedMessage { sequence: *commit, index: 0, event_digest: 0, message };
            let message = OutboxMessage { key: "a".into(), incarnation: 1, emitted };
            let content = SinkContent::Message(message);
            OutboundMessage { commit: *commit, content, exchange_index: 0 }
        });
        let batch = DestinationBatch {
            run: 0,
            handle: Arc::clone(&self.handle),
            shard: 0,
            messages: messages.collect(),
        };
        let numbers = timeout(Duration::from_secs(20), self.assigner.assign(&[batch])).await;
        numbers.expect("an answer").expect("numbers").remove(0)
    }

    async fn retained(&self) -> Vec<u64> {
        let to = &self.assigner.policy.destination;
        let store = &self.assigner.store;
        let retained = store.retained_messages(to, &"a".into(), &[0..=9], 1 << 20).await;
        retained.expect("a read").events.iter().map(|(sequence, _)| *sequence).collect()
    }
}

/// The driver of the partition has ended, so nothing confirms that the store has all commits. Message 7 must get no
/// number, because earlier messages are missing, and the publisher must not mark message 7 as published.
#[tokio::test]
async fn assigner_without_driver_gives_up_the_partition() {
    let mut rig = Rig::start(true).await;
    rig.completions.close();
    rig.go_back();
    assert_eq!(rig.assign(&[7]).await, [None]);
    assert!(rig.handle.ownership.is_lost());
    assert_eq!(rig.retained().await, [1, 2, 3, 4]);
}

/// The assigner numbers the messages that the previous owner left, and the driver starts only afterwards. The assigner
/// must therefore not wait for the driver.
#[tokio::test]
async fn assigner_does_not_wait_for_a_driver_that_waits_for_it() {
    let mut rig = Rig::start(false).await;
    rig.go_back();
    assert_eq!(rig.assign(&[7]).await, [None]);
    assert!(rig.handle.ownership.is_lost());
    assert_eq!(rig.retained().await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn lost_messages_wait_until_the_store_has_all_commits() {
    let mut rig = Rig::start(true).await;
    rig.go_back();
    let (_, other) = mpsc::channel(1);
    let mut completions = std::mem::replace(&mut rig.completions, other);
    tokio::spawn(async move {
        // The driver does not answer the first request, so this request times out. The driver answers the second
        // request.
        let mut unanswered = Vec::new();
        while let Some(Completion::StoreCheck(answer)) = completions.recv().await {
            match unanswered.len() {
                0 => unanswered.push(answer),
                _ => answer.send(()).expect("the assigner waits"),
            }
        }
    });
    assert_eq!(rig.assign(&[7]).await, [Some(7)]);
    assert!(!rig.handle.ownership.is_lost());
    assert_eq!(rig.retained().await, [1, 2, 3, 4, 5, 6, 7]);
    let rollbacks = rig.handle.losses.rollbacks();
    assert!(rollbacks.contains_key(&0), "the loss of shard 0 is not counted: {rollbacks:?}");
}
