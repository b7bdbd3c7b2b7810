//! A pool of workers with one handler, for tests that submit turns and check their results.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use ordain_core::{
    AttemptToken, Event, EventParts, FailedAttempt, FailureKind, HandlerOutcome, Key, Message,
    Turn, TurnResult,
};
use ordain_wasm::{
    ActiveVersion, Handler, HandlerEngine, HandlerFile, HandlerSettings, LogLine, StreamContext,
    TurnQueueHandle, TurnResults, WorkerPool,
};

use crate::guests::guest;
use crate::plugins::{plugin, target_dir};

/// Long enough for a busy machine.
const RESULT_TIMEOUT: Duration = Duration::from_mins(1);

/// The names of the sinks of the stream `orders`, whose events the workers execute.
pub const SINKS: [&str; 3] = ["faulty", "tally", "other"];

/// A log line that the handler has written: the level, the key, and the text.
pub type Line = (String, String, String);

/// A pool of worker threads with one queue of turns.
pub struct Workers {
    /// The engine with which the handler was loaded.
    pub engine: Arc<HandlerEngine>,
    /// The queue of turns. The field precedes the pool, so that the queue is dropped first, as in the host.
    pub turns: TurnQueueHandle,
    /// The pool that executes the turns.
    pub pool: WorkerPool,
    lines: Arc<Mutex<Vec<Line>>>,
    results: Receiver<Vec<TurnResult>>,
}

impl Workers {
    /// Makes workers with a handler of `plugins/`.
    pub fn plugin(name: &str, settings: HandlerSettings) -> Result<Self> {
        Self::start(&plugin(name)?, settings)
    }

    /// Makes workers with the handler `faulty` and one thread.
    pub fn faulty() -> Result<Self> {
        Self::plugin("faulty", settings())
    }

    /// Makes workers with one of the handlers in `guests/` and one thread.
    pub fn guest(name: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("guest@1.0.0.wasm");
        std::fs::write(&path, guest(name)?)?;
        Self::start(&path, settings())
    }

    fn start(path: &Path, settings: HandlerSettings) -> Result<Self> {
        let engine = HandlerEngine::new(settings)?;
        let handler = load(&engine, path)?;
        let pool = WorkerPool::start(&engine)?;
        let lines = Arc::<Mutex<Vec<Line>>>::default();
        let stream = StreamContext::new("orders", SINKS).with_log(Arc::new({
            let lines = Arc::clone(&lines);
            move |line: &LogLine<'_>| {
                let line = (line.level.to_string(), line.key.to_owned(), line.text.to_owned());
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        }));
        let (send, results) = channel();
        let done = Box::new(move |done: TurnResults| {
            // Ignore an error: a test that has ended needs no results.
            let _ = send.send(done.take());
        });
        let turns = pool.attach(stream, Some(ActiveVersion::first(handler)), done);
        Ok(Self { engine, turns, pool, lines, results })
    }

    /// Executes one turn, and returns its result.
    pub fn run(&self, turn: Turn) -> TurnResult {
        self.turns.submit(vec![turn]);
        self.results(1).remove(0)
    }

    /// Executes a turn with one event, and returns its result.
    pub fn command(&self, data: impl AsRef<[u8]>) -> TurnResult {
        self.run(turn("key", &[data]))
    }

    /// Executes one event, which must fail. Returns the failure.
    #[track_caller]
    pub fn failure(&self, data: impl AsRef<[u8]>) -> FailedAttempt {
        let done = self.command(data);
        done.failure.unwrap_or_else(|| panic!("the event has not failed: {:?}", done.outcomes))
    }

    /// Executes one event, which must take effect and emit a message. Returns the data of the first message as text.
    #[track_caller]
    pub fn report(&self, data: &str) -> String {
        let done = self.command(data);
        let [HandlerOutcome::Effect { messages, .. }] = done.outcomes.as_slice() else {
            panic!("the event has no effect: {done:?}")
        };
        text(&messages[0])
    }

    /// Waits for at least `count` results of turns, and returns all results that have arrived.
    pub fn results(&self, count: usize) -> Vec<TurnResult> {
        let mut results = Vec::new();
        while results.len() < count {
            results.extend(
                self.results
                    .recv_timeout(RESULT_TIMEOUT)
                    .expect("the workers must deliver a result in time"),
            );
        }
        results
    }

    /// Returns the log lines that the handler has written since the last call of this method.
    pub fn lines(&self) -> Vec<Line> {
        std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Loads a handler from a file.
pub fn load(engine: &HandlerEngine, path: &Path) -> Result<Arc<Handler>> {
    let file =
        HandlerFile::from_path(path).context("the file does not have the name of a handler")?;
    Ok(engine.load(&file.map_err(anyhow::Error::msg)?)?)
}

/// Returns settings with one worker thread, a time limit of 300 ms for the execution of an event, and a cache of
/// compiled handlers.
pub fn settings() -> HandlerSettings {
    let cache = target_dir().ok().map(|target| target.join("compiled-handlers"));
    let mut settings = HandlerSettings { workers: 1, cache, ..HandlerSettings::default() };
    settings.limits.timeout = Duration::from_millis(300);
    settings
}

/// Makes a turn with one event for each element of `data`. The sequences of the events begin at 1.
pub fn turn(key: &str, data: &[impl AsRef<[u8]>]) -> Turn {
    let events = data
        .iter()
        .zip(1..)
        .map(|(data, sequence)| (sequence, event(key, sequence, data.as_ref())));
    Turn {
        token: AttemptToken { lane: 0, serial: 1 },
        key: Key::from(key),
        state: None,
        events: events.collect(),
        fresh: false,
        bytes: usize::MAX,
    }
}

/// Makes an event with a time in the year 2001 and a trace context.
pub fn event(key: &str, sequence: u64, data: &[u8]) -> Arc<Event> {
    Arc::new(Event::new(&EventParts {
        key,
        sequence: Some(sequence),
        id: &format!("{key}/{sequence}"),
        kind: "test",
        source: "/test",
        time_us: Some(1_000_000_000_123_456),
        content_type: "application/json",
        headers: &[("traceparent", "00-1-2-01"), ("Tracestate", "a=b"), ("other", "x")],
        data,
        end: false,
    }))
}

/// Returns a message's data as text.
pub fn text(message: &Message) -> String {
    String::from_utf8_lossy(message.data()).into_owned()
}

/// Asserts that a failure has this kind, and that its message contains each of these texts.
#[track_caller]
pub fn assert_failure(failure: &FailedAttempt, kind: FailureKind, words: &[&str]) {
    assert_eq!(failure.kind, kind, "{failure:?}");
    for word in words {
        assert!(failure.message.contains(word), "{word:?} is not in {failure:?}");
    }
}
