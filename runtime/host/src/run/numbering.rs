//! How the events of a stream are numbered, which must not change while the store has data of it:
//! events would be taken for others, and take effect twice. A mark keeps what the data was
//! written with.

use ordain_core::Ordering;
use serde::{Deserialize, Serialize};

use super::RunError;
use crate::config::{Loaded, Stream};
use crate::instance::About;
use crate::store::{Mark, Store, StoreError};

/// The form of the mark.
const FORMAT: u32 = 2;

/// What must not change, in the words of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbering {
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

    fn decode(name: &str, bytes: &[u8]) -> Result<Self, StoreError> {
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

/// Refuses a stream whose data was written with other settings, and keeps those of new streams.
/// The marks become durable before anything of their streams does.
pub(super) async fn check(loaded: &Loaded, store: &dyn Store) -> Result<(), RunError> {
    let with_data = store.streams().await?;
    let members = store.table().await?.members;
    let abouts: Vec<About> = members.values().map(|it| About::decode(&it.about)).collect();
    let mut marks = Vec::new();
    for (name, stream) in &loaded.config.streams {
        let here = stream.source.partitions();
        let there = abouts.iter().find(|it| it.streams.get(&**name).is_some_and(|it| *it != here));
        if let Some(About { name: other, streams, .. }) = there {
            let message = format!(
                "the process {other} runs stream {name} with {} partitions, and all must have the same \
                 number: set it to that, or end that process first",
                streams[&**name]
            );
            return Err(loaded.error(&format!("streams.{name}.source.partitions"), message).into());
        }
        let (now, mark) = (Numbering::of(stream), format!("stream/{name}"));
        if let Some(bytes) = store.mark(&mark).await? {
            let then = Numbering::decode(&mark, &bytes)?;
            if then == now {
                continue;
            }
            let has_data = with_data.iter().any(|stream| **stream == **name);
            if has_data && let Some((setting, value)) = then.difference(&now) {
                let message = format!(
                    "the store has data of stream {name} that was written with {setting} = \
                     {value}; its events would be taken for others, and take effect twice or \
                     never: set it back, or give the stream another name or the store another \
                     folder"
                );
                return Err(loaded.error(&format!("streams.{name}.{setting}"), message).into());
            }
        }
        let value = serde_json::to_vec(&now).expect("texts and numbers can always be written");
        marks.push(Mark { name: mark, value: value.into() });
    }
    Ok(store.put_marks(&marks).await?)
}

/// The partitions of a stream that the store has data of, configured or not.
pub(super) async fn partitions(store: &dyn Store, stream: &str) -> Result<u32, StoreError> {
    let mark = format!("stream/{stream}");
    match store.mark(&mark).await? {
        Some(bytes) => Ok(Numbering::decode(&mark, &bytes)?.partitions),
        None => Ok(1),
    }
}
