//! One run of the engine over the events of a project.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ordain_config::LoadedConfig;
use ordain_core::{Cause, DeadLetter, KeyStatus};
use ordain_engine::run::{EndIntake, PreparedRun, RunError, RunReport, RunStatus};
use ordain_http::ingress::IngressListener;
use ordain_store::{KeyFilter, Store, StoreError, StoredKey, StoredLetter};
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};
use ordain_wasm::{HandlerRegistry, load_handlers};
use tokio::sync::{oneshot, watch};

use crate::error::ProjectError;
use crate::record::Recorder;

/// Interval between two searches for dead letters and blocked keys while streams run.
const NOTICE_INTERVAL: Duration = Duration::from_millis(300);

/// Maximum number of rows that one request to the store returns.
const PAGE_ROWS: usize = 1_000;

/// The store after a run, and the report of the run.
pub(crate) struct FinishedRun {
    pub(crate) report: RunReport,
    /// The dead letters of all streams, except the letters of events that the handler rejected.
    pub(crate) letters: Vec<(Arc<str>, StoredLetter)>,
    /// The keys that wait for an event or a retry, or that are parked.
    pub(crate) blocked: Vec<(Arc<str>, StoredKey)>,
}

/// Loads the handlers. The compilation can take seconds, so it runs on a thread that may block.
async fn load(
    loaded: &LoadedConfig,
    recorder: &Arc<Recorder>,
) -> Result<Arc<HandlerRegistry>, ProjectError> {
    let to_load = loaded.clone();
    let loading = tokio::task::spawn_blocking(move || load_handlers(&to_load));
    let handlers = loading.await.map_err(RunError::Panic)??;
    handlers.engine.observe(recorder.clone());
    Ok(Arc::new(handlers))
}

/// A store that opens on another thread, while the command builds and loads the handlers. Dropping the value waits
/// until the store is closed, so that the folder can be removed or opened again.
pub(crate) struct OpeningStore {
    opened: oneshot::Receiver<Result<EmbeddedStore, StoreError>>,
    thread: Option<JoinHandle<()>>,
}

impl OpeningStore {
    /// Starts to open the store in a folder. Creates a store in an empty folder.
    pub(crate) fn start(folder: PathBuf) -> Result<Self, ProjectError> {
        let options = EmbeddedOptions::new(folder);
        let (sender, opened) = oneshot::channel();
        // If the receiver is gone, the returned store closes here.
        let open = move || drop(sender.send(EmbeddedStore::open(options)));
        let thread = std::thread::Builder::new().name("ordain-store".to_owned()).spawn(open);
        Ok(Self { opened, thread: Some(thread.map_err(RunError::Thread)?) })
    }

    async fn opened(mut self) -> Result<Arc<dyn Store>, ProjectError> {
        let opened = (&mut self.opened).await;
        Ok(Arc::new(opened.expect("the thread sends the result, unless it panics")?))
    }
}

