//! The types of events that the handler of a stream executes, and the treatment of events of other types.

use std::sync::Arc;

/// A pattern of event types. Each `*` in the pattern matches any characters, or none. Every other character matches
/// only itself, in the same case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypePattern(Box<str>);

impl TypePattern {
    /// Creates a pattern from its text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the pattern matches the whole type. An event without a type has the empty text as its type.
    pub fn matches(&self, kind: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else { return *self.0 == *kind };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(mut left) = kind.strip_prefix(start) else { return false };
        for part in middle.split('*') {
            let Some((_, after)) = left.split_once(part) else { return false };
            left = after;
        }
        left.ends_with(end)
    }
}

/// The types of events that the handler of a stream executes, and the sink for events of other types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeFilter {
    /// The patterns of the types. The handler executes an event whose type matches at least one pattern.
    pub patterns: Vec<TypePattern>,
    /// The sink that receives the events of other types. `None` if no message passes these events on.
    pub sink: Option<Arc<str>>,
}

impl TypeFilter {
    /// Returns whether the handler executes events of this type.
    pub fn accepts(&self, kind: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_any_characters_or_none() {
        for (pattern, kind, is_match) in [
            ("order.paid", "order.paid", true),
            ("order.paid", "order.paid.twice", false),
            ("order.paid", "Order.paid", false),
            ("order.*", "order.paid", true),
            ("order.*", "order.", true),
            ("order.*", "order.item.added", true),
            ("order.*", "order", false),
            ("order.*", "reorder.paid", false),
            ("*.paid", "order.paid", true),
            ("*.paid", "order.paid.twice", false),
            ("*", "", true),
            ("*", "any", true),
            ("**", "", true),
            ("", "", true),
            ("", "any", false),
            ("order.*", "", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*bc*bc", "abcbc", true),
            ("a*bc*bc", "abc", false),
            ("a*b*b*c", "abc", false),
            ("*\u{e9}*", "caf\u{e9}.open", true),
            ("a.c", "abc", false),
            ("[ab]?", "a?", false),
            ("[ab]?", "[ab]?", true),
        ] {
            assert_eq!(TypePattern::new(pattern).matches(kind), is_match, "{pattern} {kind}");
        }
    }

    #[test]
    fn filter_accepts_a_type_that_one_pattern_matches() {
        let patterns = ["order.*", "paid"].map(TypePattern::new).into();
        let filter = TypeFilter { patterns, sink: None };
        for (kind, is_accepted) in [("order.new", true), ("paid", true), ("unpaid", false)] {
            assert_eq!(filter.accepts(kind), is_accepted, "{kind}");
        }
    }
}
