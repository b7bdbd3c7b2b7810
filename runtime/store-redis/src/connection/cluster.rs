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

use futures_util::future::{BoxFuture, FutureExt as _, join_all, try_join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, RetryMethod, ServerErrorKind, Value, cmd};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::owners::{SLOT_COUNT, SlotOwners, parse_redirection};
use super::connect::{NodeAddress, config_error, open, retryable_error};
use super::single::{ServerTarget, SingleServer};
use super::{CommandGroup, is_broken};
use ordain_store::{RedisAddress, RedisUrl};

/// The maximum number of tries of a call. After the last try, the caller gets the error of the redirection or refusal.
const TRIES_LIMIT: u32 = 6;
/// The first delay between two tries of a call. Each later delay is twice as long as the delay before it. Some tries
/// follow without a delay, for example the try after the first redirection.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// The timeout for a node's answer about the masters of the slots, including the connection to the node. The timeout is
/// a little longer than `CONNECT_TIMEOUT`, so that a failed attempt to connect ends by itself, and all calls that share
/// the attempt get its error.
const OWNERS_TIMEOUT: Duration = Duration::from_millis(3_200);
/// The minimum time between two refreshes (fetches of the masters of the slots) after failed calls. A refresh after a
/// redirection that names a node starts without this delay.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of links of one process to each node: one for most calls, and the others for commits that wait
/// for replicas.
pub(super) const LINKS_LIMIT: usize = 9;

/// The maximum number of remembered addresses. A Cluster has at most about 1,000 nodes (Redis Cluster specification).
const ADDRESSES_LIMIT: usize = 1_000;

pub(super) struct Cluster {
    url: RedisUrl,
    state: Mutex<ClusterState>,
    /// The time when the last refresh ended. The lock ensures that only one task at a time fetches the masters of the
    /// slots.
    last_refresh: tokio::sync::Mutex<Instant>,
}

struct ClusterState {
    slots: Vec<SlotState>,
    /// The masters of all slots, and the nodes to which slots are moving.
    nodes: HashMap<NodeAddress, Arc<ClusterNode>>,
    /// The last reported address of each master and replica, by the id of the node. A node omits replicas that it
    /// considers failed (Redis, CLUSTER SLOTS), but these replicas can become masters later.
    addresses: BTreeMap<String, NodeAddress>,
    /// The number of broken connections, plus the number of refreshes that found new masters, plus the number of times
    /// that a redirection changed `next` of a slot.
    disconnects: u64,
    refreshes: u64,
}

#[derive(Clone, Default)]
struct SlotState {
    /// `None` if the Cluster has assigned the slot to no node.
    master: Option<Arc<ClusterNode>>,
    /// A redirection by the error `ASK` has named this node. It may already have some of the slot's data.
    next: Option<Arc<ClusterNode>>,
    /// The number of broken connections to `master` and `next`, plus the number of changes of both.
    disconnects: u64,
}

struct ClusterNode {
    address: NodeAddress,
    links: Vec<SingleServer>,
}

impl ClusterNode {
    fn new(url: &RedisUrl, node: &NodeAddress) -> Arc<Self> {
        let link = |_| SingleServer::new(url.clone(), ServerTarget::Node(node.clone()));
        Arc::new(Self { address: node.clone(), links: (0..LINKS_LIMIT).map(link).collect() })
    }
}

