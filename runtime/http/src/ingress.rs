//! The listener for producers: accepts events over HTTP. The listener must never confirm an event before the event is
//! durable.
//!
//! The listener validates a whole request before it writes any event. The listener limits the number of connections,
//! the bytes of each request, the bytes of all requests in progress together, and the time of each request.

mod intake;
mod recent_keys;
mod routing;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{
    ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::access::{self, AccessRule};
use crate::chunked_body::ChunkedBody;
use crate::connection::{self, ListenerLimits};
use crate::listen::listen_error;
use crate::problem::ProblemDetails;
use crate::view::StreamIntake;
use intake::Intake;
use ordain_cloudevents::{
    BodyError, BodyEvents, InvalidEvent, NAMED_EVENTS_LIMIT, content_mode, decode_body,
};
use ordain_config::{
    Config, ConfigError, IngressConfig as Settings, LoadedConfig, REQUEST_EVENTS_LIMIT,
    SourceConfig, StreamConfig,
};
use ordain_core::Event;
use ordain_engine::run::RunStatus;
use ordain_engine::source::QueueNotifiers;
use ordain_publish::AssignError;
use ordain_store::{AssignItemReply, Store, StoreError};
use ordain_util::shutdown::shutdown_requested;

/// Limits for producers, which usually keep their connections open. Load balancers usually close an idle connection
/// after 60 seconds. The listener waits longer, so that it does not close a connection on which a load balancer is
/// about to send a request. The limit on the number of headers is high, because each attribute of an event is a header
/// in the binary mode of CloudEvents.
pub(crate) const INGRESS_LIMITS: ListenerLimits = ListenerLimits {
    listener: "the ingress",
    connections: 1_024,
    header_bytes: 128 << 10,
    headers: 160,
    keep_alive: true,
    half_close: true,
    header_timeout: Duration::from_secs(75),
    life: Duration::from_hours(1),
    request: Duration::from_mins(2),
};

/// The header with which a sender of webhooks requests the permission to send events. The listener grants the
/// permission with the two headers `WEBHOOK_ALLOWED_…` (HTTP 1.1 Web Hooks for Event Delivery, a part of CloudEvents
/// 1.0).
const WEBHOOK_REQUEST_ORIGIN: &str = "webhook-request-origin";
const WEBHOOK_ALLOWED_ORIGIN: &str = "webhook-allowed-origin";
const WEBHOOK_ALLOWED_RATE: &str = "webhook-allowed-rate";

/// The `Retry-After` of a rejected request, in seconds. Within this time, the process usually finishes other requests,
/// and the stream takes events from its queue. Both make room for a new request.
const RETRY_AFTER_SECONDS: u64 = 1;

/// After this time, the listener closes the connections with requests in progress.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the body of a request, counted from the end of the request's headers.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the store to make the events of a request durable.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The ingress listener. Dropping this value closes the listener and its connections immediately.
pub struct IngressListener {
    app: Arc<IngressState>,
    figures: Arc<RunStatus>,
    end: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

struct IngressState {
    streams: BTreeMap<Arc<str>, Intake>,
    /// The state of the run. If the queue of a stream is full, the answer to a request contains the state of this
    /// stream.
    figures: Arc<RunStatus>,
    request_size: usize,
    /// Permits for the bodies of all requests in progress: one permit for each byte.
    body_permits: Arc<Semaphore>,
    /// Contains a reason after the processing of the streams has failed, for example because the store lost its data.
    /// The process then ends.
    failure: OnceLock<String>,
}

/// Returns the settings of the listener: the section `[ingress]`, or the defaults if the file has no such section and a
/// stream has the source `http`. Returns `None` if the process does not accept events over HTTP.
pub(crate) fn settings(config: &Config) -> Option<Settings> {
    let is_http = |stream: &StreamConfig| matches!(stream.source, SourceConfig::Http(_));
    let default = || config.streams.values().any(is_http).then(Settings::default);
    config.ingress.clone().or_else(default)
}

impl IngressListener {
    /// Listens at the address of `[ingress]`. Without `[ingress]`, listens at the default address if a stream has the
    /// source `http`, and returns `None` if no stream has this source.
    pub fn listen<'a>(
        loaded: &'a LoadedConfig,
        store: &'a Arc<dyn Store>,
        notifiers: &'a Arc<QueueNotifiers>,
        figures: &'a Arc<RunStatus>,
        shutdown: &'a watch::Receiver<bool>,
    ) -> BoxFuture<'a, Result<Option<Self>, ConfigError>> {
        Box::pin(Self::begin(loaded, store, notifiers, figures, shutdown))
    }

