//! Texts with placeholders: routing keys, and where a missing event can be asked for.

use super::reader::{Node, Reader};
use super::scalar::Scalar;
use super::section::Setting;
use super::suggest::nearest;

/// A routing key with the placeholders `{key}`, `{type}` and `{stream}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingKey(pub String);

impl Scalar for RoutingKey {
    const FORM: &'static str = "a text that may contain {key}, {type} and {stream}";

    fn parse(text: &str) -> Result<Self, String> {
        placeholders(text, &["key", "type", "stream"])?;
        Ok(Self(text.to_owned()))
    }
}

impl RoutingKey {
    /// Bytes of a routing key, at most: a short string of AMQP 0-9-1.
    pub const LIMIT: usize = 255;

    /// Whether the routing key of a message would be too long; how long it would be.
    pub fn too_long(&self, stream: &str, key: &str, kind: &str) -> Option<usize> {
        // Most are known to be short without being put together.
        let most = self.0.len()
            + self.0.matches('{').count() * key.len().max(kind.len()).max(stream.len());
        if most <= Self::LIMIT {
            return None;
        }
        Some(self.fill(stream, key, kind).len()).filter(|length| *length > Self::LIMIT)
    }

    /// The routing key of a message.
    pub fn fill(&self, stream: &str, key: &str, kind: &str) -> String {
        if self.0 == "{key}" {
            return key.to_owned();
        }
        let (mut filled, mut rest) = (String::with_capacity(self.0.len() + key.len()), &*self.0);
        while let Some((before, after)) = rest.split_once('{') {
            // `parse` took only what closes.
            let (name, behind) = after.split_once('}').unwrap_or((after, ""));
            filled.push_str(before);
            filled.push_str(match name {
                "stream" => stream,
                "type" => kind,
                _ => key,
            });
            rest = behind;
        }
        filled + rest
    }
}

/// Who is asked for missing events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replay {
    /// What the store retains.
    Store,
    /// A URL with the placeholders `{stream}`, `{key}` and `{sequence}`.
    Http(String),
}

impl Scalar for Replay {
    const FORM: &'static str =
        "\"store\" or a URL such as \"http://host/{stream}/{key}/{sequence}\"";

    fn parse(text: &str) -> Result<Self, String> {
        if text == "store" {
            return Ok(Self::Store);
        }
        let rest = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let Some(rest) = rest else { return Err(String::new()) };
        let path = rest.find('/').filter(|at| *at > 0 && !rest[..*at].contains('{'));
        if path.is_none() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("a host, then a path".to_owned());
        }
        let found = placeholders(text, &["stream", "key", "sequence"])?;
        for needed in ["key", "sequence"] {
            if !found.contains(&needed) {
                return Err(format!("without {{{needed}}} it cannot ask for one event"));
            }
        }
        Ok(Self::Http(text.to_owned()))
    }
}

/// Sources at most: each is asked in turn while the key waits.
const REPLAY_LIMIT: usize = 8;

impl Setting for Vec<Replay> {
    const FORM: &'static str = "an array of at most 8, \"store\" first, then URLs such as \"http://host/{stream}/{key}/{sequence}\"";

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

/// The placeholders of a text, all of which must be known.
fn placeholders<'a>(text: &'a str, known: &[&str]) -> Result<Vec<&'a str>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(['{', '}']) {
        let inside = rest[start..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let Some((name, after)) = inside else {
            return Err("a `{` and its `}` belong around a name".to_owned());
        };
        if !known.contains(&name) {
            let hint = match nearest(name, known.iter().copied()) {
                Some(meant) => format!("did you mean {{{meant}}}?"),
                None => format!("known here: {{{}}}", known.join("}, {")),
            };
            return Err(format!("there is no {{{name}}}; {hint}"));
        }
        found.push(name);
        rest = after;
    }
    Ok(found)
}
