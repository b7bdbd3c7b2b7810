//! `[streams.NAME] gap.replay`: the sources of missing events.

use std::fmt;
use std::time::Duration;

use toml::de::DeValue;

use super::reader::{ConfigReader, ReferenceRow, SettingNode, SettingValue};
use super::scalar::Scalar;
use super::section::section;
use super::template::placeholders;
use super::units::Millis;

/// A source of missing events.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplaySource {
    /// The store, which retains events.
    Store,
    /// An HTTP server.
    Http(ReplayServer),
}

section! {
    /// An HTTP server that holds past events.
    pub struct ReplayServer {
        /// URL of one event, with the placeholders `{stream}`, `{key}` and `{sequence}` after the host.
        ///
        /// The server responds with 200 and the event as a CloudEvent, or with 404 or 410 if the server does not have
        /// the event. After any other response, Ordain requests the event again in the next round.
        url: ReplayUrl;
        /// Value of the header `authorization` of each request.
        authorization: Option<Authorization>;
        /// Time limit for one response.
        timeout: Millis ["10ms" to "5m"] = "5s",
            because "a slower server counts as unavailable, and the next round requests the event again";
        /// Maximum number of concurrent requests of a process to the server, over all streams. If streams set different
        /// values for one server, the lowest value applies.
        ///
        /// A process also limits its requests to all servers together (to at most 128), and gives each server an equal
        /// share. If this share is lower than `concurrency`, the share applies.
        concurrency: usize [1 to 256] = 16,
            because "events of many keys can be missing at once, and the server must also respond to its other clients";
    }
}

/// Lowest time limit of a query: a search for the missing events of one key at one server in one round. The limit
/// includes the time in which the query waits for other queries. If the server's `timeout` is more than 15 s, the limit
/// is twice that `timeout`.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// A URL with the placeholders `{stream}`, `{key}` and `{sequence}`.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplayUrl(pub String);

/// Shows only scheme, host and port, because the rest of the URL may be confidential.
impl fmt::Debug for ReplayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplayUrl({}/…)", self.host())
    }
}

impl ReplayUrl {
    /// Returns scheme, host and port. Metrics and listings identify the server by this text, because the rest
    /// of the URL may be confidential.
    pub fn host(&self) -> &str {
        let after = self.0.find("://").map_or(0, |at| at + 3);
        let end = self.0[after..].find('/').map_or(self.0.len(), |at| after + at);
        &self.0[..end]
    }

    /// Returns the HTTP origin (scheme, host and port) in canonical form, so that different spellings compare equal.
    pub fn origin(&self) -> String {
        let parsed = url::Url::parse(self.host()).map(|url| url.origin().ascii_serialization());
        parsed.unwrap_or_else(|_| self.host().to_owned())
    }
}

impl Scalar for ReplayUrl {
    const FORM: &'static str = "a URL such as \"http://host/{stream}/{key}/{sequence}\"";
    const HIDES_VARIABLES: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let rest = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let Some(rest) = rest else { return Err(String::new()) };
        // Metrics and listings show the part before the path, so that part must contain no placeholder.
        let path = rest
            .find(['/', '?', '#'])
            .filter(|at| *at > 0 && rest[*at..].starts_with('/') && !rest[..*at].contains('{'));
        let Some(path) = path.filter(|_| text.bytes().all(|b| b.is_ascii_graphic())) else {
            return Err("write a host without placeholders, then a path".to_owned());
        };
        if rest[..path].contains('@') {
            return Err("write no user: use `authorization` instead".to_owned());
        }
        // This function does not return the error of `placeholders`, because that error may contain the value of a
        // variable.
        let found = placeholders(text, &["stream", "key", "sequence"])
            .map_err(|_| "use only the placeholders {stream}, {key} and {sequence}")?;
        for needed in ["key", "sequence"] {
            if !found.contains(&needed) {
                return Err(format!(
                    "{{{needed}}} is missing, so the URL does not identify a single event"
                ));
            }
        }
        // RFC 3986 allows none of these characters in a path or query.
        let invalid = text.find(['#', '<', '>', '"', '`', '\\', '^', '|']);
        if invalid.is_some() || text.replace(['{', '}'], "").parse::<url::Url>().is_err() {
            return Err(
                "write a host, then a path of characters that a URL may contain, without a fragment (`#`)".to_owned()
            );
        }
        Ok(Self(text.to_owned()))
    }

    fn placeholder() -> Option<Self> {
        Some(Self("http://unnamed/{key}/{sequence}".to_owned()))
    }
}

