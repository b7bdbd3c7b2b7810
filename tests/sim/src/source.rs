//! The source's queue of one partition: the entries are in the order of delivery, as in a queue of a broker or in a
//! file. The acknowledged entries are the first entries of the queue. A new connection delivers all unacknowledged
//! entries again.

use std::collections::VecDeque;

use ordain_core::DeliveryNumber;

use crate::producer::{Entry, SourceItem};

/// The entries of the queue, and the number of acknowledged entries.
#[derive(Debug)]
pub(crate) struct Source {
    entries: Vec<Entry>,
    /// Number of acknowledged entries, which are the first entries of the queue.
    acknowledged: usize,
    /// The number of the live connection. Acknowledgements over an older connection are lost.
    connection: u64,
}

#[derive(Debug)]
pub(crate) struct Connection {
    number: u64,
    cursor: usize,
    /// The index of the next entry to offer. The source offers entries before the connection delivers them.
    offered: usize,
    /// Virtual time at which the connection begins to deliver.
    pub(crate) open_at: u64,
    /// The owner knows that the connection delivers nothing yet.
    pub(crate) away: bool,
    delivered: DeliveryNumber,
    /// Unacknowledged deliveries, and their positions in the queue.
    outstanding: VecDeque<(DeliveryNumber, usize)>,
    /// The owner knows of the end of the queue.
    pub(crate) ended: bool,
}

impl Source {
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        Self { entries, acknowledged: 0, connection: 0 }
    }

    /// Ends the previous connection.
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

    /// The delivery numbers of the owner continue.
    pub(crate) fn reconnect(&mut self, connection: &mut Connection, open_at: u64) {
        let delivered = connection.delivered;
        let away = connection.away;
        *connection = self.connect(open_at);
        connection.delivered = delivered;
        connection.away = away;
    }

    pub(crate) fn deliver(
        &self,
        connection: &mut Connection,
        now: u64,
    ) -> Option<(DeliveryNumber, SourceItem)> {
        if self.next_at(connection)? > now {
            return None;
        }
        let item = self.entries[connection.cursor].item.clone();
        connection.delivered += 1;
        connection.outstanding.push_back((connection.delivered, connection.cursor));
        connection.cursor += 1;
        Some((connection.delivered, item))
    }

    /// Until the connection begins to deliver, the source offers the entries in the order of the queue, each once.
    pub(crate) fn offer(&self, connection: &mut Connection, now: u64) -> Option<SourceItem> {
        if self.next_offer_at(connection)? > now {
            return None;
        }
        let item = self.entries[connection.offered].item.clone();
        connection.offered += 1;
        Some(item)
    }

    /// Returns whether the connection delivers nothing yet.
    pub(crate) fn is_away(&self, connection: &Connection, now: u64) -> bool {
        connection.number == self.connection && now < connection.open_at
    }

    /// `None` if the source offers no further entry before the connection begins to deliver.
    pub(crate) fn next_offer_at(&self, connection: &Connection) -> Option<u64> {
        let entry = self.entries.get(connection.offered)?;
        let is_in_time = connection.number == self.connection && entry.at < connection.open_at;
        is_in_time.then_some(entry.at)
    }

    /// `None` for an old connection, or after the last entry.
    pub(crate) fn next_at(&self, connection: &Connection) -> Option<u64> {
        if connection.number != self.connection {
            return None;
        }
        Some(self.entries.get(connection.cursor)?.at.max(connection.open_at))
    }

    pub(crate) fn at_end(&self, connection: &Connection) -> bool {
        connection.number == self.connection && connection.cursor == self.entries.len()
    }

    /// Returns the entries of the deliveries up to `through` that were not acknowledged before. For an old connection,
    /// does not change the queue.
    pub(crate) fn acknowledge(
        &mut self,
        connection: &mut Connection,
        through: DeliveryNumber,
    ) -> Vec<&SourceItem> {
        let mut covered = Vec::new();
        while let Some(&(delivery, position)) = connection.outstanding.front()
            && delivery <= through
        {
            connection.outstanding.pop_front();
            covered.push(&self.entries[position].item);
            if connection.number == self.connection {
                self.acknowledged = position + 1;
            }
        }
        covered
    }

    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = &SourceItem> {
        self.entries[self.acknowledged..].iter().map(|entry| &entry.item)
    }
}

impl Connection {
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    pub(crate) fn delivered(&self) -> DeliveryNumber {
        self.delivered
    }
}
