//! Streams, keys, dead letters, handlers and instances, in the form that the command line prints with `--json`. This
//! module also returns the report for tools that start and stop instances.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::AdminState;
use crate::chunked_body::ChunkedBody;
use crate::problem::ProblemDetails;
use crate::view::{
    self, DeadPage, InstancesPage, KeyRow, KeysPage, LazyRows, LetterRow, StreamIntake, StreamRow,
    StreamsPage,
};
use ordain_config::known_streams;
use ordain_core::LetterId;
use ordain_store::{KeyFilter, ListPage, Store};
use ordain_util::command::config_option;

/// Maximum number of rows of a page if the query has no `limit`.
const DEFAULT_ROWS_LIMIT: usize = 100;
const PAGE_ROWS_LIMIT: usize = 1_000;

type PageResult = Result<Response, ProblemDetails>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysQuery {
    status: Option<String>,
    #[serde(default)]
    prefix: String,
    cursor: Option<String>,
    limit: Option<usize>,
}

/// The parameters that select a page of dead letters or, with an `id`, one letter. An `id` without a `key` selects a
/// letter whose event has no key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadQuery {
    /// Required. The type is an `Option` so that the error for a missing stream can contain an example.
    stream: Option<String>,
    key: Option<String>,
    id: Option<String>,
    cursor: Option<String>,
    limit: Option<usize>,
}

impl AdminState {
    fn store(&self) -> Result<Arc<dyn Store>, ProblemDetails> {
        let not_yet = || ProblemDetails::unavailable("the store is not open: see /readyz");
        self.figures.store().ok_or_else(not_yet)
    }

    /// Runs a query of the store, and returns its result as JSON, which a blocking thread encodes. Each query holds one
    /// of [`QUERY_LIMIT`](super::QUERY_LIMIT) permits until its response is sent. If the caller disconnects while the
    /// query runs, the query holds the permit until the query ends. The permits therefore limit both the running
    /// queries and the pages in memory.
    pub(super) async fn respond<T, F>(
        &self,
        fetch: impl FnOnce(Arc<dyn Store>) -> F,
        show: impl FnOnce(&T) -> String + Send + 'static,
    ) -> PageResult
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ProblemDetails>> + Send + 'static,
    {
        let found = fetch(self.store()?);
        let permit = Arc::clone(&self.query_permits).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let asking = tokio::spawn(async move {
            let found = found.await?;
            let shown = tokio::task::spawn_blocking(move || show(&found) + "\n").await;
            Ok::<_, ProblemDetails>(ChunkedBody::new(
                shown.map_err(|error| internal_error(&error))?.into(),
                Some(permit),
            ))
        });
        Ok(json_response(Body::new(asking.await.map_err(|error| internal_error(&error))??)))
    }
}

fn internal_error(error: &tokio::task::JoinError) -> ProblemDetails {
    ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, format!("bug in Ordain: {error}"))
}

fn json_response(json: Body) -> Response {
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}

fn row_limit(limit: Option<usize>) -> Result<usize, ProblemDetails> {
    match limit.unwrap_or(DEFAULT_ROWS_LIMIT) {
        rows @ 1..=PAGE_ROWS_LIMIT => Ok(rows),
        other => Err(ProblemDetails::bad_request(format!(
            "`limit` is {other}, but must be from 1 to {PAGE_ROWS_LIMIT}"
        ))),
    }
}

/// Returns an error if the stream is not configured and has no data in the store.
async fn require_stream(
    app: &AdminState,
    store: &dyn Store,
    stream: &str,
) -> Result<(), ProblemDetails> {
    let known = known_streams(&app.loaded, store).await?;
    if known.iter().any(|known| known == stream) {
        return Ok(());
    }
    let known = known.join(", ");
    Err(ProblemDetails::not_found(format!(
        "there is no stream {stream:?}; existing streams: {known}"
    )))
}

pub(super) async fn streams(State(app): State<Arc<AdminState>>) -> PageResult {
    let asking = Arc::clone(&app);
    let fetch = async move |store: Arc<dyn Store>| {
        let mut streams = Vec::new();
        for name in known_streams(&asking.loaded, &*store).await? {
            let losses = view::queue_losses(&asking.loaded, &store, &name).await?;
            streams.push((name, losses));
        }
        Ok(streams)
    };
    let showing = Arc::clone(&app);
    app.respond(fetch, move |streams| {
        let handlers = showing.figures.handlers();
        let partitions = showing.figures.partitions();
        let rows = streams.iter().map(|(name, losses)| {
            let stream = showing.loaded.config.streams.get(name.as_str());
            let version =
                handlers.as_ref().and_then(|handlers| handlers.activation(name)).map(Into::into);
            let own = partitions.iter().filter(|metrics| *metrics.partition().stream == **name);
            let intake = StreamIntake::of(own.map(|metrics| metrics.intake()), losses);
            StreamRow::of(name, stream.zip(version), intake)
        });
        view::to_json(&StreamsPage { streams: rows.collect::<Vec<_>>() })
    })
    .await
}

