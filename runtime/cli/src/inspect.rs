//! Reads keys, dead letters and streams for commands, and acts on streams: through the store, which the command opens,
//! or through a running process. Both ways must return rows of the same form.

use std::sync::Arc;

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::admin_client::{AdminClient, parse_url};
use crate::cli::{CommandError, ConfigArg, open_stream, open_to_read};
use ordain_config::{LoadedConfig, StoreConfig, known_streams};
use ordain_core::LetterId;
use ordain_engine::run::unbind_former;
use ordain_http::view::{
    self, BindingRow, BoundedRows, DeadPage, KeyRow, KeysPage, LetterRow, ResumedPage, ResumedRow,
    StreamIntake, StreamRow, StreamVersion, StreamsPage, UnboundPage,
};
use ordain_store::{KeyFilter, ListPage, QueueRecords, Store};
use ordain_store_embedded::admin_url_of_owner;

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// URL of the admin listener of a running process. With this option, the command uses the process instead of
    /// opening the store. The command reads the token of the process from the environment variable `ORDAIN_TOKEN`.
    ///
    /// Without this option, each command except `plugins list` finds the process that has the embedded store of the
    /// configuration open. This process must have an admin listener, and must run on this machine in the same network
    /// namespace (so the command does not find a process in another container).
    #[arg(long, value_name = "URL", value_parser = parse_url, conflicts_with = "config")]
    admin: Option<String>,
}

/// A form in which a command reads rows of the type `R`: as `R` itself, to print text, or as
/// [`JsonRow`](crate::show::JsonRow), to print JSON.
pub(crate) trait RowForm<R>: From<R> + DeserializeOwned {}

impl<R, F: From<R> + DeserializeOwned> RowForm<R> for F {}

/// The target of a command: a process, or the store of a configuration, which the command has not opened yet.
pub(crate) enum UnopenedTarget {
    Process(AdminClient),
    Config(Box<LoadedConfig>),
}

/// The source from which a command reads: a process, or the store, which the command has opened.
pub(crate) enum InspectTarget {
    Store { loaded: Box<LoadedConfig>, store: Arc<dyn Store> },
    Process(AdminClient),
}

impl InspectArgs {
    /// Returns the process that the command line names; `None` if it names no process.
    pub(crate) fn process(&self) -> Option<AdminClient> {
        self.admin.as_deref().map(AdminClient::new)
    }

    /// Loads the configuration, which names the store.
    pub(crate) fn load(&self) -> Result<LoadedConfig, CommandError> {
        self.config.load()
    }

    /// Returns the target of the command. If the command line names a process, this process is the target. Otherwise,
    /// if a process with an admin listener has the embedded store of the configuration open, that process is the
    /// target. Otherwise, the target is the store of the configuration. Returns an error if the process that has the
    /// store open runs on another machine or in another network namespace.
    pub(crate) fn target(&self) -> Result<UnopenedTarget, CommandError> {
        if let Some(process) = self.process() {
            return Ok(UnopenedTarget::Process(process));
        }
        let loaded = self.load()?;
        let url = match &loaded.config.store {
            StoreConfig::Embedded(embedded) => admin_url_of_owner(&embedded.path)?,
            StoreConfig::Redis(_) => None,
        };
        // The URL comes from a file in the folder of the store. An invalid URL is ignored, because the file may contain
        // any text.
        let url = url.and_then(|url| parse_url(&url).ok());
        Ok(match url {
            Some(url) => UnopenedTarget::Process(AdminClient::of_owner(&url, &loaded)),
            None => UnopenedTarget::Config(Box::new(loaded)),
        })
    }

    /// Returns the process from which the command reads. If [`Self::target`] finds no process, opens the store. In this
    /// case, the stream must be configured, or have data in the store.
    pub(crate) async fn open_target(&self, stream: &str) -> Result<InspectTarget, CommandError> {
        match self.target()? {
            UnopenedTarget::Process(process) => Ok(InspectTarget::Process(process)),
            UnopenedTarget::Config(loaded) => {
                let store = open_stream(&loaded, stream).await?;
                Ok(InspectTarget::Store { loaded, store })
            }
        }
    }
}

