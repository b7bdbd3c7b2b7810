//! Texts with placeholders, such as routing keys.

use super::scalar::Scalar;
use super::suggest::nearest;

/// A routing key with the placeholders `{key}`, `{type}` and `{stream}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingKeyTemplate(pub String);

impl Scalar for RoutingKeyTemplate {
    const FORM: &'static str = "a text that may contain {key}, {type} and {stream}";

    fn parse(text: &str) -> Result<Self, String> {
        placeholders(text, &["key", "type", "stream"])?;
        Ok(Self(text.to_owned()))
    }
}

impl RoutingKeyTemplate {
    /// Size limit of a routing key, in bytes: the maximum size of a short string of AMQP 0-9-1.
    pub const LIMIT_BYTES: usize = 255;

    /// Returns whether the routing key of a message is the key alone, as by default.
    pub fn is_key(&self) -> bool {
        self.0 == "{key}"
    }

    /// Returns an error text if a key is too long to be used as a routing key.
    pub fn length_error(key: &str) -> Option<String> {
        let size = key.len();
        let limit = Self::LIMIT_BYTES;
        (size > limit).then(|| {
            format!(
                "the key has {size} bytes and is used as a routing key: AMQP allows at most {limit}"
            )
        })
    }

    /// Returns the length of a message's routing key, in bytes, if the routing key is too long; otherwise `None`.
    pub fn excessive_length(&self, stream: &str, key: &str, kind: &str) -> Option<usize> {
        // `most` is an upper bound of the length. For most messages, even this bound is within the limit. This function
        // then does not build the routing key.
        let most = self.0.len()
            + self.0.matches('{').count() * key.len().max(kind.len()).max(stream.len());
        if most <= Self::LIMIT_BYTES {
            return None;
        }
        Some(self.fill(stream, key, kind).len()).filter(|length| *length > Self::LIMIT_BYTES)
    }

    /// Returns the routing key of a message with this stream, key and type.
    pub fn fill(&self, stream: &str, key: &str, kind: &str) -> String {
        if self.is_key() {
            return key.to_owned();
        }
        let mut filled = String::with_capacity(self.0.len() + key.len());
        let mut rest = &*self.0;
        while let Some((before, after)) = rest.split_once('{') {
            // `parse` accepted only placeholders that are closed.
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

/// Returns the placeholders of a text. Returns an error if a placeholder is not in `known`, or if a brace has no
/// counterpart.
pub(super) fn placeholders<'a>(text: &'a str, known: &[&str]) -> Result<Vec<&'a str>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(['{', '}']) {
        let inside = rest[start..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let Some((name, after)) = inside else {
            return Err("write a placeholder as a name between `{` and `}`".to_owned());
        };
        if !known.contains(&name) {
            let hint = match nearest(name, known.iter().copied()) {
                Some(meant) => format!("did you mean {{{meant}}}?"),
                None => format!("known here: {{{}}}", known.join("}, {")),
            };
            return Err(format!("unknown placeholder {{{name}}}; {hint}"));
        }
        found.push(name);
        rest = after;
    }
    Ok(found)
}
