//! Marks: small values by name. They lie in shard 0.

use bytes::Bytes;
use redis::{Value, cmd};

use super::error::{failed, has_code};
use super::link::Link;
use super::names::Kind;
use super::script::Script;
use super::value::bytes;
use super::{Redis, commit};
use ordain_store::{Claim, MARK_NAME_LIMIT, Mark, Partition, StoreError};

/// See [`Store::put_checkpoint`](ordain_store::Store::put_checkpoint).
pub(super) async fn put_checkpoint(
    store: &Redis,
    partition: &Partition,
    claim: Claim,
    breaks: u64,
    mark: &Mark,
) -> Result<bool, StoreError> {
    check([mark])?;
    let script = &store.scripts.checkpoint;
    let [data] = store.of_stream(0, &partition.stream, [Kind::Data]);
    let mut call = store.call_of(script, &[data, store.names.common(Kind::Marks)]);
    call.arg(partition.number).arg(&commit::claim_bytes(claim)[..]);
    call.arg(&mark.name).arg(&mark.value[..]);
    // Never over another connection than the one that `breaks` was read on: a server that was
    // restarted may have other data.
    let of_others: u64 = store.waiting_links.iter().map(Link::breaks).sum();
    let breaks = breaks.saturating_sub(of_others);
    let answer = match store.link.call_unless_broken(&call, breaks).await {
        Err(error) if has_code(&error, "NOSCRIPT") => {
            store.link.call_unless_broken(&script.with_text(&call), breaks).await
        }
        answer => answer,
    };
    let answer = answer.map_err(|error| failed(&error));
    let what = || format!("checkpoint of stream {:?}", partition.stream);
    match store.named(answer, || Script::keys(&call)).await {
        Ok(answer) => {
            store.trouble.over(what);
            Ok(answer == Some(Value::Int(1)))
        }
        Err(StoreError::Unavailable(reason) | StoreError::Corrupt(reason)) => {
            store.trouble.tell(what(), &reason);
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// See [`Store::put_marks`](ordain_store::Store::put_marks).
pub(super) async fn put(store: &Redis, marks: &[Mark]) -> Result<(), StoreError> {
    check(marks)?;
    if marks.is_empty() {
        return Ok(());
    }
    let mut put = cmd("HSET");
    put.arg(store.names.common(Kind::Marks));
    for mark in marks {
        put.arg(&mark.name).arg(&mark.value[..]);
    }
    store.ask(&put).await.map(drop)
}

/// See [`Store::mark`](ordain_store::Store::mark).
pub(super) async fn get(store: &Redis, name: &str) -> Result<Option<Bytes>, StoreError> {
    let mut get = cmd("HGET");
    get.arg(store.names.common(Kind::Marks)).arg(name);
    store.ask(&get).await.map(bytes)
}

fn check<'a>(marks: impl IntoIterator<Item = &'a Mark>) -> Result<(), StoreError> {
    match marks.into_iter().find(|mark| mark.name.len() > MARK_NAME_LIMIT) {
        None => Ok(()),
        Some(mark) => Err(StoreError::Unusable(format!(
            "the name of a mark has {} bytes; {MARK_NAME_LIMIT} are allowed",
            mark.name.len()
        ))),
    }
}
