//! One partition's queue as a broker or a file has it: in order, with a cumulative acknowledged
//! prefix, and everything after that delivered again to whoever connects next.

use std::collections::VecDeque;

use ordain_core::Delivery;

use crate::producer::{Entry, Item};

/// The queue.
#[derive(Debug)]
pub(crate) struct Source {
    entries: Vec<Entry>,
    /// How many are acknowledged, from the first on.
    acknowledged: usize,
    /// Which connection is the living one: acknowledgements over an older one are lost.
    connection: u64,
}

/// One owner's side of it.
#[derive(Debug)]
pub(crate) struct Connection {
    number: u64,
    cursor: usize,
    /// How far it was offered before it delivers.
    offered: usize,
    /// Virtual time from which on it delivers.
    pub(crate) open_at: u64,
    /// Whether the owner was told that it is away.
    pub(crate) away: bool,
    delivered: Delivery,
    /// Deliveries not acknowledged, and where in the queue they stand.
    outstanding: VecDeque<(Delivery, usize)>,
    /// Whether the owner was told of the end.
    pub(crate) ended: bool,
}

impl Source {
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        Self { entries, acknowledged: 0, connection: 0 }
    }

    /// A new connection, which ends the one before.
    pub(crate) fn connect(&mut self, open_at: u64) -> Connection {
        self.connection += 1;
        Connection {
            number: self.connection,
            cursor: self.acknowledged,
            offered: self.acknowledged,
            open_at,
            away: false,
            delivered: 0,
            outstanding: VecDeque::new(),
            ended: false,
        }
    }

    /// The same owner connects again: positions go on.
    pub(crate) fn reconnect(&mut self, connection: &mut Connection, open_at: u64) {
        let (delivered, away) = (connection.delivered, connection.away);
        *connection = self.connect(open_at);
        (connection.delivered, connection.away) = (delivered, away);
    }

    /// The next delivery, if one is there.
    pub(crate) fn deliver(
        &self,
        connection: &mut Connection,
        now: u64,
    ) -> Option<(Delivery, Item)> {
        if self.next_at(connection)? > now {
            return None;
        }
        let item = self.entries[connection.cursor].item.clone();
        connection.delivered += 1;
        connection.outstanding.push_back((connection.delivered, connection.cursor));
        connection.cursor += 1;
        Some((connection.delivered, item))
    }

    /// What its owner may see before the connection delivers: everything in order, once.
    pub(crate) fn offer(&self, connection: &mut Connection, now: u64) -> Option<Item> {
        if self.next_offer_at(connection)? > now {
            return None;
        }
        let item = self.entries[connection.offered].item.clone();
        connection.offered += 1;
        Some(item)
    }

    /// Whether it delivers nothing yet.
    pub(crate) fn is_away(&self, connection: &Connection, now: u64) -> bool {
        connection.number == self.connection && now < connection.open_at
    }

    /// When the next offer is there.
    pub(crate) fn next_offer_at(&self, connection: &Connection) -> Option<u64> {
        let entry = self.entries.get(connection.offered)?;
        let is_in_time = connection.number == self.connection && entry.at < connection.open_at;
        is_in_time.then_some(entry.at)
    }

    /// When the next delivery is there.
    pub(crate) fn next_at(&self, connection: &Connection) -> Option<u64> {
        if connection.number != self.connection {
            return None;
        }
        Some(self.entries.get(connection.cursor)?.at.max(connection.open_at))
    }

    /// Whether everything has been delivered over this connection.
    pub(crate) fn at_end(&self, connection: &Connection) -> bool {
        connection.number == self.connection && connection.cursor == self.entries.len()
    }

    /// What an acknowledgement covers newly, as its owner sees it.
    pub(crate) fn acknowledge(
        &mut self,
        connection: &mut Connection,
        through: Delivery,
    ) -> Vec<&Item> {
        let mut covered = Vec::new();
        while let Some(&(delivery, place)) = connection.outstanding.front()
            && delivery <= through
        {
            connection.outstanding.pop_front();
            covered.push(&self.entries[place].item);
            if connection.number == self.connection {
                self.acknowledged = place + 1;
            }
        }
        covered
    }

    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = &Item> {
        self.entries[self.acknowledged..].iter().map(|entry| &entry.item)
    }
}

impl Connection {
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    pub(crate) fn delivered(&self) -> Delivery {
        self.delivered
    }
}
