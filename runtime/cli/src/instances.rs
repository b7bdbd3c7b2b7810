//! `ordain instances`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::look::LookArgs;
use super::row::Row;
use crate::cli::{Failure, open_any};
use crate::show;
use ordain_http::view;

/// Look at the processes that share the streams: who has which partition, since when, and how much is
/// to be done there.
#[derive(Debug, Args)]
pub(crate) struct InstancesArgs {
    #[command(flatten)]
    look: LookArgs,
    /// As JSON, an instance a line; the last may have the partitions that nobody has.
    #[arg(long)]
    json: bool,
}

impl InstancesArgs {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let rows: Vec<Row> = if let Some(process) = self.look.process() {
            let answer = process.get(&["instances"], &[])?;
            let none = || process.stranger("its answer has no `instances`");
            answer.member("instances").ok_or_else(none)?
        } else {
            let loaded = self.look.load()?;
            let runtime = tokio::runtime::Runtime::new()?;
            let table = runtime.block_on(async {
                let store = open_any(&loaded).await?;
                Ok::<_, Failure>(store.table().await?)
            })?;
            view::Instances::of(&loaded, &table).rows().iter().map(Row::of).collect()
        };
        if self.json {
            for row in &rows {
                show::row(row, true)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        show::text(&text(&rows.iter().map(Row::fields).collect::<Vec<_>>()))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn text(rows: &[Value]) -> String {
    let word = |row: &Value, field: &str| row[field].as_str().unwrap_or("-").to_owned();
    let number =
        |row: &Value, field: &str| row[field].as_u64().map_or("-".into(), |it| it.to_string());
    let mut text = format!(
        "{:<32} {:<18} {:<8} {:<8} {:>10}\n",
        "INSTANCE", "ID", "VERSION", "STATE", "PARTITIONS"
    );
    let instances = rows.iter().filter(|row| !row["instance"].is_null());
    let mut is_any = false;
    for row in instances {
        is_any = true;
        text += &format!(
            "{:<32} {:<18} {:<8} {:<8} {:>10}\n",
            word(row, "name"),
            word(row, "instance"),
            word(row, "version"),
            word(row, "state"),
            number(row, "owns"),
        );
    }
    if !is_any {
        text += "(none runs)\n";
    }
    text += &format!(
        "\n{:<24} {:>9} {:<32} {:<32} {:>10} {:>8} {:>8}\n",
        "STREAM", "PARTITION", "INSTANCE", "SINCE", "LAG", "READY", "BLOCKED"
    );
    let mut partitions: Vec<(&Value, String)> = Vec::new();
    for row in rows {
        let of = row["partitions"].as_array().into_iter().flatten();
        partitions.extend(of.map(|it| (it, word(row, "name"))));
    }
    partitions.sort_by_key(|(it, _)| (word(it, "stream"), it["partition"].as_u64()));
    for (row, name) in partitions {
        text += &format!(
            "{:<24} {:>9} {:<32} {:<32} {:>10} {:>8} {:>8}\n",
            word(row, "stream"),
            number(row, "partition"),
            name,
            word(row, "since"),
            number(row, "lag"),
            number(row, "ready_keys"),
            number(row, "blocked_keys"),
        );
    }
    text
}
