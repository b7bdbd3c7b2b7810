//! The access control of both listeners (admin and ingress), and the time limit for requests to the admin API.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::problem::ProblemDetails;
use ordain_config::Secret;

/// The header in which a browser describes who caused a request: `same-origin` if a page of this server caused the
/// request, and `none` if the user opened the address. The HTTP library has no constant for this header.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Time limit for a request to the admin API: longer than a response usually takes, and not longer than the usual
/// timeout of a caller.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The rule by which a listener accepts or rejects requests.
#[derive(Debug)]
pub(crate) struct AccessRule {
    /// Name of the listener's section in the configuration: `admin` or `ingress`.
    pub(crate) section: &'static str,
    /// The token that a caller must present; `None` if the configuration has no token for the listener.
    pub(crate) token: Option<Secret>,
}

/// Accepts or rejects a request. If a token is configured, accepts only requests that present this token. Without a
/// token, rejects a request in two cases: its header `Host` is neither `localhost` nor a loopback address, or a browser
/// may have sent it for a web page of another origin.
pub(crate) async fn check_access(
    State(guard): State<Arc<AccessRule>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let section = guard.section;
    let refused = match &guard.token {
        Some(token) if presents_token(headers, token) => None,
        Some(_) => Some(ProblemDetails::unauthorized(section)),
        None if !names_this_machine(headers) => Some(ProblemDetails::new(
            StatusCode::FORBIDDEN,
            format!(
                "no token is configured, so the listener accepts a request only if its URL names this machine. Use \
                 127.0.0.1 or localhost as the host of the URL, or configure `token` of [{section}]"
            ),
        )),
        None if is_from_web_page(headers) => Some(ProblemDetails::new(
            StatusCode::FORBIDDEN,
            format!(
                "a web page in a browser seems to have sent this request (see the headers `Origin` and \
                 `Sec-Fetch-Site`); no token is configured, so the listener rejects requests of web pages. To read \
                 this URL in a browser, type it into the address bar. For other requests, configure `token` of \
                 [{section}]"
            ),
        )),
        None => None,
    };
    match refused {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    }
}

fn presents_token(headers: &HeaderMap, token: &Secret) -> bool {
    let presented = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, presented) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(presented)
    });
    presented.is_some_and(|presented| presented.ct_eq(token.expose().as_bytes()).into())
}

/// Returns whether the request names this machine (`localhost` or a loopback address) as its host, or names no host.
/// Without this check, the owner of a web page could make the page's host name resolve to this machine. The page could
/// then read from this listener, because a browser would treat the listener as the page's own server.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Returns whether a web page of another origin may have caused the request: the request has the header `Origin`, or
/// `Sec-Fetch-Site` names another site.
fn is_from_web_page(headers: &HeaderMap) -> bool {
    let is_own = |site: &HeaderValue| site == "none" || site == "same-origin";
    headers.contains_key(ORIGIN) || headers.get_all(SEC_FETCH_SITE).iter().any(|site| !is_own(site))
}

/// Ends a request that takes longer than [`REQUEST_TIMEOUT`], with an error response.
pub(crate) async fn limit_time(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await;
    answer.unwrap_or_else(|_| {
        let words = format!(
            "no response within {REQUEST_TIMEOUT:?}: the store is unavailable, or this request waited \
             while others read large listings from the store; try again"
        );
        ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, words).into_response()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_pages_of_other_origins_are_detected() {
        for (name, value, of_a_page) in [
            ("origin", "http://evil.example", true),
            ("origin", "null", true),
            ("sec-fetch-site", "cross-site", true),
            ("sec-fetch-site", "same-site", true),
            ("sec-fetch-site", "same-origin", false),
            ("sec-fetch-site", "none", false),
            ("accept", "*/*", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a value"));
            assert_eq!(is_from_web_page(&headers), of_a_page, "{name}: {value}");
        }
    }

    #[test]
    fn only_this_machine_is_accepted_as_host() {
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
