//! The record of a stream's bindings in the store. A client cannot list bindings over AMQP. Only the record therefore
//! shows the bindings that an earlier configuration made and that may still deliver messages.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::options::ExchangeUnbindOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use ordain_store::{Mark, SharedRecord, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::connect::{BrokerEndpoint, BrokerError};
use super::topology::Topology;

/// Time limit for the removal of one binding, and for closing the connection.
const UNBIND_TIMEOUT: Duration = Duration::from_secs(20);

/// A binding from an exchange to a queue or to another exchange.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binding {
    /// The kind of the destination. Bindings are sorted by this field first, and exchanges come before queues. Ordain
    /// removes bindings in this order: first the binding that leads to an exchange, then the bindings from that
    /// exchange to queues. In the opposite order, a message could reach an exchange without queues and be lost.
    pub kind: BindingKind,
    /// The name of the exchange from which the binding takes messages.
    pub from: String,
    /// The name of the queue or exchange that the binding leads to.
    pub to: String,
    /// The routing key, or the pattern of routing keys, that selects the messages. For a binding to a queue, this value
    /// is empty, or is the share of the queue.
    pub routing_key: String,
}

impl Binding {
    /// Returns whether the binding leads to `exchange`. If another stream uses this exchange, that stream may need the
    /// binding, even if the stream's configuration does not contain it.
    pub fn leads_to_exchange(&self, exchange: Option<&str>) -> bool {
        self.kind == BindingKind::Exchange && Some(&*self.to) == exchange
    }
}

/// The kind of a binding's destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindingKind {
    /// An exchange.
    Exchange,
    /// A queue.
    Queue,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, kind, to, routing_key } = self;
        let kind = match kind {
            BindingKind::Exchange => "exchange",
            BindingKind::Queue => "queue",
        };
        write!(f, "from exchange {from:?} to {kind} {to:?}")?;
        if routing_key.is_empty() {
            return Ok(());
        }
        write!(f, " with routing key {routing_key:?}")
    }
}

/// The present and former bindings of a stream, and whether the broker has accepted the stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopologyRecord {
    /// The bindings of the present configuration.
    pub bindings: BTreeSet<Binding>,
    /// The bindings of earlier configurations that are not in the present configuration, and that no operator has
    /// removed with `ordain streams unbind`.
    pub former: BTreeSet<Binding>,
    /// True if the stream has started without data in the store, and the broker has not yet accepted the stream's
    /// exchange, queues and bindings for any process. Events over HTTP can leave data of the stream in the store before
    /// the acceptance, so such data does not show that the stream may consume its queues. Only this field shows whether
    /// the stream may consume its queues. If the broker later refuses the stream to another process, the field stays
    /// false. In records of versions without this field, the field is false.
    pub awaits_acceptance: bool,
}

impl TopologyRecord {
    fn mark_name(stream: &str) -> String {
        format!("amqp-topology/{stream}")
    }

    /// Reads the record of a stream. Returns an empty record if no process has written one.
    pub async fn read(store: &Arc<dyn Store>, stream: &str) -> Result<Self, StoreError> {
        let stored = SharedRecord::read(&**store, Self::mark_name(stream)).await?;
        Ok(stored.record.unwrap_or_default())
    }

    /// Changes the record of a stream, and returns the changed record. If another process has changed the record
    /// meanwhile, reads the new record and calls `change` with it.
    pub async fn update(
        store: &Arc<dyn Store>,
        stream: &str,
        change: impl Fn(&mut Self),
    ) -> Result<Self, StoreError> {
        loop {
            let stored = SharedRecord::<Self>::read(&**store, Self::mark_name(stream)).await?;
            let before = stored.record.clone().unwrap_or_default();
            let mut record = before.clone();
            change(&mut record);
            if record == before || stored.replace(&**store, &record).await? {
                return Ok(record);
            }
        }
    }

    /// Replaces the recorded bindings by `bindings`, the bindings of the present configuration. Recorded bindings that
    /// `bindings` does not contain become former bindings.
    pub fn replace_bindings(&mut self, bindings: BTreeSet<Binding>) {
        let before = std::mem::take(&mut self.bindings);
        self.former.extend(before);
        self.former.retain(|former| !bindings.contains(former));
        self.bindings = bindings;
    }

    /// Restores the bindings of `earlier`, the record before the call of `replace_bindings(refused)`. A process calls
    /// this method if the broker has refused the bindings. Changes nothing if another process has replaced the bindings
    /// since then, or if the broker has accepted the stream for another process.
    pub(super) fn restore_bindings(&mut self, refused: &BTreeSet<Binding>, earlier: &Self) {
        let was_accepted = earlier.awaits_acceptance && !self.awaits_acceptance;
        if !was_accepted && self.bindings == *refused {
            self.bindings.clone_from(&earlier.bindings);
            self.former.clone_from(&earlier.former);
        }
    }
}

/// Records in the store about the markers of exchanges. See [`Topology::marked_exchanges`].
pub(super) struct ExchangeMarkers<'a> {
    store: &'a Arc<dyn Store>,
    stream: &'a str,
    topology: &'a Topology,
}

impl<'a> ExchangeMarkers<'a> {
    pub(super) fn new(store: &'a Arc<dyn Store>, stream: &'a str, topology: &'a Topology) -> Self {
        Self { store, stream, topology }
    }

    pub(super) async fn read(&self) -> Result<BTreeSet<String>, StoreError> {
        let mut marked = BTreeSet::new();
        for exchange in self.topology.marked_exchanges() {
            let value = self.store.mark(&self.mark_name(exchange)).await?;
            if value.as_deref() == Some(exchange.as_bytes()) {
                marked.insert(exchange.to_owned());
            }
        }
        Ok(marked)
    }

