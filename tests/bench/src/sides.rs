//! Selects sides of a comparison, and runs them.

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::report::Row;

#[derive(Debug, Args)]
pub(crate) struct Sides {
    /// Run only these sides (programs or configurations that the benchmark compares), separated by commas
    #[arg(long, value_delimiter = ',')]
    sides: Vec<String>,
}

impl Sides {
    /// Returns the requested sides, or all sides if the command line names none.
    pub(crate) fn of<T: Copy>(
        &self,
        all: &[T],
        name: impl Fn(&T) -> &'static str,
    ) -> Result<Vec<T>> {
        let known: Vec<&str> = all.iter().map(&name).collect();
        if let Some(unknown) = self.sides.iter().find(|side| !known.contains(&side.as_str())) {
            bail!("unknown side {unknown:?}; the sides are {}", known.join(", "));
        }
        let is_requested = |side: &&T| {
            self.sides.is_empty() || self.sides.iter().any(|wanted| wanted == name(side))
        };
        Ok(all.iter().filter(is_requested).copied().collect())
    }
}

/// Runs all sides one after the other, `runs` times. Returns the medians of each side.
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
