//! Versions of a stream's handler, and the rollout, which names the version that executes the events.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The name of a handler's version: `name@semver`, or `name+digest` if the name of the file contains no semver.
pub type VersionName = Arc<str>;

/// One build of a handler. Two builds may have the same version name, but their digests differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Build {
    /// The name of the version.
    pub version: VersionName,
    /// The SHA-256 of the handler's file.
    pub digest: FileDigest,
}

/// Splits the name of a version into the handler's name and the semver. The semver is `None` if the name of the version
/// contains no valid semver; such a version ranks as the lowest version.
pub fn split_version(version: &str) -> (&str, Option<semver::Version>) {
    match version.split_once('@') {
        Some((name, semver)) => (name, semver::Version::parse(semver).ok()),
        None => (version.split_once('+').map_or(version, |(name, _)| name), None),
    }
}

/// A rollout: a record in the store. The record names the build that executes the events of a stream.
///
/// Each rollout of a stream has a higher number than the previous rollout. A key record contains the rollout under
/// which the key's newest executed event was committed. The store refuses a write for this key under an older rollout.
/// A key therefore returns to an earlier version only if a new rollout names that version.
///
/// If the store goes back in time (loses its newest writes), two different rollouts may get the same number. The build
/// then distinguishes them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rollout {
    /// The number of the rollout, from 1, below [`Rollout::NUMBER_END`].
    pub number: u64,
    /// The build that executes the events.
    pub build: Build,
}

impl Rollout {
    /// The exclusive upper bound of rollout numbers. No stream reaches this bound. The Lua scripts of the Redis store
    /// compare rollout numbers, and a Lua number represents every integer below the bound exactly.
    pub const NUMBER_END: u64 = 1 << 52;

    /// Creates the first rollout of a stream.
    pub fn first(version: impl Into<VersionName>, digest: FileDigest) -> Arc<Self> {
        Arc::new(Self { number: 1, build: Build { version: version.into(), digest } })
    }
}

/// The SHA-256 of a handler's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileDigest(pub [u8; 32]);

/// Writes the digest in hexadecimal digits; a precision limits the number of digits: `{:.12}` writes the first 12.
impl fmt::Display for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = String::new();
        self.0.iter().for_each(|byte| digits += &format!("{byte:02x}"));
        f.pad(&digits)
    }
}

/// An error: the text is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseDigestError;

impl fmt::Display for ParseDigestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a SHA-256 digest: expected 64 hexadecimal digits")
    }
}

/// Parses a text of exactly 64 hexadecimal digits.
impl FromStr for FileDigest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        let mut digest = [0; 32];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != digest.len() || !rest.is_empty() {
            return Err(ParseDigestError);
        }
        for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
            let digit = |of: u8| char::from(of).to_digit(16).ok_or(ParseDigestError);
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        Ok(Self(digest))
    }
}
