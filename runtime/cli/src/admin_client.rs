//! A client for the admin listener of a running process. The client reads from the process and sends actions to the
//! process, over HTTP.

use std::fmt::Display;
use std::time::Duration;

use anyhow::anyhow;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Body;
use ureq::http::{Response, StatusCode, Uri};

use crate::cli::CommandError;
use ordain_config::LoadedConfig;
use ordain_engine::https;
use ordain_util::command::admin_option;
use ordain_util::text::{escape_invisible, truncated};

/// The environment variable that contains the token for the admin listener.
const TOKEN_VARIABLE: &str = "ORDAIN_TOKEN";

/// Time limit for the establishment of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a request and its response; longer than the 10 s within which the listener must begin its response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Size limit of a response, in MiB. A page of dead letters ends with the letter that brings the page to 8 MiB or more,
/// and a single event or state has up to 64 MiB. Escapes of JSON and base64 add to these sizes.
const RESPONSE_LIMIT_MIB: u64 = 128;

/// Size limit of an error text from the process, in bytes.
const ERROR_TEXT_LIMIT: usize = 1_000;

/// The error response of a process: problem details (RFC 9457).
#[derive(Deserialize)]
struct RemoteProblem {
    status: u16,
    detail: String,
}

/// A client of the admin listener of one process.
pub(crate) struct AdminClient {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
    /// The command-line option that makes another command use the same process, with a space before the option; empty
    /// if no option is needed.
    option: String,
}

fn encoded(text: &str) -> impl Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

