//! Digests of JSON. Three things do not change the digest of a JSON text: the white space between its parts, the
//! escapes of its strings, and the order of the members of its objects. A producer, or a library that sends an event
//! again, may change these three things.
//!
//! All other differences change the digest. In particular, the digest of a number is the digest of the text that the
//! producer wrote. `1` and `1.0` therefore differ, because some readers treat them as different values. If several
//! members of an object have the same name, the order of these members does not change the digest either.
//!
//! Every JSON event gets such a digest, so the computation must be fast. It reads the text once, from the beginning to
//! the end, in words of eight bytes. It needs no memory besides the stack. The digest of an object is the sum of the
//! digests of its members, because a sum does not depend on the order of the members.
//!
//! The digests are part of the storage format: key records, accepted ids, spilled events and retained messages contain
//! them.

/// Maximum nesting of arrays and objects. Deeper JSON has no digest. A CloudEvent in JSON that Ordain accepts has at
/// most this nesting. The limit also prevents an overflow of the stack by the recursion.
const NESTING_LIMIT: u32 = 127;

/// Arbitrary numbers for [`mix`].
const LEFT_MASK: u64 = 0xa076_1d64_78bd_642f;
const RIGHT_MASK: u64 = 0xe703_7ed1_a0b4_28db;
/// Arbitrary seeds, so that for example the number 1 and the string "1" have different digests.
const TEXT_SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const NUMBER_SEED: u64 = 0xc2b2_ae3d_27d4_eb4f;
const WORD_SEED: u64 = 0x1656_67b1_9e37_79f9;
const ARRAY_SEED: u64 = 0x85eb_ca77_c2b2_ae63;
const OBJECT_SEED: u64 = 0x27d4_eb2f_1656_67c5;

/// Returns whether a media type is JSON: `application/json`, `text/json`, `…+json`.
pub fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim_end();
    let ends = |suffix: &str| {
        kind.len() >= suffix.len()
            && kind.as_bytes()[kind.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
    };
    ends("/json") || ends("+json")
}

/// Returns the digest of a JSON text. Returns `None` if the text is not JSON in UTF-8, or is nested deeper than 127
/// levels. The function permits control characters inside strings, although JSON does not.
pub fn json_digest(text: &[u8]) -> Option<u64> {
    let mut reader = JsonReader { text, at: 0, bits: 0 };
    let digest = reader.value(NESTING_LIMIT)?;
    reader.skip_blanks();
    let is_valid = reader.at == text.len()
        && (reader.bits & HIGH_BITS == 0 || std::str::from_utf8(text).is_ok());
    is_valid.then_some(digest)
}

/// Combines a digest `a` with the next number `b`. The result depends on the order of the two. If `b` is `RIGHT_MASK`,
/// the product is 0, but the result still depends on `a`.
fn mix(a: u64, b: u64) -> u64 {
    let a = a ^ LEFT_MASK;
    let b = b ^ RIGHT_MASK;
    let product = u128::from(a) * u128::from(b);
    a.rotate_left(32) ^ b ^ product as u64 ^ (product >> 64) as u64
}

/// The digest of a sequence of bytes. The caller adds the bytes in pieces of any size.
struct ByteDigest {
    /// The digest of the complete words.
    digest: u64,
    /// The bytes of the incomplete word, the first byte in the lowest bits.
    word: u64,
    len: u64,
}

impl ByteDigest {
    fn new(digest: u64) -> Self {
        Self { digest, word: 0, len: 0 }
    }

    /// Adds eight bytes. The incomplete word must be empty.
    fn add_word(&mut self, word: u64) {
        self.digest = mix(self.digest, word);
        self.len += 8;
    }

    fn add_byte(&mut self, byte: u8) {
        self.word |= u64::from(byte) << (8 * (self.len % 8));
        self.len += 1;
        if self.len.is_multiple_of(8) {
            self.digest = mix(self.digest, self.word);
            self.word = 0;
        }
    }

    fn finish(self) -> u64 {
        mix(self.digest.wrapping_add(self.len), self.word)
    }
}

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte. A character that is not ASCII consists of bytes with this bit.
const HIGH_BITS: u64 = LOW_BITS << 7;

/// Returns a word whose lowest set bit is the highest bit of the first zero byte of `word`. Returns 0 if no byte of
/// `word` is 0. The bits above the lowest set bit have no meaning.
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
}

/// A reader that computes the digest of the value at its position.
struct JsonReader<'a> {
    text: &'a [u8],
    at: usize,
    /// The bitwise OR of all words and single bytes that the reader has read in strings. A word contains eight bytes,
    /// and may also contain bytes after the end of its string.
    bits: u64,
}

/// Returns the digest of a number, or of `true`, `false` or `null`.
fn token_digest(kind: u64, bytes: &[u8]) -> u64 {
    let mut digest = ByteDigest::new(kind);
    for byte in bytes {
        digest.add_byte(*byte);
    }
    digest.finish()
}

