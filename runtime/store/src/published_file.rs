//! The mark of a file sink: a named record in the store with the length of the published part of the file, and a
//! fingerprint of the file.

use bytes::Bytes;

/// The number of the mark's form. A mark in the first form contains only the length, and no form number.
const FORMAT: u8 = 2;

/// The published part of a file, as recorded in the store.
#[derive(Debug, PartialEq, Eq)]
pub struct PublishedFile {
    /// The number of published bytes.
    pub length: u64,
    /// The fingerprint of the file; `None` in the first form.
    pub fingerprint: Option<FileFingerprint>,
}

/// The fingerprint of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFingerprint {
    /// The inode number of the file.
    pub inode: u64,
    /// A digest of the last published bytes.
    pub tail: u64,
}

impl PublishedFile {
    /// Returns the value of a mark.
    pub fn encode(length: u64, FileFingerprint { inode, tail }: FileFingerprint) -> Bytes {
        let numbers = [length, inode, tail].map(u64::to_le_bytes);
        [&[FORMAT], &*numbers.concat()].concat().into()
    }

    /// Reads the value of a mark. Returns `None` if the value has no known form.
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
    fn mark_is_read_as_written() {
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