    async fn begin(
        loaded: &LoadedConfig,
        store: &Arc<dyn Store>,
        notifiers: &Arc<QueueNotifiers>,
        figures: &Arc<RunStatus>,
        shutdown: &watch::Receiver<bool>,
    ) -> Result<Option<Self>, ConfigError> {
        let config = &loaded.config;
        let Some(Settings { listen, token, request_size, in_flight }) = settings(config) else {
            return Ok(None);
        };
        let mut streams = BTreeMap::new();
        for (name, stream) in &config.streams {
            // Without `[ingress]`, streams that read from the broker accept no events over HTTP: only the permissions
            // of the broker then decide which programs publish to the exchanges.
            if config.ingress.is_none() && matches!(stream.source, SourceConfig::Amqp(_)) {
                continue;
            }
            let intake = Intake::of(loaded, name, stream, store, notifiers)?;
            streams.extend(intake.map(|intake| (name.shared(), intake)));
        }
        let bound = async {
            let listener = TcpListener::bind(listen).await?;
            Ok((listener.local_addr()?, listener))
        };
        let (bound_to, listener) =
            bound.await.map_err(|error| listen_error(loaded, "ingress", listen, &error))?;
        tracing::info!("ingress listening on http://{bound_to}");
        let app = Arc::new(IngressState {
            streams,
            figures: Arc::clone(figures),
            request_size: request_size.bytes(),
            body_permits: Arc::new(Semaphore::new(in_flight.bytes())),
            failure: OnceLock::new(),
        });
        let router = router(&app, AccessRule { section: "ingress", token }, figures);
        let (end, ended) = watch::channel(false);
        let end_serving = end.clone();
        let mut shutdown = shutdown.clone();
        let serving = tokio::spawn(async move {
            let connections = connection::serve(listener, router, INGRESS_LIMITS, ended);
            tokio::pin!(connections);
            tokio::select! {
                () = &mut connections => return,
                () = shutdown_requested(&mut shutdown) => drop(end_serving.send_replace(true)),
            }
            connections.await;
        });
        figures.set_ingress_listening(true);
        Ok(Some(Self { app, figures: Arc::clone(figures), end, serving }))
    }

    /// Stops accepting requests, and waits up to 5 seconds for the requests in progress. If the process is ending
    /// because of an error, `failure` is the text of this error, and the listener rejects the requests in progress with
    /// this text.
    pub fn end(mut self, failure: Option<String>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.figures.set_ingress_listening(false);
            if let Some(words) = failure {
                // This method consumes the listener, so the failure is set only once.
                let _ = self.app.failure.set(words);
            }
            self.end.send_replace(true);
            // The drop of `self` aborts the requests that are still in progress.
            let _ = timeout(SHUTDOWN_TIMEOUT, &mut self.serving).await;
        })
    }
}

impl Drop for IngressListener {
    fn drop(&mut self) {
        self.figures.set_ingress_listening(false);
        self.serving.abort();
    }
}

fn router(app: &Arc<IngressState>, guard: AccessRule, figures: &Arc<RunStatus>) -> Router {
    let no_route = async || {
        ProblemDetails::not_found("no such page: send events with POST /v1/streams/{stream}/events")
    };
    let no_method = async || {
        ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use POST")
    };
    Router::new()
        .route("/v1/streams/{stream}/events", post(receive_events).options(allow_webhook))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::from_fn_with_state(Arc::new(guard), access::check_access))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(figures), count_requests))
        .with_state(Arc::clone(app))
}

