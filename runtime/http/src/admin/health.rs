//! The readiness of the process. A ready process can use its store, has a valid lease, and owns all partitions that it
//! should own. A ready process also receives and executes the events of its streams.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use axum::extract::State;
use jiff::Timestamp;
use serde_json::json;
use tokio::time::timeout;

use super::AdminState;
use crate::problem::ProblemDetails;
use ordain_config::{LoadedConfig, ResourceName, SinkConfig, SourceConfig};
use ordain_engine::run::{BrokerWait, RunPhase};
use ordain_store::Store;
use ordain_util::source_health::{RoutingFault, SourceState};

/// Pause between two health checks of the store. The checks detect an unavailable store even while the process is idle.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for the response of the store to a health check. A store that exceeds the limit counts as not answering.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which a source may be interrupted before the process reports that it is not ready: longer than a
/// reconnection usually takes.
const INTERRUPTION_LIMIT: Duration = Duration::from_secs(2);

/// The reason why a stream is not ready if the source of at least one of its partitions has stopped.
const STOPPED_REASON: &str = "stopped until an operator resumes it";

/// The reason why a stream is not ready if it cannot read its messages.
const UNREADABLE_REASON: &str = "its messages cannot be read with the settings of its source, so they remain in the \
                                 queue";

/// The failed health checks of the store since the last successful check. `None` if the last check was successful, and
/// before the first check.
#[derive(Default)]
pub(super) struct StoreHealth(Mutex<Option<StoreFailure>>);

/// Consecutive failed health checks: the store did not accept a write.
#[derive(Clone, Copy)]
struct StoreFailure {
    /// The time of the first of these checks.
    since: Timestamp,
    /// The time since which the store has not answered: the time of the first unanswered check after the store's last
    /// answer. `None` if the store answered a read after the last failed write.
    unanswered_since: Option<Timestamp>,
    /// True after the log has reported that the store does not answer.
    is_silence_logged: bool,
    /// True after the log has reported that the store answers, but accepts no writes.
    is_refusal_logged: bool,
}

impl StoreHealth {
    async fn check(&self, store: &dyn Store) {
        let since = Timestamp::now();
        let mut writing = pin!(store.check_writable());
        let written = if let Ok(written) = timeout(RESPONSE_TIMEOUT, &mut writing).await {
            written
        } else {
            // If the previous check has failed, its result stays until this check ends. Otherwise the result would
            // change twice in each check of a store that refuses writes slowly.
            if self.is_writable() {
                self.set_failed(since, false, &format!("no answer within {RESPONSE_TIMEOUT:?}"));
            }
            writing.await
        };
        if let Err(error) = written {
            let answers = timeout(RESPONSE_TIMEOUT, store.answers()).await.unwrap_or(false);
            self.set_failed(since, answers, &error.to_string());
        } else if let Some(StoreFailure { since, .. }) = self.lock().take() {
            tracing::info!(away_since = %since, "ready again: the store accepts writes");
        }
    }

    /// Records a failed check, which began at the time `at`. `answers` states whether the store answered a read. A
    /// later check can have another result: for example, the nodes of a Cluster may end one after the other. Until the
    /// next successful check, logs each of the two results (the store does not answer, or accepts no writes) once.
    fn set_failed(&self, at: Timestamp, answers: bool, why: &str) {
        let mut current = self.lock();
        let before = *current;
        let unanswered_since = before.and_then(|failure| failure.unanswered_since);
        let was_silence_logged = before.is_some_and(|failure| failure.is_silence_logged);
        let was_refusal_logged = before.is_some_and(|failure| failure.is_refusal_logged);
        *current = Some(StoreFailure {
            since: before.map_or(at, |failure| failure.since),
            unanswered_since: (!answers).then_some(unanswered_since.unwrap_or(at)),
            is_silence_logged: was_silence_logged || !answers,
            is_refusal_logged: was_refusal_logged || answers,
        });
        drop(current);
        if answers && !was_refusal_logged {
            tracing::warn!(why, "not ready: the store answers, but accepts no writes");
        } else if !answers && !was_silence_logged {
            tracing::warn!(why, "not ready: the store does not answer");
        }
    }

