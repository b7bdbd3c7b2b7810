//! Messages that were handed to the broker, in order, until it is known what became of each.
//!
//! The client library tells of a message that came back with whatever confirmation it takes next,
//! not with the message's own. What it has to tell is never more than the messages that came back and
//! are not confirmed, and each confirmation takes one. So the fate of a message is known when
//! everything is confirmed that had been handed over by the time that its own confirmation was seen.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use lapin::message::Delivery;
use lapin::{Confirmation, Result};

use super::encode::Outgoing;

/// A message with its place in the order of its sink.
#[derive(Debug)]
pub(super) struct Item {
    /// What it belongs to.
    pub(super) run: u64,
    /// Its place.
    pub(super) order: u64,
    /// The message.
    pub(super) outgoing: Outgoing,
}

/// What the broker did with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has it.
    Taken,
    /// It gave it back: no queue takes it.
    Returned,
    /// It could not take it, as a queue that is full or has no leader.
    Nacked,
}

/// The confirmation of a message, to come.
pub(super) type Confirm<'a> = Pin<Box<dyn Future<Output = Result<Confirmation>> + Send + 'a>>;

struct Sent<'a> {
    item: Item,
    /// Until it has come.
    confirm: Option<Confirm<'a>>,
    fate: Fate,
}

/// The messages; numbers count from the first one whose fate is not known.
#[derive(Default)]
pub(super) struct Flight<'a> {
    sent: VecDeque<Sent<'a>>,
    /// Bytes of their bodies.
    bytes: usize,
    /// How many are confirmed, one after the other.
    confirmed: usize,
    /// The fate of so many is known ...
    known: usize,
    /// ... once so many are confirmed.
    after: usize,
    /// Something came back that was not sent.
    strange: bool,
}

impl<'a> Flight<'a> {
    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message, and hands it over here and now, behind those before it. That it is written
    /// is not waited for: so many messages go into one write.
    pub(super) fn send(&mut self, item: Item, mut confirm: Confirm<'a>) {
        self.bytes += item.outgoing.body.bytes().len();
        let ready = confirm.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(ready) = ready {
            confirm = Box::pin(std::future::ready(ready));
        }
        self.sent.push_back(Sent { item, confirm: Some(confirm), fate: Fate::Taken });
    }

    /// Waits until something is confirmed. Fails when the channel has, with what it says of the
    /// first message that it has not confirmed.
    pub(super) async fn confirmed(&mut self) -> Result<()> {
        std::future::poll_fn(|cx| self.poll_confirmed(cx)).await
    }

