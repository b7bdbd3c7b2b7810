//! `ordain streams`: lists streams, resumes a stream that has stopped, and removes old bindings.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::inspect::{InspectArgs, UnopenedTarget};
use crate::cli::CommandError;
use crate::show::{self, JsonRow};
use ordain_http::view::{BindingRow, ResumedRow, StreamRow};

#[derive(Debug, Subcommand)]
pub(crate) enum StreamsCommand {
    /// List the streams. For each stream that receives no events, show the reason.
    ///
    /// Only a running process knows whether a stream receives events. The command finds a process that has the embedded
    /// store of the configuration open. Name any other process with `--admin`. Without a process, the list shows a
    /// reason only for streams that have stopped because their queue is lost.
    List(StreamsListArgs),
    /// Resume a stream that has stopped because its queue is lost (fifo streams only), or because it cannot read the
    /// messages of its queue.
    ///
    /// If a stream cannot read its messages, only one process has stopped the stream. If the store is in Redis, name
    /// this process with `--admin`. The process then receives the messages of the queue again, with the same settings.
    /// If the settings are wrong, correct them and start Ordain again instead.
    ///
    /// If the queue is lost, its messages do not come back. Before you run this command, publish again the events of
    /// the lost queue that have not taken effect. For each key, the command `keys list` shows the number of the next
    /// event; all events with lower numbers have ended.
    ///
    /// This command lets the stream consume the queue that now has the name of the lost queue. Running processes begin
    /// to consume this queue within seconds.
    Resume(StreamActionArgs),
    /// Remove the bindings that earlier configurations of a stream made, or all bindings of a stream that is not
    /// configured any more.
    ///
    /// Ordain does not remove bindings by itself, because a process may still run with the earlier configuration. Run
    /// this command when all processes have the new configuration.
    Unbind(StreamActionArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StreamsListArgs {
    #[command(flatten)]
    inspect: InspectArgs,
    /// Print JSON, one stream per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StreamActionArgs {
    /// The name of the stream.
    stream: String,
    #[command(flatten)]
    inspect: InspectArgs,
    /// Print JSON, one line for each resumed partition (`resume`) or each removed binding (`unbind`).
    #[arg(long)]
    json: bool,
}

impl StreamsCommand {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        match self {
            Self::List(args) => args.run(),
            Self::Resume(args) => args.resume(),
            Self::Unbind(args) => args.unbind(),
        }
    }
}

impl StreamsListArgs {
    fn run(self) -> Result<ExitCode, CommandError> {
        let target = self.inspect.target()?;
        if self.json {
            return print_rows(&target.streams()?);
        }
        let rows: Vec<StreamRow> = target.streams()?;
        show::text(&text(&rows, matches!(target, UnopenedTarget::Process(_))))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl StreamActionArgs {
    fn resume(self) -> Result<ExitCode, CommandError> {
        let stream = &self.stream;
        let target = self.inspect.target()?;
        if self.json {
            return print_rows(&target.resume(stream)?);
        }
        let resumed: Vec<ResumedRow> = target.resume(stream)?;
        if resumed.is_empty() {
            show::text(&match target {
                UnopenedTarget::Process(_) => {
                    format!("stream {stream} has not stopped in this process: nothing to resume\n")
                }
                UnopenedTarget::Config(_) => format!(
                    "stream {stream} has no lost queue: nothing to resume. If the stream has stopped because it cannot \
                     read its messages, name its process with `--admin`\n"
                ),
            })?;
        }
        for ResumedRow { partition, reason } in resumed {
            show::text(&format!(
                "stream {stream}, partition {partition} resumed. The reason of the stop was: {reason}\n"
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn unbind(self) -> Result<ExitCode, CommandError> {
        let stream = &self.stream;
        let target = self.inspect.target()?;
        if self.json {
            return print_rows(&target.unbind(stream)?);
        }
        let removed: Vec<BindingRow> = target.unbind(stream)?;
        if removed.is_empty() {
            show::text(&format!("stream {stream} has no binding of an earlier configuration\n"))?;
        }
        for BindingRow { binding } in removed {
            show::text(&format!("removed the binding {binding}\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print_rows(rows: &[JsonRow]) -> Result<ExitCode, CommandError> {
    for row in rows {
        row.print(true)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the streams as a table of text. `knows_intake` is true if the rows come from a running process, because only
/// a running process can state which streams receive events.
fn text(rows: &[StreamRow], knows_intake: bool) -> String {
    let mut text = format!("{:<24} {:<8} {:<10} REASON\n", "STREAM", "SOURCE", "CONSUMING");
    for row in rows {
        let source = row.source.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        let consuming = match row.consuming {
            Some(false) => "no",
            _ if knows_intake => "yes",
            _ => "?",
        };
        let reason = row.reason.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        text += &format!("{:<24} {source:<8} {consuming:<10} {reason}\n", row.stream.to_string());
    }
    text
}
