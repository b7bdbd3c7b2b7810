//! The targets of the fuzzer. Each target passes arbitrary bytes to Ordain's decoders for one kind of data, and checks
//! properties that must hold for all bytes. The fuzzer itself checks that no target panics.
//!
//! `fuzz/` makes a program of each target, and `cargo xtask fuzz` runs these programs. The test below runs each target
//! on its files in `fuzz/corpus`: the initial inputs, and inputs that once made the target fail.

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

/// Checks the limits of an event that a decoder has accepted. Also encodes the event in the store's form, and checks
/// that the decoded form is the same event.
fn check_event(event: &Event) {
    assert!((1..=KEY_SIZE_LIMIT).contains(&event.key().len()), "the key is empty or too long");
    assert!(
        event.sequence().is_none_or(|sequence| sequence < SEQUENCE_END),
        "the sequence exceeds its limit"
    );
    for attribute in [event.id(), event.kind(), event.source(), event.content_type()] {
        assert!(attribute.len() <= ATTRIBUTE_LIMIT, "an attribute exceeds its size limit");
    }
    let size: usize = event.headers().map(|(name, value)| name.len() + value.len()).sum();
    assert!(event.headers().count() <= HEADERS_LIMIT, "the number of headers exceeds its limit");
    assert!(size <= HEADERS_SIZE_LIMIT, "the headers exceed their size limit");
    stored::check_event_round_trip(event);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn properties_hold_for_every_input_of_the_corpus() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        for (name, target) in TARGETS {
            let files = fs::read_dir(corpus.join(name)).expect("the corpus of the target");
            let mut count = 0;
            for file in files {
                let path = file.expect("a file").path();
                target(&fs::read(&path).expect("a readable file"));
                count += 1;
            }
            assert!(count > 0, "the corpus of {name} is empty");
        }
    }
}