    fn poll_confirmed(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let before = self.confirmed;
        while self.confirmed < self.sent.len() {
            match self.poll_one(self.confirmed, cx) {
                Poll::Ready(Ok(())) => self.confirmed += 1,
                // What came before it counts.
                Poll::Ready(Err(_)) | Poll::Pending if self.confirmed > before => break,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_one(&mut self, at: usize, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(confirm) = &mut self.sent[at].confirm else { return Poll::Ready(Ok(())) };
        let Poll::Ready(confirmation) = confirm.as_mut().poll(cx) else { return Poll::Pending };
        let confirmation = match confirmation {
            Ok(confirmation) => confirmation,
            Err(error) => {
                self.sent[at].confirm = Some(Box::pin(std::future::ready(Err(error.clone()))));
                return Poll::Ready(Err(error));
            }
        };
        self.sent[at].confirm = None;
        if !confirmation.is_ack() {
            self.sent[at].fate = Fate::Nacked;
        }
        if let Some(returned) = confirmation.take_message() {
            self.came_back(&returned.delivery);
        }
        Poll::Ready(Ok(()))
    }

    fn came_back(&mut self, returned: &Delivery) {
        let mut sent = self.sent.iter_mut();
        match sent.find(|it| it.fate != Fate::Returned && it.item.outgoing.is(returned)) {
            Some(sent) => sent.fate = Fate::Returned,
            None => self.strange = true,
        }
    }

    /// Takes out those whose fate is known by now, in order.
    pub(super) fn settled(&mut self) -> Vec<(Item, Fate)> {
        if self.confirmed < self.after {
            return Vec::new();
        }
        // Later ones that are confirmed already may tell of earlier ones.
        for at in self.confirmed..self.sent.len() {
            let _ = self.poll_one(at, &mut Context::from_waker(Waker::noop()));
        }
        let is_all = self.confirmed == self.sent.len();
        let settled = if is_all { self.confirmed } else { self.known };
        self.known = self.confirmed - settled;
        self.after = self.sent.len() - settled;
        self.confirmed -= settled;
        let settled: Vec<_> = self.sent.drain(..settled).map(|it| (it.item, it.fate)).collect();
        self.bytes -= settled.iter().map(|it| it.0.outgoing.body.bytes().len()).sum::<usize>();
        settled
    }

    /// Whether something came back that was not sent: nothing that is here can be relied on.
    pub(super) fn is_strange(&self) -> bool {
        self.strange
    }

    /// Takes out all, in order.
    pub(super) fn into_items(self) -> impl DoubleEndedIterator<Item = Item> {
        self.sent.into_iter().map(|it| it.item)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use lapin::BasicProperties;
    use lapin::message::BasicReturnMessage;
    use rand::seq::SliceRandom as _;
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::super::encode::Body;
    use super::*;

    fn item(order: u64) -> Item {
        let properties = BasicProperties::default().with_message_id(order.to_string().into());
        let outgoing = Outgoing { routing_key: "key".into(), properties, body: Body::Nothing };
        Item { run: 0, order, outgoing }
    }

    fn returned(item: &Item) -> BasicReturnMessage {
        let key = item.outgoing.routing_key.clone();
        let mut delivery = Delivery::mock(0, "out".into(), key, false, Vec::new());
        delivery.properties = item.outgoing.properties.clone();
        BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() }
    }

    type Slot = Arc<Mutex<Option<Confirmation>>>;

    fn confirm(slot: &Slot) -> Confirm<'static> {
        let slot = Arc::clone(slot);
        Box::pin(std::future::poll_fn(move |_| {
            let mut slot = slot.lock().expect("nobody panics with it");
            slot.take().map_or(Poll::Pending, |it| Poll::Ready(Ok(it)))
        }))
    }

    /// A broker confirms in any order and tells of what it gives back before; the library hands that
    /// to whatever is confirmed next. Whoever looks in between is told the truth of each, in order.
    #[test]
    fn each_fate_is_its_own() {
        for seed in 0..2_000 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut flight = Flight::default();
            let (mut waiting, mut unconfirmed) = (VecDeque::new(), Vec::new());
            let (mut truth, mut told) = (Vec::new(), Vec::new());
            let often = rng.random_range(0.0..0.9);
            while told.len() < 60 {
                if truth.len() < 60 && rng.random_bool(0.5) {
                    let (item, slot) = (item(truth.len() as u64), Slot::default());
                    let comes_back = rng.random_bool(often);
                    if comes_back {
                        waiting.push_back(returned(&item));
                    }
                    truth.push(if comes_back { Fate::Returned } else { Fate::Taken });
                    flight.send(item, confirm(&slot));
                    unconfirmed.push(slot);
                    unconfirmed.shuffle(&mut rng);
                } else if let Some(slot) = unconfirmed.pop() {
                    let confirmation = Confirmation::Ack(waiting.pop_front());
                    *slot.lock().expect("nobody panics with it") = Some(confirmation);
                }
                if rng.random_bool(0.3) && !flight.is_empty() {
                    let polled = flight.poll_confirmed(&mut Context::from_waker(Waker::noop()));
                    if polled.is_ready() {
                        told.extend(flight.settled().iter().map(|it| (it.0.order, it.1)));
                    }
                }
            }
            let truth: Vec<_> = (0..).zip(truth).collect();
            assert_eq!(told, truth, "seed {seed}");
            assert!(flight.is_empty() && !flight.is_strange() && flight.bytes() == 0);
        }
    }
}
