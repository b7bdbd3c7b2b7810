//! The mark of a file sink: a named record in the store with the length of the published part of the file, and a
//! fingerprint of the file.

use std::ops::Range;

use bytes::Bytes;

/// The format number of a mark without kept lines. A mark in the first format contains only the length, and no format
/// number.
const FORMAT: u8 = 2;
/// The format number of a mark with the range of kept lines.
const KEPT_FORMAT: u8 = 3;

/// The published part of a file, as recorded in the store.
#[derive(Debug, PartialEq, Eq)]
pub struct PublishedFile {
    /// The number of published bytes.
    pub length: u64,
    /// The fingerprint of the file; `None` in the first format.
    pub fingerprint: Option<FileFingerprint>,
    /// The part of the file with the kept lines. The store has not recorded the messages of these lines as published,
    /// but the sink must not write these messages again. `None` if the file has no such lines.
    pub kept: Option<Range<u64>>,
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
    /// Encodes the value of a mark.
    pub fn encode(
        length: u64,
        FileFingerprint { inode, tail }: FileFingerprint,
        kept: Option<Range<u64>>,
    ) -> Bytes {
        let format = if kept.is_some() { KEPT_FORMAT } else { FORMAT };
        let kept = kept.into_iter().flat_map(|range| [range.start, range.end]);
        let numbers = [length, inode, tail].into_iter().chain(kept);
        std::iter::once(format).chain(numbers.flat_map(u64::to_le_bytes)).collect()
    }

    /// Decodes the value of a mark. Returns `None` if the format of the value is unknown.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
        if let Some(length) = number(value) {
            return Some(Self { length, fingerprint: None, kept: None });
        }
        let (&format, rest) = value.split_first()?;
        let numbers: Vec<u64> = rest.chunks(8).map(number).collect::<Option<_>>()?;
        let &[length, inode, tail, ref kept @ ..] = numbers.as_slice() else { return None };
        let kept = match (format, kept) {
            (FORMAT, []) => None,
            (KEPT_FORMAT, &[start, end]) => Some(start..end),
            _ => return None,
        };
        Some(Self { length, fingerprint: Some(FileFingerprint { inode, tail }), kept })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_read_as_written() {
        let first = PublishedFile { length: 7, fingerprint: None, kept: None };
        assert_eq!(PublishedFile::decode(&7_u64.to_le_bytes()), Some(first));
        let fingerprint = FileFingerprint { inode: 8, tail: 9 };
        let fingerprinted = PublishedFile::encode(7, fingerprint, None);
        let second = PublishedFile { length: 7, fingerprint: Some(fingerprint), kept: None };
        assert_eq!(PublishedFile::decode(&fingerprinted), Some(second));
        let with_kept = PublishedFile::encode(7, fingerprint, Some(3..5));
        let third = PublishedFile { length: 7, fingerprint: Some(fingerprint), kept: Some(3..5) };
        assert_eq!(PublishedFile::decode(&with_kept), Some(third));
        let with_format = |mark: &[u8], format: u8| [&[format], &mark[1..]].concat();
        for wrong in [
            &fingerprinted[..24],
            &with_kept[..40],
            b"",
            &[0; 26],
            &with_format(&fingerprinted, KEPT_FORMAT),
            &with_format(&with_kept, FORMAT),
            &with_format(&with_kept, KEPT_FORMAT + 1),
        ] {
            assert_eq!(PublishedFile::decode(wrong), None, "{wrong:?}");
        }
    }
}
