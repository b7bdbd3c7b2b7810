//! The prose of source files: comments, string literals, and the annotations of alerts.

use super::passage::Passage;

/// The comments and string literals of a file.
#[derive(Default)]
pub(super) struct Source {
    pub(super) comments: Vec<Passage>,
    /// The literals outside of tests.
    pub(super) literals: Vec<Passage>,
    /// The literals in tests. Many of these literals are data, so they count as labels, not as sentences.
    pub(super) test_literals: Vec<Passage>,
}

/// The marks that begin comments in Rust and WIT, the longest marks first.
const MARKS: [&str; 3] = ["//!", "///", "//"];
/// The keys of the values that an alerting rule shows to an operator.
const ANNOTATION_KEYS: [&str; 2] = ["summary:", "description:"];
/// Attributes of items that exist only in tests.
const TEST_ATTRIBUTES: [&str; 3] = ["#[cfg(test)]", "#[cfg(all(test", "#[test]"];

/// Reads the comments and literals of a Rust file. `is_test` is true if the file contains only tests. The function also
/// reads WIT, whose comments have the same form.
pub(super) fn rust(text: &str, is_test: bool) -> Source {
    let mut lexer = Lexer { text, is_test, ..Lexer::default() };
    while lexer.at < text.len() {
        lexer.step();
    }
    Source {
        comments: lexer.comments.finish(),
        literals: lexer.literals,
        test_literals: lexer.test_literals,
    }
}

/// Reads the comments of a file whose comments extend from a mark to the end of the line.
pub(super) fn line_comments(text: &str, mark: &str) -> Vec<Passage> {
    let mut comments = Comments::default();
    for (at, line) in text.lines().enumerate() {
        if let Some(start) = comment_start(line, mark) {
            let is_alone = line[..start].trim().is_empty();
            comments.push(at + 1, "", is_alone, line[start..].trim_start_matches(mark));
        }
    }
    comments.finish()
}

/// Reads the string literals in quotes of a Lua file. Does not read literals between `[[` and `]]`. `mark` begins a
/// comment.
pub(super) fn line_literals(text: &str, mark: &str) -> Vec<Passage> {
    let mut literals = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let code = &line[..comment_start(line, mark).unwrap_or(line.len())];
        // The quote and the text of the open literal.
        let mut open: Option<(char, String)> = None;
        let mut letters = code.chars();
        while let Some(letter) = letters.next() {
            open = match open {
                Some((quote, body)) if letter == quote => {
                    let mut passage = Passage::new(false);
                    passage.push(at + 1, &body);
                    literals.push(passage);
                    None
                }
                Some((quote, mut body)) => {
                    body.extend(if letter == '\\' { letters.next() } else { Some(letter) });
                    Some((quote, body))
                }
                None => matches!(letter, '"' | '\'').then(|| (letter, String::new())),
            };
        }
    }
    literals
}

/// Reads the annotations of the alerting rules in a YAML file: values in the line of their key, and blocks below their
/// key. Each template such as `{{ $labels.stream }}` becomes the placeholder `{}`, which counts as one word.
pub(super) fn annotations(text: &str) -> Vec<Passage> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        let Some(value) = ANNOTATION_KEYS.iter().find_map(|key| line.trim().strip_prefix(*key))
        else {
            continue;
        };
        let mut passage = Passage::new(false);
        if value.trim().starts_with(['|', '>']) {
            let depth = indentation(line);
            let is_inside = |row: &str| row.trim().is_empty() || indentation(row) > depth;
            while let Some((below, row)) = lines.next_if(|(_, row)| is_inside(row)) {
                passage.push(below + 1, &without_templates(row));
                passage.push_space();
            }
        } else {
            passage.push(at + 1, &without_templates(value.trim().trim_matches(['"', '\''])));
        }
        found.push(passage);
    }
    found
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Replaces each template in double braces by `{}`.
fn without_templates(text: &str) -> String {
    let mut parts = text.split("{{");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("{}");
        out.push_str(part.split_once("}}").map_or("", |(_, rest)| rest));
    }
    out
}

