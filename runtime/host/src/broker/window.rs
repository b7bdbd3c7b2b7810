//! How many deliveries the broker may send ahead: as many as are configured, as long as they fit
//! into the memory that there is for them.
//!
//! The broker counts messages, not bytes, so the size of what came lately says how many may come.
//! Where a row of large messages follows small ones, what is on its way already may exceed that
//! memory once.

/// So many deliveries are looked at together.
const SAMPLE: u64 = 128;

/// The window of one consumer.
#[derive(Debug)]
pub(super) struct Window {
    most: u16,
    bytes: u64,
    now: u16,
    /// Deliveries of this sample, and their bytes.
    sample: (u64, u64),
}

impl Window {
    /// At most so many deliveries, in about so many bytes. It begins as if each were the largest
    /// that may come.
    pub(super) fn new(most: u16, bytes: usize, largest: usize) -> Self {
        let mut window = Self { most, bytes: bytes as u64, now: 0, sample: (0, 0) };
        window.now = window.fitting(largest as u64);
        window
    }

    /// As many as may be unacknowledged now.
    pub(super) fn now(&self) -> u16 {
        self.now
    }

    /// Notes what a delivery takes.
    pub(super) fn note(&mut self, bytes: usize) {
        self.sample.0 += 1;
        self.sample.1 += bytes as u64;
    }

    /// Whether what comes lately asks for a window of at least twice or at most half the size, which
    /// is the one from now on.
    pub(super) fn change(&mut self) -> bool {
        // A window that is full before the sample is asks with what there is.
        if self.sample.0 < SAMPLE.min(self.now.into()) {
            return false;
        }
        let (deliveries, bytes) = std::mem::take(&mut self.sample);
        let fitting = self.fitting(bytes / deliveries);
        let changes = fitting / 2 >= self.now || fitting <= self.now / 2;
        if changes {
            self.now = fitting;
        }
        changes
    }

    /// How many of that size fit.
    fn fitting(&self, size: u64) -> u16 {
        let fitting = self.bytes / size.max(1);
        u16::try_from(fitting).unwrap_or(u16::MAX).clamp(1, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn feed(window: &mut Window, deliveries: usize, size: usize) -> Vec<u16> {
        let mut changes = Vec::new();
        for _ in 0..deliveries {
            window.note(size);
            if window.change() {
                changes.push(window.now());
            }
        }
        changes
    }

    #[test]
    fn small_ones_come_as_many_as_are_configured_and_large_ones_as_fit() {
        let mut window = Window::new(4_000, 128 * MIB, MIB);
        assert_eq!(window.now(), 128);
        assert_eq!(feed(&mut window, 1_024, 256), [4_000]);
        assert!(feed(&mut window, 1_024, 20_000).is_empty(), "they fit");
        assert_eq!(feed(&mut window, 1_024, MIB / 2), [256]);
        assert_eq!(feed(&mut window, 1_024, MIB), [128]);
        assert_eq!(feed(&mut window, 1_024, 3 * MIB), [42]);
    }

    #[test]
    fn one_may_always_come() {
        let mut window = Window::new(10, 1_000, MIB);
        assert_eq!(window.now(), 1);
        assert!(feed(&mut window, 10, MIB).is_empty());
        assert_eq!(feed(&mut window, 3, 200), [5], "asked after one");
        assert_eq!(Window::new(1, 1_000, 0).now(), 1);
    }
}
