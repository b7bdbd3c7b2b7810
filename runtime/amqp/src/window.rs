//! How many deliveries the broker may send ahead: as many as are configured, as long as they fit
//! into the memory that there is for them.
//!
//! The broker counts messages, not bytes, so the size of what came lately says how many may come.
//! A consumer keeps the window that it began with: another window needs another subscription, and
//! what is not acknowledged then comes again. A queue gives that back in order, but behind what it
//! still has of an earlier time. So the window changes only when all of that has come, and it grows
//! seldom. What exceeds the memory all the same ends the subscription at once.
//!
//! Who takes a partition over finds as many messages that had been given to another process as that
//! one's window had room for, and a small window would have to bring them all first. So only the first
//! consumer of a stream in a process begins with a small one, and later ones with what was found right
//! last for any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// So many deliveries are looked at together.
const SAMPLE: u64 = 128;
/// The largest message that a broker takes by default, from RabbitMQ 4.0 on.
const LARGEST: u64 = 16 << 20;
/// Before a window that was made smaller may grow.
const CALM: Duration = Duration::from_mins(1);

/// The window that a consumer of a stream in this process changed to last, 0 before any did.
pub type LastWindow = Arc<AtomicU16>;

/// The window of one consumer.
#[derive(Debug)]
pub(super) struct Window {
    last: LastWindow,
    most: u16,
    bytes: u64,
    now: u16,
    /// Something has come that had not come before.
    fresh: bool,
    /// Deliveries of this sample, and their bytes.
    sample: (u64, u64),
    /// Bytes of the largest that this subscription has brought.
    largest: u64,
    shrunk: Option<Instant>,
}

impl Window {
    /// At most so many deliveries, in about so many bytes. It begins as the last one of the stream is,
    /// and the first as if each message were very large.
    pub(super) fn new(most: u16, bytes: usize, last: LastWindow) -> Self {
        let bytes = bytes as u64;
        let now = match last.load(Relaxed) {
            0 => fitting(most, bytes, LARGEST),
            last => last.min(most),
        };
        Self { last, most, bytes, now, fresh: false, sample: (0, 0), largest: 0, shrunk: None }
    }

    /// As many as may be unacknowledged now.
    pub(super) fn now(&self) -> u16 {
        self.now
    }

    /// A subscription begins: what was given back comes first.
    pub(super) fn begin(&mut self) {
        (self.fresh, self.sample, self.largest) = (false, (0, 0), 0);
    }

    /// Notes what a delivery takes.
    pub(super) fn note(&mut self, bytes: usize, again: bool) {
        self.fresh |= !again;
        self.sample.0 += 1;
        self.sample.1 += bytes as u64;
        self.largest = self.largest.max(bytes as u64);
    }

    /// Whether what comes lately asks for a window of at least twice or at most half the size; then
    /// another one is the one from now on.
    pub(super) fn change(&mut self) -> bool {
        // A window that is full before the sample is asks with what there is.
        if !self.fresh || self.sample.0 < SAMPLE.min(self.now.into()) {
            return false;
        }
        let (deliveries, bytes) = std::mem::take(&mut self.sample);
        let fitting = fitting(self.most, self.bytes, bytes / deliveries);
        if fitting <= self.now / 2 {
            self.shrink();
            return true;
        }
        let calm = self.shrunk.is_none_or(|at| at.elapsed() >= CALM);
        let grows = calm && fitting / 2 >= self.now;
        if grows {
            self.set(fitting);
        }
        grows
    }

    /// Whether what nobody has taken yet is too much; then a smaller window is the one from now on.
    pub(super) fn overflows(&mut self, held: usize) -> bool {
        let overflows = held as u64 > self.bytes && self.now > 1;
        if overflows {
            self.shrink();
        }
        overflows
    }

    /// As if each were as large as the largest of this subscription: were it still too large, and
    /// changed once more before all has come again, the order would be disturbed.
    fn shrink(&mut self) {
        self.set(fitting(self.most, self.bytes, self.largest).min(self.now / 2));
        self.shrunk = Some(Instant::now());
    }

    fn set(&mut self, now: u16) {
        self.now = now;
        self.last.store(now, Relaxed);
    }
}