    /// Returns whether the store accepted the write of the newest check. Returns `true` before the first check.
    pub(super) fn is_writable(&self) -> bool {
        self.lock().is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Option<StoreFailure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the store repeatedly, with a pause of [`CHECK_INTERVAL`]. This function never returns.
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
            let failure = *app.health.lock();
            let StoreFailure { since, unanswered_since, .. } = failure?;
            match unanswered_since {
                Some(since) => format!("the store has not answered since {since:.0}; see the log"),
                None => format!("the store has accepted no writes since {since:.0}; see the log"),
            }
        }
    };
    Some(reason)
}

/// Returns the reason of a process whose store accepts writes, but has not completed another request for a long time.
fn failing_request(app: &AdminState) -> Option<String> {
    let lasting = app.figures.store()?.lasting_failure()?;
    let since = SystemTime::now().checked_sub(lasting).map(timestamp)?;
    Some(format!("the store has not completed a request since {since:.0}; see the log"))
}

/// The streams that are not ready, each with the reason. Callers without a token can read the reasons. The only text of
/// the broker in a reason is therefore RabbitMQ's usual text about a refused login. Other texts may include addresses
/// and names.
type StreamProblems = BTreeMap<Arc<str>, String>;

/// Returns the response to `GET /readyz` while the start of the process waits for the broker; `None` if the start does
/// not wait for the broker.
fn broker_problem(app: &AdminState) -> Option<ProblemDetails> {
    let wait = app.figures.broker_wait()?;
    let mut problems = StreamProblems::new();
    for (name, stream) in &app.loaded.config.streams {
        if let SourceConfig::Amqp(_) = stream.source {
            let reason = no_events_reason(wait.since, wait.login_refusal.as_deref());
            problems.insert(name.shared(), reason);
        }
    }
    Some(not_ready(&wait_reason(&wait), &problems))
}

/// Returns the reason why the start of the process waits for the broker.
fn wait_reason(wait: &BrokerWait) -> String {
    if let Some(since) = wait.refused_since {
        return format!(
            "the broker has refused a request of the start since {since:.0}; see the log"
        );
    }
    let cause = login_cause(wait.login_refusal.as_deref());
    format!("the process has waited for the broker since {:.0}{cause}; see the log", wait.since)
}

/// Returns the streams whose events this process does not execute now, each with the reason.
fn stream_problems(app: &AdminState) -> StreamProblems {
    let mut problems = StreamProblems::new();
    for partition in app.figures.partitions() {
        let Some(interruption) = partition.health().interruption(INTERRUPTION_LIMIT) else {
            continue;
        };
        let stream = Arc::clone(&partition.partition().stream);
        let words = match &interruption.state {
            SourceState::Stopped { .. } => {
                // A stopped stream needs an operator, so `STOPPED_REASON` replaces a reason that another partition of
                // the stream gave.
                problems.insert(stream, STOPPED_REASON.to_owned());
                continue;
            }
            SourceState::Unreadable { .. } => {
                problems.entry(stream).or_insert_with(|| UNREADABLE_REASON.to_owned());
                continue;
            }
            SourceState::RoutingFault { fault, .. } => {
                problems.entry(stream).or_insert_with(|| routing_reason(*fault).to_owned());
                continue;
            }
            SourceState::LoginRefused { words, .. } => Some(words.as_str()),
            _ => None,
        };
        let reason = no_events_reason(timestamp(interruption.since), words);
        problems.entry(stream).or_insert(reason);
    }
    for (sink, health) in app.figures.sinks() {
        let Some(since) = health.refused_since(INTERRUPTION_LIMIT) else { continue };
        let reason = sink_reason(&app.loaded, &sink, timestamp(since));
        for stream in publishing_streams(&app.loaded, &sink, health.streams()) {
            problems.entry(stream).or_insert_with(|| reason.clone());
        }
    }
    // Before the process drives its partitions, the versions of the handlers are possibly not chosen yet.
    if app.figures.phase() == RunPhase::Running
        && let Some(handlers) = app.figures.handlers()
    {
        for stream in handlers.unavailable_streams() {
            problems.insert(stream, "waits for a version of its handler".to_owned());
        }
    }
    problems
}

/// Returns the reason of a stream whose source delivers no events. If the broker refuses the login, `login_refusal` is
/// the part of the broker's text that callers without a token may read.
fn no_events_reason(since: Timestamp, login_refusal: Option<&str>) -> String {
    format!("no events have arrived from its source since {since:.0}{}", login_cause(login_refusal))
}

