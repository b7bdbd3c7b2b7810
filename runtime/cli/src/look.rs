//! Where commands look: into the store, which they open, or at a running process. What they see is
//! the same.

use std::sync::Arc;

use clap::Args;

use super::remote::{Remote, parse_url};
use super::row::Row;
use crate::cli::{ConfigArg, Failure, open};
use ordain_config::Loaded;
use ordain_core::LetterId;
use ordain_http::view;
use ordain_store::{KeyFilter, Page, Store};
use ordain_util::text::clean;

#[derive(Debug, Args)]
pub(crate) struct LookArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// Ask the process that listens there instead of opening the store; `ORDAIN_TOKEN` has its
    /// token.
    #[arg(long, value_name = "URL", value_parser = parse_url, conflicts_with = "config")]
    admin: Option<String>,
}

/// Where a command looks.
pub(crate) enum Look {
    Store { loaded: Box<Loaded>, store: Arc<dyn Store> },
    Process(Remote),
}

impl LookArgs {
    /// The process that is asked, if one is.
    pub(crate) fn process(&self) -> Option<Remote> {
        self.admin.as_deref().map(Remote::new)
    }

    /// The configuration of a look at what is here.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        self.config.load()
    }

    /// For a look at a stream that is configured or that the store still has.
    pub(crate) async fn begin(&self, stream: &str) -> Result<Look, Failure> {
        if let Some(process) = self.process() {
            return Ok(Look::Process(process));
        }
        let loaded = self.load()?;
        let store = open(&loaded, stream).await?;
        Ok(Look::Store { loaded: Box::new(loaded), store })
    }
}

impl Look {
    /// See [`Store::keys`].
    pub(crate) async fn keys(&self, stream: &str, of: &KeyFilter) -> Result<Page<Row>, Failure> {
        match self {
            Self::Store { store, .. } => {
                let page = store.keys(stream, of).await?;
                let rows = page.rows.iter().map(|row| Row::of(&view::key(row))).collect();
                Ok(Page { rows, cursor: page.cursor })
            }
            Self::Process(process) => {
                let limit = of.limit.to_string();
                let mut query = vec![("limit", &*limit), ("prefix", &*of.prefix)];
                query.extend(of.status.map(|status| ("status", status.name())));
                query.extend(of.cursor.as_deref().map(|cursor| ("cursor", cursor)));
                let answer = process.get(&["streams", stream, "keys"], &query)?;
                page(process, &answer, "keys", of.cursor.as_deref())
            }
        }
    }

    /// One key, with its state.
    pub(crate) async fn key(&self, stream: &str, key: &str) -> Result<Row, Failure> {
        match self {
            Self::Store { store, .. } => match store.key(stream, key).await? {
                Some((row, state)) => Ok(Row::of(&view::whole_key(&row, state.as_ref()))),
                None => Err(Failure::Failed(anyhow::anyhow!(view::no_key(stream, key)))),
            },
            Self::Process(process) => process.get(&["streams", stream, "keys", key], &[]),
        }
    }

    /// See [`Store::letters`].
    pub(crate) async fn letters(
        &self,
        stream: &str,
        key: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page<Row>, Failure> {
        match self {
            Self::Store { store, .. } => {
                let page = store.letters(stream, key, cursor, limit).await?;
                let rows = page.rows.iter().map(|row| Row::of(&view::letter(row))).collect();
                Ok(Page { rows, cursor: page.cursor })
            }
            Self::Process(process) => {
                let limit = limit.to_string();
                let mut query = vec![("stream", stream), ("limit", &*limit)];
                query.extend(key.map(|key| ("key", key)));
                query.extend(cursor.map(|cursor| ("cursor", cursor)));
                page(process, &process.get(&["dead"], &query)?, "dead", cursor)
            }
        }
    }

    /// One dead letter, whose id can be read.
    pub(crate) async fn letter(
        &self,
        stream: &str,
        key: &str,
        id: &str,
    ) -> Result<Option<Row>, Failure> {
        match self {
            Self::Store { store, .. } => {
                let Some(id) = LetterId::parse(key, id) else { return Ok(None) };
                let letter = store.letter(stream, &id).await?;
                Ok(letter.map(|letter| Row::of(&view::letter(&letter))))
            }
            Self::Process(process) => {
                let query = [("stream", stream), ("key", key), ("id", id)];
                Ok(page(process, &process.get(&["dead"], &query)?, "dead", None)?.rows.pop())
            }
        }
    }

    /// Whether keys that a failure has parked try again under another handler version.
    pub(crate) fn tries_again(&self, stream: &str) -> Result<bool, Failure> {
        match self {
            Self::Store { loaded, .. } => {
                Ok(loaded.config.streams.get(stream).is_none_or(|it| it.retry.on_new_version))
            }
            Self::Process(process) => {
                let row = stream_of(process, stream)?;
                Ok(row.and_then(|row| row.member("retry_on_new_version")).unwrap_or(true))
            }
        }
    }

    /// Why the process has not what is to execute the events of a stream, if it has not. Without a
    /// process nobody knows.
    pub(crate) fn missing(&self, stream: &str) -> Result<Option<String>, Failure> {
        match self {
            Self::Store { .. } => Ok(None),
            Self::Process(process) => {
                let row = stream_of(process, stream)?;
                Ok(row.and_then(|row| row.member("missing")).map(|it: String| clean(&it).into()))
            }
        }
    }

    /// How another command is told to look at the same.
    pub(crate) fn option(&self) -> String {
        match self {
            Self::Store { loaded, .. } => loaded.option(),
            Self::Process(process) => format!(" --admin {}", process.url()),
        }
    }
}

/// What a process says of a stream.
fn stream_of(process: &Remote, stream: &str) -> Result<Option<Row>, Failure> {
    let streams = page(process, &process.get(&["streams"], &[])?, "streams", None)?;
    let mut rows = streams.rows.into_iter();
    Ok(rows.find(|row| row.member("stream").is_some_and(|it: String| it == stream)))
}

/// A page of what a process has answered to whom asked for what comes behind a cursor.
fn page(
    process: &Remote,
    answer: &Row,
    list: &str,
    behind: Option<&str>,
) -> Result<Page<Row>, Failure> {
    let Some(rows) = answer.member(list) else {
        return Err(process.stranger(&format!("its answer has no `{list}`")));
    };
    let cursor: Option<String> = answer.member("cursor");
    if cursor.is_some() && cursor.as_deref() == behind {
        return Err(process.stranger("its listing does not move on: a page leads to itself"));
    }
    Ok(Page { rows, cursor })
}
