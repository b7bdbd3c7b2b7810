//! Marks: small values by name. Most marks are in shard 0. `put_mark_in_shards` and `check_writable` write a mark into
//! every shard.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;
use redis::{Cmd, Value, cmd};

use super::error::{has_code, request_error};
use super::message_log::put_witness;
use super::names::RedisKeyKind;
use super::script::LuaScript;
use super::value::bytes;
use super::{RedisStore, commit};
use ordain_store::{
    Claim, Mark, MarkConditions, MarkStore, Partition, Store, StoreError, check_marks,
};

impl RedisStore {
    /// Creates a call of the script that writes a mark if the stored value of the mark is `before`. If the reply of the
    /// first try was lost, `run_script` repeats the call. The script therefore also accepts a mark that already has the
    /// new value.
    fn mark_call(&self, keys: &[String], mark: &Mark, before: Option<&Bytes>) -> Cmd {
        let mut call = self.script_call(&self.scripts.mark, keys);
        call.arg(&mark.name).arg(&mark.value[..]).arg(u8::from(before.is_some()));
        call.arg(before.map(|value| &value[..]).unwrap_or_default());
        call
    }
}

#[async_trait]
impl MarkStore for RedisStore {
    async fn put_marks(&self, marks: &[Mark]) -> Result<(), StoreError> {
        check_marks(marks)?;
        if marks.is_empty() {
            return Ok(());
        }
        let mut put = cmd("HSET");
        put.arg(self.names.in_common_shard(RedisKeyKind::Marks));
        for mark in marks {
            put.arg(&mark.name).arg(&mark.value[..]);
        }
        self.run_command(&put).await.map(drop)
    }

    async fn replace_mark(&self, mark: &Mark, before: Option<&Bytes>) -> Result<bool, StoreError> {
        check_marks([mark])?;
        let keys = [self.names.in_common_shard(RedisKeyKind::Marks)];
        let call = self.mark_call(&keys, mark, before);
        self.run_script(&self.scripts.mark, call).await.map(|answer| answer == Value::Int(1))
    }

    async fn mark(&self, name: &str) -> Result<Option<Bytes>, StoreError> {
        let mut get = cmd("HGET");
        get.arg(self.names.in_common_shard(RedisKeyKind::Marks)).arg(name);
        self.run_command(&get).await.map(bytes)
    }

    async fn put_mark_in_shards(
        &self,
        mark: &Mark,
        conditions: &MarkConditions<'_>,
    ) -> Result<bool, StoreError> {
        check_marks([mark])?;
        let script = &self.scripts.mark;
        let puts = (0..).zip(conditions.before).map(async |(shard, before)| {
            let mut keys = vec![self.names.in_shard(shard, RedisKeyKind::Marks)];
            keys.extend(conditions.destination.map(|to| self.log_key(shard, to)));
            let mut call = self.mark_call(&keys, mark, before.as_ref());
            put_witness(&mut call, conditions.witnesses.get(&shard));
            self.run_script(script, call).await.map(|answer| answer == Value::Int(1))
        });
        let is_put = try_join_all(puts).await?.into_iter().all(|is_put| is_put);
        if !is_put {
            self.record_rollback();
        }
        Ok(is_put)
    }

    async fn mark_in_shards(&self, name: &str) -> Result<Vec<Option<Bytes>>, StoreError> {
        let gets = (0..self.shards()).map(async |shard| {
            let mut get = cmd("HGET");
            get.arg(self.names.in_shard(shard, RedisKeyKind::Marks)).arg(name);
            self.run_command(&get).await.map(bytes)
        });
        try_join_all(gets).await
    }

    async fn put_checkpoint(
        &self,
        partition: &Partition,
        claim: Claim,
        breaks: u64,
        mark: &Mark,
    ) -> Result<bool, StoreError> {
        check_marks([mark])?;
        let script = &self.scripts.checkpoint;
        let [data] = self.stream_keys(0, &partition.stream, [RedisKeyKind::Data]);
        let mut call =
            self.script_call(script, &[data, self.names.in_common_shard(RedisKeyKind::Marks)]);
        call.arg(partition.number).arg(&commit::claim_bytes(claim)[..]);
        call.arg(&mark.name).arg(&mark.value[..]);
        // A server that has restarted since the caller read `breaks` may have lost data. Send the call only if the
        // count of disconnects is still `breaks`. This count contains broken connections, changes of a master, and
        // store rollbacks that this process noticed.
        let Some(breaks) = breaks.checked_sub(self.other_disconnects()) else { return Ok(false) };
        let answer = match self.connection.call_unless_broken(&call, breaks).await {
            Err(error) if has_code(&error, "NOSCRIPT") => {
                self.connection.call_unless_broken(&script.with_text(&call), breaks).await
            }
            answer => answer,
        };
        let answer = answer.map_err(|error| request_error(&error));
        let what = || format!("checkpoint of stream {:?}", partition.stream);
        match self.with_key_name(answer, || LuaScript::keys(&call)).await {
            Ok(answer) => {
                self.retry_warnings.resolve(None, what);
                Ok(answer == Some(Value::Int(1)))
            }
            Err(StoreError::Unavailable(reason) | StoreError::Corrupt(reason)) => {
                self.retry_warnings.report(None, &what(), &reason);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
