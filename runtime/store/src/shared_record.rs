//! Records in JSON that several processes change. A process changes a record only if the record in the store still has
//! the content that this process has read. No process therefore overwrites a change that it has not seen.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Mark, Store, StoreError};

/// A record, as a process has read it from the store.
#[derive(Debug, Clone)]
pub struct SharedRecord<T> {
    /// The record; `None` if no process has written it.
    pub record: Option<T>,
    name: String,
    /// The bytes of the record in the store. A write compares these bytes instead of `record`, because a later version
    /// of Ordain may have written fields that `record` lacks.
    value: Option<Bytes>,
}

impl<T: Serialize + DeserializeOwned> SharedRecord<T> {
    /// Reads the record that the mark with this name contains. Returns an error if this version of Ordain cannot decode
    /// the mark, for example because a later version has written the mark.
    pub async fn read(store: &dyn Store, name: String) -> Result<Self, StoreError> {
        let value = store.mark(&name).await?;
        match value.as_deref().map(serde_json::from_slice).transpose() {
            Ok(record) => Ok(Self { record, name, value }),
            Err(error) => Err(StoreError::Corrupt(format!("the mark {name}: {error}"))),
        }
    }

    /// Replaces the record in the store. Returns `false`, and writes nothing, if another process has changed the record
    /// since [`Self::read`].
    pub async fn replace(&self, store: &dyn Store, record: &T) -> Result<bool, StoreError> {
        let value = serde_json::to_vec(record).expect("a record has only texts").into();
        let mark = Mark { name: self.name.clone(), value };
        store.replace_mark(&mark, self.value.as_ref()).await
    }
}
