//! Holds back the consumers of a new stream while the broker refuses the topology (exchange, queues and bindings) of
//! the stream. A queue in another form may belong to another program, so a stream that has never run must not consume
//! such a queue. The gate also carries the reports of consumers whose subscription the broker refuses.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// The gate of a stream. While the gate is closed, the consumers of the stream do not subscribe.
#[derive(Debug, Clone)]
pub struct TopologyGate {
    refusal: watch::Receiver<Option<String>>,
    /// Notifies the observer of the stream that the user lacks a right that a consumer needs.
    refused_consumer: Arc<Notify>,
}

impl TopologyGate {
    /// Creates a gate. The gate is closed while the value of the sender is the reason of a refusal, and open while the
    /// value is `None`.
    pub fn new(refusal: Option<String>) -> (watch::Sender<Option<String>>, Self) {
        let (sender, receiver) = watch::channel(refusal);
        (sender, Self { refusal: receiver, refused_consumer: Arc::default() })
    }

    /// Reports that the broker refuses a subscription of this process, because the user lacks a right.
    pub fn report_refused_consumer(&self) {
        self.refused_consumer.notify_one();
    }

    /// Waits for the next call of [`Self::report_refused_consumer`]. Returns immediately if a call has preceded the
    /// wait.
    pub async fn wait_refused_consumer(&self) {
        self.refused_consumer.notified().await;
    }

    /// Waits until the gate is open. Calls `report` with the reason of each refusal. If the sender is dropped while the
    /// gate is closed, the process is about to end, and the wait never ends.
    pub async fn wait_open(&mut self, report: impl Fn(String)) {
        loop {
            let refusal = self.refusal.borrow_and_update().clone();
            let Some(reason) = refusal else { return };
            report(reason);
            if self.refusal.changed().await.is_err() {
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
    fn refused_consumers_are_reported_once_to_the_observer() {
        let (_refusal, gate) = TopologyGate::new(None);
        let consumer = gate.clone();
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = Box::pin(gate.wait_refused_consumer());
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
        consumer.report_refused_consumer();
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(()));
        // Several reports before the wait count as one report.
        consumer.report_refused_consumer();
        consumer.report_refused_consumer();
        let mut waiting = Box::pin(gate.wait_refused_consumer());
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(()));
        let mut waiting = Box::pin(gate.wait_refused_consumer());
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Pending);
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
