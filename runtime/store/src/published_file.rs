//! The mark of a file sink: a named record in the store with the length of the published part of the file, and a
//! fingerprint of the file.

use std::ops::Range;

use bytes::Bytes;

/// The format number of a mark that has neither kept lines nor older files. A mark in the first format contains only
/// the length, and no format number.
const FORMAT: u8 = 2;
/// The format number of a mark with the range of kept lines ([`PublishedFile::kept`]).
const KEPT_FORMAT: u8 = 3;
/// The format number of a mark with older files ([`PublishedFile::older`]). Such a mark also has the range of kept
/// lines, which is empty if the file has none.
const OLDER_FORMAT: u8 = 4;

/// The published part of a file, as recorded in the store.
#[derive(Debug, PartialEq, Eq)]
pub struct PublishedFile {
    /// The number of published bytes.
    pub length: u64,
    /// The fingerprint of the file; `None` in the first format.
    pub fingerprint: Option<FileFingerprint>,
    /// The part of the file with the kept lines: lines whose messages the store has not recorded as published. The sink
    /// must not write these messages a second time. `None` if the file has no such lines.
    pub kept: Option<Range<u64>>,
    /// The older files that may have lines of messages that the store has not recorded as published.
    pub older: Vec<OlderFile>,
}

/// A file that the sink wrote before another program, such as log rotation, gave the path of the sink to another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OlderFile {
    /// The inode number of the file.
    pub inode: u64,
    /// The position of the first line whose message the store possibly has not recorded as published.
    pub start: u64,
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
        older: &[OlderFile],
    ) -> Bytes {
        let (format, kept) = match kept {
            kept if !older.is_empty() => (OLDER_FORMAT, Some(kept.unwrap_or_default())),
            None => (FORMAT, None),
            kept => (KEPT_FORMAT, kept),
        };
        let kept = kept.into_iter().flat_map(|range| [range.start, range.end]);
        let older = older.iter().flat_map(|file| [file.inode, file.start]);
        let numbers = [length, inode, tail].into_iter().chain(kept).chain(older);
        std::iter::once(format).chain(numbers.flat_map(u64::to_le_bytes)).collect()
    }

    /// Decodes the value of a mark. Returns `None` if the format of the value is unknown.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
        if let Some(length) = number(value) {
            return Some(Self { length, fingerprint: None, kept: None, older: Vec::new() });
        }
        let (&format, rest) = value.split_first()?;
        let numbers: Vec<u64> = rest.chunks(8).map(number).collect::<Option<_>>()?;
        let &[length, inode, tail, ref rest @ ..] = numbers.as_slice() else { return None };
        let (pairs, incomplete) = rest.as_chunks::<2>();
        let (kept, older) = match (format, pairs) {
            (FORMAT, []) => (None, pairs),
            (KEPT_FORMAT, &[[start, end]]) => (Some(start..end), &[][..]),
            (OLDER_FORMAT, &[[start, end], ref older @ ..]) => {
                (Some(start..end).filter(|range| !range.is_empty()), older)
            }
            _ => return None,
        };
        if !incomplete.is_empty() {
            return None;
        }
        let older = older.iter().map(|&[inode, start]| OlderFile { inode, start }).collect();
        Some(Self { length, fingerprint: Some(FileFingerprint { inode, tail }), kept, older })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_read_as_written() {
        let mut published =
            PublishedFile { length: 7, fingerprint: None, kept: None, older: Vec::new() };
        let is_read = |mark: &[u8], published: &PublishedFile| {
            assert_eq!(PublishedFile::decode(mark).as_ref(), Some(published));
        };
        is_read(&7_u64.to_le_bytes(), &published);
        let fingerprint = FileFingerprint { inode: 8, tail: 9 };
        published.fingerprint = Some(fingerprint);
        let fingerprinted = PublishedFile::encode(7, fingerprint, None, &[]);
        is_read(&fingerprinted, &published);
        published.kept = Some(3..5);
        let with_kept = PublishedFile::encode(7, fingerprint, Some(3..5), &[]);
        is_read(&with_kept, &published);
        published.older = vec![OlderFile { inode: 6, start: 4 }, OlderFile { inode: 5, start: 0 }];
        let with_older = PublishedFile::encode(7, fingerprint, Some(3..5), &published.older);
        is_read(&with_older, &published);
        published.kept = None;
        is_read(&PublishedFile::encode(7, fingerprint, None, &published.older), &published);
        let with_format = |mark: &[u8], format: u8| [&[format], &mark[1..]].concat();
        for wrong in [
            &fingerprinted[..24],
            &with_kept[..40],
            &with_older[..49],
            b"",
            &[0; 26],
            &with_format(&fingerprinted, KEPT_FORMAT),
            &with_format(&with_kept, FORMAT),
            &with_format(&with_kept, OLDER_FORMAT + 1),
        ] {
            assert_eq!(PublishedFile::decode(wrong), None, "{wrong:?}");
        }
    }
}
