//! The targets of the fuzzer. Each target gives arbitrary bytes to Ordain's decoders for one kind of data, and checks
//! properties that must hold for all bytes. The fuzzer itself checks that no target panics.
//!
//! `fuzz/` makes a program of each target, and `cargo xtask fuzz` runs these programs. The test below runs each target
//! on its files in `fuzz/corpus`: the initial inputs, and every input that ever made the target fail.

mod incoming;
mod stored;

pub use incoming::{config, delivery, line, request, text};
pub use stored::{packed, record};

use ordain_core::{Event, SEQUENCE_END};

use ordain_cloudevents::{ATTRIBUTE_LIMIT, HEADERS_LIMIT, HEADERS_SIZE_LIMIT};
use ordain_store::KEY_SIZE_LIMIT;

/// A function that accepts any bytes, and panics if a property does not hold.
pub type Target = fn(&[u8]);

/// All targets, by name.
pub const TARGETS: [(&str, Target); 7] = [
    ("config", config),
    ("delivery", delivery),
    ("line", line),
    ("packed", packed),
    ("record", record),
    ("request", request),
    ("text", text),
];

/// Checks an event that a decoder has accepted.
fn judge(event: &Event) {
    assert!((1..=KEY_SIZE_LIMIT).contains(&event.key().len()), "a key within its limit");
    assert!(
        event.sequence().is_none_or(|sequence| sequence < SEQUENCE_END),
        "a number within its limit"
    );
    for attribute in [event.id(), event.kind(), event.source(), event.content_type()] {
        assert!(attribute.len() <= ATTRIBUTE_LIMIT, "attributes within their limit");
    }
    let size: usize = event.headers().map(|(name, value)| name.len() + value.len()).sum();
    assert!(event.headers().count() <= HEADERS_LIMIT, "headers within their limit");
    assert!(size <= HEADERS_SIZE_LIMIT, "headers within their size");
    stored::stays_the_same(event);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn targets_accept_the_corpus() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        for (name, target) in TARGETS {
            let files = fs::read_dir(corpus.join(name)).expect("a corpus of every target");
            let mut count = 0;
            for file in files {
                let path = file.expect("a file").path();
                target(&fs::read(&path).expect("readable"));
                count += 1;
            }
            assert!(count > 0, "nothing in the corpus of {name}");
        }
    }
}
