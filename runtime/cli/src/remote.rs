//! A running process, asked over HTTP by its admin listener.

use std::time::Duration;

use anyhow::anyhow;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::http::{StatusCode, Uri};

use crate::cli::Failure;
use ordain_engine::https;
use ordain_util::text::{clean, cut};

/// The variable with the token of the process.
const TOKEN: &str = "ORDAIN_TOKEN";

/// For a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// For an answer: longer than the listener itself takes.
const ANSWER: Duration = Duration::from_secs(30);
/// MiB of an answer. A page of dead letters has 8, of an event or a state alone there may be 64, and
/// escapes of JSON and base64 add to that.
const ANSWER_MIB: u64 = 128;

/// Bytes that are shown of an error that somebody answers.
const WORDS: usize = 1_000;

/// Why a process does not answer: problem details (RFC 9457).
#[derive(Deserialize)]
struct Problem {
    status: u16,
    detail: String,
}

/// A process that listens for operators.
pub(crate) struct Remote {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
}

/// Reads where a process listens.
pub(crate) fn parse_url(text: &str) -> Result<String, String> {
    let right = "a URL such as http://127.0.0.1:7070 is needed; the log of the process says which";
    let url: Uri = text.parse().map_err(|_| right.to_owned())?;
    let known = matches!(url.scheme_str(), Some("http" | "https"));
    if !known || url.host().is_none_or(str::is_empty) || url.query().is_some() {
        return Err(right.to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

impl Remote {
    pub(crate) fn new(url: &str) -> Self {
        let config = https::agent(url).timeout_connect(Some(CONNECT)).timeout_global(Some(ANSWER));
        let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        Self { agent: config.build().into(), url: url.to_owned(), token }
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Asks for a path, given as its segments, with a query. The name of the most important part of the
    /// answer is for the error if the answer is not what it should be.
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        part: &str,
    ) -> Result<T, Failure> {
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let mut url = format!("{}/v1", self.url);
        for segment in path {
            url += &format!("/{}", encoded(segment));
        }
        for (at, (name, value)) in query.iter().enumerate() {
            url += &format!("{}{name}={}", if at == 0 { '?' } else { '&' }, encoded(value));
        }
        let mut request = self.agent.get(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call().map_err(|error| self.failed(error))?;
        let body = answer.body_mut().with_config().limit(ANSWER_MIB << 20).read_to_vec();
        let body = body.map_err(|error| self.failed(error))?;
        if answer.status() != StatusCode::OK {
            return Err(self.refused(answer.status(), &body));
        }
        serde_json::from_slice(&body).map_err(|error| {
            if error.is_data() {
                let found = format!("its answer has no `{part}` of this form: {error}");
                return self.stranger(&found);
            }
            self.refused(StatusCode::OK, &body)
        })
    }

    /// That something else answers than what is meant to.
    pub(crate) fn stranger(&self, found: &str) -> Failure {
        let found = self.shown(found);
        Failure::Failed(anyhow!(
            "what answers at {} is no admin listener of this version of Ordain ({found}): see what \
             the log of the process says about where it listens, and use the same version",
            self.url
        ))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> Failure {
        let problem = serde_json::from_slice(body).ok();
        let problem = problem.filter(|problem: &Problem| problem.status == status.as_u16());
        match (status, problem.as_ref().map(|problem| &*problem.detail)) {
            (_, None) => self.stranger(&format!("its status is {status}")),
            (StatusCode::UNAUTHORIZED, Some(_)) => {
                let what = if self.token.is_some() { "refuses the token in" } else { "wants" };
                Failure::Failed(anyhow!(
                    "the process at {} {what} {TOKEN}: set it to `token` of its [admin]",
                    self.url
                ))
            }
            (StatusCode::SERVICE_UNAVAILABLE, Some(detail)) => {
                Failure::Unavailable(anyhow!("{}: {}", self.url, self.shown(detail)))
            }
            (_, Some(detail)) => Failure::Failed(anyhow!("{}: {}", self.url, self.shown(detail))),
        }
    }

    /// What somebody answers, as it is shown: on one line, not too long, and without the token.
    fn shown(&self, words: &str) -> String {
        let words = match &self.token {
            Some(token) => words.replace(&**token, "…"),
            None => words.to_owned(),
        };
        cut(clean(&words).into_owned(), WORDS)
    }

    fn failed(&self, error: ureq::Error) -> Failure {
        match error {
            ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed => Failure::Unavailable(anyhow!(
                "no process answers at {}: {error}. Does it run? Its log says where it listens",
                self.url
            )),
            ureq::Error::Http(_) => Failure::Failed(anyhow!(
                "{} cannot be asked: {error}; are there strange characters in {TOKEN}?",
                self.url
            )),
            ureq::Error::BodyExceedsLimit(_) => {
                self.stranger(&format!("its answer has more than {ANSWER_MIB} MiB"))
            }
            error => self.stranger(&error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_shown_without_the_token_and_not_whole() {
        let token = Some("secret".to_owned());
        let remote = Remote { token, ..Remote::new("http://localhost") };
        assert_eq!(
            remote.shown("Bearer secret,\n\x1b[1m and more"),
            "Bearer …,\\n\\u001b[1m and more"
        );
        let long = "x".repeat(100_000);
        let Failure::Failed(error) = remote.stranger(&long) else { panic!("it failed") };
        assert!(error.to_string().len() < 2 * WORDS);
    }

    #[test]
    fn where_a_process_listens() {
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
