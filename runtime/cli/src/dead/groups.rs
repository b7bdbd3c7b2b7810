//! Groups the dead letters that have the same reason.

use std::collections::HashMap;

use ordain_http::view::LetterRow;
use serde::Serialize;

/// Maximum number of groups. Errors with changing words could otherwise cause one group for each letter, and the
/// command would need memory without a limit.
const GROUPS_LIMIT: usize = 10_000;
/// Maximum number of characters of a reason. A longer reason usually contains data of the event at its end.
const REASON_CHARS: usize = 200;
/// Minimum length of a word of hexadecimal digits and hyphens, such as a UUID, that counts as one number.
const HEX_NUMBER_CHARS: usize = 8;

/// Dead letters by cause, handler version and reason.
#[derive(Debug, Default)]
pub(super) struct LetterGroups {
    groups: HashMap<GroupKey, LetterGroup>,
    /// The number of letters without a group, because a further group would exceed [`GROUPS_LIMIT`].
    ungrouped: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct GroupKey {
    cause: String,
    version: Option<String>,
    reason: String,
}

/// A group of dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LetterGroup {
    pub(super) count: u64,
    pub(super) cause: String,
    pub(super) version: Option<String>,
    /// The first line of the error, with `#` in place of each number.
    pub(super) reason: String,
    pub(super) newest: ExampleLetter,
}

/// The newest letter of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ExampleLetter {
    pub(super) at: String,
    pub(super) key: String,
    pub(super) id: String,
    pub(super) error: String,
}

impl LetterGroups {
    pub(super) fn add(&mut self, letter: &LetterRow) {
        let version = letter.version.as_ref().map(|version| version.raw().to_owned());
        let reason = mask_numbers(letter.error.raw().lines().next().unwrap_or_default());
        let key = GroupKey { cause: letter.cause.raw().to_owned(), version, reason };
        let newest = ExampleLetter {
            at: letter.at.raw().to_owned(),
            key: letter.key.raw().to_owned(),
            id: letter.id.raw().to_owned(),
            error: letter.error.raw().to_owned(),
        };
        if let Some(group) = self.groups.get_mut(&key) {
            group.count += 1;
            if newest.at > group.newest.at {
                group.newest = newest;
            }
        } else if self.groups.len() < GROUPS_LIMIT {
            let GroupKey { cause, version, reason } = key.clone();
            self.groups.insert(key, LetterGroup { count: 1, cause, version, reason, newest });
        } else {
            self.ungrouped += 1;
        }
    }

    /// Returns the groups, the group with the newest letter first, and the number of letters without a group.
    pub(super) fn finish(self) -> (Vec<LetterGroup>, u64) {
        let mut groups: Vec<LetterGroup> = self.groups.into_values().collect();
        // Groups with the same newest time are in the order of their reasons, so that the order is always the same.
        groups.sort_by(|a, b| {
            b.newest
                .at
                .cmp(&a.newest.at)
                .then_with(|| (&a.cause, &a.reason).cmp(&(&b.cause, &b.reason)))
        });
        (groups, self.ungrouped)
    }
}

/// Returns a text with `#` in place of each number: each run of decimal digits, and each long word of hexadecimal
/// digits and hyphens that has a decimal digit. Truncates the result.
fn mask_numbers(text: &str) -> String {
    let mut masked = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        let is_hex = word.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        let length = if word.is_empty() { first.len_utf8() } else { word.len() };
        if is_hex && word.len() >= HEX_NUMBER_CHARS && word.contains(|c: char| c.is_ascii_digit()) {
            masked.push('#');
        } else {
            let mut is_number = false;
            for c in rest[..length].chars() {
                let was_number = std::mem::replace(&mut is_number, c.is_ascii_digit());
                match (is_number, was_number) {
                    (true, true) => {}
                    (true, false) => masked.push('#'),
                    (false, _) => masked.push(c),
                }
            }
        }
        rest = &rest[length..];
    }
    match masked.char_indices().nth(REASON_CHARS) {
        Some((end, _)) => format!("{}…", &masked[..end]),
        None => masked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_masked() {
        for (text, masked) in [
            ("an order that is 7 cannot be paid", "an order that is # cannot be paid"),
            ("order-17 has 1,200.50 left", "order-# has #,#.# left"),
            ("no user 3f2a-77aa-90bb", "no user #"),
            ("no user deadbeef, deface-it", "no user deadbeef, deface-it"),
            ("ab12 is short", "ab# is short"),
            ("größe 5ü6", "größe #ü#"),
            ("", ""),
        ] {
            assert_eq!(mask_numbers(text), masked, "{text}");
        }
        let long = mask_numbers(&"ü".repeat(REASON_CHARS + 1));
        assert_eq!(long.chars().count(), REASON_CHARS + 1);
        assert!(long.ends_with('…'));
    }

    fn letter(cause: &str, version: Option<&str>, error: &str, at: &str) -> LetterRow {
        LetterRow {
            id: format!("1-{at}").into(),
            key: "k".into(),
            cause: cause.into(),
            error: error.into(),
            version: version.map(Into::into),
            at: at.into(),
            ..LetterRow::default()
        }
    }

    #[test]
    fn letters_with_the_same_reason_form_a_group() {
        let mut groups = LetterGroups::default();
        groups.add(&letter("rejected", Some("a@1"), "state 1\nat line 2", "2026-01-01"));
        groups.add(&letter("rejected", Some("a@1"), "state 22\nat line 9", "2026-01-03"));
        groups.add(&letter("rejected", Some("a@1"), "state 3", "2026-01-02"));
        groups.add(&letter("rejected", Some("a@2"), "state 3", "2026-01-04"));
        groups.add(&letter("gap", None, "state 3", "2026-01-01"));
        let (groups, ungrouped) = groups.finish();
        let counts: Vec<_> = groups.iter().map(|group| (group.count, &*group.cause)).collect();
        assert_eq!(counts, [(1, "rejected"), (3, "rejected"), (1, "gap")]);
        assert_eq!(groups[1].newest.error, "state 22\nat line 9");
        assert_eq!((&*groups[1].reason, ungrouped), ("state #", 0));
    }

    #[test]
    fn number_of_groups_has_a_limit() {
        let mut groups = LetterGroups::default();
        let word = |mut number: usize| {
            let mut word = String::new();
            while number > 0 {
                word.push(char::from(b'g' + (number % 16) as u8));
                number /= 16;
            }
            word
        };
        for number in 0..GROUPS_LIMIT + 5 {
            groups.add(&letter("rejected", None, &word(number), "2026-01-01"));
        }
        let (groups, ungrouped) = groups.finish();
        assert_eq!((groups.len(), ungrouped), (GROUPS_LIMIT, 5));
    }
}
