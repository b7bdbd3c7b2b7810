//! Finds the known name that a user may have meant by an unknown name.

/// Length limit, in bytes, of an unknown name. This module suggests nothing for a longer name, because the time for a
/// comparison grows with the product of the lengths of both names.
const NAME_LIMIT_BYTES: usize = 64;

/// Returns the known name that is closest to `name`; `None` if no known name is close enough.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_LIMIT_BYTES {
        return None;
    }
    // A third of the letters may differ: beyond that, a suggestion is a guess.
    let limit = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the smallest number of insertions, removals, replacements and swaps of neighbouring letters that turn `from`
/// into `to`. Ignores upper and lower case.
fn distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.to_lowercase().chars().collect();
    let to: Vec<char> = to.to_lowercase().chars().collect();
    let mut rows = vec![(0..=to.len()).collect::<Vec<_>>()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replace = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn close_names_are_suggested_and_far_ones_are_not() {
        let known = ["timeout", "attempts", "backoff"];
        for (name, expected) in [
            ("timeuot", Some("timeout")),
            ("Timeout", Some("timeout")),
            ("time_out", Some("timeout")),
            ("attemps", Some("attempts")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
    }
}
