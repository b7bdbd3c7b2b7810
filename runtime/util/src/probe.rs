//! Pieces of a file as they were read or written, to tell later whether they are still there:
//! files are appended to, and whoever cuts one or writes it anew does not say so.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ordain_core::digest;

/// Bytes of a probe at most: some events, which two files hardly share, and read in no time.
pub const PROBE: usize = 4 << 10;

/// The last bytes of a file before some place, at most [`PROBE`] of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probe {
    end: u64,
    bytes: Vec<u8>,
}

impl Probe {
    /// The last of `bytes`, which a file has before `end`.
    pub fn new(end: u64, bytes: &[u8]) -> Self {
        Self { end, bytes: bytes[bytes.len().saturating_sub(PROBE)..].to_vec() }
    }

    /// What a file has before `end` now.
    pub fn read(file: &File, end: u64) -> io::Result<Self> {
        let length = end.min(PROBE as u64);
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, end - length)?;
        Ok(Self { end, bytes })
    }

    /// Takes in what was put behind it.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.end += bytes.len() as u64;
        if bytes.len() >= PROBE {
            self.bytes.clear();
        }
        self.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(PROBE)..]);
        self.bytes.drain(..self.bytes.len().saturating_sub(PROBE));
    }

    /// Where it ends in the file.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it is known by later.
    pub fn digest(&self) -> u64 {
        digest(&self.bytes)
    }

    /// Whether a file has it.
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
    fn it_is_what_the_file_has() {
        let mut file = tempfile::tempfile().expect("a file");
        let mut probe = Probe::default();
        for length in [0, 1, 10, PROBE - 1, PROBE, 3 * PROBE + 1, 2] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            file.write_all(&bytes).expect("written");
            probe.extend(&bytes);
            assert_eq!(probe, Probe::read(&file, probe.end()).expect("read"), "{length} bytes");
            assert!(probe.is_in(&file).expect("compared"));
        }
        file.write_all_at(b"!", probe.end() - 1).expect("overwritten");
        assert!(!probe.is_in(&file).expect("compared"), "its last byte has changed");
        file.set_len(probe.end() - 1).expect("cut");
        assert!(!probe.is_in(&file).expect("compared"), "its last byte is gone");
    }
}
