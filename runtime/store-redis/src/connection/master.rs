//! The master that Sentinels name. All links of a store share this master.
//!
//! A store has several links if its commits wait for replicas. While the network is split, an old master may still
//! accept writes when the Sentinels already name a new master. If each link found the master by itself, one link could
//! use the old master and another link the new one. A request over several shards would then write to both masters. The
//! writes in the old master would be lost, although no connection breaks during the request. The links therefore share
//! the known master, and the number of times that another server became the known master. A connection is valid for one
//! value of this number: a link uses the connection only while the number still has this value. This module must count
//! a change before any link uses the new master.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::connect::{NodeAddress, retryable_error};
use super::sentinel::{SentinelAnswer, open_master, query_sentinels};
use ordain_store::RedisUrl;
use ordain_util::wait::shortened;

/// The interval between two regular queries of the Sentinels. The queries are needed even while all connections to the
/// master work, because a replaced master may still accept writes. The replaced master loses these writes when it
/// becomes a replica of the new master.
const SENTINEL_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The master that Sentinels name, as all links of a store know it.
pub(super) struct SentinelMaster {
    /// The URL of the store. Its hosts are the Sentinels.
    url: RedisUrl,
    name: String,
    known: Mutex<KnownMaster>,
    /// The number of changes of the known master. This number is written only while `known` is locked, and read without
    /// the lock.
    changes: AtomicU64,
}

#[derive(Default)]
struct KnownMaster {
    /// The address of the master; `None` before the first connection.
    address: Option<NodeAddress>,
    /// The epoch in the newest answer of the Sentinels that led to this master. A later answer that names this master,
    /// and is not outdated, also sets the epoch.
    epoch: u64,
    /// The master that this master has replaced; `None` if this master is the first master, or if an outdated answer
    /// led to this master.
    replaced: Option<NodeAddress>,
}

/// Queries the Sentinels at regular intervals, so that all links change to a new master. Ends when the last link is
/// dropped.
pub(super) async fn follow_master(master: Weak<SentinelMaster>) {
    loop {
        tokio::time::sleep(shortened(SENTINEL_POLL_INTERVAL)).await;
        let Some(master) = master.upgrade() else { return };
        master.check().await;
    }
}

impl SentinelMaster {
    pub(super) fn new(url: RedisUrl, name: String) -> Self {
        Self { url, name, known: Mutex::default(), changes: AtomicU64::new(0) }
    }

    /// Returns how often the known master has changed since the store was opened.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Connects to the master. Returns the connection, and the number of changes for which the connection is valid.
    pub(super) async fn connect(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        let address = self.url.refresh();
        let answer = query_sentinels(&address, &self.name).await?;
        let (mut master, changes) = self.choose(&answer);
        let mut opened = open_master(&address, &master).await;
        if opened.is_err() && master != answer.master {
            // The known master does not answer as a master, so the master in the answer is the better choice, even if
            // the answer is outdated.
            master = answer.master.clone();
            opened = open_master(&address, &master).await;
        }
        let connection = opened?;
        match self.record(&master, &answer, changes) {
            Some(changes) => Ok((connection, changes)),
            None => Err(retryable_error(format!(
                "the Sentinels replaced the master {:?} while this process connected to {master}",
                self.name
            ))),
        }
    }

    /// Queries the Sentinels. If the Sentinels name a new master, and this server accepts a connection and acts as a
    /// master, records the new master. If no Sentinel answers, keeps the known master.
    async fn check(&self) {
        let address = self.url.refresh();
        let Ok(answer) = query_sentinels(&address, &self.name).await else { return };
        let (master, changes) = self.choose(&answer);
        let is_known = self.known().address.as_ref() == Some(&master);
        if is_known || open_master(&address, &master).await.is_ok() {
            self.record(&master, &answer, changes);
        }
    }

    /// Returns the master to use after an answer of the Sentinels, and the number of changes so far.
    fn choose(&self, answer: &SentinelAnswer) -> (NodeAddress, u64) {
        let known = self.known();
        (known.choose(answer).clone(), self.changes())
    }

    /// Records `master`, which was chosen after `answer`, as the known master. The caller has connected to `master`, or
    /// `master` is the known master already. `changes` is the number of changes at the time of the choice. Counts a
    /// change of the master before it returns. Returns the number of changes for which a connection to `master` is
    /// valid, or `None` if another master was recorded since the choice.
    fn record(&self, master: &NodeAddress, answer: &SentinelAnswer, changes: u64) -> Option<u64> {
        let mut known = self.known();
        if known.address.as_ref() == Some(master) {
            known.confirm(answer);
        } else if self.changes() == changes {
            if let Some(replaced) = known.replace(master.clone(), answer) {
                self.changes.fetch_add(1, Ordering::SeqCst);
                tracing::warn!(
                    "the Sentinels at {} report that the master {:?} is now {master} and no longer {replaced}; \
                     Ordain uses the new master from now on",
                    self.url,
                    self.name
                );
            }
        } else {
            return None;
        }
        Some(self.changes())
    }

    fn known(&self) -> MutexGuard<'_, KnownMaster> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownMaster {
    /// Returns the master to use after an answer of the Sentinels. This is the known master if the answer names it, or
    /// if the answer is outdated. Otherwise, this is the master that the answer names.
    fn choose<'a>(&'a self, answer: &'a SentinelAnswer) -> &'a NodeAddress {
        match &self.address {
            Some(known) if answer.names(known) || self.is_outdated(answer) => known,
            _ => &answer.master,
        }
    }

