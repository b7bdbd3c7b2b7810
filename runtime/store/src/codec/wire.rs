//! Reading and writing the parts of a record. Must never trust a length before it has been
//! compared with what is there.

use ordain_core::Malformed;

/// Stored bytes that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// Written by another version, or not a record at all.
    #[error("the {record} has format {found}, and this version reads format {known}")]
    Format {
        /// What was being read.
        record: &'static str,
        /// The byte found.
        found: u8,
        /// The byte expected.
        known: u8,
    },
    /// A part is cut off, or is not a value that it can have.
    #[error("the {record} is damaged at its {part}")]
    Part {
        /// What was being read.
        record: &'static str,
        /// The part.
        part: &'static str,
    },
    /// There is more than one record's bytes.
    #[error("the {record} is damaged: {bytes} bytes follow its end")]
    Trailing {
        /// What was being read.
        record: &'static str,
        /// How many bytes.
        bytes: usize,
    },
    /// An event or a message in it cannot be read.
    #[error("the {record} is damaged: {cause}")]
    Content {
        /// What was being read.
        record: &'static str,
        /// What the event or message misses.
        cause: Malformed,
    },
}

/// Takes a record apart, from front to back.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    record: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Begins with the format byte, which must be `known`.
    pub fn new(record: &'static str, bytes: &'a [u8], known: u8) -> Result<Self, Undecodable> {
        let mut reader = Self { record, rest: bytes };
        let found = reader.u8("format")?;
        if found == known { Ok(reader) } else { Err(Undecodable::Format { record, found, known }) }
    }

    /// Begins with a part that has no format byte, since it is part of another record.
    pub fn bare(record: &'static str, bytes: &'a [u8]) -> Self {
        Self { record, rest: bytes }
    }

    /// The error of a part.
    pub fn bad(&self, part: &'static str) -> Undecodable {
        Undecodable::Part { record: self.record, part }
    }

    /// The error of an event or a message.
    pub fn content(&self, cause: Malformed) -> Undecodable {
        Undecodable::Content { record: self.record, cause }
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether all is read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// That all is read.
    pub fn end(&self) -> Result<(), Undecodable> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(Undecodable::Trailing { record: self.record, bytes }),
        }
    }

    /// A number of fixed width, as bytes.
    pub fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], Undecodable> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.bad(part))?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    pub fn u8(&mut self, part: &'static str) -> Result<u8, Undecodable> {
        Ok(u8::from_le_bytes(self.array(part)?))
    }

    /// Four bytes.
    pub fn u32(&mut self, part: &'static str) -> Result<u32, Undecodable> {
        Ok(u32::from_le_bytes(self.array(part)?))
    }

    /// Eight bytes.
    pub fn u64(&mut self, part: &'static str) -> Result<u64, Undecodable> {
        Ok(u64::from_le_bytes(self.array(part)?))
    }

    /// What [`put_varint`] wrote.
    pub fn varint(&mut self, part: &'static str) -> Result<u64, Undecodable> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(part)?;
            // The tenth byte has room for one bit.
            if shift == 63 && byte > 1 {
                return Err(self.bad(part));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.bad(part))
    }

    /// What [`put_varint`] wrote, where it must fit 32 bits.
    pub fn varint32(&mut self, part: &'static str) -> Result<u32, Undecodable> {
        u32::try_from(self.varint(part)?).map_err(|_| self.bad(part))
    }

    /// So many bytes.
    pub fn take(&mut self, count: usize, part: &'static str) -> Result<&'a [u8], Undecodable> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.bad(part))?;
        self.rest = rest;
        Ok(head)
    }

    /// Bytes with their length before them.
    pub fn bytes(&mut self, part: &'static str) -> Result<&'a [u8], Undecodable> {
        let length = self.varint(part)?;
        let length = usize::try_from(length).map_err(|_| self.bad(part))?;
        self.take(length, part)
    }

    /// Such bytes, where they are a text.
    pub fn text(&mut self, part: &'static str) -> Result<&'a str, Undecodable> {
        let bytes = self.bytes(part)?;
        std::str::from_utf8(bytes).map_err(|_| self.bad(part))
    }

    /// Such a text, or none.
    pub fn option(&mut self, part: &'static str) -> Result<Option<&'a str>, Undecodable> {
        match self.u8(part)? {
            0 => Ok(None),
            1 => self.text(part).map(Some),
            _ => Err(self.bad(part)),
        }
    }
}

/// Appends a number in as many bytes as it needs, seven bits each.
pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends bytes with their length before them.
pub(super) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Appends a text that may be missing.
pub(super) fn put_option(text: Option<&str>, out: &mut Vec<u8>) {
    match text {
        None => out.push(0),
        Some(text) => {
            out.push(1);
            put_bytes(text.as_bytes(), out);
        }
    }
}