impl InspectTarget {
    /// Returns a page of keys, as in [`KeyListing::keys`](ordain_store::KeyListing::keys).
    pub(crate) async fn keys<F: RowForm<KeyRow>>(
        &self,
        stream: &str,
        of: &KeyFilter,
    ) -> Result<ListPage<F>, CommandError> {
        match self {
            Self::Store { store, .. } => {
                let page = store.keys(stream, of).await?;
                let rows = page.rows.iter().map(|row| F::from(KeyRow::of(row))).collect();
                Ok(ListPage { rows, cursor: page.cursor })
            }
            Self::Process(process) => {
                let limit = of.limit.to_string();
                let mut query = vec![("limit", &*limit), ("prefix", &*of.prefix)];
                query.extend(of.status.map(|status| ("status", status.name())));
                query.extend(of.cursor.as_deref().map(|cursor| ("cursor", cursor)));
                let answer: KeysPage<BoundedRows<F>> =
                    process.get(&["streams", stream, "keys"], &query, "keys")?;
                check_cursor(
                    process,
                    ListPage { rows: answer.keys.0, cursor: answer.cursor },
                    of.cursor.as_deref(),
                )
            }
        }
    }

    /// Returns the row of a key, with its gaps and its state. Returns an error if the store has no record of the key.
    pub(crate) async fn key<F: RowForm<KeyRow>>(
        &self,
        stream: &str,
        key: &str,
    ) -> Result<F, CommandError> {
        match self {
            Self::Store { store, .. } => match store.key(stream, key).await? {
                Some((row, state)) => Ok(KeyRow::with_state(&row, state.as_ref()).into()),
                None => Err(CommandError::Failed(anyhow::anyhow!(view::no_key(stream, key)))),
            },
            Self::Process(process) => process.get(&["streams", stream, "keys", key], &[], "key"),
        }
    }

    /// Returns a page of dead letters, as in [`LetterListing::letters`](ordain_store::LetterListing::letters).
    pub(crate) async fn letters<F: RowForm<LetterRow>>(
        &self,
        stream: &str,
        key: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ListPage<F>, CommandError> {
        match self {
            Self::Store { store, .. } => {
                let page = store.letters(stream, key, cursor, limit).await?;
                let rows = page.rows.iter().map(|row| F::from(LetterRow::of(row))).collect();
                Ok(ListPage { rows, cursor: page.cursor })
            }
            Self::Process(process) => {
                let limit = limit.to_string();
                let mut query = vec![("stream", stream), ("limit", &*limit)];
                query.extend(key.map(|key| ("key", key)));
                query.extend(cursor.map(|cursor| ("cursor", cursor)));
                let answer: DeadPage<BoundedRows<F>> = process.get(&["dead"], &query, "dead")?;
                check_cursor(
                    process,
                    ListPage { rows: answer.dead.0, cursor: answer.cursor },
                    cursor,
                )
            }
        }
    }

    /// Returns a dead letter; `None` if it does not exist or its id is invalid.
    pub(crate) async fn letter<F: RowForm<LetterRow>>(
        &self,
        stream: &str,
        key: &str,
        id: &str,
    ) -> Result<Option<F>, CommandError> {
        match self {
            Self::Store { store, .. } => {
                let Some(id) = LetterId::parse(key, id) else { return Ok(None) };
                let letter = store.letter(stream, &id).await?;
                Ok(letter.map(|letter| LetterRow::of(&letter).into()))
            }
            Self::Process(process) => {
                let query = [("stream", stream), ("key", key), ("id", id)];
                let mut answer: DeadPage<BoundedRows<F>> =
                    process.get(&["dead"], &query, "dead")?;
                Ok(answer.dead.0.pop())
            }
        }
    }

    /// Returns whether a switch to another handler version makes the stream retry the keys that are parked (stopped)
    /// because of a failure. For a stream that is not configured, returns `true`, the default.
    pub(crate) fn retries_on_new_version(&self, stream: &str) -> Result<bool, CommandError> {
        match self {
            Self::Store { loaded, .. } => {
                let config = loaded.config.streams.get(stream);
                Ok(config.is_none_or(|config| config.retry.on_new_version))
            }
            Self::Process(process) => {
                let row = stream_row(process, stream)?;
                Ok(row.and_then(|row| row.retry_on_new_version).unwrap_or(true))
            }
        }
    }

    /// Returns the limit on the events of a blocked key in the store. At this limit, the partition of the key accepts
    /// no more events. Returns `None` if the stream is not configured, or if the events above the limit become dead
    /// letters.
    pub(crate) fn pausing_spill_limit(&self, stream: &str) -> Result<Option<u64>, CommandError> {
        match self {
            Self::Store { loaded, .. } => {
                Ok(loaded.config.streams.get(stream).and_then(view::pausing_spill_limit))
            }
            Self::Process(process) => {
                Ok(stream_row(process, stream)?.and_then(|row| row.spill_limit))
            }
        }
    }

    /// Returns the row of a stream in the process. Returns `None` if the process does not list the stream. Also returns
    /// `None` if the command reads the store: the store does not contain the state of the stream in a process.
    pub(crate) fn running_stream(&self, stream: &str) -> Result<Option<StreamRow>, CommandError> {
        match self {
            Self::Store { .. } => Ok(None),
            Self::Process(process) => stream_row(process, stream),
        }
    }

    /// Returns the command-line option with which another command reads from the same store or process. The text begins
    /// with a space, and is empty if no option is needed.
    pub(crate) fn option(&self) -> String {
        match self {
            Self::Store { loaded, .. } => loaded.config_option(),
            Self::Process(process) => process.option().to_owned(),
        }
    }
}

impl UnopenedTarget {
    /// Returns the rows of all streams.
    pub(crate) fn streams<F: RowForm<StreamRow>>(&self) -> Result<Vec<F>, CommandError> {
        let loaded = match self {
            Self::Process(process) => {
                let page: StreamsPage<BoundedRows<F>> =
                    process.get(&["streams"], &[], "streams")?;
                return Ok(page.streams.0);
            }
            Self::Config(loaded) => loaded,
        };
        let runtime = crate::runtime::new()?;
        runtime.block_on(async {
            let store = open_to_read(loaded).await?;
            let mut rows = Vec::new();
            for name in known_streams(loaded, &*store).await? {
                let losses = view::queue_losses(loaded, &store, &name).await?;
                let stream = loaded.config.streams.get(name.as_str());
                let configured = stream.map(|stream| (stream, StreamVersion::default()));
                let intake = StreamIntake::of([], &losses);
                rows.push(StreamRow::of(&name, configured, intake).into());
            }
            Ok(rows)
        })
    }

