//! Versions of a stream's handler, and which of them executes its events.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The name of a handler's version: `name@semver`, or without a semver `name+digest`.
pub type Version = Arc<str>;

/// A handler's version as it was built: names may be given twice, contents are told apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Build {
    /// Its name.
    pub version: Version,
    /// Of its file.
    pub digest: Digest,
}

/// Splits the name of a version into the handler's name and the semver of its file. A file without one
/// counts as the lowest version.
pub fn split_version(version: &str) -> (&str, Option<semver::Version>) {
    match version.split_once('@') {
        Some((name, semver)) => (name, semver::Version::parse(semver).ok()),
        None => (version.split_once('+').map_or(version, |(name, _)| name), None),
    }
}

/// What is to execute the events of a stream, as the store has decided.
///
/// Decisions of a stream are numbered: each has a higher generation than the one before. A job
/// records the one that its last event was executed under, and no commit under an older one is
/// taken: so no key goes back to a version that was left, unless that was decided anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// From 1, below [`Decided::END`].
    pub generation: u64,
    /// What executes them.
    pub build: Build,
}

impl Decided {
    /// Where generations end: what no stream reaches, and scripts count to without holes.
    pub const END: u64 = 1 << 52;

    /// The first one of a stream.
    pub fn first(version: impl Into<Version>, digest: Digest) -> Arc<Self> {
        Arc::new(Self { generation: 1, build: Build { version: version.into(), digest } })
    }
}

/// SHA-256 of a handler's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

/// In hexadecimal digits; a precision says how many of them.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = String::new();
        self.0.iter().for_each(|byte| digits += &format!("{byte:02x}"));
        f.pad(&digits)
    }
}

/// A text that is no digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoDigest;

impl fmt::Display for NoDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no SHA-256: those have 64 hexadecimal digits")
    }
}

/// All of its digits.
impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let mut digest = [0; 32];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != digest.len() || !rest.is_empty() {
            return Err(NoDigest);
        }
        for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
            let digit = |of: u8| char::from(of).to_digit(16).ok_or(NoDigest);
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        Ok(Self(digest))
    }
}
