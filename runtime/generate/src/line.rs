//! Formats an event as a line: a CloudEvent in JSON. This module uses no JSON library, because it writes millions of
//! lines and none of their values needs escaping.
#![allow(clippy::doc_markdown, reason = "CloudEvents is a name, not code")]

use std::io::Write;

use super::arrivals::TimeFormatter;
use super::options::{EventShape, LoadOptions, PayloadSize};
use super::orders::{self, OrderStep};
use super::random::{RandomPurpose, SeededRandom};

/// Default size of opaque data, in bytes.
const DEFAULT_OPAQUE_BYTES: u64 = 256;

/// The values of an event that the formatter writes into the line.
pub(super) struct LineFields<'a> {
    pub(super) key: &'a str,
    pub(super) sequence: u64,
    /// The step of an order; `None` for opaque data.
    pub(super) step: Option<OrderStep>,
    pub(super) time_ns: u64,
    pub(super) end: bool,
}

/// A formatter of lines.
pub(super) struct LineFormatter {
    random: SeededRandom,
    payload: Option<PayloadSize>,
    time: TimeFormatter,
}

impl LineFormatter {
    pub(super) fn new(load: &LoadOptions) -> Self {
        let payload = match (&load.payload, load.shape) {
            (None, EventShape::Opaque) => {
                Some(PayloadSize(DEFAULT_OPAQUE_BYTES..=DEFAULT_OPAQUE_BYTES))
            }
            (payload, _) => payload.clone(),
        };
        Self {
            random: SeededRandom::new(load.seed, RandomPurpose::Payloads),
            payload,
            time: TimeFormatter::default(),
        }
    }

    /// Appends a line, including its line end.
    pub(super) fn write(&mut self, parts: &LineFields<'_>, out: &mut Vec<u8>) {
        let LineFields { key, sequence, step, time_ns, end } = parts;
        let kind = step.map_or("opaque", |step| step.kind);
        // Writing to memory cannot fail.
        let _ = write!(
            out,
            "{{\"specversion\":\"1.0\",\"id\":\"{key}/{sequence}\",\"source\":\"/generate\",\
             \"type\":\"{kind}\",\"subject\":\"{key}\",\"sequence\":\"{sequence}\",\"time\":\""
        );
        self.time.write(*time_ns, out);
        out.extend_from_slice(if *end { b"\",\"endofsequence\":true" } else { b"\"" });
        out.extend_from_slice(b",\"data\":");
        self.data(*step, out);
        out.extend_from_slice(b"}\n");
    }

    fn data(&mut self, step: Option<OrderStep>, out: &mut Vec<u8>) {
        const PAD_PREFIX: &[u8] = b",\"pad\":\"";
        let start = out.len();
        let size = self.size();
        let Some(step) = step else {
            out.push(b'"');
            self.pad(size.saturating_sub(2), out);
            out.push(b'"');
            return;
        };
        orders::data(step, out);
        let rest = size.saturating_sub(out.len() - start);
        if rest > PAD_PREFIX.len() + 1 {
            out.extend_from_slice(PAD_PREFIX);
            self.pad(rest - PAD_PREFIX.len() - 2, out);
            out.push(b'"');
        }
        out.push(b'}');
    }

    /// Returns a random size of the data within the requested range, in bytes. Returns 0 if no size is requested: the
    /// content then determines the size.
    fn size(&mut self) -> usize {
        let Some(PayloadSize(range)) = &self.payload else { return 0 };
        let spread = range.end() - range.start();
        (range.start() + self.random.below(spread + 1)) as usize
    }

    /// Appends random text with 6 random bits in each letter, so that compression does not shrink the text much.
    fn pad(&mut self, mut size: usize, out: &mut Vec<u8>) {
        const PAD_ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        while size > 0 {
            let mut word = self.random.next();
            let letters = [(); 10].map(|()| {
                let letter = PAD_ALPHABET[(word % 64) as usize];
                word /= 64;
                letter
            });
            let some = size.min(letters.len());
            out.extend_from_slice(&letters[..some]);
            size -= some;
        }
    }
}
