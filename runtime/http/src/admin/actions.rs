//! Actions of operators. `resume` changes the records of lost queues in the store; the owners of the partitions read
//! these records and consume the new queues. `unbind` removes the bindings of earlier configurations from the broker
//! and from a record in the store.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;

use super::AdminState;
use crate::problem::ProblemDetails;
use crate::view::{self, BindingRow, ResumedPage, ResumedRow, UnboundPage};
use ordain_engine::run::unbind_former;
use ordain_store::{QueueRecords, Store};

#[derive(Debug, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum StreamAction {
    /// Acknowledges the loss of the stream's queues, so that the stream consumes the new queues with the same names.
    Resume {},
    /// Removes those bindings of the stream that only earlier configurations needed.
    Unbind {},
}

/// Performs an action on a stream. The media type of the request must be JSON, so that no web page of another origin
/// can start an action. A browser sends JSON for such a page only after a preflight request, and this listener does not
/// allow preflight requests.
pub(super) async fn act_on_stream(
    State(app): State<Arc<AdminState>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ProblemDetails> {
    let Path(stream) = path?;
    match parse_action(&headers, &body)? {
        StreamAction::Resume {} => resume(&app, stream).await,
        StreamAction::Unbind {} => unbind(&app, stream).await,
    }
}

fn parse_action(headers: &HeaderMap, body: &[u8]) -> Result<StreamAction, ProblemDetails> {
    let form = headers.get(CONTENT_TYPE).and_then(|form| form.to_str().ok()).unwrap_or_default();
    let is_json = form.split(';').next().is_some_and(|form| form.trim() == "application/json");
    if !is_json {
        let words = "an action needs the header `Content-Type: application/json`";
        return Err(ProblemDetails::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, words));
    }
    serde_json::from_slice(body).map_err(|error| {
        ProblemDetails::bad_request(format!(
            "the body is not an action: {error}. Expected {{\"action\":\"resume\"}} or {{\"action\":\"unbind\"}}"
        ))
    })
}

async fn resume(app: &AdminState, stream: String) -> Result<Response, ProblemDetails> {
    let Some((name, config)) = app.loaded.config.streams.get_key_value(&*stream) else {
        return Err(ProblemDetails::not_found(format!("no stream {stream:?} is configured")));
    };
    let name = name.shared();
    let partitions = config.source.partitions();
    let all = app.figures.partitions();
    let own: Vec<_> =
        all.into_iter().filter(|metrics| metrics.partition().stream == name).collect();
    let resume = async move |store: Arc<dyn Store>| {
        let mut stops = QueueRecords::new(&store, &name).resume(partitions).await?;
        // Only this process knows the partitions that have stopped because it cannot read their messages.
        let unreadable = own.iter().filter_map(|metrics| {
            let reason = metrics.health().resume()?;
            Some((metrics.partition().number, reason))
        });
        stops.extend(unreadable);
        Ok(stops)
    };
    app.respond(resume, move |stops| {
        tracing::info!(
            stream,
            partitions = stops.len(),
            "an operator has resumed the stopped partitions of the stream"
        );
        let resumed: Vec<_> = stops.iter().map(ResumedRow::of).collect();
        view::to_json(&ResumedPage { resumed })
    })
    .await
}

async fn unbind(app: &Arc<AdminState>, stream: String) -> Result<Response, ProblemDetails> {
    let acting = Arc::clone(app);
    let unbind = async move |store: Arc<dyn Store>| {
        let removed = unbind_former(&acting.loaded, &store, &stream).await;
        let removed = removed.map_err(|error| {
            if error.may_pass() {
                return ProblemDetails::unavailable(error.to_string());
            }
            ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        })?;
        tracing::info!(stream, bindings = removed.len(), "an operator has removed bindings");
        Ok(removed)
    };
    app.respond(unbind, |removed| {
        let unbound: Vec<_> = removed.iter().map(BindingRow::of).collect();
        view::to_json(&UnboundPage { unbound })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_action_in_json_is_accepted() {
        for (form, body, right) in [
            ("application/json", r#"{"action":"resume"}"#, true),
            ("application/json; charset=utf-8", r#"{"action":"unbind"}"#, true),
            ("text/plain", r#"{"action":"resume"}"#, false),
            ("application/json", r#"{"action":"resume","partition":3}"#, false),
            ("application/json", r#"{"action":"remove"}"#, false),
            ("application/json", "", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, form.parse().expect("a media type"));
            assert_eq!(parse_action(&headers, body.as_bytes()).is_ok(), right, "{form} {body}");
        }
    }
}
