//! The prose of a Markdown page: paragraphs, headings, list items and cells of tables, without blocks of code.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::passage::Passage;

/// Splits a page into its passages.
pub(super) fn passages(text: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    let mut open = Passage::new(false);
    let mut in_code = false;
    let mut in_head = false;
    let mut line = 1;
    let mut counted = 0;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        // The parser reports events in the order of their starts. The end of a container is the only exception: the
        // range of this event is the whole container, and starts before the events inside. The line count skips such an
        // end.
        if range.start > counted {
            line += text[counted..range.start].matches('\n').count();
            counted = range.start;
        }
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Start(Tag::TableHead) => in_head = true,
            Event::End(TagEnd::TableHead) => in_head = false,
            Event::Start(tag) if is_block(&tag) => {
                let is_heading = in_head || matches!(tag, Tag::Heading { .. });
                close(&mut open, is_heading, &mut passages);
            }
            Event::End(
                TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::Item | TagEnd::TableCell,
            ) => {
                close(&mut open, false, &mut passages);
            }
            Event::Text(part) if !in_code => open.push(line, &part),
            Event::Code(part) => open.push(line, &format!("`{part}`")),
            Event::SoftBreak | Event::HardBreak => open.push_space(),
            _ => {}
        }
    }
    close(&mut open, false, &mut passages);
    passages
}

fn is_block(tag: &Tag<'_>) -> bool {
    matches!(tag, Tag::Paragraph | Tag::Heading { .. } | Tag::Item | Tag::TableCell)
}

/// Ends the open passage and begins the next one.
fn close(open: &mut Passage, is_heading: bool, passages: &mut Vec<Passage>) {
    let passage = std::mem::replace(open, Passage::new(is_heading));
    if !passage.is_empty() {
        passages.push(passage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_found_and_code_is_not() {
        let page = "# A *title*\n\nTwo\nlines of `code`.\n\n```sh\nnobody waits\n```\n\n- item\n- next\n\n\
                    | head | of it |\n|---|---|\n| a cell | of it |\n";
        let found: Vec<(String, usize, bool)> = passages(page)
            .iter()
            .map(|passage| {
                let words = passage.words();
                let text = passage.excerpt(&words, 0, words.len() - 1);
                (text, words[0].line, passage.is_heading)
            })
            .collect();
        let expected = [
            ("A title", 1, true),
            ("Two lines of `code`.", 3, false),
            ("item", 10, false),
            ("next", 11, false),
            ("head", 13, true),
            ("of it", 13, true),
            ("a cell", 15, false),
            ("of it", 15, false),
        ];
        let expected = expected.map(|(text, line, is_heading)| (text.to_owned(), line, is_heading));
        assert_eq!(found, expected);
    }
}