/// The value of the header `authorization`. The value is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization(String);

impl Authorization {
    /// Returns the text. Only the code that sends the requests may use the text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization(…)")
    }
}

impl Scalar for Authorization {
    const FORM: &'static str = "a text such as \"Bearer ${TOKEN}\"";
    const IS_SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let visible = text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        if text.trim().is_empty() || !visible {
            return Err("use visible ASCII characters".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl ReplaySource {
    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        match node.value {
            DeValue::Table(_) => ReplayServer::read(reader, node).map(Self::Http),
            DeValue::String(text) if text == "store" => Some(Self::Store),
            DeValue::String(_) => {
                let url = ReplayShorthand::read(reader, node)?.0;
                Some(Self::Http(ReplayServer::with_url(url)))
            }
            _ => {
                reader.report_wrong_form(node, <ReplayShorthand as Scalar>::FORM);
                None
            }
        }
    }
}

impl ReplayServer {
    /// Returns a server with this URL, and with the defaults of the other settings.
    fn with_url(url: ReplayUrl) -> Self {
        Self { url, authorization: None, timeout: Millis(5_000), concurrency: 16 }
    }

    /// Returns the time limit of a query: a search for the missing events of one key in one round.
    pub fn query_timeout(&self) -> Duration {
        QUERY_TIMEOUT.max(2 * self.timeout.duration())
    }
}

/// A URL in place of a table: the short form of a table that contains only `url`.
struct ReplayShorthand(ReplayUrl);

impl Scalar for ReplayShorthand {
    const FORM: &'static str = "\"store\", a URL such as \"http://host/{stream}/{key}/{sequence}\", or a table \
                                with `url`";
    const HIDES_VARIABLES: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        ReplayUrl::parse(text).map(Self)
    }
}

/// Maximum number of elements of `gap.replay`. The number is small, because Ordain queries the sources one after the
/// other while the key waits.
const REPLAY_LIMIT: usize = ordain_core::SOURCES_LIMIT - 1;

impl SettingValue for Vec<ReplaySource> {
    const FORM: &'static str = "an array of at most 8 elements: \"store\" (only as the first element), URLs such as \
                                \"http://host/{stream}/{key}/{sequence}\", or tables with `url`";
    const ROWS: &'static [ReferenceRow] = ReplayServer::ROWS;

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let elements = reader.elements(node, <Self as SettingValue>::FORM)?;
        let found: Vec<_> =
            elements.iter().map(|element| ReplaySource::read(reader, element)).collect();
        let found: Self = found.into_iter().collect::<Option<_>>()?;
        // Ordain always queries the store first, because the store holds the spilled events and is the nearest source.
        let late = found.iter().skip(1).any(|replay| *replay == ReplaySource::Store);
        let twice = (1..found.len()).any(|at| found[..at].contains(&found[at]));
        let wrong = match (found.len() > REPLAY_LIMIT, twice, late) {
            (true, _, _) => "the array has more than 8 elements",
            (_, true, _) => "the array names an element twice",
            (_, _, true) => "\"store\" is not first",
            _ => return Some(found),
        };
        let message = format!("expected {}, but {wrong}", <Self as SettingValue>::FORM);
        reader.report(node.line, &node.name, message);
        None
    }
}
