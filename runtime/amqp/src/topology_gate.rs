//! Holds back the consumers of a new stream while the broker refuses the topology (exchange, queues and bindings) of
//! the stream. A queue in another form may belong to another program, so a stream that has never run must not consume
//! it.

use tokio::sync::watch;

/// The gate of a stream. While the gate is closed, the consumers of the stream do not subscribe.
#[derive(Debug, Clone)]
pub struct TopologyGate(watch::Receiver<Option<String>>);

impl TopologyGate {
    /// Creates a gate. The gate is closed while the value of the sender is the reason of a refusal, and open while the
    /// value is `None`.
    pub fn new(refusal: Option<String>) -> (watch::Sender<Option<String>>, Self) {
        let (sender, receiver) = watch::channel(refusal);
        (sender, Self(receiver))
    }

    /// Waits until the gate is open. Calls `report` with the reason of each refusal. If the sender is dropped while the
    /// gate is closed, the process is about to end, and the wait never ends.
    pub async fn wait_open(&mut self, report: impl Fn(String)) {
        loop {
            let refusal = self.0.borrow_and_update().clone();
            let Some(reason) = refusal else { return };
            report(reason);
            if self.0.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn gate_reports_each_refusal_until_it_opens() {
        let (refusal, mut gate) = TopologyGate::new(Some("a".to_owned()));
        let reported = RefCell::new(Vec::new());
        let mut waiting = pin!(gate.wait_open(|reason| reported.borrow_mut().push(reason)));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        refusal.send_replace(Some("b".to_owned()));
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        refusal.send_replace(None);
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(()));
        assert_eq!(*reported.borrow(), ["a", "b"]);
    }

    #[test]
    fn gate_of_an_accepted_stream_is_open_even_without_its_sender() {
        let (refusal, mut gate) = TopologyGate::new(None);
        drop(refusal);
        let mut waiting = pin!(gate.wait_open(|reason| panic!("{reason}")));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(()));
    }
}