/// Returns the reason why a stream is not ready if the broker does not route events to the stream because of this
/// fault.
fn routing_reason(fault: RoutingFault) -> &'static str {
    match fault {
        RoutingFault::OtherExchangeType => {
            "the exchange in the broker has another type than the stream needs, or a type that the broker does not \
             support, so events are lost or reach wrong queues; see the log"
        }
        RoutingFault::MissingBinding => {
            "no binding in the broker leads from the exchange to a queue of the stream, so events are lost; see the log"
        }
        RoutingFault::ForeignConsumer => {
            "another program consumes a queue of the stream, and receives its events; see the log"
        }
    }
}

/// Returns the reason why a stream is not ready if the broker refuses the exchange of one of its sinks, or if the output
/// of one of its sinks cannot be written.
fn sink_reason(loaded: &LoadedConfig, sink: &str, since: Timestamp) -> String {
    if let Some(SinkConfig::File(_)) = loaded.config.sinks.get(sink) {
        return format!(
            "the output of the sink {sink} has not been writable since {since:.0}, so its messages wait in the store; \
             see the log"
        );
    }
    format!(
        "the broker has refused the exchange of the sink {sink} since {since:.0}, so its messages wait in the store; \
         see the log"
    )
}

/// Returns the streams that publish to a sink: the streams whose settings name the sink, and `known`, the streams that
/// have published to the sink in this process. If there is no such stream, returns all streams, because the handler of
/// each stream may publish to each sink.
fn publishing_streams(
    loaded: &LoadedConfig,
    sink: &str,
    known: BTreeSet<Arc<str>>,
) -> BTreeSet<Arc<str>> {
    let streams = &loaded.config.streams;
    let mut publishing = known;
    for (name, stream) in streams {
        if [&stream.dead_letter, &stream.other_types].into_iter().flatten().any(|to| **to == *sink)
        {
            publishing.insert(name.shared());
        }
    }
    if publishing.is_empty() {
        publishing.extend(streams.keys().map(ResourceName::shared));
    }
    publishing
}

/// Returns the part of a reason that names a refused login; an empty text if the broker does not refuse the login.
fn login_cause(login_refusal: Option<&str>) -> String {
    match login_refusal {
        None => String::new(),
        Some("") => ": the broker refuses the login".to_owned(),
        Some(words) => {
            format!(": the broker refuses the login: {}", words.trim_end().trim_end_matches('.'))
        }
    }
}

/// Converts a time of the system's clock. A time that [`Timestamp`] does not support becomes the Unix epoch.
fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or_default()
}

fn not_ready(reason: &str, problems: &StreamProblems) -> ProblemDetails {
    let streams = problems.iter().map(
        |(stream, reason)| json!({ "stream": &**stream, "consuming": false, "reason": reason }),
    );
    ProblemDetails::unavailable(format!("not ready: {reason}")).with_streams(streams.collect())
}

/// Handles `GET /readyz`. The caller needs no token. The response therefore only names the part that is not ready. The
/// response contains no error text of the store, the broker or the operating system, because such a text may include
/// addresses and file names. RabbitMQ's usual text about a refused login is an exception, because RabbitMQ composes
/// this text for clients without a login.
pub(super) async fn ready(
    State(app): State<Arc<AdminState>>,
) -> Result<&'static str, ProblemDetails> {
    if let Some(reason) = store_problem(&app).or_else(|| failing_request(&app)) {
        return Err(not_ready(&reason, &StreamProblems::new()));
    }
    if app.figures.is_lease_expired() {
        let reason = "the lease of the process has expired, so the process consumes no events until the store answers \
                      a heartbeat; see the log";
        return Err(not_ready(reason, &StreamProblems::new()));
    }
    if let Some(problem) = broker_problem(&app) {
        return Err(problem);
    }
    let problems = stream_problems(&app);
    let reason = if let Some((stream, reason)) = problems.first_key_value() {
        let more = more_streams(problems.len() - 1);
        format!("stream {stream}: {reason}{more}; see the log and /v1/streams")
    } else if app.figures.phase() == RunPhase::ClaimingPartitions {
        "the process is claiming its partitions".to_owned()
    } else {
        match app.figures.share() {
            (has, share) if has < share => {
                format!("the process owns {has} of the {share} partitions that it should own")
            }
            _ => return Ok("ready\n"),
        }
    };
    Err(not_ready(&reason, &problems))
}

