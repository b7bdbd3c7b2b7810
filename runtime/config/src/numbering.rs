//! How the events of a stream are numbered, which must not change while the store has data of it:
//! events would be taken for others, and take effect twice. A mark keeps what the data was
//! written with.

use ordain_core::Ordering;
use serde::{Deserialize, Serialize};

use crate::{ConfigError, Loaded, StoreConfig, Stream};
use ordain_store::{About, InstanceId, Mark, Store, StoreError};

/// The form of the mark.
const FORMAT: u32 = 2;

/// Why the settings of a stream cannot be used with the data that the store has.
#[derive(Debug, thiserror::Error)]
pub enum NumberingError {
    /// The configuration contradicts the data.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed, or another process runs the stream with other settings.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What must not change, in the words of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbering {
    format: u32,
    ordering: String,
    /// Where keys begin; a `fifo` stream has no choice.
    first: Option<u64>,
    /// Parts that share the keys.
    partitions: u32,
}

impl Numbering {
    fn of(stream: &Stream) -> Self {
        let (ordering, first) = match stream.ordering {
            Ordering::Sequenced => ("sequenced", Some(stream.first)),
            Ordering::Fifo => ("fifo", None),
        };
        let partitions = stream.source.partitions();
        Self { format: FORMAT, ordering: ordering.to_owned(), first, partitions }
    }

    /// Reads the mark of a stream; `name` is the mark's.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self, StoreError> {
        serde_json::from_slice(bytes)
            .ok()
            .filter(|numbering: &Self| numbering.format == FORMAT)
            .ok_or_else(|| StoreError::Corrupt(format!("the mark {name:?} is of no known form")))
    }

    /// The first setting that differs, and its value here.
    fn difference(&self, other: &Self) -> Option<(&'static str, String)> {
        if self.ordering != other.ordering {
            return Some(("ordering", format!("{:?}", self.ordering)));
        }
        if self.partitions != other.partitions {
            return Some(("source.partitions", self.partitions.to_string()));
        }
        let first = self.first.filter(|_| self.first != other.first)?;
        Some(("first", first.to_string()))
    }
}

/// Refuses a stream whose data was written with other settings, or that another process runs with
/// others, and keeps those of new streams. The marks become durable before anything of their streams
/// does. Of two that come at the same time with other partitions one finds the other if each looks
/// again when it can be seen.
pub async fn check(
    loaded: &Loaded,
    store: &dyn Store,
    id: InstanceId,
) -> Result<(), NumberingError> {
    let with_data = store.streams().await?;
    let others = About::all_but(&store.table().await?, id);
    let place = match loaded.config.store {
        StoreConfig::Embedded(_) => "folder",
        StoreConfig::Redis(_) => "`prefix`",
    };
    let mut marks = Vec::new();
    for (name, stream) in &loaded.config.streams {
        let (now, mark) = (Numbering::of(stream), format!("stream/{name}"));
        let then = match store.mark(&mark).await? {
            Some(bytes) => Some(Numbering::decode(&mark, &bytes)?),
            None => None,
        };
        let difference = then.as_ref().and_then(|then| then.difference(&now));
        if let Some((setting, value)) = &difference
            && with_data.iter().any(|stream| **stream == **name)
        {
            let message = format!(
                "the store has data of stream {name} that was written with {setting} = {value}; \
                 its events would be taken for others, and take effect twice or never: set it back, \
                 or give the stream another name or the store another {place}"
            );
            return Err(loaded.error(&format!("streams.{name}.{setting}"), message).into());
        }
        for other in &others {
            let Some(partitions) = other.streams.get(&**name) else { continue };
            let theirs = Numbering { partitions: *partitions, ..now.clone() };
            if let Some((setting, value)) = theirs.difference(&now).or_else(|| difference.clone()) {
                return Err(NumberingError::Store(StoreError::InUse(format!(
                    "the process {} runs stream {name} with {setting} = {value}, and all must have \
                     the same: set streams.{name}.{setting} to that, or end that process first",
                    other.name
                ))));
            }
        }
        if then.as_ref() != Some(&now) {
            let value = serde_json::to_vec(&now).expect("texts and numbers can always be written");
            marks.push(Mark { name: mark, value: value.into() });
        }
    }
    Ok(store.put_marks(&marks).await?)
}

/// The partitions of a stream that the store has data of, configured or not.
pub async fn partitions(store: &dyn Store, stream: &str) -> Result<u32, StoreError> {
    let mark = format!("stream/{stream}");
    match store.mark(&mark).await? {
        Some(bytes) => Ok(Numbering::decode(&mark, &bytes)?.partitions),
        None => Ok(1),
    }
}
