//! The connections to all masters of a Cluster.
//!
//! The Cluster connection of the client library follows redirections by itself, and does not report which node
//! answered. But a node that takes over a slot may lack the newest writes of the slot's previous master, so the store
//! must know about each change of a master. This module therefore routes the calls itself. It counts a change of a
//! slot's master before it sends the first call to the new master.

mod owners;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, RetryMethod, ServerErrorKind, Value, cmd};
use tokio::time::{sleep, timeout};

use self::owners::{SLOT_COUNT, SlotOwners, parse_redirection};
use super::connect::{NodeAddress, config_error, connect_any, retryable_error};
use super::single::{ServerTarget, SingleServer};
use super::{CommandGroup, is_broken};
use ordain_store::RedisAddress;

/// The maximum number of tries of one call that nodes redirect or refuse. After the last try, the caller gets the
/// error.
const TRIES_LIMIT: u32 = 6;
/// The delay after the first refused try of a call. Each further delay is twice as long as the previous one.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// The timeout for a node's answer about the masters of the slots.
const OWNERS_TIMEOUT: Duration = Duration::from_secs(2);

/// The connections to all masters of a Cluster.
pub(super) struct Cluster {
    address: RedisAddress,
    state: Mutex<ClusterState>,
    /// Ensures that only one task at a time asks for the masters of the slots.
    refreshing: tokio::sync::Mutex<()>,
}

struct ClusterState {
    slots: Vec<SlotState>,
    /// The masters of all slots, and the nodes to which masters have redirected calls since the last refresh.
    nodes: HashMap<NodeAddress, Arc<SingleServer>>,
    /// The number of broken connections, plus the number of refreshes that found new masters.
    disconnects: u64,
    /// The number of times that this process asked for the masters of the slots.
    refreshes: u64,
}

#[derive(Clone, Default)]
struct SlotState {
    /// `None` if the Cluster has assigned the slot to no node.
    master: Option<Arc<SingleServer>>,
    /// The number of broken connections to the slot's master, plus the number of changes of the master.
    disconnects: u64,
}

impl Cluster {
    /// Reads the masters of all slots from `node`, whose host is `host`. Returns an error if a slot has no master.
    pub(super) async fn connect(
        address: &RedisAddress,
        node: &mut MultiplexedConnection,
        host: &str,
    ) -> RedisResult<Self> {
        if !matches!(&*address.path, "" | "0") {
            return Err(config_error(format!(
                "{address} is a Cluster, which has no databases: remove {:?}",
                address.path
            )));
        }
        let owners = read_owners(node, host).await?;
        let assigned = owners.count();
        if assigned < SLOT_COUNT {
            return Err(retryable_error(format!(
                "only {assigned} of the {SLOT_COUNT} slots of this Cluster have a node: `redis-cli --cluster \
                 create` creates a Cluster, and `redis-cli --cluster fix` reassigns slots that have lost \
                 their node"
            )));
        }
        let mut state = ClusterState {
            slots: vec![SlotState::default(); SLOT_COUNT],
            nodes: HashMap::new(),
            disconnects: 0,
            refreshes: 0,
        };
        state.assign(address, &owners);
        let refreshing = tokio::sync::Mutex::default();
        Ok(Self { address: address.clone(), state: Mutex::new(state), refreshing })
    }

    /// Returns the number of broken connections, plus the number of refreshes that found new masters.
    pub(super) fn disconnects(&self) -> u64 {
        self.state().disconnects
    }

    /// Returns the number of broken connections to the master of the slot of this hash tag, plus the number of changes
    /// of this master.
    pub(super) fn tag_disconnects(&self, tag: &[u8]) -> u64 {
        self.state().slots[slot_of(tag)].disconnects
    }