pub(super) async fn keys(
    State(app): State<Arc<AdminState>>,
    path: Result<Path<String>, PathRejection>,
    query: Result<Query<KeysQuery>, QueryRejection>,
) -> PageResult {
    let Path(stream) = path?;
    let Query(query) = query?;
    let status = query.status.as_deref().map(view::parse_status).transpose();
    let status =
        status.map_err(|form| ProblemDetails::bad_request(format!("status must be {form}")))?;
    let limit = row_limit(query.limit)?;
    let filter =
        KeyFilter { status, prefix: query.prefix, cursor: query.cursor, limit, scan_limit: None };
    let asking = Arc::clone(&app);
    let fetch = async move |store: Arc<dyn Store>| {
        require_stream(&asking, &*store, &stream).await?;
        Ok(store.keys(&stream, &filter).await?)
    };
    app.respond(fetch, |page| {
        let keys = LazyRows(&page.rows, KeyRow::of);
        view::to_json(&KeysPage { keys, cursor: page.cursor.clone() })
    })
    .await
}

/// Handles `GET /v1/streams/{stream}/keys/{key}`: returns a key with its gaps and its state.
pub(super) async fn key(
    State(app): State<Arc<AdminState>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> PageResult {
    let Path((stream, key)) = path?;
    let asking = Arc::clone(&app);
    let fetch = async move |store: Arc<dyn Store>| {
        require_stream(&asking, &*store, &stream).await?;
        let found = store.key(&stream, &key).await?;
        found.ok_or_else(|| ProblemDetails::not_found(view::no_key(&stream, &key)))
    };
    app.respond(fetch, |(row, state)| view::to_json(&KeyRow::with_state(row, state.as_ref()))).await
}

pub(super) async fn dead(
    State(app): State<Arc<AdminState>>,
    query: Result<Query<DeadQuery>, QueryRejection>,
) -> PageResult {
    let Query(DeadQuery { stream, key, id, cursor, limit }) = query?;
    let stream = stream.ok_or_else(|| {
        ProblemDetails::bad_request(
            "the query names no stream: add `stream`, as in /v1/dead?stream=orders; /v1/streams lists the streams",
        )
    })?;
    let limit = row_limit(limit)?;
    let id = id.map(|id| {
        let parsed = LetterId::parse(key.as_deref().unwrap_or_default(), &id);
        parsed.ok_or_else(|| {
            ProblemDetails::bad_request(view::no_letter_id(&id, &stream, config_option()))
        })
    });
    let id = id.transpose()?;
    let asking = Arc::clone(&app);
    let fetch = async move |store: Arc<dyn Store>| {
        require_stream(&asking, &*store, &stream).await?;
        let Some(id) = id else {
            return Ok(store.letters(&stream, key.as_deref(), cursor.as_deref(), limit).await?);
        };
        let rows = Vec::from_iter(store.letter(&stream, &id).await?);
        Ok(ListPage { rows, cursor: None })
    };
    app.respond(fetch, |page| {
        let dead = LazyRows(&page.rows, LetterRow::of);
        view::to_json(&DeadPage { dead, cursor: page.cursor.clone() })
    })
    .await
}

pub(super) async fn instances(State(app): State<Arc<AdminState>>) -> PageResult {
    let showing = Arc::clone(&app);
    let fetch = async move |store: Arc<dyn Store>| Ok(store.table().await?);
    app.respond(fetch, move |table| {
        let instances = view::InstanceOverview::of(&showing.loaded, table).rows();
        view::to_json(&InstancesPage { instances })
    })
    .await
}

/// Handles `GET /v1/scale/{stream}`: returns the pending work of a stream and the number of wanted instances.
pub(super) async fn scale(
    State(app): State<Arc<AdminState>>,
    path: Result<Path<String>, PathRejection>,
) -> PageResult {
    let Path(stream) = path?;
    let asking = Arc::clone(&app);
    let fetch = async move |store: Arc<dyn Store>| {
        let unknown = || ProblemDetails::not_found(format!("no stream {stream:?} is configured"));
        if !asking.loaded.config.streams.contains_key(&*stream) {
            return Err(unknown());
        }
        let table = store.table().await?;
        view::InstanceOverview::of(&asking.loaded, &table).scale(&stream).ok_or_else(unknown)
    };
    app.respond(fetch, view::to_json).await
}

/// Handles `GET /v1/plugins`: returns the handlers in the folder and the versions that run.
pub(super) async fn plugins(State(app): State<Arc<AdminState>>) -> PageResult {
    let not_yet = || ProblemDetails::unavailable("the handlers are not loaded: see /readyz");
    let handlers = app.figures.handlers().ok_or_else(not_yet)?;
    let plugins = view::running_plugins_page(&app.loaded, &handlers);
    Ok(json_response((view::to_json(&plugins) + "\n").into()))
}
