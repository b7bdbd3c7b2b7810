//! Reads the unpublished messages and dead letters of committed batches from the outbox, and removes the messages and
//! dead letters that are published.

use async_trait::async_trait;
use redis::Value;

use super::names::RedisKeyKind;
use super::value::{array, bytes, number, parts, unexpected_reply};
use super::{RedisStore, commit};
use ordain_store::codec::decode_outbox;
use ordain_store::{Claim, Mark, Outbox, OutboxEntry, Partition, StoreError};

/// The number of bytes at which a read of the outbox ends. The entry that reaches this number is the last entry of the
/// read.
const OUTBOX_PAGE_BYTES: usize = 16 << 20;

#[async_trait]
impl Outbox for RedisStore {
    async fn outbox(
        &self,
        partition: &Partition,
        shard: u32,
        mut after: u64,
        limit: usize,
    ) -> Result<Vec<OutboxEntry>, StoreError> {
        let script = &self.scripts.outbox;
        let names = self.stream_keys(shard, &partition.stream, [RedisKeyKind::Data]);
        let mut entries = Vec::new();
        // One call examines a limited number of commits. Repeat the call while it finds only commits without an outbox
        // entry.
        while entries.is_empty() {
            let mut call = self.script_call(script, &names);
            call.arg(partition.number).arg(after).arg(limit.max(1)).arg(OUTBOX_PAGE_BYTES);
            let [looked, found] = parts(self.run_script(script, call).await?, script.name)?;
            let mut found = array(found, script.name)?.into_iter();
            while let (Some(commit), Some(entry)) = (found.next(), found.next()) {
                entries.push(read_entry(partition, shard, &commit, entry)?);
            }
            match number(&looked) {
                Some(looked) => after = looked,
                None => break,
            }
        }
        Ok(entries)
    }

    async fn outbox_done(
        &self,
        partition: &Partition,
        claim: Claim,
        shard: u32,
        through: u64,
        marks: &[Mark],
    ) -> Result<Option<u64>, StoreError> {
        if !marks.is_empty() {
            // The marks may be on another server than the outbox, and no atomic write changes two servers.
            return Err(StoreError::Unusable(
                "the position of a file sink must be stored in one write with the removal from the outbox, and only \
                 the embedded store can do this"
                    .to_owned(),
            ));
        }
        let script = &self.scripts.remove_published;
        loop {
            let mut call = self.script_call(
                script,
                &self.stream_keys(shard, &partition.stream, [RedisKeyKind::Data]),
            );
            call.arg(partition.number).arg(&commit::claim_bytes(claim)[..]).arg(through);
            let answer = array(self.run_script(script, call).await?, script.name)?;
            let [more, last] = &answer[..] else { return Ok(None) };
            if number(more) != Some(1) {
                return number(last).map(Some).ok_or_else(|| unexpected_reply(script.name));
            }
        }
    }
}

fn read_entry(
    partition: &Partition,
    shard: u32,
    commit: &Value,
    entry: Value,
) -> Result<OutboxEntry, StoreError> {
    let what = "a read of the outbox";
    let commit = number(commit).ok_or_else(|| unexpected_reply(what))?;
    let entry = bytes(entry).ok_or_else(|| unexpected_reply(what))?;
    decode_outbox(commit, &entry).map_err(|words| {
        StoreError::Corrupt(format!(
            "stream {:?}, partition {}, shard {shard}, outbox entry {commit}: {words}",
            partition.stream, partition.number
        ))
    })
}
