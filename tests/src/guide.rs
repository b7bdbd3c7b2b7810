//! Reads the settings of the producers from the page "Your producer" (`docs/guide/your-producer.md`), so that the tests
//! use the same settings as the readers of the page.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Result, bail};

use crate::plugins::root;

/// Returns the settings of each producer in the table of the page: the code in the third cell of its row, as members of
/// an inline table in TOML. The name of a producer is the first cell of its row.
pub fn producer_settings() -> Result<BTreeMap<String, String>> {
    let page = fs::read_to_string(root().join("docs/guide/your-producer.md"))?;
    let rows = page.lines().skip_while(|line| !line.starts_with("| producer |")).skip(2);
    let mut settings = BTreeMap::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let ["", producer, _sends, set, _gets, ""] = cells[..] else {
            bail!("the row needs four cells: {row}")
        };
        let set: Vec<&str> = set.split('`').skip(1).step_by(2).collect();
        settings.insert(producer.to_owned(), set.join(", "));
    }
    Ok(settings)
}
