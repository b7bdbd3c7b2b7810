//! Reads and writes the parts of a record. This module must never trust a length before it has
//! compared the length with the available bytes.

use ordain_core::UnpackError;

/// The reason why stored bytes cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordDecodeError {
    /// The record was written by another version, or is not a record.
    #[error("the {record} has format {found}, but this version of Ordain reads format {known}")]
    Format {
        /// The kind of the record.
        record: &'static str,
        /// The format byte found.
        found: u8,
        /// The expected format byte.
        known: u8,
    },
    /// A part of the record is truncated, or has an invalid value.
    #[error("the {record} is damaged at its {part}")]
    Part {
        /// The kind of the record.
        record: &'static str,
        /// The damaged part.
        part: &'static str,
    },
    /// The bytes continue after the end of the record.
    #[error("the {record} is damaged: {bytes} bytes follow its end")]
    Trailing {
        /// The kind of the record.
        record: &'static str,
        /// The number of trailing bytes.
        bytes: usize,
    },
    /// An event or a message in the record cannot be decoded.
    #[error("the {record} is damaged: {cause}")]
    Content {
        /// The kind of the record.
        record: &'static str,
        /// The missing or malformed part of the event or message.
        cause: UnpackError,
    },
}

/// A reader of a record's parts, from front to back.
#[derive(Debug, Clone)]
pub struct RecordReader<'a> {
    record: &'static str,
    rest: &'a [u8],
}

impl<'a> RecordReader<'a> {
    /// Creates a reader and checks that the format byte is `known`.
    pub fn new(
        record: &'static str,
        bytes: &'a [u8],
        known: u8,
    ) -> Result<Self, RecordDecodeError> {
        let mut reader = Self { record, rest: bytes };
        let found = reader.u8("format")?;
        if found == known {
            Ok(reader)
        } else {
            Err(RecordDecodeError::Format { record, found, known })
        }
    }

    /// Creates a reader for bytes without a format byte, such as a part of a record.
    pub fn without_format(record: &'static str, bytes: &'a [u8]) -> Self {
        Self { record, rest: bytes }
    }

    /// Returns the error for a damaged part.
    pub fn damaged(&self, part: &'static str) -> RecordDecodeError {
        RecordDecodeError::Part { record: self.record, part }
    }

    /// Returns the error for a damaged event or message.
    pub fn content(&self, cause: UnpackError) -> RecordDecodeError {
        RecordDecodeError::Content { record: self.record, cause }
    }

    /// Returns the bytes that have not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Checks that all bytes have been read.
    pub fn end(&self) -> Result<(), RecordDecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(RecordDecodeError::Trailing { record: self.record, bytes }),
        }
    }

    /// Reads `N` bytes.
    pub fn array<const N: usize>(
        &mut self,
        part: &'static str,
    ) -> Result<[u8; N], RecordDecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.damaged(part))?;
        self.rest = rest;
        Ok(*head)
    }

    /// Reads one byte.
    pub fn u8(&mut self, part: &'static str) -> Result<u8, RecordDecodeError> {
        Ok(u8::from_le_bytes(self.array(part)?))
    }

    /// Reads a four-byte number.
    pub fn u32(&mut self, part: &'static str) -> Result<u32, RecordDecodeError> {
        Ok(u32::from_le_bytes(self.array(part)?))
    }

    /// Reads an eight-byte number.
    pub fn u64(&mut self, part: &'static str) -> Result<u64, RecordDecodeError> {
        Ok(u64::from_le_bytes(self.array(part)?))
    }

    /// Reads a number that [`put_varint`] wrote.
    pub fn varint(&mut self, part: &'static str) -> Result<u64, RecordDecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(part)?;
            // The tenth byte has only one valid bit.
            if shift == 63 && byte > 1 {
                return Err(self.damaged(part));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damaged(part))
    }

    /// Reads a number that [`put_varint`] wrote. Fails if the number does not fit in 32 bits.
    pub fn varint32(&mut self, part: &'static str) -> Result<u32, RecordDecodeError> {
        u32::try_from(self.varint(part)?).map_err(|_| self.damaged(part))
    }

    /// Reads `count` bytes.
    pub fn take(
        &mut self,
        count: usize,
        part: &'static str,
    ) -> Result<&'a [u8], RecordDecodeError> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.damaged(part))?;
        self.rest = rest;
        Ok(head)
    }

    /// Reads a length, then this number of bytes.
    pub fn bytes(&mut self, part: &'static str) -> Result<&'a [u8], RecordDecodeError> {
        let length = self.varint(part)?;
        let length = usize::try_from(length).map_err(|_| self.damaged(part))?;
        self.take(length, part)
    }

    /// Reads a length in bytes, then a text of this length. Returns an error if the text is not UTF-8.
    pub fn text(&mut self, part: &'static str) -> Result<&'a str, RecordDecodeError> {
        let bytes = self.bytes(part)?;
        std::str::from_utf8(bytes).map_err(|_| self.damaged(part))
    }

    /// Reads a text that may be missing: a flag (0 or 1), and the text if the flag is 1.
    pub fn option(&mut self, part: &'static str) -> Result<Option<&'a str>, RecordDecodeError> {
        match self.u8(part)? {
            0 => Ok(None),
            1 => self.text(part).map(Some),
            _ => Err(self.damaged(part)),
        }
    }
}

/// Appends a number with variable width, seven bits per byte.
pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Appends a text that may be missing: the flag 0, or the flag 1 and the text.
pub(super) fn put_option(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        None => out.push(0),
        Some(text) => {
            out.push(1);
            put_bytes(text.as_bytes(), out);
        }
    }
}