impl Drop for OpeningStore {
    fn drop(&mut self) {
        // A panic of the thread has already been logged.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Loads the handlers, and runs the streams until `shutdown` becomes true. With `once`, also ends when every event is
/// settled or held. Without `once`, also reports, while the streams run, the notices about events that no handler
/// executed.
pub(crate) async fn run(
    loaded: &LoadedConfig,
    store: OpeningStore,
    once: bool,
    recorder: &Arc<Recorder>,
    shutdown: watch::Receiver<bool>,
    report: NoticeReceiver<'_>,
) -> Result<FinishedRun, ProjectError> {
    let (handlers, store) = tokio::try_join!(load(loaded, recorder), store.opened())?;
    let status = Arc::<RunStatus>::default();
    let run_report = {
        let run = PreparedRun::prepare(loaded, once, &handlers, &store, &status).await?;
        let ingress = if once {
            None
        } else {
            IngressListener::listen(loaded, &store, run.notifiers(), &status, &shutdown).await?
        };
        let end_intake =
            ingress.map(|ingress| Box::new(|failure| ingress.end(failure)) as EndIntake<'_>);
        tokio::select! {
            report = run.drive(shutdown, end_intake) => report?,
            error = report_notices(&*store, report), if !once => return Err(error),
        }
    };
    let letters = letters(&*store).await?;
    let blocked = blocked_keys(&*store).await?;
    Ok(FinishedRun { report: run_report, letters, blocked })
}

/// A notice about a key or an event, independent of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Notice {
    pub(crate) stream: String,
    /// The key; empty if it is unknown.
    pub(crate) key: String,
    pub(crate) text: String,
}

/// A function that reports a notice at once.
pub(crate) type NoticeReceiver<'a> = &'a dyn Fn(&Notice) -> io::Result<()>;

/// Returns the notices about dead letters and blocked keys.
pub(crate) fn notices(
    letters: &[(Arc<str>, StoredLetter)],
    blocked: &[(Arc<str>, StoredKey)],
) -> Vec<Notice> {
    let of_letter = |(stream, stored): &(Arc<str>, StoredLetter)| {
        let DeadLetter { id, cause, error, origin, .. } = &stored.letter;
        let origin = origin.as_ref().map_or_else(String::new, |origin| format!(" ({origin})"));
        let text = format!("dead letter, {cause}: {error}{origin}");
        Notice { stream: stream.to_string(), key: id.key.to_string(), text }
    };
    let of_key = |(stream, key): &(Arc<str>, StoredKey)| {
        let text = blocked_reason(key)?;
        let text = text.lines().next().unwrap_or_default().to_owned();
        Some(Notice { stream: stream.to_string(), key: key.key.to_string(), text })
    };
    letters.iter().map(of_letter).chain(blocked.iter().filter_map(of_key)).collect()
}

/// Reports each notice once. Returns only after an error.
async fn report_notices(store: &dyn Store, report: NoticeReceiver<'_>) -> ProjectError {
    let mut reported = HashSet::new();
    loop {
        tokio::time::sleep(NOTICE_INTERVAL).await;
        if let Err(error) = report_new_notices(store, report, &mut reported).await {
            return error;
        }
    }
}

async fn report_new_notices(
    store: &dyn Store,
    report: NoticeReceiver<'_>,
    reported: &mut HashSet<Notice>,
) -> Result<(), ProjectError> {
    for notice in notices(&letters(store).await?, &blocked_keys(store).await?) {
        if reported.insert(notice.clone()) {
            report(&notice)?;
        }
    }
    Ok(())
}

async fn letters(store: &dyn Store) -> Result<Vec<(Arc<str>, StoredLetter)>, ProjectError> {
    let mut found = Vec::new();
    for stream in store.streams().await? {
        let mut cursor = None;
        loop {
            let page = store.letters(&stream, None, cursor.as_deref(), PAGE_ROWS).await?;
            let rows = page.rows.into_iter();
            let rows = rows.filter(|row| row.letter.cause != Cause::Rejected);
            found.extend(rows.map(|row| (Arc::clone(&stream), row)));
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

async fn blocked_keys(store: &dyn Store) -> Result<Vec<(Arc<str>, StoredKey)>, ProjectError> {
    let mut found = Vec::new();
    for stream in store.streams().await? {
        let mut filter = KeyFilter { limit: PAGE_ROWS, ..KeyFilter::default() };
        loop {
            let page = store.keys(&stream, &filter).await?;
            let is_blocked = |row: &StoredKey| {
                row.record.as_ref().is_ok_and(|record| {
                    let statuses = [KeyStatus::Waiting, KeyStatus::Retrying, KeyStatus::Parked];
                    statuses.contains(&record.status)
                })
            };
            let rows = page.rows.into_iter().filter(is_blocked);
            found.extend(rows.map(|row| (Arc::clone(&stream), row)));
            filter.cursor = page.cursor;
            if filter.cursor.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

/// Returns the reason why a key is blocked; `None` if it is not blocked or if its record is unreadable.
pub(crate) fn blocked_reason(key: &StoredKey) -> Option<String> {
    let record = key.record.as_ref().ok()?;
    let next = record.next;
    match record.status {
        KeyStatus::Waiting => {
            Some(format!("the key waits for sequence {next}, which has not arrived"))
        }
        KeyStatus::Retrying => Some(format!("the key waits to retry sequence {next}")),
        KeyStatus::Parked => {
            let failure = record.failure.as_ref();
            let reason =
                failure.map_or_else(String::new, |failure| format!(": {}", failure.words()));
            Some(format!("the key is parked at sequence {next}{reason}"))
        }
        _ => None,
    }
}
