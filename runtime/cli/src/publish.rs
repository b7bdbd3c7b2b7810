//! `ordain publish`: publishes events from a file or from the command line.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ordain_core::OrderingMode;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cli::{CommandError, ConfigArg, EXIT_UNAVAILABLE};
use crate::show;
use crate::signals::{EndSignal, EndSignals};
use crate::store::{StoreAccess, open_store};
use ordain_cloudevents::EventDecoder;
use ordain_config::LoadedConfig;
use ordain_engine::publish_file::{PublishCounts, PublishFileError, publish_file};
use ordain_engine::run::RunError;
use ordain_publish::{PublishError, RETRY_TIMEOUT, StreamPublisher, new_id};
use ordain_store::AssignItemReply;
use ordain_util::text::{pluralized, print_lossy};
use ordain_util::wait::shortened;

/// The text that `--help` prints after the options.
const AFTER_HELP: &str = "\
If a line is invalid, the command publishes all earlier lines and stops. Fix the line, and repeat the
command. With an embedded store, this command and the command `run` cannot run at the same time. With
[store] kind = \"redis\", you can publish events while the stream runs.

Examples:
  ordain publish orders events.ndjson
  producer | ordain publish orders -
  ordain publish orders --key order-17 --type order.paid --data '{\"cents\": 1200}' --id payment-4711";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct PublishArgs {
    /// The name of the stream.
    stream: String,
    /// File of CloudEvents in JSON, one event per line; `-` is standard input. If an event is already published in a
    /// `sequenced` stream, the store recognises the event by its id, or by its sequence if it has one. The event then
    /// keeps its number.
    #[arg(required_unless_present = "key", conflicts_with_all = ["key", "kind", "data", "id", "sequence", "end"])]
    file: Option<PathBuf>,
    /// Key of a single event. Use this option instead of a file to publish one event.
    #[arg(long, requires = "kind")]
    key: Option<String>,
    /// Type of the event.
    #[arg(long = "type", value_name = "TYPE", requires = "key")]
    kind: Option<String>,
    /// Data of the event, as JSON.
    #[arg(long, value_name = "JSON", requires = "key")]
    data: Option<String>,
    /// Id of the event. If you publish the event again, use the same id: Ordain recognises the repeat by the id, or by
    /// the sequence if the stream is `sequenced` and you give `--sequence`. Default: a new id.
    #[arg(long, requires = "key")]
    id: Option<String>,
    /// Number of the event within its key, if the producer numbers events. Default: Ordain numbers the event.
    #[arg(long, requires = "key")]
    sequence: Option<u64>,
    /// Mark the event as the last event of its key.
    #[arg(long, requires = "key")]
    end: bool,
    /// Let the store give lost numbers again. Use this option only after the store lost data, and only to publish the
    /// lost events again. Publish all of them, in the same order and with the same ids, before any new event.
    #[arg(long)]
    reuse_lost_numbers: bool,
    #[command(flatten)]
    config: ConfigArg,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl PublishArgs {
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        let loaded = self.config.load()?;
        // Check the input first, because opening the publisher creates a missing store, exchange or queue.
        let data = self.data()?;
        if let Some(path) = self.file.as_deref().filter(|path| *path != Path::new("-")) {
            let words = || {
                format!(
                    "{} cannot be read: name a file with one event per line, or - for standard input",
                    path.display()
                )
            };
            std::fs::metadata(path).with_context(words)?;
        }
        let runtime = crate::runtime::new()?;
        runtime.block_on(async {
            let mut code = ExitCode::SUCCESS;
            let mut publisher = StreamPublisher::open(
                &loaded,
                &self.stream,
                open_store(
                    &loaded,
                    Some(shortened(RETRY_TIMEOUT)),
                    StoreAccess::Write { admin_url: None },
                ),
            )
            .await?;
            if self.reuse_lost_numbers {
                publisher.reuse_lost_numbers();
            }
            match (&self.key, &self.file) {
                (Some(key), _) => self.publish_event(&mut publisher, &loaded, key, data).await?,
                (None, Some(file)) => {
                    code = self.publish_lines(&mut publisher, &loaded, file).await?;
                }
                (None, None) => unreachable!("clap requires either a file or `--key`"),
            }
            publisher.close().await?;
            Ok(code)
        })
    }

    fn data(&self) -> Result<Option<Value>, CommandError> {
        let Some(data) = &self.data else { return Ok(None) };
        let data = serde_json::from_str(data).with_context(|| {
            format!("--data {data:?} is not JSON; write a text with quotes: '\"text\"'")
        })?;
        Ok(Some(data))
    }

    fn ordering(&self, loaded: &LoadedConfig) -> OrderingMode {
        let streams = &loaded.config.streams;
        let stream = streams.iter().find(|(name, _)| ***name == *self.stream);
        stream.map_or(OrderingMode::Sequenced, |(_, stream)| stream.ordering)
    }

    /// Builds one event from the options, decodes it like a line of a file, and publishes it.
    async fn publish_event(
        &self,
        publisher: &mut StreamPublisher,
        loaded: &LoadedConfig,
        key: &str,
        data: Option<Value>,
    ) -> Result<(), CommandError> {
        let id = self.id.clone().unwrap_or_else(new_id);
        let mut event = json!({
            "specversion": "1.0", "id": id, "source": "/ordain/publish",
            "type": self.kind, "subject": key,
        });
        if let Some(data) = data {
            event["data"] = data;
        }
        if let Some(sequence) = self.sequence {
            event["sequence"] = sequence.to_string().into();
        }
        if self.end {
            event["endofsequence"] = true.into();
        }
        let event_size = loaded.config.runtime.event_size.bytes();
        let decoder = EventDecoder::new(self.ordering(loaded), event_size);
        let event = decoder.decode(event.to_string().as_bytes());
        let event =
            event.map_err(|error| CommandError::Failed(anyhow!("invalid event: {error}")))?;
        let assigned = publisher.publish(&[Arc::new(event)]).await.map_err(|stopped| {
            // Print no advice for an invalid event, because a retry would fail under any id.
            if self.id.is_none() && !matches!(stopped.error, PublishError::Event { .. }) {
                print_lossy(&format!("the event has the id {id}: to retry it, use --id {id}"));
            }
            stopped.error
        })?;
        let is_new = matches!(assigned.first(), Some(AssignItemReply::New(_)));
        let sequence = assigned.first().map(|assigned| assigned.sequence());
        let sequence = sequence.filter(|_| publisher.is_numbered());
        if self.json {
            show::json(&json!({"key": key, "id": id, "sequence": sequence, "new": is_new}), true)?;
        } else {
            let again = if is_new { "" } else { "; already published before" };
            let number =
                sequence.map_or_else(String::new, |sequence| format!(", sequence {sequence}"));
            show::text(&format!("published: key {key}{number}, id {id}{again}\n"))?;
        }
        Ok(())
    }

    async fn publish_lines(
        &self,
        publisher: &mut StreamPublisher,
        loaded: &LoadedConfig,
        file: &Path,
    ) -> Result<ExitCode, CommandError> {
        let path = (file != Path::new("-")).then_some(file);
        let bar = progress_bar(path);
        let ordering = self.ordering(loaded);
        let mut counts = PublishCounts::default();
        let (stop, stopped) = watch::channel(false);
        let done = publish_file(publisher, loaded, ordering, path, stopped, |so_far, offset| {
            counts = so_far;
            bar.set_message((counts.published + counts.known).to_string());
            bar.set_position(offset);
        });
        let (done, signal) = until_signal(done, &stop).await?;
        bar.finish_and_clear();
        // The command prints the counts even after an error, because it has published the events of earlier lines.
        if self.json || done.is_ok() || counts != PublishCounts::default() {
            self.print_counts(file, counts)?;
        }
        if done? {
            return Ok(ExitCode::SUCCESS);
        }
        let again = match path {
            Some(_) => "run the command again to publish the rest",
            None => "run the command again with the same input to publish the rest",
        };
        let signal = signal.map_or("a signal", |signal| signal.name);
        print_lossy(&format!("{}: stopped by {signal} before the end; {again}", file.display()));
        Ok(ExitCode::from(EXIT_UNAVAILABLE))
    }

    fn print_counts(&self, file: &Path, counts: PublishCounts) -> Result<(), CommandError> {
        let name = file.display();
        if counts.skipped_lines > 0 && !self.json {
            let lines = pluralized(counts.skipped_lines, "line");
            print_lossy(&format!("{name}: an earlier run published the first {lines}"));
        }
        if self.json {
            let row = json!({
                "published": counts.published, "known": counts.known, "lines_before": counts.skipped_lines,
            });
            show::json(&row, true)?;
        } else {
            let known = match counts.known {
                0 => String::new(),
                known => {
                    format!("; {known} more were already published")
                }
            };
            let events = pluralized(counts.published, "event");
            show::text(&format!("published {events} into {}{known}\n", self.stream))?;
        }
        Ok(())
    }
}