impl JsonReader<'_> {
    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    fn peek(&mut self) -> Option<u8> {
        self.skip_blanks();
        self.text.get(self.at).copied()
    }

    fn take(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Returns whether it has skipped the byte.
    fn skip(&mut self, byte: u8) -> bool {
        let is_next = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Returns the digest of the next value, which may contain arrays and objects up to `levels` deep.
    fn value(&mut self, levels: u32) -> Option<u64> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' => self.object(levels.checked_sub(1)?),
            b'[' => self.array(levels.checked_sub(1)?),
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.word(),
        }
    }

    fn object(&mut self, levels: u32) -> Option<u64> {
        self.at += 1;
        let mut sum = 0_u64;
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(mix(OBJECT_SEED, sum));
        }
        loop {
            if self.peek()? != b'"' {
                return None;
            }
            let name = self.string()?;
            if self.take()? != b':' {
                return None;
            }
            let member = mix(name, self.value(levels)?);
            sum = sum.wrapping_add(member);
            match self.take()? {
                b',' => {}
                b'}' => return Some(mix(OBJECT_SEED, sum)),
                _ => return None,
            }
        }
    }

    fn array(&mut self, levels: u32) -> Option<u64> {
        self.at += 1;
        let mut digest = ARRAY_SEED;
        if self.peek()? == b']' {
            self.at += 1;
            return Some(digest);
        }
        loop {
            digest = mix(digest, self.value(levels)?);
            match self.take()? {
                b',' => {}
                b']' => return Some(digest),
                _ => return None,
            }
        }
    }

    fn word(&mut self) -> Option<u64> {
        let rest = &self.text[self.at..];
        let word =
            [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word))?;
        self.at += word.len();
        Some(token_digest(WORD_SEED, word))
    }

    fn number(&mut self) -> Option<u64> {
        let start = self.at;
        self.skip(b'-');
        if !self.skip(b'0') {
            self.digits()?;
        }
        if self.skip(b'.') {
            self.digits()?;
        }
        if self.skip(b'e') || self.skip(b'E') {
            if !self.skip(b'+') {
                self.skip(b'-');
            }
            self.digits()?;
        }
        Some(token_digest(NUMBER_SEED, &self.text[start..self.at]))
    }

    /// Returns `None` if there is no digit.
    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    /// Returns the digest of the characters of a string. The next byte is the opening quote.
    fn string(&mut self) -> Option<u64> {
        const QUOTE_BYTES: u64 = u64::from_le_bytes([b'"'; 8]);
        const BACKSLASH_BYTES: u64 = u64::from_le_bytes([b'\\'; 8]);
        let mut digest = ByteDigest::new(TEXT_SEED);
        self.at += 1;
        while let Some(bytes) = self.text.get(self.at..).and_then(<[u8]>::first_chunk) {
            let word = u64::from_le_bytes(*bytes);
            self.bits |= word;
            let special = zero_bytes(word ^ QUOTE_BYTES) | zero_bytes(word ^ BACKSLASH_BYTES);
            if special == 0 {
                digest.add_word(word);
                self.at += 8;
                continue;
            }
            let before = special.trailing_zeros() / 8;
            if bytes[before as usize] == b'\\' {
                break;
            }
            digest.word = word & ((1 << (8 * before)) - 1);
            digest.len += u64::from(before);
            self.at += before as usize + 1;
            return Some(digest.finish());
        }
        self.rest_of_string(digest)
    }

    /// In contrast to [`Self::string`], reads single bytes and escapes.
    fn rest_of_string(&mut self, mut digest: ByteDigest) -> Option<u64> {
        loop {
            let byte = *self.text.get(self.at)?;
            self.at += 1;
            self.bits |= u64::from(byte);
            match byte {
                b'"' => return Some(digest.finish()),
                b'\\' => {
                    let character = self.escape()?;
                    let mut buffer = [0; 4];
                    for byte in character.encode_utf8(&mut buffer).bytes() {
                        digest.add_byte(byte);
                    }
                }
                byte => digest.add_byte(byte),
            }
        }
    }

    /// Starts after the backslash. Returns `None` for an escape that JSON does not define, and for one half of a
    /// surrogate pair.
    fn escape(&mut self) -> Option<char> {
        let kind = *self.text.get(self.at)?;
        self.at += 1;
        Some(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return None,
        })
    }

    fn unicode_escape(&mut self) -> Option<char> {
        let first = self.hex_digits()?;
        if let Some(character) = char::from_u32(first.into()) {
            return Some(character);
        }
        if !(self.skip(b'\\') && self.skip(b'u')) {
            return None;
        }
        let second = self.hex_digits()?;
        char::decode_utf16([first, second]).next()?.ok()
    }

    fn hex_digits(&mut self) -> Option<u16> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        let mut number = 0;
        for digit in digits {
            number = (number << 4) | char::from(*digit).to_digit(16)?;
        }
        u16::try_from(number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Option<u64> {
        json_digest(text.as_bytes())
    }

    /// Each group contains the same value in several forms. Different groups contain different values.
    #[test]
    fn only_the_form_of_a_value_does_not_count() {
        let long = format!("{}ü", "x".repeat(300));
        let long_forms = [format!("\"{long}\""), format!("\"{}\"", long.replace('ü', "\\u00FC"))];
        let groups: [&[&str]; 32] = [
            &["null", " null\n"],
            &["true"],
            &["false"],
            &["1", "\t1\r\n"],
            &["1.0"],
            &["1e0"],
            &["-1"],
            &["0"],
            &["-0"],
            &["12"],
            &["[1,2]", "[ 1 , 2 ]"],
            &["[2,1]"],
            &["[12]"],
            &["[[1],2]"],
            &["[[1,2]]"],
            &["[]", "[ ]"],
            &["[[]]"],
            &["{}", "{\n}"],
            &["[{}]"],
            &["\"\""],
            &["\"1\"", r#""\u0031""#],
            &["\"true\""],
            &["\"ü\"", r#""\u00fc""#, r#""\u00FC""#],
            &["\"u\u{308}\""],
            &["\"😀/\\n\"", r#""\ud83d\ude00\/\n""#, r#""\uD83D\uDE00\u002f\u000a""#],
            &[r#""\"\\\b\f\r\t""#, r#""\u0022\u005c\u0008\u000c\u000d\u0009""#],
            &[
                r#"{"a":1,"b":{"c":[true,null],"d":"e"}}"#,
                r#"{ "b" : { "d" : "e", "c" : [ true, null ] }, "a" : 1 }"#,
                r#"{"\u0061":1,"b":{"d":"\u0065","c":[true,null]}}"#,
            ],
            &[r#"{"a":1,"b":{"d":[true,null],"c":"e"}}"#],
            &[r#"{"b":1,"a":2}"#, r#"{"a":2,"b":1}"#],
            &[r#"{"a":1,"b":2}"#],
            &[r#"{"a":1,"a":1}"#],
            &[&long_forms[0], &long_forms[1]],
        ];
        let mut digests = Vec::new();
        for group in groups {
            let digest = json(group[0]);
            assert!(digest.is_some_and(|digest| !digests.contains(&digest)), "{}", group[0]);
            for text in group {
                assert_eq!(json(text), digest, "{text}");
            }
            digests.extend(digest);
        }
    }

    #[test]
    fn text_that_is_not_json_has_no_digest() {
        for text in [
            "",
            " ",
            "nul",
            "nullx",
            "True",
            "+1",
            "01",
            "1.",
            ".5",
            "1e",
            "1e+",
            "-",
            "1 2",
            "\"",
            "\"a",
            "\"\\",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u+123\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\udc00\\ud800\"",
            "[",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "{a:1}",
            "{1:1}",
            "{}{}",
            "]",
            "}",
            "'a'",
        ] {
            assert_eq!(json(text), None, "{text}");
        }
    }

    #[test]
    fn nesting_is_limited() {
        for (begin, end) in [("[", "]"), ("{\"a\":", "}")] {
            let nested = |levels: usize| begin.repeat(levels) + "1" + &end.repeat(levels);
            assert!(json(&nested(NESTING_LIMIT as usize)).is_some());
            for levels in [NESTING_LIMIT as usize + 1, 100_000] {
                assert_eq!(json(&nested(levels)), None);
            }
        }
    }

    #[test]
    fn text_that_is_not_utf_8_has_no_digest() {
        let right = RIGHT_MASK.to_le_bytes();
        for string in [&b"\xfc"[..], b"abcdefg\xc3", b"\xed\xa0\x80 in a longer string", &right] {
            for text in [[b"\"", string, b"\""].concat(), [b"{\"", string, b"\":1}"].concat()] {
                assert_eq!(json_digest(&text), None, "{text:?}");
            }
        }
        assert!(json_digest(b"\"\xc3\xbc\"").is_some());
    }

    /// For each second argument, the result of [`mix`] depends on the first argument: the digest of the earlier
    /// numbers.
    #[test]
    fn digest_depends_on_all_earlier_numbers() {
        for number in [0, LEFT_MASK, RIGHT_MASK, u64::MAX] {
            let digests = [1, 2, RIGHT_MASK].map(|earlier| mix(mix(7, earlier), number));
            assert!(digests[0] != digests[1] && digests[1] != digests[2], "{number:x}");
            assert_ne!(mix(mix(7, 1), number), mix(mix(7, number), 1), "{number:x}");
        }
    }

    /// The digests are part of the storage format. Another implementation computed this digest.
    #[test]
    fn digests_stay_the_same_in_all_versions() {
        let text = br#"{"a":[1,"x",null],"b":{}}"#;
        assert_eq!(json_digest(text), Some(0x6003_1ca2_18f4_c6fe));
    }

    #[test]
    fn media_types_of_json_are_recognised() {
        for kind in ["application/json", "Text/JSON", "application/a+json ; charset=utf-8"] {
            assert!(is_json(kind), "{kind}");
        }
        for kind in
            ["", "json", "application/jsonl", "text/plain", "text/plain; a=application/json"]
        {
            assert!(!is_json(kind), "{kind}");
        }
    }
}
