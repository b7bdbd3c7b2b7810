//! The families of forbidden phrases, and the search for these phrases in a passage.

use super::passage::{Passage, Word};

/// Phrases that break the same rule of style.
pub(super) struct Family {
    pub(super) name: &'static str,
    /// A short rule that states the correct form.
    pub(super) advice: &'static str,
    /// Each pattern is a list of elements, separated by spaces. The elements match words one after the other:
    ///
    /// - `a|b`: one of these words;
    /// - `^a|b`: one of these words at the start of a sentence;
    /// - `?a|b`: one of these words, or no word;
    /// - `…`: up to `GAP_WORDS` words;
    /// - `!a|b`: matches no word, and requires that the next word is none of these words.
    patterns: &'static [&'static str],
}

const GAP_WORDS: usize = 4;

pub(super) const FAMILY_COUNT: usize = 12;

/// The families of forbidden phrases. The families do not contain similar forms that clear sentences need: for example
/// `what happens`, `what happened` and `what the host does`, and the nouns `hearing` and `saying`. Words between
/// backticks never match.
pub(super) const FAMILIES: [Family; FAMILY_COUNT] = [
    Family {
        name: "sentence-start",
        advice: "start with the subject",
        patterns: &[
            "^what|whatever|whoever|whichever|whether|of|where|who",
            "^one|those that",
            "^those who",
            "^that of",
        ],
    },
    Family {
        name: "what-is",
        advice: "name the thing",
        patterns: &[
            "what is|are|was|were|has|have|had|comes|come|came",
            "what can|cannot|could|may|might|must|remains|follows",
        ],
    },
    Family {
        name: "told",
        advice: "write `notify`, `return`, `report` or `show`",
        patterns: &["tell|tells|telling|told"],
    },
    Family {
        name: "say",
        advice: "write `log`, `report`, `state`, `receive`, `query` or `request`",
        patterns: &["say|says|said", "hear|hears|heard", "ask|asks|asked|asking"],
    },
    Family {
        name: "go-on",
        advice: "write `continue` or `resume`",
        patterns: &["go|goes|gone|going|went ?straight|right on"],
    },
    Family {
        name: "pronoun",
        advice: "name the actor or the thing",
        patterns: &[
            "nobody|somebody|anybody|everybody|someone|anyone|everyone",
            "whoever|whichever",
            "no one",
        ],
    },
    Family {
        name: "so-many",
        advice: "write the number, or name the limit",
        patterns: &["so many|long|much|few|often"],
    },
    Family {
        name: "stand-still",
        advice: "write `wait`, `stop` or `pause`",
        patterns: &["stand|stands|stood|standing ?quite still"],
    },
    Family {
        name: "had",
        advice: "write `is available` or `is missing`",
        patterns: &["is|are|was|were|be|been ?not|never had"],
    },
    Family {
        name: "may",
        advice: "name the limit or the condition",
        patterns: &[
            "as many|much|long|few|often … as ?it|they may",
            "as it|they may",
            "whatever|whichever it|they is|are",
        ],
    },
    Family {
        name: "look-at",
        advice: "write `read`, `check` or `examine`",
        patterns: &["look|looks|looked at"],
    },
    Family {
        name: "is-there",
        advice: "write `exists`, `has arrived` or `runs`",
        patterns: &["is|are|was|were|be ?not|still|already there !a|an|any|no|more|enough|room"],
    },
];

/// Finds every forbidden phrase in a passage. Returns the family, the line and an excerpt of each phrase.
pub(super) fn find(passage: &Passage) -> Vec<(&'static Family, usize, String)> {
    let words = passage.words();
    let mut found = Vec::new();
    for family in &FAMILIES {
        // A heading, the head cell of a table, or a literal in a test is a label, not a sentence, and may start with
        // any word.
        let is_exempt = passage.is_heading && matches!(family.name, "sentence-start" | "what-is");
        if is_exempt {
            continue;
        }
        let mut next = 0;
        for first in 0..words.len() {
            let length = family.patterns.iter().find_map(|pattern| {
                let pattern: Vec<&str> = pattern.split(' ').collect();
                length_of_match(&words[first..], &pattern, false)
            });
            if let Some(length) = length
                && first >= next
            {
                next = first + length;
                let text = passage.excerpt(&words, first, next - 1);
                found.push((family, words[first].line, text));
            }
        }
    }
    found
}