    /// Sends commands to the master of their slot, and follows redirections. Returns `None` if the commands were not
    /// executed, because the count of [`Self::disconnects`] exceeds `disconnects_limit`.
    pub(super) async fn execute(
        &self,
        commands: &CommandGroup<'_>,
        disconnects_limit: u64,
    ) -> RedisResult<Option<Value>> {
        let slot = slot_of(commands.tag());
        let mut attempt = 0;
        let mut delay = RETRY_DELAY;
        let mut asked: Option<Arc<SingleServer>> = None;
        loop {
            attempt += 1;
            let (master, refreshes) = self.master(slot);
            let is_asked = asked.is_some();
            let result = match asked.take().as_ref().or(master.as_ref()) {
                Some(node) => self.execute_at(node, commands, is_asked, disconnects_limit).await,
                None => {
                    Err(retryable_error(format!("the Cluster has assigned slot {slot} to no node")))
                }
            };
            let error = match result {
                Ok(answer) => return Ok(answer),
                Err(error) if attempt == TRIES_LIMIT => return Err(error),
                Err(error) => error,
            };
            match error.retry_method() {
                RetryMethod::AskRedirect => {
                    asked = redirection(&error, master.as_ref()).map(|node| self.node(node));
                }
                RetryMethod::MovedRedirect | RetryMethod::RefreshSlotsAndRetry => {
                    let named = redirection(&error, master.as_ref());
                    self.refresh(refreshes, master.as_ref(), named).await;
                    // A second redirection means that not all nodes know the new master yet.
                    if attempt > 1 {
                        sleep(delay).await;
                        delay *= 2;
                    }
                }
                RetryMethod::WaitAndRetry => {
                    // While a slot moves to another node, its master refuses some calls. It remains the master.
                    if error.kind() != ErrorKind::Server(ServerErrorKind::TryAgain) {
                        self.refresh(refreshes, master.as_ref(), None).await;
                    }
                    sleep(delay).await;
                    delay *= 2;
                }
                _ => {
                    if is_broken(&error) {
                        self.refresh(refreshes, master.as_ref(), None).await;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Sends a command to every master.
    pub(super) async fn call_all_masters(&self, cmd: &Cmd) -> RedisResult<Vec<Value>> {
        let (masters, refreshes) = self.masters();
        let command = CommandGroup::Command(cmd);
        let calls = masters.iter().map(async |master| {
            let answer = self.execute_at(master, &command, false, u64::MAX).await;
            if answer.as_ref().is_err_and(is_broken) {
                self.refresh(refreshes, Some(master), None).await;
            }
            answer.map(|answer| answer.unwrap_or(Value::Nil))
        });
        try_join_all(calls).await
    }

    /// Executes commands at this node. `is_asked` states that the error `ASK` has named the node.
    async fn execute_at(
        &self,
        server: &Arc<SingleServer>,
        commands: &CommandGroup<'_>,
        is_asked: bool,
        disconnects_limit: u64,
    ) -> RedisResult<Option<Value>> {
        let (mut connection, before) = server.connection().await?;
        // A connection that replaces a broken one was opened after the broken one was counted.
        if self.disconnects() > disconnects_limit {
            return Ok(None);
        }
        let answer = if is_asked {
            commands.execute_asking(&mut connection).await
        } else {
            commands.execute(&mut connection).await
        };
        if answer.as_ref().is_err_and(is_broken) {
            self.record_disconnect(server, before);
        }
        answer.map(Some)
    }

    /// Drops a broken connection, and counts it for all slots of the server. `before` is the number of connections to
    /// the server that broke before this connection.
    fn record_disconnect(&self, server: &Arc<SingleServer>, before: u64) {
        let mut state = self.state();
        if !server.drop_broken(before) {
            return;
        }
        state.disconnects += 1;
        for slot in &mut state.slots {
            if slot.master.as_ref().is_some_and(|master| Arc::ptr_eq(master, server)) {
                slot.disconnects += 1;
            }
        }
    }

    /// Returns the master of a slot, and the number of refreshes before.
    fn master(&self, slot: usize) -> (Option<Arc<SingleServer>>, u64) {
        let state = self.state();
        (state.slots[slot].master.clone(), state.refreshes)
    }

    /// Returns all masters, and the number of refreshes before.
    fn masters(&self) -> (Vec<Arc<SingleServer>>, u64) {
        let state = self.state();
        let mut masters: Vec<Arc<SingleServer>> = Vec::new();
        for master in state.slots.iter().filter_map(|slot| slot.master.as_ref()) {
            if !masters.iter().any(|known| Arc::ptr_eq(known, master)) {
                masters.push(Arc::clone(master));
            }
        }
        (masters, state.refreshes)
    }

    fn node(&self, address: NodeAddress) -> Arc<SingleServer> {
        let mut state = self.state();
        let server = state.nodes.entry(address);
        Arc::clone(server.or_insert_with_key(|address| server_of(&self.address, address)))
    }

    /// Asks for the masters of the slots, unless this has happened since the count of refreshes was `refreshes`. Does
    /// not ask `previous`, because this node has just failed, or is no longer the master of a slot. First asks the node
    /// `named`, which is the new master of a slot.
    async fn refresh(
        &self,
        refreshes: u64,
        previous: Option<&Arc<SingleServer>>,
        named: Option<NodeAddress>,
    ) {
        let _refreshing = self.refreshing.lock().await;
        if self.state().refreshes != refreshes {
            return;
        }
        let owners = self.find_owners(previous, named).await;
        let mut state = self.state();
        state.refreshes += 1;
        match owners {
            Ok(owners) if owners.count() > 0 => state.assign(&self.address, &owners),
            Ok(_) => tracing::debug!("the Cluster has assigned no slots"),
            Err(error) => tracing::debug!("the masters of the Cluster are unknown: {error}"),
        }
    }

    /// Asks the nodes for the masters of the slots: first `named`, then all other known nodes, and finally the
    /// configured hosts. The configured hosts are needed if the nodes have new addresses, or if the names of the known
    /// nodes do not resolve.
    async fn find_owners(
        &self,
        previous: Option<&Arc<SingleServer>>,
        named: Option<NodeAddress>,
    ) -> RedisResult<SlotOwners> {
        let named = named.map(|node| self.node(node));
        let mut most = SlotOwners::default();
        if let Some(named) = &named
            && let Ok(owners) = query_owners(named).await
        {
            most = owners;
        }
        let skipped = [previous, named.as_ref()];
        let is_skipped = |server: &Arc<SingleServer>| {
            skipped.iter().flatten().any(|skipped| Arc::ptr_eq(skipped, server))
        };
        let others: Vec<_> =
            self.state().nodes.values().filter(|node| !is_skipped(node)).cloned().collect();
        let mut answers: FuturesUnordered<_> = others.iter().map(query_owners).collect();
        while most.count() < SLOT_COUNT
            && let Some(answer) = answers.next().await
        {
            if let Ok(owners) = answer
                && owners.count() > most.count()
            {
                most = owners;
            }
        }
        if most.count() > 0 {
            return Ok(most);
        }
        let address = self.address.refreshed();
        let (mut node, host) = connect_any(&address).await?;
        within_timeout(read_owners(&mut node, host)).await
    }

    fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClusterState {
    /// Assigns the slots to their masters, and counts the changes. The first assignment counts nothing.
    fn assign(&mut self, address: &RedisAddress, owners: &SlotOwners) {
        let is_first = self.nodes.is_empty();
        let known = std::mem::take(&mut self.nodes);
        let mut moved: BTreeMap<[String; 2], usize> = BTreeMap::new();
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let master = owners.of(number).map(|node| {
                let known = || known.get(node).map_or_else(|| server_of(address, node), Arc::clone);
                Arc::clone(self.nodes.entry(node.clone()).or_insert_with(known))
            });
            let is_same = match (&master, &slot.master) {
                (Some(new), Some(old)) => Arc::ptr_eq(new, old),
                (new, old) => new.is_none() && old.is_none(),
            };
            if is_same {
                continue;
            }
            if !is_first {
                let change = [&slot.master, &master].map(|server| display_name(server.as_ref()));
                *moved.entry(change).or_default() += 1;
                slot.disconnects += 1;
            }
            slot.master = master;
        }
        self.disconnects += u64::from(!moved.is_empty());
        for ([from, to], count) in moved {
            tracing::info!("the Cluster at {address} has moved {count} slots from {from} to {to}");
        }
    }
}

fn display_name(server: Option<&Arc<SingleServer>>) -> String {
    let node = server.and_then(|server| server.node());
    node.map_or_else(|| "no node".to_owned(), ToString::to_string)
}

fn server_of(address: &RedisAddress, node: &NodeAddress) -> Arc<SingleServer> {
    Arc::new(SingleServer::new(address.clone(), ServerTarget::Node(node.clone())))
}

/// Returns the slot of a hash tag (Redis Cluster specification, "Key distribution model").
fn slot_of(tag: &[u8]) -> usize {
    usize::from(crc16::State::<crc16::XMODEM>::calculate(tag)) % SLOT_COUNT
}

/// Returns the node to which the error `MOVED` or `ASK` redirects the call. `server` reported the error.
fn redirection(error: &RedisError, server: Option<&Arc<SingleServer>>) -> Option<NodeAddress> {
    let host = server.and_then(|server| server.node()).map_or("", |node| &node.host);
    let errors = error.clone().into_server_errors()?;
    parse_redirection(errors.first()?.1.details()?, host)
}

async fn query_owners(server: &Arc<SingleServer>) -> RedisResult<SlotOwners> {
    let host = server.node().map_or("", |node| &node.host);
    within_timeout(async {
        let (mut connection, _) = server.connection().await?;
        read_owners(&mut connection, host).await
    })
    .await
}

async fn within_timeout<T>(call: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let result = timeout(OWNERS_TIMEOUT, call).await;
    result.unwrap_or_else(|_| Err(retryable_error("the node does not answer".to_owned())))
}

async fn read_owners(node: &mut MultiplexedConnection, host: &str) -> RedisResult<SlotOwners> {
    let answer = cmd("CLUSTER").arg("SLOTS").query_async(node).await?;
    Ok(SlotOwners::parse(answer, host))
}
