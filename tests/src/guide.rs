//! Reads pages of the guide, so that the tests use the same settings, files and commands as the readers of the pages:
//! the tables of the page "Your producer" (`docs/guide/your-producer.md`), and the blocks of code of any page.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, anyhow};

use crate::plugins::root;

/// Returns the settings of each producer: the code in the third cell of its row, as members of an inline table in TOML.
/// The name of a producer is the first cell of its row.
pub fn producer_settings() -> Result<BTreeMap<String, String>> {
    let rows = rows("producer")?.into_iter();
    let settings = rows.map(|[producer, _, cell, _]| {
        let code: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        (producer, code.join(", "))
    });
    Ok(settings.collect())
}

/// Returns the kind of test for each library that reads Ordain's messages: the last cell of its row. The name of a
/// library is the first cell of its row.
pub fn reader_tests() -> Result<BTreeMap<String, String>> {
    let rows = rows("reader")?.into_iter();
    Ok(rows.map(|[reader, _, _, test]| (reader, test)).collect())
}

/// The blocks of code in a section of a page.
#[derive(Debug, Default)]
pub struct SectionCode {
    /// The files: the name and the content of each.
    pub files: Vec<(String, String)>,
    /// The blocks of shell commands.
    pub commands: Vec<String>,
}

/// Returns the blocks of code in a section of a page of the guide. The last paragraph before the block of a file begins
/// with the name of the file, or contains no other code.
pub fn section_code(page: &str, heading: &str) -> Result<SectionCode> {
    let text = fs::read_to_string(root().join("docs/guide").join(page))?;
    let (_, section) = text
        .split_once(&format!("\n## {heading}\n"))
        .with_context(|| format!("{page} has no section {heading:?}"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut code = SectionCode::default();
    for (before, language, block) in blocks(section) {
        if language == "sh" {
            code.commands.push(block.to_owned());
            continue;
        }
        let paragraph = before.trim_end().rsplit("\n\n").next().unwrap_or_default();
        let name = paragraph
            .split('`')
            .nth(1)
            .with_context(|| format!("{page}: no file name is in the paragraph before\n{block}"))?;
        code.files.push((name.to_owned(), block.to_owned()));
    }
    Ok(code)
}

/// Returns the blocks of code in a language that are not in the section with this heading.
pub fn other_blocks(page: &str, heading: &str, language: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(root().join("docs/guide").join(page))?;
    let sections = text.split("\n## ").filter(|section| !section.starts_with(heading));
    let found = sections.flat_map(blocks).filter(|(_, found, _)| *found == language);
    Ok(found.map(|(.., block)| block.to_owned()).collect())
}

/// Returns each block of code with the text before it, and with its language.
fn blocks(text: &str) -> Vec<(&str, &str, &str)> {
    let parts: Vec<&str> = text.split("```").collect();
    let pairs = parts.chunks_exact(2);
    pairs
        .map(|pair| {
            let (language, block) = pair[1].split_once('\n').unwrap_or((pair[1], ""));
            (pair[0], language, block)
        })
        .collect()
}

/// Returns the four cells of each row of the table whose first column has this heading.
fn rows(heading: &str) -> Result<Vec<[String; 4]>> {
    let page = fs::read_to_string(root().join("docs/guide/your-producer.md"))?;
    let first = format!("| {heading} |");
    let rows = page.lines().skip_while(|line| !line.starts_with(&first)).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .map(|row| {
            let cells = row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
            let cells: Vec<String> = cells.collect();
            cells.try_into().map_err(|_| anyhow!("the row needs four cells: {row}"))
        })
        .collect()
}
