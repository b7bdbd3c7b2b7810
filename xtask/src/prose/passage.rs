//! A passage of prose, split into words with their lines.

/// A paragraph, a heading, a cell of a table, a comment or a message. Code between backticks counts as one word.
pub(super) struct Passage {
    text: String,
    /// For each piece of the text, its offset in `text` and its line in the file.
    pieces: Vec<(usize, usize)>,
    /// True if the passage is a label, not a sentence.
    pub(super) is_heading: bool,
}

/// A word without the punctuation around it.
pub(super) struct Word {
    /// The word in lower case, without the `'s` of a possessive.
    pub(super) text: String,
    pub(super) line: usize,
    pub(super) starts_sentence: bool,
    /// True if punctuation follows the word. A phrase never continues after such a word.
    pub(super) ends_clause: bool,
    /// The range of the word in the text of the passage, with the punctuation around the word.
    start: usize,
    end: usize,
}

/// The maximum number of words that an excerpt contains on each side of a phrase.
const CONTEXT_WORDS: usize = 8;

impl Passage {
    pub(super) fn new(is_heading: bool) -> Self {
        Self { text: String::new(), pieces: Vec::new(), is_heading }
    }

    /// Appends text that begins in the line `line` of the file.
    pub(super) fn push(&mut self, line: usize, text: &str) {
        for (at, part) in text.split('\n').enumerate() {
            if at > 0 {
                self.text.push(' ');
            }
            self.pieces.push((self.text.len(), line + at));
            self.text.push_str(part);
        }
    }

    /// Appends a space, for example between two lines of a paragraph.
    pub(super) fn push_space(&mut self) {
        self.text.push(' ');
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Returns the number of lines that the passage has in its file.
    pub(super) fn line_count(&self) -> usize {
        let first = self.pieces.first().map_or(0, |(_, line)| *line);
        let last = self.pieces.last().map_or(0, |(_, line)| *line);
        1 + last - first
    }

    pub(super) fn word_count(&self) -> usize {
        self.words().iter().filter(|word| word.text.chars().any(char::is_alphabetic)).count()
    }

    /// Splits the passage into words. Code between backticks is one word.
    pub(super) fn words(&self) -> Vec<Word> {
        let text = without_code(&self.text);
        let mut words: Vec<Word> = Vec::new();
        let mut starts_sentence = true;
        for (start, raw) in split_at_spaces(&text) {
            // A placeholder such as `{name:?}` is one word, although its braces contain punctuation.
            let core = match (raw.find('{'), raw.rfind('}')) {
                (Some(first), Some(last)) if first < last => &raw[first..=last],
                _ => raw.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '`'),
            };
            if core.is_empty() {
                // The part has no word: it is only a dash, the mark of a list item, or a bracket.
                if let Some(last) = words.last_mut() {
                    last.ends_clause = true;
                }
                continue;
            }
            let after = &raw[raw.find(core).unwrap_or(0) + core.len()..];
            let lower = core.to_lowercase();
            words.push(Word {
                text: lower.strip_suffix("'s").unwrap_or(&lower).to_owned(),
                line: self.line_at(start),
                starts_sentence,
                ends_clause: after.contains(['.', ',', ';', ':', '!', '?', ')', '|', '…', '"']),
                start,
                end: start + raw.len(),
            });
            starts_sentence = after.contains(['.', '!', '?']);
        }
        words
    }

    fn line_at(&self, at: usize) -> usize {
        let after = self.pieces.partition_point(|(start, _)| *start <= at);
        self.pieces.get(after.saturating_sub(1)).map_or(0, |(_, line)| *line)
    }

    /// Returns the original text of the words from `first` to `last`, with some words on each side.
    pub(super) fn excerpt(&self, words: &[Word], first: usize, last: usize) -> String {
        let from = words[first.saturating_sub(CONTEXT_WORDS)].start;
        let to = words[(last + CONTEXT_WORDS).min(words.len() - 1)].end;
        self.text[from..to].split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Replaces code between backticks with backticks of the same length, so that offsets stay valid.
fn without_code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, part) in text.split('`').enumerate() {
        if at > 0 {
            out.push('`');
        }
        let is_code = at % 2 == 1;
        if is_code {
            out.extend(std::iter::repeat_n('`', part.len()));
        } else {
            out.push_str(part);
        }
    }
    out
}

/// Splits a text at white space, with the offset of each part.
fn split_at_spaces(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let origin = text.as_ptr() as usize;
    text.split_whitespace().map(move |part| (part.as_ptr() as usize - origin, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passage(text: &str) -> Passage {
        let mut passage = Passage::new(false);
        passage.push(1, text);
        passage
    }

    #[test]
    fn words_have_lines_and_sentences() {
        let words = passage("One `a b` (two).\nThree, four").words();
        let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(texts, ["one", "`````", "two", "three", "four"]);
        assert_eq!(words.iter().map(|word| word.line).collect::<Vec<_>>(), [1, 1, 1, 2, 2]);
        let starts: Vec<bool> = words.iter().map(|word| word.starts_sentence).collect();
        assert_eq!(starts, [true, false, false, true, false]);
        assert!(words[2].ends_clause && words[3].ends_clause && !words[4].ends_clause);
    }

    #[test]
    fn placeholder_is_a_word() {
        let words = passage("{what} failed after {time:?} of {}").words();
        let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(texts, ["{what}", "failed", "after", "{time:?}", "of", "{}"]);
        assert_eq!(words.iter().filter(|word| word.starts_sentence).count(), 1);
    }

    #[test]
    fn possessive_and_case_are_removed() {
        let words = passage("Nobody's \"Whoever\"").words();
        assert_eq!(words[0].text, "nobody");
        assert_eq!(words[1].text, "whoever");
    }

    #[test]
    fn excerpt_is_the_text_of_the_file() {
        let passage = passage("The `host`\ngoes on.");
        let words = passage.words();
        assert_eq!(passage.excerpt(&words, 2, 3), "The `host` goes on.");
        assert_eq!(passage.line_count(), 2);
    }
}
