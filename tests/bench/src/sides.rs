//! Which sides of a comparison run.

use anyhow::{Result, bail};
use clap::Args;

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