async fn count_requests(
    State(figures): State<Arc<RunStatus>>,
    request: Request,
    next: Next,
) -> Response {
    let answer = next.run(request).await;
    figures.count_request(answer.status().as_u16());
    answer
}

/// Grants a sender of webhooks the permission to send events. No further check is necessary, because the access control
/// has already accepted the request.
async fn allow_webhook(
    State(app): State<Arc<IngressState>>,
    stream: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ProblemDetails> {
    let Path(stream) = stream?;
    app.intake(&stream)?;
    let mut response = (StatusCode::OK, [(ALLOW, "POST, OPTIONS")]).into_response();
    if let Some(origin) = headers.get(WEBHOOK_REQUEST_ORIGIN) {
        let allowed = response.headers_mut();
        allowed.insert(WEBHOOK_ALLOWED_ORIGIN, origin.clone());
        allowed.insert(WEBHOOK_ALLOWED_RATE, HeaderValue::from_static("*"));
    }
    Ok(response)
}

/// Returns the error for a request whose headers show no CloudEvents: neither the media type nor a header `ce-…`
/// belongs to CloudEvents.
fn no_events(headers: &HeaderMap) -> ProblemDetails {
    let mut words = "the request has no CloudEvents: send application/cloudevents+json, \
                     application/cloudevents-batch+json, application/x-ndjson, or the data with \
                     headers ce-…"
        .to_owned();
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if kind.starts_with(b"application/x-www-form-urlencoded") {
        words += ". The content type is application/x-www-form-urlencoded, which `curl -d` sends by default: add \
                  -H 'content-type: application/cloudevents+json'";
    }
    ProblemDetails::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, words)
}

/// Returns the error of a request whose events the store has not made durable in time. The error contains the reason
/// why requests to the store fail, if the reason is known.
fn no_answer(intake: &Intake) -> ProblemDetails {
    let reason = intake.store_failure().map_or_else(String::new, |words| format!(" ({words})"));
    let words = format!("the store has not answered within {STORE_TIMEOUT:?}{reason}: try again");
    ProblemDetails::unavailable(words).retry_after(RETRY_AFTER_SECONDS)
}

/// Rejects the whole request if the key of one of its events has no earlier events, and could never reach the sequence
/// of the event.
async fn check_reachable(intake: &Intake, found: &BodyEvents) -> Result<(), ProblemDetails> {
    let search = intake.unreachable_events(&found.events);
    let Ok(unreachable) = timeout(STORE_TIMEOUT, search).await else {
        return Err(no_answer(intake));
    };
    let unreachable = unreachable
        .map_err(|error| ProblemDetails::from(error).retry_after(RETRY_AFTER_SECONDS))?;
    if unreachable.is_empty() {
        return Ok(());
    }
    let invalid = |at: &usize| {
        let event = &found.events[*at];
        InvalidEvent {
            place: found.places[*at],
            key: Some(event.key().to_owned()),
            sequence: event.sequence(),
            message: intake.unreachable_error(event),
        }
    };
    Err(ProblemDetails::from(BodyError::InvalidEvents {
        place_name: found.place_name,
        wrong: unreachable.len(),
        total: found.events.len(),
        named: unreachable.iter().take(NAMED_EVENTS_LIMIT).map(invalid).collect(),
    }))
}