/// Returns the offset at which a comment begins in a line: the offset of the first mark outside of quotes.
fn comment_start(line: &str, mark: &str) -> Option<usize> {
    let mut quote = None;
    line.char_indices().find_map(|(at, letter)| {
        match quote {
            Some(open) if open == letter => quote = None,
            None if letter == '"' || letter == '\'' => quote = Some(letter),
            _ => {}
        }
        (quote.is_none() && line[at..].starts_with(mark)).then_some(at)
    })
}

/// Joins lines of comments into passages.
#[derive(Default)]
struct Comments {
    passages: Vec<Passage>,
    /// The number of the last line of the open passage, and the mark of the comment in this line.
    last: Option<(usize, String)>,
    in_code: bool,
}

impl Comments {
    /// Adds a line without its mark. `is_alone` is true if no code precedes the comment.
    fn push(&mut self, line: usize, mark: &str, is_alone: bool, text: &str) {
        let text = text.trim();
        let continues = is_alone
            && self.last.as_ref().is_some_and(|(last, of)| *last + 1 == line && of == mark);
        if !continues {
            self.in_code = false;
        }
        self.last = is_alone.then(|| (line, mark.to_owned()));
        if text.starts_with("```") {
            self.in_code = !self.in_code;
            self.passages.push(Passage::new(false));
        } else if !self.in_code {
            let is_heading = text.starts_with("# ");
            if !continues || text.is_empty() || is_heading || begins_item(text) {
                self.passages.push(Passage::new(is_heading));
            } else if let Some(open) = self.passages.last_mut() {
                open.push_space();
            }
            if let Some(open) = self.passages.last_mut() {
                open.push(line, text);
            }
        }
    }

    fn finish(mut self) -> Vec<Passage> {
        self.passages.retain(|passage| !passage.is_empty());
        self.passages
    }
}

/// Returns whether a line begins an item of a list or a row of a table.
fn begins_item(text: &str) -> bool {
    let is_numbered = text
        .split_once(". ")
        .is_some_and(|(number, _)| number.bytes().all(|digit| digit.is_ascii_digit()));
    is_numbered || ["- ", "* ", "| "].iter().any(|mark| text.starts_with(mark))
}

