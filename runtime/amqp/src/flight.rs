//! Messages that were handed to the broker, in order, until it is known what became of each.
//!
//! The client library tells of a message that came back with whatever confirmation it takes next,
//! not with the message's own. What it has to tell is never more than the messages that came back and
//! are not confirmed, and each confirmation takes one. So the fate of a message is known when
//! everything is confirmed that had been handed over by the time that its own confirmation was seen.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lapin::Confirmation;
use lapin::message::Delivery;

use super::encode::Outgoing;
use ordain_store::Tenure;

/// A message with its place in the order of its sink.
#[derive(Debug)]
pub(super) struct Item {
    /// What it belongs to.
    pub(super) run: u64,
    /// Its place.
    pub(super) order: u64,
    /// The message.
    pub(super) outgoing: Outgoing,
    /// In which it may be published.
    pub(super) tenure: Arc<Tenure>,
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

impl Fate {
    /// By the confirmation alone: where something came back, that is told besides.
    pub(super) fn of(confirmation: &Confirmation) -> Self {
        if confirmation.is_ack() { Self::Taken } else { Self::Nacked }
    }
}

/// The confirmation of a message, to come.
pub(super) type Confirm<'a> =
    Pin<Box<dyn Future<Output = lapin::Result<Confirmation>> + Send + 'a>>;

/// Something came back that was not sent.
#[derive(Debug)]
pub(super) struct Strange;

/// What is found out at a look.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Those whose fate is known, in order.
    pub(super) settled: Vec<(Item, Fate)>,
    /// Those that are given up, in order.
    pub(super) silent: Vec<Item>,
}

struct Sent<'a> {
    item: Item,
    /// Until it has come.
    confirm: Option<Confirm<'a>>,
    fate: Fate,
    /// It was confirmed when all were looked at last.
    seen: bool,
    /// Since when one that was handed over later is confirmed and this is not.
    overtaken: Option<Instant>,
}

/// The messages, of which none is settled.
pub(super) struct Flight<'a> {
    sent: VecDeque<Sent<'a>>,
    /// Bytes of their bodies.
    bytes: usize,
    /// How many are confirmed, one after the other.
    confirmed: usize,
    /// All are looked at once so many are: those that were there at the last look.
    after: usize,
    /// When one was confirmed last, or sent while there was no other.
    heard: Instant,
    /// Confirmations of messages that were given up: one may come yet, and tell of another message.
    late: Vec<Confirm<'a>>,
    /// Something came back that was not sent.
    strange: bool,
}

/// Messages that are given up, at most, before a channel is not worth keeping: their confirmations
/// are looked at with all others.
const LATE: usize = 1_024;