/// Returns the text about the other streams that are not ready. The text follows the reason of the first such stream.
/// `count` is the number of the other streams.
fn more_streams(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => ", and 1 more stream is not ready".to_owned(),
        count => format!(", and {count} more streams are not ready"),
    }
}

/// Handles `GET /readyz/ingress`: returns whether the process accepts events over HTTP and can store them durably. To
/// accept events, the process only needs to write to its store. The response can therefore be 200 while the broker is
/// unavailable, or while another request to the store fails. The response is 404 if the process never accepts events
/// over HTTP.
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
    use ordain_engine::run::RunStatus;

    /// The nodes of a Cluster end one after the other. At first, the store still answers reads.
    #[test]
    fn store_that_stops_answering_is_reported() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let health = StoreHealth::default();
        let state = || health.lock().map(|failure| (failure.since, failure.unanswered_since));
        for (second, answers, unanswered_since) in
            [(1, true, None), (2, false, Some(2)), (3, false, Some(2)), (4, true, None)]
        {
            health.set_failed(at(second), answers, "connection refused");
            assert_eq!(state(), Some((at(1), unanswered_since.map(at))), "{second}");
        }
    }

    /// The first check times out, so the log first states that the store does not answer. A later check finds that the
    /// store answers reads, and the log must then state that the store accepts no writes.
    #[test]
    fn store_that_refuses_writes_after_a_silence_is_logged() {
        let health = StoreHealth::default();
        let logged =
            || health.lock().map(|failure| (failure.is_silence_logged, failure.is_refusal_logged));
        for (answers, expected) in [(false, (true, false)), (true, (true, true))] {
            health.set_failed(Timestamp::UNIX_EPOCH, answers, "no answer");
            assert_eq!(logged(), Some(expected));
        }
    }

    #[test]
    fn refused_login_is_named_without_addresses() {
        let since = Timestamp::from_second(0).expect("a time");
        assert_eq!(
            no_events_reason(since, None),
            "no events have arrived from its source since 1970-01-01T00:00:00Z"
        );
        assert_eq!(
            no_events_reason(since, Some("ACCESS_REFUSED - Login was refused.")),
            "no events have arrived from its source since 1970-01-01T00:00:00Z: the broker refuses the login: \
             ACCESS_REFUSED - Login was refused"
        );
        assert_eq!(login_cause(Some("")), ": the broker refuses the login");
    }

    #[test]
    fn refused_request_is_distinguished_from_an_unavailable_broker() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let mut wait = BrokerWait { since: at(0), refused_since: None, login_refusal: None };
        assert_eq!(
            wait_reason(&wait),
            "the process has waited for the broker since 1970-01-01T00:00:00Z; see the log"
        );
        wait.refused_since = Some(at(60));
        assert_eq!(
            wait_reason(&wait),
            "the broker has refused a request of the start since 1970-01-01T00:01:00Z; see the log"
        );
    }

    /// A sink concerns the streams that publish to it. If no setting names a sink, the streams of this sink are unknown
    /// before its first message, so the sink concerns all streams.
    #[test]
    fn refused_sink_concerns_the_streams_that_publish_to_it() {
        let stream = |name: &str, settings: &str| {
            format!(
                "[streams.{name}]\nhandler = \"tally\"\n{settings}\n\
                 source = {{ kind = \"file\", path = \"{name}.ndjson\" }}\n"
            )
        };
        let sink = |name: &str| format!("[sinks.{name}]\nkind = \"amqp\"\nexchange = \"{name}\"\n");
        let text = [
            "[broker]\nurl = \"amqp://localhost\"\n".to_owned(),
            stream("a", "dead_letter = \"dead\""),
            stream("b", ""),
            sink("dead"),
            sink("tally"),
        ]
        .concat();
        let loaded = LoadedConfig::parse(Path::new("ordain.toml"), &text, &|_| None);
        let loaded = loaded.expect("a configuration");
        let streams = |sink: &str, known: &[&str]| -> Vec<String> {
            let known = known.iter().map(|name| Arc::from(*name)).collect();
            publishing_streams(&loaded, sink, known).iter().map(ToString::to_string).collect()
        };
        assert_eq!(streams("dead", &[]), ["a"]);
        assert_eq!(streams("dead", &["b"]), ["a", "b"]);
        assert_eq!(streams("tally", &[]), ["a", "b"]);
        assert_eq!(streams("tally", &["b"]), ["b"]);
    }

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