/// How many of that size fit.
fn fitting(most: u16, bytes: u64, size: u64) -> u16 {
    u16::try_from(bytes / size.max(1)).unwrap_or(u16::MAX).clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn feed(window: &mut Window, deliveries: usize, size: usize) -> Vec<u16> {
        let mut changes = Vec::new();
        for _ in 0..deliveries {
            window.note(size, false);
            if window.change() {
                changes.push(window.now());
                window.begin();
            }
        }
        changes
    }

    #[test]
    fn small_ones_come_as_many_as_are_configured_and_large_ones_as_fit() {
        let mut window = Window::new(4_000, 128 * MIB, LastWindow::default());
        assert_eq!(window.now(), 8);
        assert_eq!(feed(&mut window, 1_024, 256), [4_000]);
        assert!(feed(&mut window, 1_024, 20_000).is_empty(), "they fit");
        assert_eq!(feed(&mut window, 1_024, MIB / 2), [256]);
        assert_eq!(feed(&mut window, 1_024, MIB), [128]);
        assert_eq!(feed(&mut window, 1_024, 3 * MIB), [42]);
        assert!(feed(&mut window, 10_000, 256).is_empty(), "it grows later");
    }

    #[test]
    fn a_smaller_one_has_room_for_the_largest() {
        let mut window = Window::new(4_000, 4 * MIB, LastWindow::default());
        assert_eq!(feed(&mut window, 200, 100), [4_000]);
        for number in 0..128 {
            window.note(if number % 4 == 0 { 300_000 } else { 100 }, false);
        }
        assert!(window.change());
        assert_eq!(window.now(), 13);
    }

    #[test]
    fn one_may_always_come() {
        let mut window = Window::new(10, 1_000, LastWindow::default());
        assert_eq!(window.now(), 1);
        assert!(feed(&mut window, 10, MIB).is_empty());
        assert!(!window.overflows(MIB));
        assert_eq!(feed(&mut window, 3, 200), [5], "asked after one");
        assert_eq!(Window::new(1, 1_000, LastWindow::default()).now(), 1);
    }

    #[test]
    fn it_stays_while_what_was_given_back_comes() {
        let mut window = Window::new(4_000, 128 * MIB, LastWindow::default());
        for _ in 0..1_000 {
            window.note(100, true);
            assert!(!window.change());
        }
        window.note(100, false);
        assert!(window.change());
        assert_eq!(window.now(), 4_000);
    }

    #[test]
    fn what_exceeds_the_memory_makes_it_smaller_at_once() {
        let mut window = Window::new(4_000, 128 * MIB, LastWindow::default());
        assert_eq!(feed(&mut window, 8, 100), [4_000]);
        assert!(!window.overflows(128 * MIB));
        window.note(MIB / 32, false);
        assert!(window.overflows(129 * MIB));
        assert_eq!(window.now(), 2_000, "at most half");
        window.note(16 * MIB, true);
        window.note(1, true);
        assert!(window.overflows(160 * MIB));
        assert_eq!(window.now(), 8);
    }

    #[test]
    fn another_of_the_stream_begins_as_the_last_one_is() {
        let last = LastWindow::default();
        let mut first = Window::new(4_000, 128 * MIB, Arc::clone(&last));
        let mut second = Window::new(4_000, 128 * MIB, Arc::clone(&last));
        assert_eq!((first.now(), second.now()), (8, 8));
        assert_eq!(feed(&mut first, 1_024, 256), [4_000]);
        assert_eq!(Window::new(4_000, 128 * MIB, Arc::clone(&last)).now(), 4_000);
        assert_eq!(Window::new(1_000, 128 * MIB, Arc::clone(&last)).now(), 1_000);
        assert_eq!(feed(&mut second, 1_024, MIB), [128]);
        assert_eq!(Window::new(4_000, 128 * MIB, last).now(), 128);
    }

    #[test]
    fn without_a_bound_it_is_what_is_configured() {
        let mut window = Window::new(4_000, usize::MAX, LastWindow::default());
        assert_eq!(window.now(), 4_000);
        assert!(feed(&mut window, 1_000, 100 * MIB).is_empty());
        assert!(!window.overflows(4_000 * MIB));
    }
}
