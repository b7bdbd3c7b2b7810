//! A test with a real server: for some time, the store refuses the reads of a queue.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use ordain_servers::Redis;
use ordain_store::{RedisAddress, RedisOptions};
use ordain_store_redis::RedisStore;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

use super::super::QueueNotifiers;
use super::*;

const LINE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct LogCapture(Arc<Mutex<Vec<String>>>);

impl LogCapture {
    /// Captures the log lines of this thread until the guard is dropped.
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    fn lines(&self, words: &str) -> usize {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(words)).count()
    }

    async fn until(&self, words: &str) {
        let logged = async {
            while self.lines(words) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LINE_TIMEOUT, logged).await.unwrap_or_else(|_| panic!("no line with {words:?}"));
    }
}

impl Subscriber for LogCapture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine(String::new());
        event.record(&mut line);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct LogLine(String);

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A write to a text never fails.
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

/// The server refuses reads of the queue for some time. The store of this test repeats no request, so the reader itself
/// must repeat the read. The reader must log the failure and the recovery.
#[tokio::test]
async fn reader_continues_when_the_store_answers_again() {
    let redis = Redis::start(&[]).expect("a server");
    let options = RedisOptions {
        address: RedisAddress::parse(&redis.url()).expect("a URL"),
        prefix: "test".to_owned(),
        shards: 1,
        replicas: 0,
        dead_ttl: 100_000,
        retry_timeout: Some(Duration::ZERO),
        reads_only: false,
        clock_offset_ms: Arc::default(),
    };
    let store: Arc<dyn Store> = Arc::new(RedisStore::open(options).await.expect("a store"));
    let (log, _guard) = LogCapture::start();
    let partition = Partition { stream: "orders".into(), number: 0 };
    let mut source = read_queue(QueueOptions {
        store,
        notifier: QueueNotifiers::default().of(&partition),
        partition,
        claim: Claim { epoch: 1, random: 0 },
        limit: 100,
        is_fed_locally: false,
        has_other_writers: true,
        backlog_gauge: None,
        counts_delivered: false,
        handle: None,
        losses: Arc::default(),
        used: None,
    });
    let permit = |rule: &str| {
        redis.command(&["ACL", "SETUSER", "default", rule]).expect("a rule");
    };
    permit("-hget");
    log.until("queue in the store cannot be read: ").await;
    assert_eq!(
        log.lines("reading of the queue in the store works again"),
        0,
        "the server still refuses reads"
    );
    permit("+hget");
    log.until("reading of the queue in the store works again").await;
    assert_eq!(log.lines("stream=\"orders\" "), 2, "one failure and one recovery");
    assert!(source.failure.try_recv().is_err(), "the reader continues");
}