/// Checks all events of the request, writes them to the store, and confirms them when they are durable.
async fn receive_events(
    State(app): State<Arc<IngressState>>,
    stream: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ProblemDetails> {
    let Path(stream) = stream?;
    let intake = app.intake(&stream)?;
    let Some(form) = content_mode(&headers) else {
        if headers.keys().any(|name| name.as_str().starts_with("ce-")) {
            return Err(ProblemDetails::bad_request(
                "the header `ce-specversion` is missing: set it to \"1.0\"",
            ));
        }
        return Err(no_events(&headers));
    };
    let is_identity = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if !headers.get_all(CONTENT_ENCODING).iter().all(is_identity)
        || !headers.get_all(TRANSFER_ENCODING).iter().all(is_chunked)
    {
        return Err(ProblemDetails::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body is compressed: send it uncompressed",
        ));
    }
    let length =
        headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > app.request_size) {
        return Err(app.too_large());
    }
    let (body, room) = timeout(BODY_TIMEOUT, app.body(body)).await.unwrap_or_else(|_| {
        let words = format!(
            "the body did not arrive within {BODY_TIMEOUT:?}: send fewer events in a request"
        );
        Err(ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, words))
    })?;
    let check = |event: &Event| intake.fault(event);
    let found = decode_body(&intake.decoder, form, &headers, &body, REQUEST_EVENTS_LIMIT, check)?;
    app.check_run()?;
    check_reachable(intake, &found).await?;
    let Ok(assigned) = timeout(STORE_TIMEOUT, intake.accept(&found.events)).await else {
        return Err(no_answer(intake));
    };
    let assigned = assigned.map_err(|error| match error {
        AssignError::Full => app.full_queue(&stream, intake.limit_setting),
        AssignError::Store(error) => ProblemDetails::from(error).retry_after(RETRY_AFTER_SECONDS),
        AssignError::Refused(words) => ProblemDetails::from(StoreError::Failed(words)),
        AssignError::RolledBack => {
            ProblemDetails::from(StoreError::RolledBack).retry_after(RETRY_AFTER_SECONDS)
        }
    })?;
    let mut conflicts = Vec::new();
    let mut taken = Vec::with_capacity(assigned.len());
    for (at, (event, assigned)) in found.events.iter().zip(assigned).enumerate() {
        let detail = match assigned {
            AssignItemReply::Conflict(_) => {
                "the key has an event with this sequence and other content"
            }
            AssignItemReply::NumberedElsewhere(_)
            | AssignItemReply::UnprovenRepeat(_)
            | AssignItemReply::OtherNumber(_)
            | AssignItemReply::KeyEnded => "the event has no sequence",
            AssignItemReply::AfterConflict => {
                "this event was not accepted, because an earlier event of the same key in this request is in conflict"
            }
            AssignItemReply::New(_) | AssignItemReply::Known(_) | AssignItemReply::Settled(_) => {
                taken.push(json!({ "id": event.id(), "sequence": event.sequence() }));
                continue;
            }
        };
        let place = found.place_name.map(|name| (name, found.places[at]));
        conflicts.push(event_error(place, Some(event.key()), event.sequence(), detail));
    }
    // If the processing of the streams has failed, the store may have lost its data. The next start might not find
    // these events, so the ingress must not confirm them.
    app.check_run()?;
    if conflicts.is_empty() {
        return Ok(accepted(&taken, room));
    }
    let words = format!(
        "{} of {} events are not accepted because of conflicts (see `errors`); all other events are durable",
        conflicts.len(),
        found.events.len()
    );
    conflicts.truncate(NAMED_EVENTS_LIMIT);
    Err(ProblemDetails::new(StatusCode::CONFLICT, words).with_errors(conflicts))
}

impl IngressState {
    /// Returns the intake of a stream, or the error for a stream that does not accept events over HTTP.
    fn intake(&self, stream: &str) -> Result<&Intake, ProblemDetails> {
        self.streams.get(stream).ok_or_else(|| {
            let known: Vec<&str> = self.streams.keys().map(|name| &**name).collect();
            ProblemDetails::not_found(format!(
                "stream {stream:?} does not accept events over HTTP; streams that accept them: {}",
                known.join(", ")
            ))
        })
    }

