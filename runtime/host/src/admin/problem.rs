//! Errors as problem details (RFC 9457), in plain words.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::run::RunError;
use crate::store::StoreError;

/// An error to answer.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    pub(super) fn unauthorized() -> Self {
        let detail = "the token of [admin] is needed: `Authorization: Bearer TOKEN`";
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(super) fn no_route() -> Self {
        Self::not_found(
            "there is no such page. There are: /metrics, /healthz, /readyz, /v1/streams, \
             /v1/streams/{stream}/keys, /v1/streams/{stream}/keys/{key}, /v1/dead, /v1/plugins, /v1/instances, \
             /v1/scale/{stream}",
        )
    }

    pub(super) fn no_metrics() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "a bug of the host: metrics were not written")
    }

    pub(super) fn no_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "this page can only be read: use GET")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::bad(format!("the path cannot be read: {}", rejection.body_text()))
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad(format!("the query cannot be read: {}", rejection.body_text()))
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::Cursor(_) => StatusCode::BAD_REQUEST,
            StoreError::Unavailable(_) | StoreError::InUse(_) => StatusCode::SERVICE_UNAVAILABLE,
            StoreError::Unusable(_) | StoreError::Failed(_) | StoreError::Corrupt(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self::new(status, error.to_string())
    }
}

impl From<RunError> for Problem {
    fn from(error: RunError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{:#}", anyhow::Error::from(error)))
    }
}
