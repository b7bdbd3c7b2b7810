//! What the fuzzer calls: every place where bytes from outside become values, with what must be
//! true of them whatever the bytes are. That nothing panics is checked by itself.
//!
//! `fuzz/` makes a program of each target; `cargo xtask fuzz` runs them. The test below runs what
//! lies in `fuzz/corpus`: what they begin with, and whatever has ever made one fail.

mod incoming;
mod stored;

pub use incoming::{config, delivery, line, request, text};
pub use stored::{packed, record};

use ordain_core::{Event, SEQUENCE_END};

use ordain_cloudevents::{ATTRIBUTE_LIMIT, HEADERS_LIMIT, HEADERS_SIZE_LIMIT};
use ordain_store::KEY_SIZE_LIMIT;

/// Takes any bytes; panics where something is not as it must be.
pub type Target = fn(&[u8]);

/// All of them, by name.
pub const TARGETS: [(&str, Target); 7] = [
    ("config", config),
    ("delivery", delivery),
    ("line", line),
    ("packed", packed),
    ("record", record),
    ("request", request),
    ("text", text),
];

/// What holds for every event that a decoder has taken.
fn judge(event: &Event) {
    assert!((1..=KEY_SIZE_LIMIT).contains(&event.key().len()), "a key within its limit");
    assert!(event.sequence().is_none_or(|it| it < SEQUENCE_END), "a number within its limit");
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
    fn what_is_known_is_taken() {
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
