//! `[streams.NAME] gap.replay`: who is asked for missing events.

use toml::de::DeValue;

use super::reader::{Node, Reader, Row, Setting};
use super::scalar::Scalar;
use super::section::section;
use super::template::placeholders;
use super::units::Millis;

/// Who is asked for missing events.
#[derive(Debug, Clone, PartialEq)]
pub enum Replay {
    /// What the store retains.
    Store,
    /// A server.
    Http(ReplayServer),
}

section! {
    /// A server that is asked for missing events over HTTP.
    pub struct ReplayServer {
        /// Where an event is: a URL with the placeholders `{stream}`, `{key}` and `{sequence}` behind its
        /// host. 200 with the event as a CloudEvent: it is there; 404 or 410: it is not; all else: ask again.
        url: ReplayUrl;
        /// The header `authorization` of each request.
        authorization: Option<Authorization>;
        /// For one answer.
        timeout: Millis ["10ms" to "5m"] = "5s",
            because "what takes longer is as good as down, and the next round asks again";
        /// Requests to its host at one time, over all streams; where several say so, the fewest.
        concurrency: usize [1 to 256] = 16,
            because "many keys may miss events at once, and the archive has other work";
    }
}

/// A URL with the placeholders `{stream}`, `{key}` and `{sequence}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayUrl(pub String);

impl ReplayUrl {
    /// Scheme, host and port: what it is called in metrics and listings, since the rest may hold what is
    /// not everyone's.
    pub fn host(&self) -> &str {
        let after = self.0.find("://").map_or(0, |at| at + 3);
        let end = self.0[after..].find('/').map_or(self.0.len(), |at| after + at);
        &self.0[..end]
    }

    /// The same as everybody else spells it, so that it is known again.
    pub fn origin(&self) -> String {
        let known = url::Url::parse(self.host()).map(|it| it.origin().ascii_serialization());
        known.unwrap_or_else(|_| self.host().to_owned())
    }
}

impl Scalar for ReplayUrl {
    const FORM: &'static str = "a URL such as \"http://host/{stream}/{key}/{sequence}\"";
    const VEILED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let rest = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let Some(rest) = rest else { return Err(String::new()) };
        // What stands before it is shown in metrics and listings.
        let path = rest
            .find(['/', '?', '#'])
            .filter(|at| *at > 0 && rest[*at..].starts_with('/') && !rest[..*at].contains('{'));
        let Some(path) = path.filter(|_| text.bytes().all(|b| b.is_ascii_graphic())) else {
            return Err("a host without placeholders, then a path".to_owned());
        };
        if rest[..path].contains('@') {
            return Err("without a user: `authorization` is for that".to_owned());
        }
        let found = placeholders(text, &["stream", "key", "sequence"])?;
        for needed in ["key", "sequence"] {
            if !found.contains(&needed) {
                return Err(format!("without {{{needed}}} it cannot ask for one event"));
            }
        }
        // RFC 3986 has none of these.
        let strange = text.find(['#', '<', '>', '"', '`', '\\', '^', '|']);
        if strange.is_some() || text.replace(['{', '}'], "").parse::<url::Url>().is_err() {
            return Err(
                "a host, then a path of what a URL may have, without a fragment (`#`)".to_owned()
            );
        }
        Ok(Self(text.to_owned()))
    }

    fn stand_in() -> Option<Self> {
        Some(Self("http://unnamed/{key}/{sequence}".to_owned()))
    }
}

/// The value of a header that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization(String);

impl Authorization {
    /// The text, for the one who needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Authorization {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authorization(…)")
    }
}

impl Scalar for Authorization {
    const FORM: &'static str = "a text such as \"Bearer ${TOKEN}\"";
    const SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let visible = text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        if text.trim().is_empty() || !visible {
            return Err("visible ASCII characters".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl Replay {
    fn read(reader: &mut Reader<'_>, node: &Node<'_>) -> Option<Self> {
        match node.value {
            DeValue::Table(_) => ReplayServer::read(reader, node).map(Self::Http),
            DeValue::String(text) if text == "store" => Some(Self::Store),
            DeValue::String(_) => {
                let url = Short::read(reader, node)?.0;
                Some(Self::Http(ReplayServer::at(url)))
            }
            _ => {
                reader.refuse(node, <Short as Scalar>::FORM);
                None
            }
        }
    }
}

impl ReplayServer {
    /// One with defaults.
    fn at(url: ReplayUrl) -> Self {
        Self { url, authorization: None, timeout: Millis(5_000), concurrency: 16 }
    }
}

/// A URL that stands for a table of it alone.
struct Short(ReplayUrl);

impl Scalar for Short {
    const FORM: &'static str = "\"store\", a URL such as \"http://host/{stream}/{key}/{sequence}\", or a table \
                                with `url`";
    const VEILED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        ReplayUrl::parse(text).map(Self)
    }
}

/// Servers at most: each is asked in turn while the key waits.
const REPLAY_LIMIT: usize = ordain_core::SOURCES_LIMIT - 1;

impl Setting for Vec<Replay> {
    const FORM: &'static str = "an array of at most 8, \"store\" first, then URLs such as \
                                \"http://host/{stream}/{key}/{sequence}\" or tables with `url`";
    const ROWS: &'static [Row] = ReplayServer::ROWS;

    fn read(reader: &mut Reader<'_>, node: &Node<'_>) -> Option<Self> {
        let elements = reader.elements(node, <Self as Setting>::FORM)?;
        let found: Vec<_> = elements.iter().map(|it| Replay::read(reader, it)).collect();
        let found: Self = found.into_iter().collect::<Option<_>>()?;
        // The store is asked first in any case: it has what was spilled, and is the nearest.
        let late = found.iter().skip(1).any(|it| *it == Replay::Store);
        let twice = (1..found.len()).any(|at| found[..at].contains(&found[at]));
        let wrong = match (found.len() > REPLAY_LIMIT, twice, late) {
            (true, _, _) => "it has more than 8",
            (_, true, _) => "it names one twice",
            (_, _, true) => "\"store\" does not come first",
            _ => return Some(found),
        };
        let message = format!("expected {}, but {wrong}", <Self as Setting>::FORM);
        reader.note(node.line, &node.name, message);
        None
    }
}