#[derive(Default)]
struct Lexer<'a> {
    text: &'a str,
    at: usize,
    /// The number of lines before `at`.
    lines: usize,
    /// The number of open brackets of all kinds.
    depth: usize,
    /// The bracket depth at which the current test item began; `None` outside of test items.
    test: Option<usize>,
    /// True if the whole file contains only tests.
    is_test: bool,
    comments: Comments,
    literals: Vec<Passage>,
    test_literals: Vec<Passage>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Advances by `length` bytes, and counts the line ends among them.
    fn advance(&mut self, length: usize) {
        self.lines += self.rest()[..length].matches('\n').count();
        self.at += length;
    }

    /// Reads one comment, one literal or one character of code.
    fn step(&mut self) {
        let rest = self.rest();
        if rest.starts_with("//") {
            return self.line_comment();
        }
        if rest.starts_with("/*") {
            return self.block_comment();
        }
        if let Some(hashes) = self.raw_string() {
            return self.raw_literal(hashes);
        }
        if TEST_ATTRIBUTES.iter().any(|attribute| rest.starts_with(attribute)) {
            self.test.get_or_insert(self.depth);
            // Skips only the `#`: the next steps must count the brackets of the attribute.
            return self.advance(1);
        }
        match rest.as_bytes()[0] {
            b'"' => self.literal(),
            b'\'' => self.character(),
            b'(' | b'[' | b'{' => self.open(),
            close @ (b')' | b']' | b'}') => self.close(close),
            b';' => self.end_item(),
            _ => self.advance(rest.chars().next().map_or(1, char::len_utf8)),
        }
    }

    fn open(&mut self) {
        self.depth += 1;
        self.advance(1);
    }

    fn close(&mut self, bracket: u8) {
        self.depth = self.depth.saturating_sub(1);
        let ended = |test| self.depth < test || (bracket == b'}' && self.depth == test);
        if self.test.is_some_and(ended) {
            self.test = None;
        }
        self.advance(1);
    }

    fn end_item(&mut self) {
        if self.test == Some(self.depth) {
            self.test = None;
        }
        self.advance(1);
    }

    fn line_comment(&mut self) {
        let comment = self.rest().lines().next().unwrap_or_default();
        let before = &self.text[..self.at];
        let is_alone = before[before.rfind('\n').map_or(0, |at| at + 1)..].trim().is_empty();
        let mark = MARKS.into_iter().find(|mark| comment.starts_with(mark)).unwrap_or_default();
        self.comments.push(self.lines + 1, mark, is_alone, &comment[mark.len()..]);
        self.advance(comment.len());
    }

    fn block_comment(&mut self) {
        let end = self.rest().find("*/").map_or(self.rest().len(), |at| at + 2);
        for (at, line) in self.rest()[..end].lines().enumerate() {
            let text = line.trim().trim_start_matches(['/', '*']).trim_end_matches(['/', '*']);
            self.comments.push(self.lines + 1 + at, "/*", true, text);
        }
        self.advance(end);
    }

    /// Returns the number of hashes if a raw string begins here.
    fn raw_string(&self) -> Option<usize> {
        let rest = self.rest().strip_prefix('b').unwrap_or(self.rest());
        let rest = rest.strip_prefix('r')?;
        let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
        let is_name = self.text[..self.at]
            .ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
        (rest[hashes..].starts_with('"') && !is_name).then_some(hashes)
    }

    fn raw_literal(&mut self, hashes: usize) {
        let start = self.rest().find('"').map_or(0, |at| at + 1);
        let end = format!("\"{}", "#".repeat(hashes));
        let body = &self.rest()[start..];
        let length = body.find(&end).unwrap_or(body.len());
        let line = self.lines + 1;
        self.add_literal(vec![(line, body[..length].to_owned())]);
        self.advance((start + length + end.len()).min(self.rest().len()));
    }

    /// Reads a literal with escapes.
    fn literal(&mut self) {
        let mut pieces = vec![(self.lines + 1, String::new())];
        self.advance(1);
        while let Some(letter) = self.rest().chars().next() {
            match letter {
                '"' => break,
                '\\' => {
                    self.advance(1);
                    self.escape(&mut pieces);
                }
                _ => {
                    if let Some((_, piece)) = pieces.last_mut() {
                        piece.push(letter);
                    }
                    self.advance(letter.len_utf8());
                }
            }
        }
        self.advance(1.min(self.rest().len()));
        self.add_literal(pieces);
    }

    /// Reads an escape after its backslash. If the escape is a line end, the literal continues after the white space
    /// that follows.
    fn escape(&mut self, pieces: &mut Vec<(usize, String)>) {
        let Some(letter) = self.rest().chars().next() else { return };
        self.advance(letter.len_utf8());
        if letter == '\n' {
            let blank = self.rest().len() - self.rest().trim_start().len();
            self.advance(blank);
            pieces.push((self.lines + 1, String::new()));
        } else if let Some((_, piece)) = pieces.last_mut() {
            piece.push(if letter == 'n' || letter == 't' { ' ' } else { letter });
        }
    }

    fn add_literal(&mut self, pieces: Vec<(usize, String)>) {
        let is_test = self.is_test || self.test.is_some();
        let mut passage = Passage::new(is_test);
        for (line, text) in pieces {
            passage.push(line, &text);
        }
        let literals = if is_test { &mut self.test_literals } else { &mut self.literals };
        literals.push(passage);
    }

    /// Reads a character literal, or the quote of a lifetime.
    fn character(&mut self) {
        let mut letters = self.rest().char_indices().skip(1);
        let first = letters.next();
        let second = letters.next();
        let length = match (first, second) {
            (Some((_, '\\')), Some(_)) => {
                letters.find(|(_, letter)| *letter == '\'').map_or(1, |(at, _)| at + 1)
            }
            (Some(_), Some((at, '\''))) => at + 1,
            _ => 1,
        };
        self.advance(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(passages: &[Passage]) -> Vec<(usize, String)> {
        let text = |passage: &Passage| {
            let words = passage.words();
            (words[0].line, passage.excerpt(&words, 0, words.len() - 1))
        };
        passages.iter().map(text).collect()
    }

    fn check(found: &[Passage], expected: &[(usize, &str)]) {
        let expected: Vec<(usize, String)> =
            expected.iter().map(|(line, text)| (*line, (*text).to_owned())).collect();
        assert_eq!(texts(found), expected);
    }

    #[test]
    fn comments_are_joined_and_code_in_them_is_not_prose() {
        let text = "//! A file.\n//!\n//! Two\n//! lines.\n//! ```\n//! code\n//! ```\n//! - item\n\
                    let a = 1; // behind code\n// alone\n/* a\n * b */\n";
        let expected = [
            (1, "A file."),
            (3, "Two lines."),
            (8, "item"),
            (9, "behind code"),
            (10, "alone"),
            (11, "a b"),
        ];
        check(&rust(text, false).comments, &expected);
    }

    #[test]
    fn literals_are_read_inside_and_outside_of_tests() {
        let text = "fn a<'a>(x: &'a str) { say(\"one // two \\\n   three\", '\"', '\\''); r#\"raw \"x\" y\"# }\n\
                    #[test]\nfn b(a: [u8; 1]) { \"no\" }\nconst A: &str = \"yes\";\n\
                    #[cfg(test)]\nmod tests { fn c() { \"no\" } }\nfn d() { \"last\\none\" }\n\
                    impl E {\n    #[cfg(test)]\n    fn f() { \"no\" }\n    const G: &str = \"inside\";\n}\n";
        let expected = [
            (1, "one // two three"),
            (2, "raw \"x\" y"),
            (5, "yes"),
            (8, "last one"),
            (12, "inside"),
        ];
        let source = rust(text, false);
        check(&source.literals, &expected);
        check(&source.test_literals, &[(4, "no"), (7, "no"), (11, "no")]);
        check(&source.comments, &[]);
        let test_file = rust("fn a() { \"one\" }", true);
        check(&test_file.literals, &[]);
        check(&test_file.test_literals, &[(1, "one")]);
    }

    #[test]
    fn literals_of_lines_are_read() {
        let text = "error('one \\'two\\'') -- 'three'\nlocal a = \"four\" .. '' .. 'five'\n";
        let found = line_literals(text, "--");
        let literals: Vec<Passage> =
            found.into_iter().filter(|literal| !literal.is_empty()).collect();
        check(&literals, &[(1, "one 'two'"), (2, "four"), (2, "five")]);
    }

    #[test]
    fn annotations_of_alerts_are_read() {
        let text = "expr: a == 0\nannotations:\n  summary: Stream {{ $labels.stream }} waits.\n  \
                    description: |\n    One.\n\n    Two.\n  \
                    runbook: three\n  summary: \"Four\"\n";
        let expected = [(3, "Stream {} waits."), (5, "One. Two."), (9, "Four")];
        check(&annotations(text), &expected);
    }

    #[test]
    fn comment_mark_in_quotes_starts_no_comment() {
        let text = "a = \"b # c\" # why\n# it is so\n";
        check(&line_comments(text, "#"), &[(1, "why"), (2, "it is so")]);
        check(&line_comments("local a = '--' -- two\n", "--"), &[(1, "two")]);
    }
}