impl Cluster {
    /// Reads the masters of all slots from `node`, whose host is `host`. Returns an error if a slot has no master.
    pub(super) async fn connect(
        url: &RedisUrl,
        node: &mut MultiplexedConnection,
        host: &str,
    ) -> RedisResult<Self> {
        let address = url.newest();
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
                "only {assigned} of the {SLOT_COUNT} slots of this Cluster have a node. `redis-cli --cluster create` \
                 creates a Cluster, and `redis-cli --cluster fix` reassigns slots that have lost their node"
            )));
        }
        let mut state = ClusterState {
            slots: vec![SlotState::default(); SLOT_COUNT],
            nodes: HashMap::new(),
            addresses: BTreeMap::new(),
            disconnects: 0,
            refreshes: 0,
        };
        state.assign(url, &owners);
        let last_refresh = tokio::sync::Mutex::new(Instant::now());
        Ok(Self { url: url.clone(), state: Mutex::new(state), last_refresh })
    }

    /// Returns the number of broken connections, plus the number of changes after which a node may lack writes. Such a
    /// change is a refresh that found new masters, or a move of a slot that this process has newly noticed.
    pub(super) fn disconnects(&self) -> u64 {
        self.state().disconnects
    }

    /// Returns the number of broken connections to the nodes that have data of the slot of this hash tag, plus the
    /// number of changes of these nodes.
    pub(super) fn tag_disconnects(&self, tag: &[u8]) -> u64 {
        self.state().slots[slot_of(tag)].disconnects
    }

    /// Returns whether the slots of several hash tags have different masters, or one of the slots is moving or has no
    /// master. Returns `false` for fewer than two hash tags.
    pub(super) fn has_several_masters(&self, tags: &[String]) -> bool {
        let state = self.state();
        let mut slots = tags.iter().map(|tag| &state.slots[slot_of(tag.as_bytes())]);
        let Some(first) = slots.next() else { return false };
        let is_moving = |slot: &SlotState| slot.next.is_some();
        let is_elsewhere = |slot: &SlotState| match (&slot.master, &first.master) {
            (Some(master), Some(first)) => !Arc::ptr_eq(master, first),
            _ => true,
        };
        tags.len() > 1
            && (is_moving(first) || slots.any(|slot| is_moving(slot) || is_elsewhere(slot)))
    }

    /// Sends commands over a link to the master of their slot, and follows redirections. If the count of
    /// [`Self::disconnects`] exceeds `disconnects_limit`, does not execute the commands and returns `None`.
    pub(super) async fn execute(
        &self,
        link: usize,
        commands: &CommandGroup<'_>,
        disconnects_limit: u64,
    ) -> RedisResult<Option<Value>> {
        let slot = slot_of(commands.tag());
        let mut attempt = 0;
        let mut delay = RETRY_DELAY;
        let mut ask_target: Option<Arc<ClusterNode>> = None;
        loop {
            attempt += 1;
            let (master, refreshes) = self.master(slot);
            let is_ask = ask_target.is_some();
            let Some(node) = ask_target.take().or(master) else {
                let error = format!("the Cluster has assigned slot {slot} to no node");
                self.refresh(refreshes, slot, None, None).await;
                return Err(retryable_error(error));
            };
            let (mut connection, before) = match node.links[link].connection().await {
                Ok(connection) => connection,
                Err(error) => {
                    self.refresh(refreshes, slot, Some(&node), None).await;
                    let has_other =
                        self.master(slot).0.is_some_and(|new| !Arc::ptr_eq(&new, &node));
                    if is_ask || !has_other || attempt == TRIES_LIMIT {
                        return Err(error);
                    }
                    continue;
                }
            };
            // If this connection replaces a broken one, `self.disconnects()` already counts the broken one.
            if disconnects_limit < u64::MAX && self.disconnects() > disconnects_limit {
                return Ok(None);
            }
            let answer = if is_ask {
                commands.execute_asking(&mut connection).await
            } else {
                commands.execute(&mut connection).await
            };
            let error = match answer {
                Ok(answer) => return Ok(Some(answer)),
                Err(error) => error,
            };
            if is_broken(&error) {
                self.record_disconnect(&node, link, before);
            }
            let method = error.retry_method();
            let named = match method {
                RetryMethod::AskRedirect | RetryMethod::MovedRedirect => redirection(&error, &node),
                _ => None,
            };
            match method {
                _ if attempt == TRIES_LIMIT => return Err(error),
                RetryMethod::AskRedirect => {
                    ask_target = named.map(|named| self.record_next(slot, &named));
                }
                RetryMethod::MovedRedirect | RetryMethod::RefreshSlotsAndRetry => {
                    self.refresh(refreshes, slot, Some(&node), named).await;
                    // A second redirection means that not all nodes know the new master yet.
                    if attempt > 1 {
                        sleep(delay).await;
                        delay *= 2;
                    }
                }
                RetryMethod::WaitAndRetry => {
                    // While a slot moves to another node, both nodes refuse some calls with `TRYAGAIN`. This error does
                    // not mean that the node has failed, so no refresh is necessary.
                    if error.kind() != ErrorKind::Server(ServerErrorKind::TryAgain) {
                        self.refresh(refreshes, slot, Some(&node), None).await;
                    }
                    sleep(delay).await;
                    delay *= 2;
                }
                _ => {
                    if is_broken(&error) {
                        self.refresh(refreshes, slot, Some(&node), None).await;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Sends a command to every master. Returns all answers, or the first error.
    pub(super) async fn call_all_masters(&self, cmd: &Cmd) -> RedisResult<Vec<Value>> {
        let (masters, refreshes) = self.masters();
        let calls = masters.iter().map(async |(slot, master)| {
            let call = async {
                let (mut connection, before) = master.links[0].connection().await?;
                let answer: RedisResult<Value> = cmd.query_async(&mut connection).await;
                if answer.as_ref().is_err_and(is_broken) {
                    self.record_disconnect(master, 0, before);
                }
                answer
            };
            let answer = call.await;
            if answer.as_ref().is_err_and(is_broken) {
                self.refresh(refreshes, *slot, Some(master), None).await;
            }
            answer
        });
        try_join_all(calls).await
    }

    /// Reads the addresses of the nodes from all masters. Replicas may have joined the Cluster since the last refresh.
    pub(super) async fn learn_nodes(&self) {
        let (masters, _) = self.masters();
        let answers =
            masters.iter().map(|(_, master)| timeout(OWNERS_TIMEOUT, self.query_owners(master)));
        for owners in join_all(answers).await.into_iter().flatten().flatten() {
            self.state().remember_addresses(&owners);
        }
    }

    /// Counts the broken connection for all slots whose data the node may have. `before` is the number of connections
    /// of this link that broke before this connection was opened. Does nothing if another call has already dropped or
    /// replaced the connection.
    fn record_disconnect(&self, node: &Arc<ClusterNode>, link: usize, before: u64) {
        let mut state = self.state();
        if !node.links[link].drop_broken(before) {
            return;
        }
        state.disconnects += 1;
        for slot in &mut state.slots {
            if [&slot.master, &slot.next]
                .into_iter()
                .flatten()
                .any(|known| Arc::ptr_eq(known, node))
            {
                slot.disconnects += 1;
            }
        }
    }

    /// Records the node at `address` as the node to which a slot is moving, and returns the node.
    fn record_next(&self, slot: usize, address: &NodeAddress) -> Arc<ClusterNode> {
        let mut state = self.state();
        let node = state.nodes.entry(address.clone());
        let node = Arc::clone(node.or_insert_with(|| ClusterNode::new(&self.url, address)));
        let known = state.slots[slot].next.replace(Arc::clone(&node));
        if known.is_none_or(|known| !Arc::ptr_eq(&known, &node)) {
            // The node may have received data of the slot and lost it before this process learned of the move.
            state.slots[slot].disconnects += 1;
            state.disconnects += 1;
        }
        node
    }

    /// Returns the master of a slot, and the current number of refreshes.
    fn master(&self, slot: usize) -> (Option<Arc<ClusterNode>>, u64) {
        let state = self.state();
        (state.slots[slot].master.clone(), state.refreshes)
    }

    /// Returns all masters, each with one of its slots, and the current number of refreshes.
    fn masters(&self) -> (Vec<(usize, Arc<ClusterNode>)>, u64) {
        let state = self.state();
        let mut masters: Vec<(usize, Arc<ClusterNode>)> = Vec::new();
        for (number, slot) in state.slots.iter().enumerate() {
            if let Some(master) = &slot.master
                && !masters.iter().any(|(_, known)| Arc::ptr_eq(known, master))
            {
                masters.push((number, Arc::clone(master)));
            }
        }
        (masters, state.refreshes)
    }

    /// Fetches the masters of the slots after a call for `slot` failed. Returns immediately if another call has
    /// refreshed the masters since this call read the number of refreshes, `refreshes`. `failed` is the node that did
    /// not answer, or that refused or redirected the call. `named` is the node to which `failed` redirected the call.
    async fn refresh(
        &self,
        refreshes: u64,
        slot: usize,
        failed: Option<&Arc<ClusterNode>>,
        named: Option<NodeAddress>,
    ) {
        let mut ended_at = self.last_refresh.lock().await;
        if self.state().refreshes != refreshes {
            return;
        }
        if named.is_none() {
            sleep_until(*ended_at + REFRESH_INTERVAL).await;
        }
        let owners = self.find_owners(slot, failed, named).await;
        *ended_at = Instant::now();
        let mut state = self.state();
        state.refreshes += 1;
        if owners.count() > 0 {
            state.assign(&self.url, &owners);
        }
    }

    /// Queries the nodes for the masters of the slots, and returns the best answer. First queries `named`, then the
    /// known masters and the nodes to which slots are moving, except `failed`. If the best of their answers does not
    /// name a master for each slot, also queries the configured hosts and the last known addresses of all nodes. The
    /// configured hosts can help if the nodes have new addresses, or if the names of the nodes do not resolve. The
    /// known addresses can help if replicas have replaced all masters.
    ///
    /// An answer is better than another if it names a master for `slot` other than `failed`, and the other answer does
    /// not. Among answers that are equal in this respect, the best answer names masters for the most slots. The queries
    /// end early when an answer names a master for each slot, and the master for `slot` is not `failed`.
    async fn find_owners(
        &self,
        slot: usize,
        failed: Option<&Arc<ClusterNode>>,
        named: Option<NodeAddress>,
    ) -> SlotOwners {
        let rank = |owners: &SlotOwners| {
            let failed = failed.map(|failed| &failed.address);
            (owners.of(slot).is_some_and(|master| Some(master) != failed), owners.count())
        };
        let best = (true, SLOT_COUNT);
        let named = named.map(|node| {
            let known = self.state().nodes.get(&node).cloned();
            known.unwrap_or_else(|| ClusterNode::new(&self.url, &node))
        });
        let skipped = [failed, named.as_ref()];
        let is_skipped = |node: &Arc<ClusterNode>| {
            skipped.iter().flatten().any(|skipped| Arc::ptr_eq(skipped, node))
        };
        let others: Vec<_> =
            self.state().nodes.values().filter(|node| !is_skipped(node)).cloned().collect();
        let named = named.iter().map(|node| self.query_owners(node).boxed()).collect();
        let others = others.iter().map(|node| self.query_owners(node).boxed()).collect();
        let mut found = SlotOwners::default();
        for nodes in [named, others] {
            collect_owners(nodes, &mut found, rank, &best).await;
        }
        if found.count() < SLOT_COUNT {
            let address = self.url.refresh();
            let known = self.state().known_hosts();
            let configured = address.hosts.iter().map(|host| query_host(&address, host).boxed());
            let known = known.iter().map(|host| self.query_known_host(&address, host).boxed());
            collect_owners(configured.chain(known).collect(), &mut found, rank, &best).await;
        }
        found
    }

    /// Queries the node at a known address for the masters of the slots. Returns an error if the answer names an
    /// unknown node, because the address may by now belong to a node of another Cluster.
    async fn query_known_host(
        &self,
        address: &RedisAddress,
        host: &(String, u16),
    ) -> RedisResult<SlotOwners> {
        let owners = query_host(address, host).await?;
        let known = &self.state().addresses;
        match owners.nodes().keys().find(|id| !known.contains_key(*id)) {
            None => Ok(owners),
            Some(id) => Err(retryable_error(format!(
                "{}:{} names the unknown node {id}: this address may now belong to another Cluster",
                host.0, host.1
            ))),
        }
    }

    async fn query_owners(&self, node: &Arc<ClusterNode>) -> RedisResult<SlotOwners> {
        let (mut connection, before) = node.links[0].connection().await?;
        let owners = read_owners(&mut connection, &node.address.host).await;
        if owners.as_ref().is_err_and(is_broken) {
            self.record_disconnect(node, 0, before);
        }
        owners
    }

    fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClusterState {
    fn known_hosts(&self) -> Vec<(String, u16)> {
        self.addresses.values().map(|node| (node.host.clone(), node.port)).collect()
    }

    /// Remembers the addresses of the nodes in an answer. If more than [`ADDRESSES_LIMIT`] addresses are remembered,
    /// forgets the addresses that this answer lacks.
    fn remember_addresses(&mut self, owners: &SlotOwners) {
        self.addresses.extend(owners.nodes().clone());
        if self.addresses.len() > ADDRESSES_LIMIT {
            self.addresses.clone_from(owners.nodes());
        }
    }

    /// Assigns the slots to their masters, and counts the changes. The first assignment counts nothing.
    fn assign(&mut self, url: &RedisUrl, owners: &SlotOwners) {
        let is_first = self.nodes.is_empty();
        self.remember_addresses(owners);
        let known = std::mem::take(&mut self.nodes);
        let mut moved: BTreeMap<[String; 2], usize> = BTreeMap::new();
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let master = owners.of(number).map(|node| {
                let known =
                    || known.get(node).map_or_else(|| ClusterNode::new(url, node), Arc::clone);
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
                let change = [&slot.master, &master].map(|node| display_name(node.as_deref()));
                *moved.entry(change).or_default() += 1;
                slot.disconnects += 1;
            }
            slot.master = master;
            slot.next = None;
        }
        for next in self.slots.iter().filter_map(|slot| slot.next.as_ref()) {
            self.nodes.entry(next.address.clone()).or_insert_with(|| Arc::clone(next));
        }
        self.disconnects += u64::from(!moved.is_empty());
        for ([from, to], count) in moved {
            tracing::info!(
                "Cluster at {url}: the master of {count} slots changed from {from} to {to}"
            );
        }
    }
}

/// Waits until `found` has the rank `best`, or no answer is outstanding. Keeps in `found` the answer with the highest
/// rank.
async fn collect_owners<R: Ord>(
    answers: Vec<BoxFuture<'_, RedisResult<SlotOwners>>>,
    found: &mut SlotOwners,
    rank: impl Fn(&SlotOwners) -> R,
    best: &R,
) {
    let answers = answers.into_iter().map(|answer| timeout(OWNERS_TIMEOUT, answer));
    let mut answers: FuturesUnordered<_> = answers.collect();
    while rank(found) < *best
        && let Some(answer) = answers.next().await
    {
        match answer {
            Ok(Ok(owners)) if rank(&owners) > rank(found) => *found = owners,
            Ok(Err(error)) => tracing::debug!("masters of the Cluster unknown: {error}"),
            Ok(Ok(_)) | Err(_) => {}
        }
    }
}

fn display_name(node: Option<&ClusterNode>) -> String {
    node.map_or_else(|| "no node".to_owned(), |node| node.address.to_string())
}

/// Returns the slot of a hash tag (Redis Cluster specification, "Key distribution model").
fn slot_of(tag: &[u8]) -> usize {
    usize::from(crc16::State::<crc16::XMODEM>::calculate(tag)) % SLOT_COUNT
}

/// Returns the node to which the error `MOVED` or `ASK` of a node redirects the call.
fn redirection(error: &RedisError, node: &ClusterNode) -> Option<NodeAddress> {
    let errors = error.clone().into_server_errors()?;
    parse_redirection(errors.first()?.1.details()?, &node.address.host)
}

async fn query_host(
    address: &RedisAddress,
    (host, port): &(String, u16),
) -> RedisResult<SlotOwners> {
    let mut node = open(address, host, *port, true).await?;
    read_owners(&mut node, host).await
}

async fn read_owners(node: &mut MultiplexedConnection, host: &str) -> RedisResult<SlotOwners> {
    let answer = cmd("CLUSTER").arg("SLOTS").query_async(node).await?;
    Ok(SlotOwners::parse(answer, host))
}
