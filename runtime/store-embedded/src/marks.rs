//! Marks: small values by name.

use std::slice;

use async_trait::async_trait;
use bytes::Bytes;

use super::request::WriterRequest;
use super::shared::SharedStore;
use super::tables::{into_owned_bytes, read_error};
use super::{EmbeddedStore, keys};
use ordain_store::{Claim, Mark, MarkStore, Outbox, Partition, StoreError, check_marks};

#[async_trait]
impl MarkStore for EmbeddedStore {
    async fn put_marks(&self, marks: &[Mark]) -> Result<(), StoreError> {
        check_marks(marks)?;
        let marks = marks.to_vec();
        self.send_request(|answer| WriterRequest::Done { outbox: None, marks, answer })
            .await
            .map(drop)
    }

    async fn replace_mark(&self, mark: &Mark, before: Option<&Bytes>) -> Result<bool, StoreError> {
        check_marks([mark])?;
        let mark = mark.clone();
        let before = before.cloned();
        self.send_request(|answer| WriterRequest::ReplaceMark { mark, before, answer }).await
    }

    async fn mark(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        let name = name.to_owned();
        self.read(move |shared| mark(shared, &name)).await
    }

    async fn put_checkpoint(
        &self,
        partition: &Partition,
        claim: Claim,
        _breaks: u64,
        mark: &Mark,
    ) -> Result<bool, StoreError> {
        // `put_marks` does not check the claim, but `outbox_done` does. With commit 0, `outbox_done` removes no outbox
        // entries.
        self.outbox_done(partition, claim, 0, 0, slice::from_ref(mark)).await?;
        Ok(self.mark(&mark.name).await?.as_ref() == Some(&mark.value))
    }
}

fn mark(shared: &SharedStore, name: &str) -> Result<Option<Bytes>, StoreError> {
    let value = shared.tables.meta.get(keys::mark(name)).map_err(|error| read_error(&error))?;
    Ok(value.map(into_owned_bytes))
}

/// Returns the marks whose names begin with `begin`: the rest of each name, and the value.
pub(super) fn read_all(
    shared: &SharedStore,
    begin: &str,
) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let mut found = Vec::new();
    let prefix = keys::mark(begin);
    for guard in shared.tables.meta.prefix(&prefix) {
        let (name, value) = guard.into_inner().map_err(|error| read_error(&error))?;
        let name = String::from_utf8_lossy(&name[prefix.len()..]).into_owned();
        found.push((name, value.to_vec()));
    }
    Ok(found)
}
