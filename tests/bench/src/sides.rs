//! Which sides of a comparison run, and their runs.

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::report::Row;

#[derive(Debug, Args)]
pub(crate) struct Sides {
    /// Only these sides, with commas between.
    #[arg(long, value_delimiter = ',')]
    sides: Vec<String>,
}

impl Sides {
    /// Those of all that are asked for: all of them if none is named.
    pub(crate) fn of<T: Copy>(
        &self,
        all: &[T],
        name: impl Fn(&T) -> &'static str,
    ) -> Result<Vec<T>> {
        let known: Vec<&str> = all.iter().map(&name).collect();
        if let Some(unknown) = self.sides.iter().find(|it| !known.contains(&it.as_str())) {
            bail!("there is no side {unknown:?}; there are {}", known.join(", "));
        }
        let is_asked =
            |side: &&T| self.sides.is_empty() || self.sides.iter().any(|it| it == name(side));
        Ok(all.iter().filter(is_asked).copied().collect())
    }
}

/// Runs all sides one after the other, so many times; of each the median.
pub(crate) fn medians<T: Copy>(
    runs: usize,
    sides: &[T],
    name: impl Fn(&T) -> &'static str,
    mut measure: impl FnMut(T) -> Result<Row>,
) -> Result<Vec<Row>> {
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); sides.len()];
    for run in 1..=runs {
        for (side, rows) in sides.iter().zip(&mut rows) {
            let what = format!("run {run} of {runs}: {}", name(side));
            eprintln!("{what}");
            let row = measure(*side).context(what)?;
            eprintln!("{}: {:.0} events/s", name(side), row.events_per_s);
            rows.push(row);
        }
    }
    Ok(rows.iter().map(|runs| Row::median(runs)).collect())
}
