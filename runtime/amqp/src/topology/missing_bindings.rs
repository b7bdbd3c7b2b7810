//! Finds the bindings of a stream that another program has removed. AMQP has no request that shows whether a binding
//! exists, so this module needs a list of bindings from another interface of the broker.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use lapin::Connection;
use tokio::time::timeout;

use super::markers::exchange_exists;
use super::{Topology, find_queue};
use crate::connect::{BrokerEndpoint, BrokerError};
use crate::topology_record::{Binding, BindingKind};
use ordain_util::wait::shortened;

/// Time limit for reading the list of bindings: half of the time limit of a check of the topology, so that the check
/// declares the bindings even if the list does not arrive.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for checking the queues and exchanges of the missing bindings. The limit is necessary, because a queue
/// may never answer.
const ENDS_TIMEOUT: Duration = Duration::from_secs(5);

/// A source of the broker's bindings outside AMQP, such as the management API.
pub trait BindingList: Debug + Send + Sync {
    /// Returns the bindings from the exchange to queues ([`BindingKind::Queue`]), or the bindings from other exchanges
    /// to the exchange ([`BindingKind::Exchange`]). Returns `None` if they cannot be read. The implementation logs the
    /// reason. Blocks the thread.
    fn bindings(&self, exchange: &str, kind: BindingKind) -> Option<BTreeSet<Binding>>;
}

impl Topology {
    /// Returns the bindings of `needed` that the broker lacks, although their queues and exchanges exist. The caller
    /// calls this method before it declares the bindings again. Omits a binding whose queue or exchange is missing or
    /// cannot be checked: the caller's declarations report these cases. If `list` is `None`, returns no binding.
    pub(crate) async fn missing_bindings(
        &self,
        broker: &BrokerEndpoint,
        connection: &Connection,
        list: Option<&Arc<dyn BindingList>>,
        needed: BTreeSet<Binding>,
    ) -> BTreeSet<Binding> {
        let (Some(list), Some(exchange)) = (list, &self.exchange) else { return BTreeSet::new() };
        let mut missing = BTreeSet::new();
        let unlisted = unlisted_bindings(list, exchange, needed).await;
        let checked = async {
            for binding in unlisted {
                if has_both_ends(broker, connection, &binding).await {
                    missing.insert(binding);
                }
            }
        };
        // After the time limit, this method returns only the bindings that are already checked.
        let _ = timeout(ENDS_TIMEOUT, checked).await;
        // The consumer of another partition may have declared a missing queue with its binding between the first list
        // and the check of the queue. This binding is in the second list.
        unlisted_bindings(list, exchange, missing).await
    }

    pub(crate) fn describe_missing_binding(&self, binding: &Binding) -> String {
        let effect = if self.partitions > 1 && binding.kind == BindingKind::Queue {
            "events that were published while the binding was missing are in other partitions, and may be out of order"
        } else {
            "events that need the binding and were published while it was missing are lost, so publish them again"
        };
        format!("{binding}; Ordain declares it again, but {effect}")
    }
}

/// Returns the bindings of `needed` that the list does not contain. Returns no binding if the list cannot be read in
/// time.
async fn unlisted_bindings(
    list: &Arc<dyn BindingList>,
    exchange: &str,
    needed: BTreeSet<Binding>,
) -> BTreeSet<Binding> {
    if needed.is_empty() {
        return needed;
    }
    let list = Arc::clone(list);
    let exchange = exchange.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        let mut unlisted = BTreeSet::new();
        for kind in [BindingKind::Queue, BindingKind::Exchange] {
            let of_kind = || needed.iter().filter(|binding| binding.kind == kind);
            if of_kind().next().is_none() {
                continue;
            }
            if let Some(listed) = list.bindings(&exchange, kind) {
                unlisted.extend(of_kind().filter(|binding| !listed.contains(binding)).cloned());
            }
        }
        unlisted
    });
    match timeout(shortened(LIST_TIMEOUT), reading).await {
        Ok(Ok(unlisted)) => unlisted,
        _ => BTreeSet::new(),
    }
}

async fn has_both_ends(
    broker: &BrokerEndpoint,
    connection: &Connection,
    binding: &Binding,
) -> bool {
    let Binding { from, to, kind, .. } = binding;
    let checked = async {
        let has_end = match kind {
            BindingKind::Exchange => exchange_exists(broker, connection, to).await?,
            BindingKind::Queue => find_queue(broker, connection, to).await?.is_some(),
        };
        Ok::<bool, BrokerError>(has_end && exchange_exists(broker, connection, from).await?)
    };
    checked.await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ordain_config::{LoadedConfig, SourceConfig};

    use super::*;

    /// A list that cannot read the bindings from other exchanges.
    #[derive(Debug)]
    struct QueueBindings(BTreeSet<Binding>);

    impl BindingList for QueueBindings {
        fn bindings(&self, exchange: &str, kind: BindingKind) -> Option<BTreeSet<Binding>> {
            assert_eq!(exchange, "x");
            (kind == BindingKind::Queue).then(|| self.0.clone())
        }
    }

    fn topology(source: &str) -> Topology {
        let text = format!(
            "[broker]\nurl = \"amqp://h\"\n[streams.a]\nhandler = \"h\"\n\
             source = {{ kind = \"amqp\", exchange = \"x\", queue = \"q\", {source} }}\n"
        );
        let loaded = LoadedConfig::parse(Path::new("ordain.toml"), &text, &|_| None);
        match &loaded.expect("a valid configuration").config.streams["a"].source {
            SourceConfig::Amqp(source) => Topology::of(source),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn unreadable_bindings_do_not_count_as_missing() {
        let needed = topology("partitions = 2, bind = [{ exchange = \"feed\" }]").bindings();
        let is_first = |binding: &&Binding| binding.to == "q.0";
        let first: BTreeSet<Binding> = needed.iter().filter(is_first).cloned().collect();
        let list: Arc<dyn BindingList> = Arc::new(QueueBindings(first));
        let missing = unlisted_bindings(&list, "x", needed).await;
        let ends: Vec<&str> = missing.iter().map(|binding| &*binding.to).collect();
        assert_eq!(ends, ["q.1"]);
    }

    #[test]
    fn effect_depends_on_the_binding() {
        let described = |source: &str| -> Vec<String> {
            let topology = topology(source);
            let bindings = topology.bindings();
            bindings.iter().map(|binding| topology.describe_missing_binding(binding)).collect()
        };
        let lost = "were published while it was missing are lost";
        assert!(described("partitions = 1")[0].contains(lost));
        let divided = described("partitions = 2, bind = [{ exchange = \"feed\" }]");
        assert!(divided[0].starts_with("from exchange \"feed\" to exchange \"x\""), "{divided:?}");
        assert!(divided[0].contains(lost), "{divided:?}");
        assert!(divided[1].contains("are in other partitions"), "{divided:?}");
    }
}