/// Waits until publishing ends. After a signal, requests the end of publishing through `stop`. Returns the result and
/// the signal. Returns an error immediately if a second signal arrives.
async fn until_signal<T>(
    publishing: impl Future<Output = T>,
    stop: &watch::Sender<bool>,
) -> Result<(T, Option<EndSignal>), CommandError> {
    let mut publishing = std::pin::pin!(publishing);
    let mut signals = EndSignals::new()?;
    let signal = tokio::select! {
        done = &mut publishing => return Ok((done, None)),
        signal = signals.any() => signal,
    };
    stop.send_replace(true);
    tokio::select! {
        done = publishing => Ok((done, Some(signal))),
        signal = signals.stop() => Err(CommandError::Failed(anyhow!(
            "{} ended the command before the events in progress were published; run the command again",
            signal.name
        ))),
    }
}

/// Returns a bar that shows the progress through a file. The bar is hidden if standard error is not a terminal.
fn progress_bar(path: Option<&Path>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let size = path.and_then(|path| std::fs::metadata(path).ok()).map(|metadata| metadata.len());
    let (bar, style) = match size {
        Some(size) => (
            ProgressBar::new(size),
            "{bar:30} {bytes} of {total_bytes}, {msg} events published, {eta} left",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {msg} events published"),
    };
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
    bar
}

impl From<PublishError> for CommandError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Config(error) => error.into(),
            PublishError::Store(error) => error.into(),
            PublishError::Broker(error) => RunError::from(error).into(),
            PublishError::Stream(words) => Self::Config(anyhow!(words)),
            error @ PublishError::Full(_) => Self::Unavailable(error.into()),
            error @ (PublishError::Event { .. } | PublishError::Refused(_)) => {
                Self::Failed(error.into())
            }
        }
    }
}

impl From<PublishFileError> for CommandError {
    fn from(error: PublishFileError) -> Self {
        match error {
            PublishFileError::Publish(error) => error.into(),
            error => Self::Failed(error.into()),
        }
    }
}
