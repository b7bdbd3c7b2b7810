//! Several byte strings in one reference-counted buffer.
//!
//! An event or a message consists of many small strings. Separate strings would cost one allocation each, for every
//! event. A packed buffer costs one allocation, is cloned by reference counting, and is stored unchanged. The code of
//! this module must never depend on the meaning of the strings.

use bytes::{BufMut, Bytes, BytesMut};

/// The error that the bytes are not the stored form of an event or message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpackError(
    /// The part of the event or message that could not be decoded.
    pub &'static str,
);

impl std::fmt::Display for UnpackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed or truncated: {}", self.0)
    }
}

impl std::error::Error for UnpackError {}

/// `N` byte strings in one buffer. The last string is the payload, which may be large.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PackedStrings<const N: usize> {
    /// The offset at which each string ends, in bytes from the start of the first string.
    ends: [u32; N],
    buffer: Bytes,
}

impl<const N: usize> PackedStrings<N> {
    /// Copies the parts into one buffer. The total size must stay below 4 GiB; `runtime.event_size`, at most 64 MiB,
    /// ensures this.
    pub(crate) fn new(parts: [&[u8]; N]) -> Self {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        assert!(u32::try_from(total).is_ok(), "packed parts exceed 4 GiB");
        let mut buffer = BytesMut::with_capacity(total);
        let mut ends = [0; N];
        for (end, part) in ends.iter_mut().zip(parts) {
            buffer.put_slice(part);
            *end = buffer.len() as u32;
        }
        Self { ends, buffer: buffer.freeze() }
    }

    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        start..self.ends[index] as usize
    }

    pub(crate) fn bytes(&self, index: usize) -> &[u8] {
        &self.buffer[self.range(index)]
    }

    /// Returns the string at `index` as text. The string must be one of the text parts. Text parts are always UTF-8:
    /// `new` gets the bytes of a `str` for each text part, and `decode` checks the text parts.
    pub(crate) fn text(&self, index: usize) -> &str {
        std::str::from_utf8(self.bytes(index)).expect("text parts are UTF-8")
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for end in self.ends {
            out.put_u32_le(end);
        }
        out.extend_from_slice(&self.buffer);
    }

    pub(crate) fn encoded_len(&self) -> usize {
        4 * N + self.buffer.len()
    }

    /// Decodes the output of [`Self::encode`]. Returns an error if `input` is not such an output, or if one of the
    /// first `texts` strings is not UTF-8.
    pub(crate) fn decode(mut input: Bytes, texts: usize) -> Result<Self, UnpackError> {
        use bytes::Buf;
        if input.len() < 4 * N {
            return Err(UnpackError("lengths"));
        }
        let mut ends = [0; N];
        let mut last = 0;
        for end in &mut ends {
            *end = input.get_u32_le();
            if *end < last {
                return Err(UnpackError("lengths"));
            }
            last = *end;
        }
        if last as usize != input.len() {
            return Err(UnpackError("content"));
        }
        let packed = Self { ends, buffer: input };
        for index in 0..texts {
            if std::str::from_utf8(packed.bytes(index)).is_err() {
                return Err(UnpackError("text"));
            }
        }
        Ok(packed)
    }
}

pub(crate) fn pack_headers<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in headers {
        for text in [name, value] {
            out.put_u32_le(text.len() as u32);
            out.put_slice(text.as_bytes());
        }
    }
    out
}

/// An iterator over the headers of an event or a message: name and value pairs, in their stored order.
#[derive(Clone, Debug)]
pub struct HeaderIter<'a> {
    rest: &'a [u8],
}

impl<'a> HeaderIter<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn check(mut self) -> Result<(), UnpackError> {
        while !self.rest.is_empty() {
            self.next().ok_or(UnpackError("headers"))?;
        }
        Ok(())
    }

    fn text(&mut self) -> Option<&'a str> {
        let (length, rest) = self.rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        let (text, rest) = rest.split_at_checked(length)?;
        self.rest = rest;
        std::str::from_utf8(text).ok()
    }
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.text()?, self.text()?))
    }
}