impl<'a> Flight<'a> {
    pub(super) fn new() -> Self {
        Self {
            sent: VecDeque::new(),
            bytes: 0,
            confirmed: 0,
            after: 0,
            heard: Instant::now(),
            late: Vec::new(),
            strange: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many the broker has not confirmed, as far as was seen, those that are given up too.
    pub(super) fn open(&self) -> usize {
        self.sent.iter().filter(|it| it.confirm.is_some()).count() + self.late.len()
    }

    /// Whether nothing was confirmed for so long.
    pub(super) fn is_silent(&self, patience: Duration) -> bool {
        !self.sent.is_empty() && self.heard.elapsed() > patience
    }

    /// Whether so many were given up that the channel is not worth keeping.
    pub(super) fn is_worn(&self) -> bool {
        self.late.len() > LATE
    }

    /// The silence has a reason that is no message's.
    pub(super) fn excuse(&mut self) {
        self.heard = Instant::now();
        self.sent.iter_mut().for_each(|it| it.overtaken = None);
    }

    /// Adds a message, and hands it over here and now, behind those before it. That it is written
    /// is not waited for: so many messages go into one write.
    pub(super) fn send(&mut self, item: Item, mut confirm: Confirm<'a>) {
        self.bytes += item.outgoing.body.bytes().len();
        if self.sent.is_empty() {
            self.heard = Instant::now();
        }
        let ready = confirm.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(ready) = ready {
            confirm = Box::pin(std::future::ready(ready));
        }
        self.sent.push_back(Sent {
            item,
            confirm: Some(confirm),
            fate: Fate::Taken,
            seen: false,
            overtaken: None,
        });
    }

    /// Waits until something is confirmed. Fails when the channel has, with what it says of the
    /// first message that it has not confirmed.
    pub(super) async fn confirmed(&mut self) -> lapin::Result<()> {
        std::future::poll_fn(|cx| self.poll_confirmed(cx)).await
    }

    fn poll_confirmed(&mut self, cx: &mut Context<'_>) -> Poll<lapin::Result<()>> {
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

    fn poll_one(&mut self, at: usize, cx: &mut Context<'_>) -> Poll<lapin::Result<()>> {
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
        self.heard = Instant::now();
        if self.sent[at].fate != Fate::Returned {
            self.sent[at].fate = Fate::of(&confirmation);
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

    /// Sees what is confirmed, of all.
    fn look_ahead(&mut self) -> Result<(), Strange> {
        let mut cx = Context::from_waker(Waker::noop());
        for at in self.confirmed..self.sent.len() {
            let _ = self.poll_one(at, &mut cx);
        }
        let mut told = Vec::new();
        self.late.retain_mut(|confirm| match confirm.as_mut().poll(&mut cx) {
            Poll::Ready(confirmation) => {
                told.extend(confirmation.ok().and_then(Confirmation::take_message));
                false
            }
            Poll::Pending => true,
        });
        for returned in told {
            self.came_back(&returned.delivery);
        }
        if self.strange { Err(Strange) } else { Ok(()) }
    }

    /// Takes out those whose fate is known by now, when it is worth a look at all. Fails as
    /// [`look`](Self::look) does.
    pub(super) fn settled(&mut self) -> Result<Vec<(Item, Fate)>, Strange> {
        if self.confirmed < self.after {
            return Ok(Vec::new());
        }
        Ok(self.look(Duration::MAX)?.settled)
    }

    /// Takes out those whose fate is known, and gives up those that others have overtaken so long ago.
    ///
    /// Those that were seen confirmed at the last look are known if none has come back that was not: for
    /// what the library has not told of a message it has told of another one, which came back too,
    /// whose own confirmation came later.
    ///
    /// Fails where something came back that was not sent: then nothing that is here can be relied on,
    /// and nothing is taken out.
    pub(super) fn look(&mut self, patience: Duration) -> Result<Found, Strange> {
        self.look_ahead()?;
        let last = self.sent.iter().rposition(|it| it.confirm.is_none()).unwrap_or(0);
        let is_all = self.sent.iter().all(|it| it.confirm.is_none());
        // Those that were sent since are not meant.
        let mut before = self.sent.iter().take(self.after);
        let is_known = is_all || !before.any(|it| !it.seen && it.fate == Fate::Returned);
        let mut found = Found::default();
        let sent = std::mem::take(&mut self.sent);
        for (at, mut sent) in sent.into_iter().enumerate() {
            let is_open = sent.confirm.is_some();
            if is_open && at < last {
                sent.overtaken.get_or_insert_with(Instant::now);
            }
            let is_late = is_open && sent.overtaken.is_some_and(|at| at.elapsed() >= patience);
            if (sent.seen || is_all) && is_known {
                self.bytes -= sent.item.outgoing.body.bytes().len();
                found.settled.push((sent.item, sent.fate));
            // One that has come back stays: its confirmation may tell of another.
            } else if is_late && sent.fate != Fate::Returned {
                self.bytes -= sent.item.outgoing.body.bytes().len();
                self.late.extend(sent.confirm);
                found.silent.push(sent.item);
            } else {
                sent.seen = !is_open;
                self.sent.push_back(sent);
            }
        }
        self.confirmed = self.sent.iter().take_while(|it| it.confirm.is_none()).count();
        self.after = self.sent.len();
        Ok(found)
    }

    /// Takes out all, in order, and says which is the first that is not confirmed.
    pub(super) fn into_items(self) -> (Option<usize>, impl DoubleEndedIterator<Item = Item>) {
        let first = self.sent.iter().position(|it| it.confirm.is_some());
        (first, self.sent.into_iter().map(|it| it.item))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
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
        Item { run: 0, order, outgoing, tenure: Arc::new(Tenure::sole()) }
    }

    fn returned(item: &Item) -> BasicReturnMessage {
        let key = item.outgoing.routing_key.clone();
        let mut delivery = Delivery::mock(0, "out".into(), key, false, Vec::new());
        delivery.properties = item.outgoing.properties.clone();
        BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() }
    }

    /// What the library knows, and what comes from the broker.
    struct Wire {
        rng: ChaCha8Rng,
        /// Came back, and is not told.
        waiting: VecDeque<BasicReturnMessage>,
        unconfirmed: Vec<u64>,
        confirmed: HashMap<u64, Confirmation>,
    }

    impl Wire {
        /// A confirmation comes, of any message.
        fn confirm(&mut self) {
            self.unconfirmed.shuffle(&mut self.rng);
            if let Some(order) = self.unconfirmed.pop() {
                let told = self.waiting.pop_front();
                self.confirmed.insert(order, Confirmation::Ack(told));
            }
        }
    }

    /// Others may be confirmed between two looks.
    fn confirm(wire: &Arc<Mutex<Wire>>, order: u64) -> Confirm<'static> {
        let wire = Arc::clone(wire);
        Box::pin(std::future::poll_fn(move |_| {
            let mut wire = wire.lock().expect("nobody panics with it");
            if wire.rng.random_bool(0.1) {
                wire.confirm();
            }
            wire.confirmed.remove(&order).map_or(Poll::Pending, |it| Poll::Ready(Ok(it)))
        }))
    }

    /// A broker confirms in any order, some much later, and tells of what it gives back before; the
    /// library hands that to whatever is confirmed next. Whoever looks in between is told the truth of
    /// each, of a key in order.
    #[test]
    fn each_fate_is_its_own() {
        let mut all_given_up = 0;
        for seed in 0..4_000 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let wire = Arc::new(Mutex::new(Wire {
                rng: ChaCha8Rng::seed_from_u64(seed + 1_000_000),
                waiting: VecDeque::new(),
                unconfirmed: Vec::new(),
                confirmed: HashMap::new(),
            }));
            let lock = || wire.lock().expect("nobody panics with it");
            let mut flight = Flight::new();
            let (mut truth, mut told, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
            let mut silent = Vec::new();
            let often = rng.random_range(0.0..0.9);
            let is_silent = if seed % 2 == 0 { 0.0 } else { 0.1 };
            while told.len() + given_up.len() < 60 {
                if truth.len() < 60 && rng.random_bool(0.5) {
                    let order = truth.len() as u64;
                    let item = item(order);
                    let is_silent = rng.random_bool(is_silent);
                    let comes_back = !is_silent && rng.random_bool(often);
                    if comes_back {
                        lock().waiting.push_back(returned(&item));
                    }
                    truth.push(if comes_back { Fate::Returned } else { Fate::Taken });
                    flight.send(item, confirm(&wire, order));
                    if is_silent {
                        silent.push(order);
                    } else {
                        lock().unconfirmed.push(order);
                    }
                } else {
                    lock().confirm();
                }
                if rng.random_bool(0.3) && !flight.is_empty() {
                    let polled = flight.poll_confirmed(&mut Context::from_waker(Waker::noop()));
                    if polled.is_ready() {
                        let Ok(settled) = flight.settled() else { break };
                        told.extend(settled.iter().map(|it| (it.0.order, it.1)));
                    }
                }
                if seed % 2 == 1 && (truth.len() == 60 || rng.random_bool(0.1)) {
                    let patience = Duration::from_secs(if rng.random_bool(0.3) { 0 } else { 9 });
                    let Ok(found) = flight.look(patience) else { break };
                    told.extend(found.settled.iter().map(|it| (it.0.order, it.1)));
                    given_up.extend(found.silent.iter().map(|it| it.order));
                    // What was silent speaks, perhaps after it was given up.
                    if rng.random_bool(0.3) || truth.len() == 60 {
                        lock().unconfirmed.append(&mut silent);
                    }
                }
            }
            all_given_up += given_up.len();
            // One that comes back after it was given up is nobody's.
            let comes_late = |it: &u64| truth[*it as usize] == Fate::Returned;
            let may_be_strange = given_up.iter().any(comes_late);
            told.sort_unstable_by_key(|it| it.0);
            if flight.strange {
                assert!(may_be_strange, "seed {seed}");
                assert!(told.iter().all(|it| truth[it.0 as usize] == it.1), "seed {seed}");
            } else {
                let truth = (0..).zip(truth).filter(|it| !given_up.contains(&it.0));
                assert_eq!(told, truth.collect::<Vec<_>>(), "seed {seed}");
                assert!(flight.is_empty() && flight.bytes() == 0, "seed {seed}");
            }
        }
        assert!(all_given_up > 1_000, "{all_given_up}");
    }

    /// A message without an answer keeps nobody from what is known of the others, before it or behind,
    /// and is given up when later ones were confirmed long ago, though they are gone.
    #[test]
    fn one_without_an_answer() {
        let mut flight = Flight::new();
        let ready = |confirmation| Box::pin(std::future::ready(Ok(confirmation)));
        flight.send(item(0), ready(Confirmation::Nack(None)));
        flight.send(item(1), Box::pin(std::future::pending()));
        flight.send(item(2), ready(Confirmation::Ack(None)));
        let polled = flight.poll_confirmed(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_ready());
        let mut settled = flight.settled().expect("nothing strange");
        settled.extend(flight.look(Duration::MAX).expect("nothing strange").settled);
        let settled: Vec<_> = settled.iter().map(|it| (it.0.order, it.1)).collect();
        assert_eq!(settled, [(0, Fate::Nacked), (2, Fate::Taken)]);
        assert_eq!(flight.open(), 1);
        let found = flight.look(Duration::ZERO).expect("nothing strange");
        assert_eq!(found.silent.iter().map(|it| it.order).collect::<Vec<_>>(), [1]);
        assert!(flight.is_empty() && flight.open() == 1);

        let mut flight = Flight::new();
        flight.send(item(0), ready(Confirmation::Ack(None)));
        flight.send(item(1), Box::pin(std::future::pending()));
        assert!(flight.look(Duration::MAX).expect("nothing strange").settled.is_empty());
        assert_eq!(flight.into_items().0, Some(1));
    }
}