/// Parses the URL of an admin listener.
pub(crate) fn parse_url(text: &str) -> Result<String, String> {
    let expected = "expected a URL such as http://127.0.0.1:7070; the log of the running process contains the URL";
    let url: Uri = text.parse().map_err(|_| expected.to_owned())?;
    let known = matches!(url.scheme_str(), Some("http" | "https"));
    if !known || url.host().is_none_or(str::is_empty) || url.query().is_some() {
        return Err(expected.to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

impl AdminClient {
    pub(crate) fn new(url: &str) -> Self {
        let config = https::agent(url)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(RESPONSE_TIMEOUT));
        let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
        Self { agent: config.build().into(), url: url.to_owned(), token, option: admin_option(url) }
    }

    /// Returns a client of the process that has opened the store of a configuration. The client uses the token of the
    /// configuration, unless the environment contains a token.
    pub(crate) fn of_owner(url: &str, loaded: &LoadedConfig) -> Self {
        let client = Self::new(url);
        let admin = loaded.config.admin.as_ref();
        let configured = admin.and_then(|admin| admin.token.as_ref());
        let token = client.token.or_else(|| configured.map(|token| token.expose().to_owned()));
        Self { token, option: loaded.config_option(), ..client }
    }

    /// Returns the command-line option that makes another command use the same process, with a space before the option;
    /// an empty text if no option is needed.
    pub(crate) fn option(&self) -> &str {
        &self.option
    }

    /// Sends a `GET` request for a path, given as its segments, with a query. `part` names the most important member of
    /// the response. If the JSON of the response does not have the expected form, the error names this member.
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        part: &str,
    ) -> Result<T, CommandError> {
        let mut url = self.page_url(path);
        for (at, (name, value)) in query.iter().enumerate() {
            url += &format!("{}{name}={}", if at == 0 { '?' } else { '&' }, encoded(value));
        }
        let mut request = self.agent.get(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.read_response(request.call(), part)
    }

    /// Sends an action, as JSON, to a path. `part` has the same meaning as in [`get`](Self::get).
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        action: &Value,
        part: &str,
    ) -> Result<T, CommandError> {
        let mut request =
            self.agent.post(self.page_url(path)).header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.read_response(request.send(action.to_string()), part)
    }

    fn page_url(&self, path: &[&str]) -> String {
        let mut url = format!("{}/v1", self.url);
        for segment in path {
            url += &format!("/{}", encoded(segment));
        }
        url
    }

    fn read_response<T: DeserializeOwned>(
        &self,
        response: Result<Response<Body>, ureq::Error>,
        part: &str,
    ) -> Result<T, CommandError> {
        let mut answer = response.map_err(|error| self.request_error(error))?;
        let body = answer.body_mut().with_config().limit(RESPONSE_LIMIT_MIB << 20).read_to_vec();
        let body = body.map_err(|error| self.request_error(error))?;
        if answer.status() != StatusCode::OK {
            return Err(self.response_error(answer.status(), &body));
        }
        serde_json::from_slice(&body).map_err(|error| {
            if error.is_data() {
                let found = format!("its response has no valid `{part}`: {error}");
                return self.unexpected_server(&found);
            }
            self.response_error(StatusCode::OK, &body)
        })
    }

    /// Returns an error for a server that is not an admin listener of this version of Ordain. `found` describes the
    /// unexpected response.
    pub(crate) fn unexpected_server(&self, found: &str) -> CommandError {
        let found = self.printable(found);
        CommandError::Failed(anyhow!(
            "the server at {} is not an admin listener of this version of Ordain ({found}): check the URL, and use the \
             same version of `ordain` as the process. The log of the process contains the URL after `admin listening \
             on`",
            self.url
        ))
    }

    fn response_error(&self, status: StatusCode, body: &[u8]) -> CommandError {
        let problem = serde_json::from_slice(body).ok();
        let problem = problem.filter(|problem: &RemoteProblem| problem.status == status.as_u16());
        match (status, problem.as_ref().map(|problem| &*problem.detail)) {
            (_, None) => self.unexpected_server(&format!("it responded with status {status}")),
            (StatusCode::UNAUTHORIZED, Some(_)) => {
                let state = if self.token.is_some() {
                    "rejects the token of this command"
                } else {
                    "requires a token"
                };
                CommandError::Failed(anyhow!(
                    "the process at {} {state}: set {TOKEN_VARIABLE} to the `token` in the section [admin] of the \
                     process's configuration",
                    self.url
                ))
            }
            (StatusCode::SERVICE_UNAVAILABLE, Some(detail)) => {
                CommandError::Unavailable(anyhow!("{}: {}", self.url, self.printable(detail)))
            }
            (_, Some(detail)) => {
                CommandError::Failed(anyhow!("{}: {}", self.url, self.printable(detail)))
            }
        }
    }

    /// Returns a text from the server in a form that is safe to print: on one line, limited in length, and without the
    /// token.
    fn printable(&self, words: &str) -> String {
        let words = match &self.token {
            Some(token) => words.replace(&**token, "…"),
            None => words.to_owned(),
        };
        truncated(escape_invisible(&words).into_owned(), ERROR_TEXT_LIMIT)
    }

    fn request_error(&self, error: ureq::Error) -> CommandError {
        match error {
            ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed => CommandError::Unavailable(anyhow!(
                "no process responds at {}: {error}. Check that the process is running; the log of the process \
                 contains the URL",
                self.url
            )),
            ureq::Error::Http(_) => CommandError::Failed(anyhow!(
                "no request can be sent to {}: {error}; check {TOKEN_VARIABLE} for invalid characters",
                self.url
            )),
            ureq::Error::BodyExceedsLimit(_) => self
                .unexpected_server(&format!("its response has more than {RESPONSE_LIMIT_MIB} MiB")),
            error => self.unexpected_server(&error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_is_cut_and_does_not_contain_the_token() {
        let token = Some("secret".to_owned());
        let remote = AdminClient { token, ..AdminClient::new("http://localhost") };
        assert_eq!(
            remote.printable("Bearer secret,\n\x1b[1m and more"),
            "Bearer …,\\n\\u001b[1m and more"
        );
        let long = "x".repeat(100_000);
        let CommandError::Failed(error) = remote.unexpected_server(&long) else {
            panic!("another failure")
        };
        assert!(error.to_string().len() < 2 * ERROR_TEXT_LIMIT);
    }

    #[test]
    fn only_an_http_url_without_query_is_accepted() {
        for (text, right) in [
            ("http://127.0.0.1:7070", Some("http://127.0.0.1:7070")),
            ("http://localhost/", Some("http://localhost")),
            ("https://[::1]:1/ordain/", Some("https://[::1]:1/ordain")),
            ("127.0.0.1:7070", None),
            ("localhost", None),
            ("ftp://localhost", None),
            ("http://", None),
            ("http://a?b", None),
            ("", None),
        ] {
            assert_eq!(parse_url(text).ok().as_deref(), right, "{text}");
        }
    }
}
