//! Who may ask, and how long an answer may take.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::problem::Problem;
use crate::config::Secret;

/// For one request: longer than any page takes, and shorter than the patience of who waits.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);

/// Lets a request in that presents the token. Where there is none, one that names another host than
/// this machine is refused: a page in a browser could have sent it, under a name that its owner has
/// made lead here.
pub(super) async fn guard(
    State(token): State<Arc<Option<Secret>>>,
    request: Request,
    next: Next,
) -> Response {
    let allowed = match &*token {
        Some(token) => presents(request.headers(), token),
        None => names_this_machine(request.headers()),
    };
    if allowed {
        return next.run(request).await;
    }
    if token.is_some() {
        return Problem::unauthorized().into_response();
    }
    let words = "without a token only this machine is served: ask for 127.0.0.1 or localhost, or \
                 configure `token` of [admin]";
    Problem::new(StatusCode::FORBIDDEN, words).into_response()
}

fn presents(headers: &HeaderMap, token: &Secret) -> bool {
    let presented = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, presented) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(presented)
    });
    presented.is_some_and(|presented| presented.ct_eq(token.expose().as_bytes()).into())
}

fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|it: IpAddr| it.is_loopback())
}

/// Bounds the time of a request.
pub(super) async fn in_time(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(REQUEST_TIME, next.run(request)).await;
    answer.unwrap_or_else(|_| {
        let words = format!("no answer within {REQUEST_TIME:?}; is the store away?");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, words).into_response()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_may_be_named() {
        for (host, right) in [
            ("127.0.0.1:7070", true),
            ("localhost", true),
            ("LocalHost:1", true),
            ("[::1]:7070", true),
            ("[::1]", true),
            ("example.org", false),
            ("example.org:7070", false),
            ("127.0.0.1.example.org", false),
            ("10.0.0.1:7070", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().expect("a value"));
            assert_eq!(names_this_machine(&headers), right, "{host}");
        }
    }
}
