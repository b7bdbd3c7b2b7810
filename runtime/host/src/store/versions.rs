//! Which version of its handler executes the events of a stream: what a store keeps of it.
//!
//! As a text, `GENERATION DIGEST VERSION`: it stands beside leases, which people read as well.

use ordain_core::Decided;

/// As it is kept.
pub(super) fn encode(decided: &Decided) -> String {
    let digest: String = decided.digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} {digest} {}", decided.generation, decided.version)
}

/// What is kept. What cannot be read is no decision: the next one mends it.
pub(super) fn decode(text: &str) -> Option<Decided> {
    let mut words = text.splitn(3, ' ');
    let (generation, digest, version) = (words.next()?, words.next()?, words.next()?);
    let generation = generation.parse().ok().filter(|it| (1..LAST).contains(it))?;
    Some(Decided { generation, digest: parse_digest(digest)?, version: version.into() })
}

/// Where generations end: scripts count without holes up to there.
const LAST: u64 = 1 << 52;

/// A digest as people read it.
pub fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != digest.len() || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_comes_back_and_nothing_else_is_one() {
        let decided = Decided { generation: 7, digest: [0xa5; 32], version: "orders@1.2.3".into() };
        let text = encode(&decided);
        assert_eq!(decode(&text), Some(decided));
        for strange in [
            "",
            "7",
            &text[..40],
            &text.replacen('7', "0", 1),
            &text.replacen('7', "4503599627370496", 1),
            &text.replacen("a5", "g5", 1),
            &text.replacen("a5", "a5a5", 1),
        ] {
            assert_eq!(decode(strange), None, "{strange}");
        }
    }
}
