//! Errors as problem details (RFC 9457).

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use ordain_store::StoreError;
use ordain_wasm::HandlerSetupError;

#[derive(Debug)]
pub(crate) struct ProblemDetails {
    status: StatusCode,
    detail: String,
    /// The errors of single events of the request. Empty if the error concerns the whole request.
    errors: Vec<Value>,
    /// The streams that are not ready, each with the reason. Empty except in a response to `GET /readyz`.
    streams: Vec<Value>,
    /// The value of the header `Retry-After`, in seconds; `None` if the response lacks this header.
    retry_after: Option<u64>,
}

impl ProblemDetails {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            errors: Vec::new(),
            streams: Vec::new(),
            retry_after: None,
        }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    pub(crate) fn unauthorized(section: &str) -> Self {
        let detail = format!("the token of [{section}] is required: `Authorization: Bearer TOKEN`");
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(crate) fn with_errors(mut self, errors: Vec<Value>) -> Self {
        self.errors = errors;
        self
    }

    pub(crate) fn with_streams(mut self, streams: Vec<Value>) -> Self {
        self.streams = streams;
        self
    }

    /// Sets the header `Retry-After`: the delay, in seconds, after which a retry may succeed.
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub(crate) fn no_metrics() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "bug in Ordain: metrics were not written")
    }
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if !self.errors.is_empty() {
            body["errors"] = self.errors.into();
        }
        if !self.streams.is_empty() {
            body["streams"] = self.streams.into();
        }
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<PathRejection> for ProblemDetails {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(format!("the path cannot be read: {}", rejection.body_text()))
    }
}

impl From<QueryRejection> for ProblemDetails {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(format!("the query cannot be read: {}", rejection.body_text()))
    }
}

impl From<StoreError> for ProblemDetails {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::Cursor(_) => StatusCode::BAD_REQUEST,
            StoreError::Unavailable(_) | StoreError::InUse(_) | StoreError::RolledBack => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            StoreError::Unusable(_) | StoreError::Failed(_) | StoreError::Corrupt(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self::new(status, error.to_string())
    }
}

impl From<HandlerSetupError> for ProblemDetails {
    fn from(error: HandlerSetupError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{:#}", anyhow::Error::from(error)))
    }
}
