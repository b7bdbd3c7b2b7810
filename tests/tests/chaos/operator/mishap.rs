//! The possible mistakes of the broker's operator. A round draws some of them at random.

use anyhow::{Context as _, Result};
use ordain_servers::Rabbit;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;

/// The hosts log in to the broker with this user name, which is also the password. The mishaps that concern this user
/// do not affect the producer, which logs in as another user.
pub(super) const USER: &str = "host";

/// A mistake of the broker's operator, and the step that ends the mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mishap {
    /// The operator deletes the exchange, and a producer declares the exchange again without bindings.
    ExchangeReplaced,
    /// The operator deletes the exchange, and another program declares it with another type. Later the operator deletes
    /// the exchange again.
    ExchangeRetyped,
    /// The operator removes the binding of a queue.
    BindingRemoved,
    /// For a while, another program consumes one of the queues, and acknowledges nothing. The broker returns the
    /// messages of the program to the queue at the end of the program.
    ConsumerAdded,
    QueuesDeleted,
    /// The operator deletes some queues, declares them again as classic queues, and later deletes the classic queues.
    QueuesReplaced,
    /// For a while, the hosts consume nothing, and a policy (`expires`) makes the broker delete all queues that no
    /// program consumes.
    QueuesExpired,
    /// The operator deletes the virtual host with its entire content, and creates the virtual host again.
    VirtualHostReplaced,
    /// For a while, the broker refuses all connections of the hosts.
    HostsRefused(Refusal),
    /// The operator closes all connections, including the connection of the producer.
    ConnectionsClosed,
    /// For a while, a policy with this definition makes the queues of the stream drop messages.
    MessagesDropped(&'static str),
    /// For a while, a policy (`delivery-limit`) makes the queues drop each message that has been delivered several
    /// times, and the operator repeatedly closes all connections.
    RedeliveriesLimited,
    /// For a while, the broker accepts no messages, because it has too little memory.
    MemoryExhausted,
    /// The operator stops the broker and starts it again.
    BrokerStopped,
    /// The operator kills the broker and starts it again.
    BrokerKilled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Rights,
    Password,
    /// The limit of the user's connections is 0.
    Limit,
}

const MISHAPS: [Mishap; 20] = [
    Mishap::ExchangeReplaced,
    Mishap::ExchangeRetyped,
    Mishap::BindingRemoved,
    Mishap::ConsumerAdded,
    Mishap::QueuesDeleted,
    Mishap::QueuesReplaced,
    Mishap::QueuesExpired,
    Mishap::VirtualHostReplaced,
    Mishap::HostsRefused(Refusal::Rights),
    Mishap::HostsRefused(Refusal::Password),
    Mishap::HostsRefused(Refusal::Limit),
    Mishap::ConnectionsClosed,
    Mishap::MessagesDropped(r#"{"max-length":10}"#),
    Mishap::MessagesDropped(r#"{"max-length-bytes":2000}"#),
    // With this policy, the queues refuse new messages instead of dropping earlier messages.
    Mishap::MessagesDropped(r#"{"max-length":10,"overflow":"reject-publish"}"#),
    Mishap::MessagesDropped(r#"{"message-ttl":50}"#),
    Mishap::RedeliveriesLimited,
    Mishap::MemoryExhausted,
    Mishap::BrokerStopped,
    Mishap::BrokerKilled,
];

impl Mishap {
    /// Draws the mishaps of a round. A start of the broker, and the expiry of queues, take up to ten seconds, so a
    /// round has at most one such mishap.
    pub(super) fn draw(random: &mut ChaCha8Rng) -> Result<Vec<Self>> {
        let count = random.random_range(3..=6);
        let mut mishaps: Vec<Self> = Vec::new();
        while mishaps.len() < count {
            let mishap = *MISHAPS.choose(random).context("a mishap")?;
            if !mishap.is_slow() || !mishaps.iter().any(|other| other.is_slow()) {
                mishaps.push(mishap);
            }
        }
        Ok(mishaps)
    }

    pub(super) fn is_destructive(self) -> bool {
        matches!(
            self,
            Self::QueuesDeleted
                | Self::QueuesReplaced
                | Self::QueuesExpired
                | Self::VirtualHostReplaced
                | Self::MessagesDropped(_)
                | Self::RedeliveriesLimited
        )
    }

    /// Returns whether keys may move to other queues because of the mishap, if the exchange divides the messages among
    /// several queues.
    pub(super) fn moves_keys(self) -> bool {
        matches!(
            self,
            Self::ExchangeReplaced
                | Self::ExchangeRetyped
                | Self::BindingRemoved
                | Self::QueuesDeleted
                | Self::QueuesReplaced
                | Self::QueuesExpired
                | Self::VirtualHostReplaced
        )
    }

    fn is_slow(self) -> bool {
        matches!(self, Self::BrokerStopped | Self::BrokerKilled | Self::QueuesExpired)
    }
}

impl Refusal {
    /// Makes the broker refuse the logins of the hosts. Open connections remain.
    pub(super) fn begin(self, rabbit: &Rabbit) -> Result<()> {
        match self {
            Self::Rights => rabbit.set_access(USER, false),
            Self::Password => rabbit.change_password(USER, "rotated"),
            Self::Limit => rabbit.limit_connections(USER, Some(0)),
        }
    }

    pub(super) fn end(self, rabbit: &Rabbit) -> Result<()> {
        match self {
            Self::Rights => rabbit.set_access(USER, true),
            Self::Password => rabbit.change_password(USER, USER),
            Self::Limit => rabbit.limit_connections(USER, None),
        }
    }
}
