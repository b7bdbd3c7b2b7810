//! The readiness of the process: whether the process can use its store, owns all partitions that it should own, and
//! receives and executes the events of its streams.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use jiff::Timestamp;
use serde_json::json;
use tokio::time::timeout;

use super::AdminState;
use crate::problem::ProblemDetails;
use ordain_engine::run::RunPhase;
use ordain_store::{HEALTH_MARK, Store};
use ordain_util::source_health::SourceState;

/// Pause between two health checks of the store. The checks detect an unavailable store even while the process is idle.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for the response of the store to a health check. A store that exceeds the limit counts as not answering.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which a source may be interrupted before the process reports that it is not ready: longer than a
/// reconnection usually takes.
const INTERRUPTION_LIMIT: Duration = Duration::from_secs(2);

/// The reason why a stream is not ready if the source of at least one of its partitions has stopped.
const STOPPED_REASON: &str = "stopped until an operator resumes it";

/// The first failed health check of the store since the last successful check. `None` if the last check was successful,
/// and before the first check.
#[derive(Default)]
pub(super) struct StoreHealth(Mutex<Option<StoreFailure>>);

/// A failed health check: the store did not accept a write.
#[derive(Clone, Copy)]
struct StoreFailure {
    since: Timestamp,
    /// `true` if the store answered a read after the failed write. `false` if the store did not answer the read, or if
    /// the write took longer than [`RESPONSE_TIMEOUT`].
    answers: bool,
}

impl StoreHealth {
    async fn check(&self, store: &dyn Store) {
        let since = Timestamp::now();
        let mut writing = pin!(store.check_writable());
        let written = if let Ok(written) = timeout(RESPONSE_TIMEOUT, &mut writing).await {
            written
        } else {
            let failure = StoreFailure { since, answers: false };
            self.set_failed(failure, &format!("no answer within {RESPONSE_TIMEOUT:?}"));
            writing.await
        };
        if let Err(error) = written {
            let answers = timeout(RESPONSE_TIMEOUT, store.mark(HEALTH_MARK)).await;
            let failure = StoreFailure { since, answers: matches!(answers, Ok(Ok(_))) };
            self.set_failed(failure, &error.to_string());
        } else if let Some(StoreFailure { since, .. }) = self.lock().take() {
            tracing::info!(away_since = %since, "ready again: the store accepts writes");
        }
    }

    fn set_failed(&self, failure: StoreFailure, why: &str) {
        let mut current = self.lock();
        if current.is_none() {
            if failure.answers {
                tracing::warn!(why, "not ready: the store answers, but accepts no writes");
            } else {
                tracing::warn!(why, "not ready: the store does not answer");
            }
            *current = Some(failure);
        }
    }

