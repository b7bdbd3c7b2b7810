//! What the sequencer asks of the store, the workers and the publisher. Each answer comes back
//! through the inbox; reads that fail are made again until they work, since nothing can go on
//! without them.

use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use ordain_core::{Applied, Batch, CommitReply, Input, Key, Token};
use tokio::sync::mpsc::error::TrySendError;

use super::{Driver, DriverError, Note, alarms};
use crate::sink::Job;
use crate::store::StoreError;

/// Between tries of a read that failed.
const RETRY: Duration = Duration::from_millis(500);

impl Driver {
    /// Hands over what was gathered while effects were drained.
    pub(super) fn hand_over(&mut self) {
        if !self.bunch.is_empty() {
            self.turns.submit(std::mem::take(&mut self.bunch));
        }
        if !self.loads.is_empty() {
            let loads = std::mem::take(&mut self.loads);
            self.load(loads);
        }
    }

    fn load(&mut self, loads: Vec<(Token, Key)>) {
        let (store, partition) = (Arc::clone(&self.store), self.partition.clone());
        let notes = self.notes.clone();
        tokio::spawn(async move {
            let (tokens, keys): (Vec<_>, Vec<_>) = loads.into_iter().unzip();
            let loaded = insist("load", || store.load(&partition, &keys)).await;
            for (token, loaded) in tokens.into_iter().zip(loaded) {
                // The driver is gone when the process is ending: then nobody needs it.
                let _ = notes.send(Note::Input(Input::Loaded { token, loaded })).await;
            }
        });
    }

    pub(super) fn commit(&mut self, batch: Arc<Batch>) {
        let (store, partition, claim) =
            (Arc::clone(&self.store), self.partition.clone(), self.claim);
        let (shard, number) = (batch.shard, batch.number);
        let telling = alarms::of(&batch);
        self.answer(async move {
            let reply = store.commit(&partition, claim, batch).await;
            if let (Some(batch), CommitReply::Applied(applied)) = (telling, &reply) {
                alarms::tell(&partition.stream, &batch, applied);
            }
            Input::Committed { shard, number, reply }
        });
    }

    pub(super) fn publish(&mut self, batch: Arc<Batch>, applied: Applied) {
        let job = Job { target: Arc::clone(&self.target), batch, applied };
        match self.publisher.try_send(job) {
            // If the publisher has ended, the process is about to, and the outbox keeps the
            // messages.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            // Going on would publish what comes after before it.
            Err(TrySendError::Full(_)) => self.failed = Some(DriverError::PublisherFull),
        }
    }

    pub(super) fn read_spill(
        &mut self,
        token: Token,
        key: Key,
        from: u64,
        limit: usize,
        bytes: usize,
    ) {
        let (store, partition) = (Arc::clone(&self.store), self.partition.clone());
        self.answer(async move {
            let read = || store.read_spill(&partition, &key, from, limit, bytes);
            let (events, end) = insist("read of spilled events", read).await;
            Input::SpillRead { token, events, end }
        });
    }

    pub(super) fn replay(
        &mut self,
        token: Token,
        key: Key,
        missing: Vec<RangeInclusive<u64>>,
        within: u64,
    ) {
        let (store, partition) = (Arc::clone(&self.store), self.partition.clone());
        self.answer(async move {
            let find = || store.find(&partition, &key, &missing, within);
            let found = insist("search for missing events", find).await;
            Input::Replayed { token, found, again: false }
        });
    }

    pub(super) fn read_due(&mut self, after: Option<(u64, Key)>, limit: usize, all: bool) {
        let (store, partition) = (Arc::clone(&self.store), self.partition.clone());
        self.answer(async move {
            let read = || store.due(&partition, after.as_ref(), limit, all);
            let (entries, next_in) = insist("read of the due index", read).await;
            Input::DueRead { entries, next_in }
        });
    }

    fn answer(&self, input: impl Future<Output = Input> + Send + 'static) {
        let notes = self.notes.clone();
        let mut asking = Box::pin(async move {
            let input = input.await;
            // The driver is gone when the process is ending: then nobody needs it.
            let _ = notes.send(Note::Input(input)).await;
        });
        // Asked here and now: what is spawned begins only when this task waits.
        if asking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(asking);
        }
    }
}

/// Asks until it works.
pub(super) async fn insist<T, F>(what: &str, read: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match read().await {
            Ok(read) => return read,
            Err(error) => {
                tracing::error!(%error, "the store did not answer a {what}; trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