    /// Acknowledges the losses of a stream's queues. If the command sends its request to a process, also resumes the
    /// partitions that this process has stopped because it cannot read their messages. Returns the resumed partitions.
    pub(crate) fn resume<F: RowForm<ResumedRow>>(
        &self,
        stream: &str,
    ) -> Result<Vec<F>, CommandError> {
        let loaded = match self {
            Self::Process(process) => {
                let action = json!({ "action": "resume" });
                let path = ["streams", stream, "actions"];
                let page: ResumedPage<BoundedRows<F>> = process.post(&path, &action, "resumed")?;
                return Ok(page.resumed.0);
            }
            Self::Config(loaded) => loaded,
        };
        let Some((name, config)) = loaded.config.streams.get_key_value(stream) else {
            return Err(CommandError::Failed(anyhow::anyhow!(
                "stream {stream:?} is not configured in {}",
                loaded.file.display()
            )));
        };
        let partitions = config.source.partitions();
        let runtime = crate::runtime::new()?;
        runtime.block_on(async {
            let store = open_to_read(loaded).await?;
            let losses = QueueRecords::new(&store, &name.shared()).resume(partitions).await?;
            Ok(losses.iter().map(|loss| F::from(ResumedRow::of(loss))).collect())
        })
    }
}

impl UnopenedTarget {
    /// Removes the bindings of a stream's earlier configurations. Returns the removed bindings.
    pub(crate) fn unbind<F: RowForm<BindingRow>>(
        &self,
        stream: &str,
    ) -> Result<Vec<F>, CommandError> {
        let loaded = match self {
            Self::Process(process) => {
                let action = json!({ "action": "unbind" });
                let path = ["streams", stream, "actions"];
                let page: UnboundPage<BoundedRows<F>> = process.post(&path, &action, "unbound")?;
                return Ok(page.unbound.0);
            }
            Self::Config(loaded) => loaded,
        };
        let runtime = crate::runtime::new()?;
        runtime.block_on(async {
            let store = open_to_read(loaded).await?;
            let removed = unbind_former(loaded, &store, stream).await?;
            Ok(removed.iter().map(|binding| F::from(BindingRow::of(binding))).collect())
        })
    }
}

/// Requests the row of a stream from a process. Returns `None` if the process does not list the stream.
fn stream_row(process: &AdminClient, stream: &str) -> Result<Option<StreamRow>, CommandError> {
    let page: StreamsPage = process.get(&["streams"], &[], "streams")?;
    Ok(page.streams.0.into_iter().find(|row| row.stream.raw() == stream))
}

/// Returns an error if the cursor for the next page leads to the same page.
fn check_cursor<F>(
    process: &AdminClient,
    page: ListPage<F>,
    behind: Option<&str>,
) -> Result<ListPage<F>, CommandError> {
    if page.cursor.is_some() && page.cursor.as_deref() == behind {
        return Err(process.unexpected_server("the cursor of a page leads to the same page again"));
    }
    Ok(page)
}
