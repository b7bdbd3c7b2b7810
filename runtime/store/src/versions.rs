//! The stored form of a rollout: the numbered record of the handler version that executes the events of a stream.
//!
//! The form is the text `NUMBER DIGEST VERSION`, so that users who inspect the store can read the rollouts.

use ordain_core::{Build, Rollout};

/// Encodes a rollout for the store.
pub fn encode(rollout: &Rollout) -> String {
    let Rollout { number, build: Build { version, digest } } = rollout;
    format!("{number} {digest} {version}")
}

/// The maximum length of a version's name, in bytes. The name is formed from the name of a handler's file, and is
/// therefore never longer.
const VERSION_NAME_LIMIT: usize = 256;

/// Returns whether a text is valid as a version's name: not empty, not too long, and without control characters.
pub fn is_version(text: &str) -> bool {
    (1..=VERSION_NAME_LIMIT).contains(&text.len()) && !text.contains(char::is_control)
}

/// Decodes a rollout. Returns `None` for an unreadable rollout; the next rollout replaces it.
pub fn decode(text: &str) -> Option<Rollout> {
    let mut words = text.splitn(3, ' ');
    let number = words.next()?;
    let digest = words.next()?;
    let version = words.next()?;
    let number = number.parse().ok().filter(|number| (1..Rollout::NUMBER_END).contains(number))?;
    let build = Build { version: version.into(), digest: digest.parse().ok()? };
    is_version(version).then_some(Rollout { number, build })
}

#[cfg(test)]
mod tests {
    use ordain_core::FileDigest;

    use super::*;

    #[test]
    fn only_valid_rollouts_are_decoded() {
        let build = Build { version: "orders@1.2.3".into(), digest: FileDigest([0xa5; 32]) };
        let decided = Rollout { number: 7, build };
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
            &text.replacen("orders", &"o".repeat(300), 1),
            &text.replacen("orders", "or\nders", 1),
        ] {
            assert_eq!(decode(strange), None, "{strange}");
        }
    }
}
