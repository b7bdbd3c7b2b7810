//! Compares two texts line by line.

/// Maximum number of compared pairs of lines. Beyond it, the diff lists all lines of both texts.
const PAIRS_LIMIT: usize = 1 << 22;

/// A line of a diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiffLine<'a> {
    Same(&'a str),
    Removed(&'a str),
    Added(&'a str),
}

/// Returns the lines of both texts: the lines that both have, in order, and between them the lines that only one has.
pub(crate) fn diff<'a>(before: &'a str, after: &'a str) -> Vec<DiffLine<'a>> {
    let before: Vec<&str> = before.lines().collect();
    let after: Vec<&str> = after.lines().collect();
    let common = before.iter().zip(&after).take_while(|(one, other)| one == other).count();
    let (old, new) = (&before[common..], &after[common..]);
    let mut lines: Vec<_> = before[..common].iter().map(|line| DiffLine::Same(line)).collect();
    if old.len().saturating_mul(new.len()) > PAIRS_LIMIT {
        lines.extend(old.iter().map(|line| DiffLine::Removed(line)));
        lines.extend(new.iter().map(|line| DiffLine::Added(line)));
        return lines;
    }
    let lengths = common_lengths(old, new);
    let (mut at, mut other) = (0, 0);
    while at < old.len() || other < new.len() {
        let is_same = at < old.len() && other < new.len() && old[at] == new[other];
        if is_same {
            lines.push(DiffLine::Same(old[at]));
            at += 1;
            other += 1;
        } else if other == new.len()
            || (at < old.len() && lengths[at + 1][other] >= lengths[at][other + 1])
        {
            lines.push(DiffLine::Removed(old[at]));
            at += 1;
        } else {
            lines.push(DiffLine::Added(new[other]));
            other += 1;
        }
    }
    lines
}

/// Returns, for each pair of positions, the length of the longest common subsequence of the lines from there on.
fn common_lengths(old: &[&str], new: &[&str]) -> Vec<Vec<u32>> {
    let mut lengths = vec![vec![0; new.len() + 1]; old.len() + 1];
    for at in (0..old.len()).rev() {
        for other in (0..new.len()).rev() {
            lengths[at][other] = if old[at] == new[other] {
                lengths[at + 1][other + 1] + 1
            } else {
                lengths[at + 1][other].max(lengths[at][other + 1])
            };
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_text_are_between_the_common_lines() {
        use DiffLine::{Added, Removed, Same};
        assert_eq!(
            diff("a\nb\nc\nd", "a\nx\nc\nd\ne"),
            [Same("a"), Removed("b"), Added("x"), Same("c"), Same("d"), Added("e")]
        );
        assert_eq!(diff("", "a"), [Added("a")]);
        assert_eq!(diff("a\nb", "b"), [Removed("a"), Same("b")]);
    }

    #[test]
    fn long_texts_are_compared_in_bounded_time() {
        let old = (0..5_000).map(|line| format!("old {line}\n")).collect::<Vec<_>>().concat();
        let new = (0..5_000).map(|line| format!("new {line}\n")).collect::<Vec<_>>().concat();
        let lines = diff(&old, &new);
        assert_eq!(lines.len(), 10_000);
        assert!(matches!((lines[0], lines[9_999]), (DiffLine::Removed(_), DiffLine::Added(_))));
    }
}
