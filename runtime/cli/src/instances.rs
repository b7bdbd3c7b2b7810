//! `ordain instances`: prints the processes that share the streams.

use std::process::ExitCode;

use clap::Args;

use super::inspect::{InspectArgs, RowForm, UnopenedTarget};
use crate::cli::{CommandError, open_to_read};
use crate::show::{self, JsonRow};
use ordain_http::view::{
    BoundedRows, InstanceOverview, InstanceRow, InstancesPage, PartitionRow, RowText,
};

/// Show the processes that share the streams, and the partitions that each process owns.
///
/// For each partition, also show the backlog, and the time at which the process became the owner of the partition.
#[derive(Debug, Args)]
pub(crate) struct InstancesArgs {
    #[command(flatten)]
    inspect: InspectArgs,
    /// Print JSON, one instance per line. The last line may list the partitions without an owner.
    #[arg(long)]
    json: bool,
}

impl InstancesArgs {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        if self.json {
            let rows: Vec<JsonRow> = self.rows()?;
            for row in &rows {
                row.print(true)?;
            }
        } else {
            show::text(&text(&self.rows()?))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn rows<F: RowForm<InstanceRow>>(&self) -> Result<Vec<F>, CommandError> {
        let loaded = match self.inspect.target()? {
            UnopenedTarget::Process(process) => {
                let page: InstancesPage<BoundedRows<F>> =
                    process.get(&["instances"], &[], "instances")?;
                return Ok(page.instances.0);
            }
            UnopenedTarget::Config(loaded) => loaded,
        };
        let runtime = crate::runtime::new()?;
        let table = runtime.block_on(async {
            let store = open_to_read(&loaded).await?;
            Ok::<_, CommandError>(store.table().await?)
        })?;
        Ok(InstanceOverview::of(&loaded, &table).rows().into_iter().map(F::from).collect())
    }
}

fn text(rows: &[InstanceRow]) -> String {
    let mut text = format!(
        "{:<32} {:<18} {:<8} {:<8} {:>10}\n",
        "INSTANCE", "ID", "VERSION", "STATE", "PARTITIONS"
    );
    let mut is_any = false;
    for row in rows {
        let Some(id) = &row.id else { continue };
        is_any = true;
        text += &format!(
            "{:<32} {id:<18} {:<8} {:<8} {:>10}\n",
            word(row.name.as_ref()),
            word(row.version.as_ref()),
            word(row.state.as_ref()),
            row.owns,
        );
    }
    if !is_any {
        text += "(no instance is running)\n";
    }
    text += &format!(
        "\n{:<24} {:>9} {:<32} {:<32} {:>10} {:>8} {:>8}\n",
        "STREAM", "PARTITION", "INSTANCE", "SINCE", "LAG", "READY", "BLOCKED"
    );
    let mut partitions: Vec<(&PartitionRow, &InstanceRow)> = Vec::new();
    for row in rows {
        partitions.extend(row.partitions.iter().map(|partition| (partition, row)));
    }
    partitions.sort_by_key(|(partition, _)| (&partition.stream, partition.partition));
    for (partition, row) in partitions {
        text += &format!(
            "{:<24} {:>9} {:<32} {:<32} {:>10} {:>8} {:>8}\n",
            partition.stream,
            partition.partition,
            word(row.name.as_ref()),
            word(partition.since.as_ref()),
            number(partition.lag),
            number(partition.ready_keys),
            number(partition.blocked_keys),
        );
    }
    text
}

fn word(text: Option<&RowText>) -> String {
    text.map_or_else(|| "-".to_owned(), ToString::to_string)
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}
