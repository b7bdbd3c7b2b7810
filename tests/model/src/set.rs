//! Sets of small numbers.

/// A set of numbers below 16: sequences of a key, keys, or positions in the queue.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Set(u16);

impl Set {
    /// Returns the set of all numbers from `from` to `to - 1`. The largest possible `to` is 15.
    pub(crate) fn range(from: u8, to: u8) -> Self {
        Self((1 << to) - 1).from(from)
    }

    pub(crate) fn has(self, number: u8) -> bool {
        self.0 & (1 << number) != 0
    }

    pub(crate) fn has_all(self, other: Self) -> bool {
        other.without(self).is_empty()
    }

    pub(crate) fn with(self, number: u8) -> Self {
        Self(self.0 | 1 << number)
    }

    pub(crate) fn with_all(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn from(self, first: u8) -> Self {
        Self(self.0 & !((1 << first) - 1))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |number| self.has(*number))
    }
}

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