    /// Returns whether the answer may come from Sentinels that do not know of the newest election, because they are cut
    /// off from the others.
    fn is_outdated(&self, answer: &SentinelAnswer) -> bool {
        // If all Sentinels have answered, the answer is not outdated, even if its epoch is lower than the known epoch:
        // the epoch falls when an operator configures the Sentinels anew.
        if answer.is_complete {
            return false;
        }
        // During an election, a Sentinel reports the new epoch together with the old master for a while. The epoch
        // alone therefore does not show which of two masters is newer. The epoch 0 may mean that the Sentinels do not
        // report their epoch.
        let names_replaced = || self.replaced.as_ref().is_some_and(|old| answer.names(old));
        answer.epoch < self.epoch
            || (answer.epoch == self.epoch && self.epoch > 0 && names_replaced())
    }

    /// Records the epoch of an answer, if the answer names the known master and is not outdated.
    fn confirm(&mut self, answer: &SentinelAnswer) {
        let is_named = self.address.as_ref().is_some_and(|known| answer.names(known));
        if is_named && !self.is_outdated(answer) {
            self.epoch = answer.epoch;
        }
    }

    /// Records another master, which was chosen after `answer`. Returns the replaced master.
    fn replace(&mut self, master: NodeAddress, answer: &SentinelAnswer) -> Option<NodeAddress> {
        let is_outdated = self.is_outdated(answer);
        let replaced = self.address.replace(master);
        // If the answer is outdated, the replaced master is possibly newer than the recorded master. A later answer
        // that names the replaced master must then not count as outdated.
        self.replaced = if is_outdated { None } else { replaced.clone() };
        self.epoch = answer.epoch;
        replaced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> NodeAddress {
        NodeAddress { host: "redis".to_owned(), port }
    }

    fn answer(epoch: u64, port: u16, is_complete: bool) -> SentinelAnswer {
        SentinelAnswer { epoch, master: node(port), other_addresses: Vec::new(), is_complete }
    }

    /// Returns the known master after an election with this epoch, in which the master at port 2 replaced the master at
    /// port 1.
    fn replaced_in(epoch: u64) -> KnownMaster {
        let mut known = KnownMaster::default();
        known.replace(node(1), &answer(0, 1, true));
        known.replace(node(2), &answer(epoch, 2, true));
        known
    }

    #[test]
    fn outdated_answers_change_no_master() {
        let known = replaced_in(5);
        assert_eq!(known.choose(&answer(4, 1, false)), &node(2), "an earlier election");
        assert_eq!(known.choose(&answer(0, 1, false)), &node(2), "the time before all elections");
        assert_eq!(known.choose(&answer(5, 1, false)), &node(2), "the end of the election");
        assert_eq!(known.choose(&answer(6, 1, false)), &node(1), "a later election");
        assert_eq!(known.choose(&answer(0, 3, true)), &node(3), "configured anew");
    }

    #[test]
    fn other_spellings_of_the_address_change_no_master() {
        let known = replaced_in(5);
        let other_addresses = vec![node(2)];
        let both = SentinelAnswer { other_addresses, ..answer(6, 3, true) };
        assert_eq!(known.choose(&both), &node(2));
    }

    #[test]
    fn new_epoch_with_the_old_master_hides_no_new_master() {
        let mut known = KnownMaster::default();
        known.replace(node(1), &answer(0, 1, false));
        known.confirm(&answer(1, 1, false));
        assert_eq!(known.epoch, 1);
        assert_eq!(known.choose(&answer(1, 2, false)), &node(2));
        known.confirm(&answer(0, 1, false));
        assert_eq!(known.epoch, 1, "an outdated answer confirms nothing");
    }

    /// The known master does not answer, so the links use the master of an outdated answer. The links must return to
    /// the known master when a Sentinel names it again.
    #[test]
    fn outdated_answer_keeps_no_link_from_the_newer_master() {
        let mut known = replaced_in(5);
        for epoch in [4, 5] {
            known.replace(node(1), &answer(epoch, 1, false));
            assert_eq!(known.choose(&answer(5, 2, false)), &node(2));
            known.replace(node(2), &answer(5, 2, false));
        }
    }

    /// If the Sentinels do not report their epoch, none of their answers counts as outdated.
    #[test]
    fn answers_without_an_epoch_change_the_master() {
        let known = replaced_in(0);
        assert_eq!(known.choose(&answer(0, 1, false)), &node(1));
    }

    #[test]
    fn each_new_master_is_counted_once() {
        let url = ordain_store::RedisAddress::parse("redis://sentinel:26379").expect("a URL");
        let master = SentinelMaster::new(url, "main".to_owned());
        assert_eq!(master.record(&node(1), &answer(0, 1, true), 0), Some(0));
        let newer = answer(1, 2, true);
        assert_eq!(master.choose(&newer), (node(2), 0));
        assert_eq!(master.record(&node(2), &newer, 0), Some(1));
        assert_eq!(master.record(&node(2), &newer, 0), Some(1), "another link found it too");
        assert_eq!(master.record(&node(1), &answer(0, 1, true), 0), None, "a late answer");
        assert_eq!(master.changes(), 1);
    }
}
