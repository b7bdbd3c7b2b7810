//! Texts with placeholders, such as routing keys.

use super::location::MessageProperty;
use super::scalar::Scalar;
use super::suggest::nearest;

/// The placeholder of the queue for a reply.
const REPLY_PLACEHOLDER: &str = "{property:reply_to}";

/// A routing key with the placeholders `{key}`, `{type}`, `{stream}` and `{property:reply_to}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingKeyTemplate(pub String);

/// The values of the placeholders in a routing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingKeyValues<'a> {
    /// The stream that emitted the message.
    pub stream: &'a str,
    /// The key of the message.
    pub key: &'a str,
    /// The type of the message.
    pub kind: &'a str,
    /// The queue for a reply, as [`RoutingKeyTemplate::reply_queue`] returns it.
    pub reply_to: &'a str,
}

impl Scalar for RoutingKeyTemplate {
    const FORM: &'static str =
        "a text that may contain {key}, {type}, {stream} and {property:reply_to}";

    fn parse(text: &str) -> Result<Self, String> {
        placeholders(text, &["key", "type", "stream", MessageProperty::ReplyTo.header_name()])?;
        Ok(Self(text.to_owned()))
    }
}

impl RoutingKeyTemplate {
    /// Size limit of a routing key, in bytes: the maximum size of a short string of AMQP 0-9-1.
    pub const LIMIT_BYTES: usize = 255;

    /// Returns whether the routing key of a message is the key alone, as in the default template.
    pub fn is_key(&self) -> bool {
        self.0 == "{key}"
    }

    /// Returns whether the routing key contains the queue for a reply.
    pub fn names_reply_queue(&self) -> bool {
        !self.is_key() && self.0.contains(REPLY_PLACEHOLDER)
    }

    /// Returns the queue for a reply, as a header of the message names it. Returns an empty text if no header contains
    /// the queue, or if the routing key does not contain the queue.
    pub fn reply_queue<'a>(
        &self,
        mut headers: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> &'a str {
        if !self.names_reply_queue() {
            return "";
        }
        let name = MessageProperty::ReplyTo.header_name();
        headers.find(|(found, _)| *found == name).map_or("", |(_, queue)| queue)
    }

    /// Returns whether a message can have this routing key. If the template has placeholders, this function compares
    /// only the fixed texts at its beginning and at its end.
    pub(super) fn can_be(&self, routing_key: &str) -> bool {
        let placeholders = self.0.split_once('{').zip(self.0.rsplit_once('}'));
        let Some(((start, _), (_, end))) = placeholders else { return routing_key == self.0 };
        routing_key.strip_prefix(start).is_some_and(|rest| rest.ends_with(end))
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
    pub fn excessive_length(&self, values: RoutingKeyValues<'_>) -> Option<usize> {
        // `most` is an upper bound of the length. For most messages, even this bound is within the limit. This function
        // then does not build the routing key.
        let RoutingKeyValues { stream, key, kind, reply_to } = values;
        let longest = key.len().max(kind.len()).max(stream.len()).max(reply_to.len());
        let most = self.0.len() + self.0.matches('{').count() * longest;
        if most <= Self::LIMIT_BYTES {
            return None;
        }
        Some(self.fill(values).len()).filter(|length| *length > Self::LIMIT_BYTES)
    }

    /// Returns the routing key of a message with these values.
    pub fn fill(&self, values: RoutingKeyValues<'_>) -> String {
        if self.is_key() {
            return values.key.to_owned();
        }
        let mut filled = String::with_capacity(self.0.len() + values.key.len());
        let mut rest = &*self.0;
        while let Some((before, after)) = rest.split_once('{') {
            // `parse` has accepted only placeholders with a closing brace.
            let (name, behind) = after.split_once('}').unwrap_or((after, ""));
            filled.push_str(before);
            filled.push_str(match name {
                "stream" => values.stream,
                "type" => values.kind,
                "key" => values.key,
                _ => values.reply_to,
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

#[cfg(test)]
mod tests {
    use super::RoutingKeyTemplate;
    use crate::scalar::Scalar as _;

    #[test]
    fn fixed_texts_of_a_template_exclude_routing_keys() {
        for (template, routing_key, can_be) in [
            ("orders", "orders", true),
            ("orders", "orders.1", false),
            ("{key}", "orders", true),
            ("{stream}.dead", "orders", false),
            ("{stream}.dead", "orders.dead", true),
            ("a.{stream}.{type}.b", "a.b", false),
            ("a.{stream}.{type}.b", "a.x.y.b", true),
        ] {
            let template = RoutingKeyTemplate::parse(template).expect("a valid template");
            assert_eq!(template.can_be(routing_key), can_be, "{template:?}, {routing_key}");
        }
    }
}
