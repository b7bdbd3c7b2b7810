//! The mark of a file sink: how much of the file is published, and by what the file is recognised.

use bytes::Bytes;

/// The form of the mark. The first form was the length alone.
const FORMAT: u8 = 2;

/// A file as the store knows it.
#[derive(Debug, PartialEq, Eq)]
pub struct PublishedFile {
    /// Bytes that are published.
    pub length: u64,
    /// By what else the file is recognised; `None` in the first form.
    pub fingerprint: Option<FileFingerprint>,
}

/// By what a file is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFingerprint {
    /// Its inode.
    pub inode: u64,
    /// Digest of its last published bytes.
    pub tail: u64,
}

impl PublishedFile {
    /// Returns the value of a mark.
    pub fn encode(length: u64, FileFingerprint { inode, tail }: FileFingerprint) -> Bytes {
        let numbers = [length, inode, tail].map(u64::to_le_bytes);
        [&[FORMAT], &*numbers.concat()].concat().into()
    }

    /// Reads the value of a mark, or returns `None` if it has no known form.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
        if let Some(length) = number(value) {
            return Some(Self { length, fingerprint: None });
        }
        let (&FORMAT, rest) = value.split_first()? else { return None };
        let (length, rest) = rest.split_at_checked(8)?;
        let (inode, tail) = rest.split_at_checked(8)?;
        let fingerprint = FileFingerprint { inode: number(inode)?, tail: number(tail)? };
        Some(Self { length: number(length)?, fingerprint: Some(fingerprint) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let first = PublishedFile { length: 7, fingerprint: None };
        assert_eq!(PublishedFile::decode(&7_u64.to_le_bytes()), Some(first));
        let fingerprint = FileFingerprint { inode: 8, tail: 9 };
        let whole = PublishedFile::encode(7, fingerprint);
        let second = PublishedFile { length: 7, fingerprint: Some(fingerprint) };
        assert_eq!(PublishedFile::decode(&whole), Some(second));
        let mut other = whole.to_vec();
        other[0] = FORMAT + 1;
        for wrong in [&whole[..24], b"", &[0; 26], &other] {
            assert_eq!(PublishedFile::decode(wrong), None, "{wrong:?}");
        }
    }
}