    /// Returns whether the store accepts writes, as far as the last check shows. Returns `true` before the first check.
    pub(super) fn is_writable(&self) -> bool {
        self.lock().is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Option<StoreFailure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the store again and again, with a pause of [`CHECK_INTERVAL`]. This function never returns.
pub(super) async fn watch(app: &AdminState) {
    loop {
        if let Some(store) = app.figures.store() {
            app.health.check(&*store).await;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Returns the reason why the process cannot use its store: the process is starting or shutting down, or the store
/// accepts no writes. Returns `None` if the process can use its store.
fn store_problem(app: &AdminState) -> Option<String> {
    let reason = match app.figures.phase() {
        _ if *app.shutdown.borrow() => "the process is shutting down".to_owned(),
        RunPhase::LoadingHandlers => "the process is loading its handlers".to_owned(),
        RunPhase::OpeningStore => "the process is opening its store".to_owned(),
        RunPhase::ClaimingPartitions | RunPhase::Running => {
            let StoreFailure { since, answers } = (*app.health.lock())?;
            let state = if answers { "accepted no writes" } else { "not answered" };
            format!("the store has {state} since {since:.0}; see the log")
        }
    };
    Some(reason)
}

/// Returns the reason why the process is not ready, apart from the state of its streams: the process cannot use its
/// store, or is claiming its first partitions. Returns `None` if there is no such reason.
fn process_problem(app: &AdminState) -> Option<String> {
    store_problem(app).or_else(|| match app.figures.phase() {
        RunPhase::ClaimingPartitions => Some("the process is claiming its partitions".to_owned()),
        _ => None,
    })
}

/// Returns the streams whose events this process does not execute now, each with the reason. The reasons contain no
/// texts of the broker, because callers without a token can read the reasons.
fn stream_problems(app: &AdminState) -> BTreeMap<Arc<str>, &'static str> {
    let mut problems = BTreeMap::new();
    for partition in app.figures.partitions() {
        let reason = match partition.health().interruption(INTERRUPTION_LIMIT) {
            Some(SourceState::Stopped { .. }) => STOPPED_REASON,
            Some(_) => "no events arrive from its source",
            None => continue,
        };
        let stream = Arc::clone(&partition.partition().stream);
        let known = problems.entry(stream).or_insert(reason);
        if reason == STOPPED_REASON {
            // A stopped stream needs an operator, so `STOPPED_REASON` replaces a reason that another partition of the
            // stream gave.
            *known = reason;
        }
    }
    if let Some(handlers) = app.figures.handlers() {
        for stream in handlers.unavailable_streams() {
            problems.insert(stream, "waits for a version of its handler");
        }
    }
    problems
}

/// Handles `GET /readyz`. The caller needs no token. The response therefore only names the part that is not ready. The
/// response contains no error text of the store, the broker or the operating system, because such a text may include
/// addresses and file names.
pub(super) async fn ready(
    State(app): State<Arc<AdminState>>,
) -> Result<&'static str, ProblemDetails> {
    let not_ready = |reason: String| ProblemDetails::unavailable(format!("not ready: {reason}"));
    if let Some(reason) = process_problem(&app) {
        return Err(not_ready(reason));
    }
    let problems = stream_problems(&app);
    let streams = problems.iter().map(
        |(stream, reason)| json!({ "stream": &**stream, "consuming": false, "reason": reason }),
    );
    let streams: Vec<_> = streams.collect();
    if let Some((stream, reason)) = problems.first_key_value() {
        let more = more_streams(problems.len() - 1);
        let reason = format!("stream {stream}: {reason}{more}; see the log and /v1/streams");
        return Err(not_ready(reason).with_streams(streams));
    }
    match app.figures.share() {
        (has, share) if has < share => Err(not_ready(format!(
            "the process owns {has} of the {share} partitions that it should own"
        ))),
        _ => Ok("ready\n"),
    }
}

/// Returns the text about the further streams that are not ready. The text follows the name of the first such stream.
/// `count` is the number of further streams.
fn more_streams(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => ", and 1 more stream is not ready".to_owned(),
        count => format!(", and {count} more streams are not ready"),
    }
}

/// Handles `GET /readyz/ingress`: returns whether the process accepts events over HTTP and can store them durably. To
/// accept events, the process needs only its store. The response can therefore be 200 while the broker is unavailable.
/// The response is 404 if the process never accepts events over HTTP.
pub(super) async fn ingress_ready(
    State(app): State<Arc<AdminState>>,
) -> Result<&'static str, ProblemDetails> {
    if !app.accepts_events {
        return Err(ProblemDetails::not_found(
            "this process does not accept events over HTTP: it runs with --once, or its configuration has neither \
             [ingress] nor a stream of kind \"http\"",
        ));
    }
    let is_listening = app.figures.is_ingress_listening();
    let ingress_problem = || (!is_listening).then(|| "the ingress is not listening".to_owned());
    match store_problem(&app).or_else(ingress_problem) {
        Some(reason) => Err(ProblemDetails::unavailable(format!("not accepting events: {reason}"))),
        None => Ok("accepting\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use axum::http::StatusCode;
    use axum::response::IntoResponse;
    use tokio::sync::watch;

    use super::*;
    use ordain_config::LoadedConfig;
    use ordain_engine::run::RunStatus;

    #[test]
    fn more_streams_are_counted() {
        for (count, text) in [
            (0, ""),
            (1, ", and 1 more stream is not ready"),
            (2, ", and 2 more streams are not ready"),
        ] {
            assert_eq!(more_streams(count), text);
        }
    }

    /// A process that accepts events over HTTP and is still starting answers 503. A process that never accepts events
    /// over HTTP answers 404.
    #[tokio::test]
    async fn ingress_page_exists_if_the_process_accepts_events() {
        const HTTP: &str = "source = { kind = \"http\" }";
        const FILE: &str = "source = { kind = \"file\", path = \"events.ndjson\" }";
        for (source, section, once, right) in [
            (HTTP, "", false, StatusCode::SERVICE_UNAVAILABLE),
            (HTTP, "[ingress]", false, StatusCode::SERVICE_UNAVAILABLE),
            (FILE, "[ingress]", false, StatusCode::SERVICE_UNAVAILABLE),
            (FILE, "[ingress]", true, StatusCode::NOT_FOUND),
            (FILE, "", false, StatusCode::NOT_FOUND),
        ] {
            let text = format!("{section}\n[streams.cases]\nhandler = \"tally\"\n{source}\n");
            let loaded = LoadedConfig::parse(Path::new("ordain.toml"), &text, &|_| None);
            let loaded = loaded.expect("a configuration");
            let (_stop, shutdown) = watch::channel(false);
            let app = AdminState::new(&loaded, once, &Arc::<RunStatus>::default(), &shutdown);
            let page = ingress_ready(State(Arc::new(app))).await;
            assert_eq!(page.into_response().status(), right, "{text} {once}");
        }
    }
}