/// Returns how many words a pattern matches at the start of `words`; `None` if the pattern does not match. `is_cut` is
/// true if the previous word ends a clause. The match then cannot continue with a word.
fn length_of_match(words: &[Word], pattern: &[&str], is_cut: bool) -> Option<usize> {
    let Some((element, rest)) = pattern.split_first() else { return Some(0) };
    let next = words.first().filter(|_| !is_cut);
    if let Some(unwanted) = element.strip_prefix('!') {
        let is_unwanted = next.is_some_and(|word| is_one_of(word, unwanted));
        return if is_unwanted { None } else { length_of_match(words, rest, is_cut) };
    }
    let consume = |word: &Word, pattern| {
        length_of_match(&words[1..], pattern, word.ends_clause).map(|length| length + 1)
    };
    if let Some(optional) = element.strip_prefix('?') {
        let taken = next.filter(|word| is_one_of(word, optional));
        let length = taken.and_then(|word| consume(word, rest));
        return length.or_else(|| length_of_match(words, rest, is_cut));
    }
    if *element == "…" {
        return (0..=GAP_WORDS.min(words.len())).find_map(|gap| {
            let is_cut = is_cut || words[..gap].iter().any(|word| word.ends_clause);
            length_of_match(&words[gap..], rest, is_cut).map(|length| length + gap)
        });
    }
    let word = next?;
    let (is_start, wanted) =
        element.strip_prefix('^').map_or((false, *element), |start| (true, start));
    let matches = is_one_of(word, wanted) && (!is_start || word.starts_sentence);
    if matches { consume(word, rest) } else { None }
}

fn is_one_of(word: &Word, alternatives: &str) -> bool {
    alternatives.split('|').any(|alternative| word.text == alternative)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names of the families whose rules a text breaks.
    fn broken_families(text: &str) -> Vec<&'static str> {
        let mut passage = Passage::new(false);
        passage.push(1, text);
        find(&passage).into_iter().map(|(family, _, _)| family.name).collect()
    }

    #[test]
    fn phrases_are_found() {
        for (text, family) in [
            ("It ends. What waits is lost.", "sentence-start"),
            ("It ends. Where the events arrive.", "sentence-start"),
            ("Who owns the lease.", "sentence-start"),
            ("Those that wait.", "sentence-start"),
            ("Those who wait.", "sentence-start"),
            ("Declare what is missing.", "what-is"),
            ("It keeps what\nwas synced.", "what-is"),
            ("The sink writes what comes first.", "what-is"),
            ("The owner drops what cannot run.", "what-is"),
            ("Whether the lane is idle.", "sentence-start"),
            ("Of a key record: its key.", "sentence-start"),
            ("One that waits.", "sentence-start"),
            ("The owner was told.", "told"),
            ("The answer tells whether this holds.", "told"),
            ("The owner is not told.", "told"),
            ("The store has told the owner.", "told"),
            ("The answer tells the owner how to continue.", "told"),
            ("A record telling of the loss.", "told"),
            ("The process asks for the state.", "say"),
            ("The record says that it waits.", "say"),
            ("The owner heard of the change.", "say"),
            ("The others\ngo on with that.", "go-on"),
            ("The others go straight on.", "go-on"),
            ("It is nobody's.", "pronoun"),
            ("If someone waits.", "pronoun"),
            ("Everyone waits.", "pronoun"),
            ("The store has no one with that name.", "pronoun"),
            ("The earlier time or the later one, whichever is set.", "pronoun"),
            ("A key may wait for so long.", "so-many"),
            ("A key fails so often that it is parked.", "so-many"),
            ("A queue has so few events that it is empty soon.", "so-many"),
            ("A key that stands still.", "stand-still"),
            ("A key that stands quite still.", "stand-still"),
            ("A lock cannot be had.", "had"),
            ("The lock is not had now.", "had"),
            ("There are as many of these events as may wait.", "may"),
            ("As many wait as it may.", "may"),
            ("The owner looks at the fence.", "look-at"),
            ("It waits until the file is there.", "is-there"),
            ("The queue is not there yet.", "is-there"),
        ] {
            assert_eq!(broken_families(text), [family], "{text}");
        }
    }

    #[test]
    fn plain_sentences_pass() {
        for text in [
            "Returns the rest, and whether the lane is idle. Decides what happens to an event.",
            "The page describes what the host does, those that wait, and where they wait.",
            "The store refuses what it cannot read, as it must.",
            "The report shows the owner the state. It queries the state with `ask`.",
            "No. One key waits, and every one of the keys is listed.",
            "An event goes, on the next day, into the store.",
            "The owner `goes on` and `nobody` waits.",
            "There is a file. Is there a file? It is there a moment.",
            "A body, some body; the standing order still holds.",
            "As many events as fit into memory may wait, so the most are kept.",
            "The one that has it had none. The lock is not available, and was never held.",
            "The owners stand in order, and go straight to the store.",
        ] {
            assert_eq!(broken_families(text), Vec::<&str>::new(), "{text}");
        }
    }

    #[test]
    fn heading_may_start_with_what() {
        let mut heading = Passage::new(true);
        heading.push(1, "What is kept, and what nobody sees");
        let families: Vec<&str> =
            find(&heading).into_iter().map(|(family, ..)| family.name).collect();
        assert_eq!(families, ["pronoun"]);
    }

    #[test]
    fn overlapping_patterns_count_once() {
        assert_eq!(broken_families("It waits as long as it may."), ["may"]);
    }
}
