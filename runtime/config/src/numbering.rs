//! Protects the numbering of a stream's events. The numbering must not change while the store has data of the stream:
//! after a change, Ordain would confuse events with each other, and events could take effect twice. A mark (a named
//! record in the store) records the settings under which the data was written.

use ordain_core::OrderingMode;
use serde::{Deserialize, Serialize};

use crate::{ConfigError, FirstSequence, LoadedConfig, StoreConfig, StreamConfig};
use ordain_store::{InstanceId, InstanceInfo, Mark, Store, StoreError};

/// The version of the mark's format.
const FORMAT_VERSION: u32 = 2;

/// The reason why Ordain cannot use the settings of a stream with the data in the store.
#[derive(Debug, thiserror::Error)]
pub enum NumberingError {
    /// The configuration contradicts the data.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed, or another process runs the stream with other settings.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The settings that must not change while the store has data of the stream. The values are as in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamNumbering {
    format: u32,
    ordering: String,
    /// Sequence of a key's first event. `None` in two cases: with `first = "any"`, and in a `fifo` stream, in which
    /// every key begins at 1.
    first: Option<u64>,
    /// Number of partitions that share the keys.
    partitions: u32,
}

impl StreamNumbering {
    fn of(stream: &StreamConfig) -> Self {
        let (ordering, first) = match stream.ordering {
            OrderingMode::Sequenced => match stream.first {
                FirstSequence::Number(first) => ("sequenced", Some(first)),
                FirstSequence::Any => ("sequenced", None),
            },
            OrderingMode::Fifo => ("fifo", None),
        };
        let partitions = stream.source.partitions();
        Self { format: FORMAT_VERSION, ordering: ordering.to_owned(), first, partitions }
    }

    /// Decodes the mark of a stream; `name` is the name of the mark.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self, StoreError> {
        serde_json::from_slice(bytes)
            .ok()
            .filter(|numbering: &Self| numbering.format == FORMAT_VERSION)
            .ok_or_else(|| {
                StoreError::Corrupt(format!(
                    "the mark {name:?} (a record of the stream's settings) is not JSON of the format {FORMAT_VERSION}. \
                     The mark is damaged, or another program or another version of Ordain has written it"
                ))
            })
    }

    /// Returns the first setting that differs between `self` and `other`, with its value in `self`.
    fn difference(&self, other: &Self) -> Option<(&'static str, String)> {
        if self.ordering != other.ordering {
            return Some(("ordering", format!("{:?}", self.ordering)));
        }
        if self.partitions != other.partitions {
            return Some(("source.partitions", self.partitions.to_string()));
        }
        // `first = "any"` concerns only keys without a record. A change from or to this value therefore changes nothing
        // for the keys in the store.
        let (first, other_first) = self.first.zip(other.first)?;
        (first != other_first).then(|| ("first", first.to_string()))
    }
}

/// Checks the configured streams against the store and the running processes, and then records the settings of each
/// stream in the mark of the stream. Returns an error if data of a stream in the store was written with other settings,
/// or if another process runs the stream with other settings. If there is no such data and no such process, but the
/// mark has other settings, this function replaces the mark. When this function returns successfully, the marks are
/// durable. A process must not write data of the streams before that time.
///
/// Each process must call this function a second time, after the process has joined the membership (the list of running
/// processes in the store). Two processes that start at the same time with different numbers of partitions might not
/// find each other in the first call. In the second call, at least one of the two processes finds the other process.
pub async fn check(
    loaded: &LoadedConfig,
    store: &dyn Store,
    id: InstanceId,
) -> Result<(), NumberingError> {
    let with_data = store.streams().await?;
    let others = InstanceInfo::of_other_instances(&store.table().await?, id);
    let place = match loaded.config.store {
        StoreConfig::Embedded(_) => "folder",
        StoreConfig::Redis(_) => "`prefix`",
    };
    let mut marks = Vec::new();
    for (name, stream) in &loaded.config.streams {
        let mut configured = StreamNumbering::of(stream);
        let mark = format!("stream/{name}");
        let stored = match store.mark(&mark).await? {
            Some(bytes) => Some(StreamNumbering::decode(&mark, &bytes)?),
            None => None,
        };
        if let Some(stored) = &stored
            && stored.ordering == configured.ordering
        {
            // With `first = "any"`, the mark keeps the earlier value of `first`, because the store may have data that
            // was written with the earlier value.
            configured.first = configured.first.or(stored.first);
        }
        let difference = stored.as_ref().and_then(|then| then.difference(&configured));
        if let Some((setting, value)) = &difference
            && with_data.iter().any(|stream| **stream == **name)
        {
            let message = format!(
                "the store has data of stream {name} that was written with {setting} = {value}; with another \
                 value, the stream's events would take effect twice or never: restore the value, give the \
                 stream another name, or give the store another {place}"
            );
            return Err(loaded.setting_error(&format!("streams.{name}.{setting}"), message).into());
        }
        for other in &others {
            let Some(partitions) = other.streams.get(&**name) else { continue };
            let theirs = StreamNumbering { partitions: *partitions, ..configured.clone() };
            if let Some((setting, value)) =
                theirs.difference(&configured).or_else(|| difference.clone())
            {
                return Err(NumberingError::Store(StoreError::InUse(format!(
                    "the process {} runs stream {name} with {setting} = {value}; all processes must use \
                     the same value: set streams.{name}.{setting} to this value, or stop that process first",
                    other.name
                ))));
            }
        }
        if stored.as_ref() != Some(&configured) {
            let value = serde_json::to_vec(&configured)
                .expect("texts and numbers can always be serialized");
            marks.push(Mark { name: mark, value: value.into() });
        }
    }
    Ok(store.put_marks(&marks).await?)
}

/// Returns the number of partitions of a stream that has data in the store, whether the stream is configured or not.
/// Returns 1 if the store has no mark of the stream.
pub async fn partitions(store: &dyn Store, stream: &str) -> Result<u32, StoreError> {
    let mark = format!("stream/{stream}");
    match store.mark(&mark).await? {
        Some(bytes) => Ok(StreamNumbering::decode(&mark, &bytes)?.partitions),
        None => Ok(1),
    }
}
