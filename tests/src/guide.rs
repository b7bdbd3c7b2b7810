//! Reads the tables of the page "Your producer" (`docs/guide/your-producer.md`), so that the tests use the same settings
//! as the readers of the page.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Result, anyhow};

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
