//! Fingerprints of the last bytes of a file. A fingerprint shows later whether a program truncated or rewrote the file.
//! Sources and sinks expect that a file only grows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ordain_core::digest;

/// The size limit of a fingerprint, in bytes. A fingerprint of this size is quick to read, and contains a few events.
/// Two different files rarely contain the same events at the same position.
pub const TAIL_LIMIT_BYTES: usize = 4 << 10;

/// The last bytes before a position of a file, at most [`TAIL_LIMIT_BYTES`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TailFingerprint {
    end: u64,
    bytes: Vec<u8>,
}

impl TailFingerprint {
    /// Creates a fingerprint from the last part of `bytes`. In the file, `bytes` ends at the position `end`.
    pub fn new(end: u64, bytes: &[u8]) -> Self {
        Self { end, bytes: bytes[bytes.len().saturating_sub(TAIL_LIMIT_BYTES)..].to_vec() }
    }

    /// Reads the fingerprint that ends at the position `end` of a file.
    pub fn read(file: &File, end: u64) -> io::Result<Self> {
        let length = end.min(TAIL_LIMIT_BYTES as u64);
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, end - length)?;
        Ok(Self { end, bytes })
    }

    /// Reads the fingerprint that ends at the position `end` of a file. Returns `None` if the file is shorter. Another
    /// program may truncate the file at any time, also after the caller has read the length of the file.
    pub fn read_if_whole(file: &File, end: u64) -> io::Result<Option<Self>> {
        match Self::read(file, end) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            read => read.map(Some),
        }
    }

    /// Updates the fingerprint after `bytes` were appended to the file.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.end += bytes.len() as u64;
        if bytes.len() >= TAIL_LIMIT_BYTES {
            self.bytes.clear();
        }
        self.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL_LIMIT_BYTES)..]);
        self.bytes.drain(..self.bytes.len().saturating_sub(TAIL_LIMIT_BYTES));
    }

    /// Returns the position in the file at which the fingerprint ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the bytes of the fingerprint.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns a digest of the bytes, for a later comparison with the file.
    pub fn digest(&self) -> u64 {
        digest(&self.bytes)
    }

    /// Returns whether a file contains the bytes of the fingerprint at the fingerprint's position.
    pub fn is_in(&self, file: &File) -> io::Result<bool> {
        let mut bytes = vec![0; self.bytes.len()];
        let from = self.end - bytes.len() as u64;
        match file.read_exact_at(&mut bytes, from) {
            Ok(()) => Ok(bytes == self.bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn fingerprint_matches_only_unchanged_file() {
        let mut file = tempfile::tempfile().expect("a file");
        let mut probe = TailFingerprint::default();
        for length in
            [0, 1, 10, TAIL_LIMIT_BYTES - 1, TAIL_LIMIT_BYTES, 3 * TAIL_LIMIT_BYTES + 1, 2]
        {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            file.write_all(&bytes).expect("written");
            probe.extend(&bytes);
            assert_eq!(
                probe,
                TailFingerprint::read(&file, probe.end()).expect("read"),
                "{length} bytes"
            );
            assert!(probe.is_in(&file).expect("compared"));
        }
        file.write_all_at(b"!", probe.end() - 1).expect("overwritten");
        assert!(!probe.is_in(&file).expect("compared"), "its last byte was overwritten");
        file.set_len(probe.end() - 1).expect("truncated");
        assert!(!probe.is_in(&file).expect("compared"), "its last byte was removed");
    }
}