    /// Records which exchanges of the stream have a marker.
    ///
    /// The write is unconditional, because a starting process and the owner of partition 0 may overwrite each other's
    /// values without harm. If the values lack a marker that exists, the owner declares the marker again at its next
    /// check. If the values name a missing marker, the next check declares the bindings of the exchange again.
    pub(super) async fn write(&self, marked: &BTreeSet<String>) -> Result<(), StoreError> {
        let exchanges = self.topology.marked_exchanges().into_iter();
        let marks: Vec<Mark> = exchanges
            .map(|exchange| Mark {
                name: self.mark_name(exchange),
                value: marked.get(exchange).cloned().unwrap_or_default().into(),
            })
            .collect();
        self.store.put_marks(&marks).await
    }

    /// Returns the name of an exchange's record. For the stream's own exchange, this name does not contain the name of
    /// the exchange. The stream therefore has only one record of its own exchange, even if the configuration names
    /// another exchange later.
    fn mark_name(&self, exchange: &str) -> String {
        let own = format!("amqp-exchange/{}", self.stream);
        if self.topology.exchange() == Some(exchange) { own } else { format!("{own}/{exchange}") }
    }
}

/// Removes bindings. A binding that does not exist counts as removed.
pub async fn unbind(
    broker: &BrokerEndpoint,
    bindings: &BTreeSet<Binding>,
) -> Result<(), BrokerError> {
    let connection = broker.connect("ordain streams unbind").await?;
    for binding in bindings {
        let unbound = unbind_one(broker, &connection, binding);
        match broker.within(UNBIND_TIMEOUT, unbound).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    // The bindings are removed, so an error of the connection does not matter.
    let _ = timeout(UNBIND_TIMEOUT, connection.close(200, "done".into())).await;
    Ok(())
}

async fn unbind_one(
    broker: &BrokerEndpoint,
    connection: &Connection,
    binding: &Binding,
) -> Result<(), BrokerError> {
    let channel = connection.create_channel().await.map_err(|error| broker.error(&error))?;
    let removed = remove(&channel, binding).await;
    removed.map_err(|error| broker.error(&error))?;
    channel.close(200, "done".into()).await.map_err(|error| broker.error(&error))
}

async fn remove(channel: &Channel, binding: &Binding) -> lapin::Result<()> {
    let to = binding.to.as_str().into();
    let from = binding.from.as_str().into();
    let key = binding.routing_key.as_str().into();
    let nothing = FieldTable::default();
    match binding.kind {
        BindingKind::Exchange => {
            channel.exchange_unbind(to, from, key, ExchangeUnbindOptions::default(), nothing).await
        }
        BindingKind::Queue => channel.queue_unbind(to, from, key, nothing).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(from: &str, key: &str) -> Binding {
        Binding {
            kind: BindingKind::Exchange,
            from: from.to_owned(),
            to: "cases".to_owned(),
            routing_key: key.to_owned(),
        }
    }

    #[test]
    fn former_binding_is_kept_until_it_is_configured_again() {
        let [wide, narrow] = ["order.*", "order.paid"].map(|key| binding("amq.topic", key));
        let mut record = TopologyRecord::default();
        record.replace_bindings([wide.clone()].into());
        assert_eq!(record.former, BTreeSet::new());
        record.replace_bindings([narrow.clone()].into());
        record.replace_bindings([narrow.clone()].into());
        assert_eq!(record.former, [wide.clone()].into());
        record.replace_bindings([wide].into());
        assert_eq!(record.former, [narrow].into());
    }

    #[test]
    fn refused_bindings_are_restored_unless_another_process_is_accepted() {
        let [old, new] = ["order.*", "order.paid"].map(|key| binding("amq.topic", key));
        let refused = BTreeSet::from([new]);
        for awaits_acceptance in [true, false] {
            let bindings = BTreeSet::from([old.clone()]);
            let former = BTreeSet::new();
            let earlier = TopologyRecord { bindings, former, awaits_acceptance };
            let mut record = earlier.clone();
            record.replace_bindings(refused.clone());
            let replaced = record.clone();
            record.restore_bindings(&refused, &earlier);
            assert_eq!(record, earlier, "{awaits_acceptance}");
            let mut other = replaced.clone();
            other.replace_bindings(BTreeSet::new());
            let expected = other.clone();
            other.restore_bindings(&refused, &earlier);
            assert_eq!(other, expected, "another process has replaced the bindings");
            // Another process clears the field when the broker accepts the stream.
            let mut accepted = TopologyRecord { awaits_acceptance: false, ..replaced.clone() };
            accepted.restore_bindings(&refused, &earlier);
            let kept = if awaits_acceptance { &replaced } else { &earlier };
            assert_eq!(accepted.bindings, kept.bindings, "{awaits_acceptance}");
            assert!(!accepted.awaits_acceptance);
        }
    }

    #[test]
    fn stream_of_a_record_without_the_field_is_accepted() {
        let record: TopologyRecord = serde_json::from_str(r#"{"bindings": [], "former": []}"#)
            .expect("a record of an earlier version");
        assert_eq!(record, TopologyRecord::default());
        assert!(!record.awaits_acceptance);
    }

    #[test]
    fn bindings_to_exchanges_are_removed_first() {
        let to_queue = Binding { kind: BindingKind::Queue, ..binding("a", "") };
        let all: BTreeSet<Binding> = [to_queue.clone(), binding("b", "")].into();
        assert_eq!(all.last(), Some(&to_queue));
    }
}