    /// Returns the error of a request for a stream with a full queue. If a partition of the stream in this process
    /// receives no events, the queue may stay full. The error then contains the reason.
    fn full_queue(&self, stream: &str, limit_setting: &str) -> ProblemDetails {
        let mut words = format!(
            "the queue of the stream has reached the limit `source.{limit_setting}`: try again"
        );
        let partitions = self.figures.partitions();
        let own = partitions.iter().filter(|metrics| *metrics.partition().stream == *stream);
        let intake = StreamIntake::of(own.map(|metrics| metrics.intake()), &[]);
        if let Some(reason) = intake.reason {
            words += &format!(". A partition of the stream receives no events: {reason}");
        }
        ProblemDetails::new(StatusCode::TOO_MANY_REQUESTS, words).retry_after(RETRY_AFTER_SECONDS)
    }

    /// Returns an error if the processing of the streams has failed.
    fn check_run(&self) -> Result<(), ProblemDetails> {
        let Some(failure) = self.failure.get() else { return Ok(()) };
        let words = format!(
            "the process is ending because of an error, so send the request again later: {failure}"
        );
        Err(ProblemDetails::unavailable(words).retry_after(RETRY_AFTER_SECONDS))
    }

    /// Reads the body of a request, and takes memory permits for its bytes as they arrive. A client that announces a
    /// large body but does not send it therefore takes no permits. Returns the body and its permits (`None` for an
    /// empty body).
    async fn body(
        &self,
        body: Body,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ProblemDetails> {
        let mut parts = body.into_data_stream();
        let mut whole = BytesMut::new();
        let mut room: Option<OwnedSemaphorePermit> = None;
        while let Some(part) = parts.next().await {
            let ends_early =
                |error| ProblemDetails::bad_request(format!("the body ends early: {error}"));
            let part = part.map_err(ends_early)?;
            if part.len() > self.request_size - whole.len() {
                return Err(self.too_large());
            }
            let room_of_all = Arc::clone(&self.body_permits);
            let Ok(more) = room_of_all.try_acquire_many_owned(part.len() as u32) else {
                let words =
                    "the requests in progress have more bytes than `ingress.in_flight` allows";
                return Err(too_many_requests(words));
            };
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
            whole.extend_from_slice(&part);
        }
        Ok((whole.freeze(), room))
    }

    fn too_large(&self) -> ProblemDetails {
        let limit = self.request_size;
        let words =
            format!("the body has more than the {limit} bytes that `ingress.request_size` allows");
        ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, words)
    }
}

/// Returns the error of one event of a request. `place` locates the event in the request: `line` with a line number, or
/// `index` with the index of the event. `place` is `None` if the request is a single event.
fn event_error(
    place: Option<(&str, usize)>,
    key: Option<&str>,
    sequence: Option<u64>,
    detail: &str,
) -> Value {
    let mut error = json!({ "detail": detail, "key": key, "sequence": sequence });
    if let Some((name, place)) = place {
        error[name] = place.into();
    }
    error
}

impl From<BodyError> for ProblemDetails {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Unreadable(detail) => Self::bad_request(detail),
            BodyError::TooMany { limit } => {
                let detail = format!(
                    "the request has more than {limit} events: send at most {limit} events in a request"
                );
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
            }
            BodyError::InvalidEvents { place_name, wrong, total, named } => {
                let errors = named.iter().map(|event| {
                    let place = place_name.map(|name| (name, event.place));
                    event_error(place, event.key.as_deref(), event.sequence, &event.message)
                });
                let detail = format!(
                    "{wrong} of {total} events are invalid, and no event of the request is accepted"
                );
                Self::bad_request(detail).with_errors(errors.collect())
            }
        }
    }
}

/// Returns a response that lists the accepted events. The response occupies the request's memory permits (`room`) until
/// the producer has received nearly all of the response.
fn accepted(events: &[Value], room: Option<OwnedSemaphorePermit>) -> Response {
    let body = Body::new(ChunkedBody::new(json!({ "events": events }).to_string().into(), room));
    (StatusCode::ACCEPTED, [(CONTENT_TYPE, "application/json")], body).into_response()
}

fn too_many_requests(words: &str) -> ProblemDetails {
    ProblemDetails::new(StatusCode::TOO_MANY_REQUESTS, format!("{words}: try again"))
        .retry_after(RETRY_AFTER_SECONDS)
}
