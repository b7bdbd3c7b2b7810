//! Feeds arbitrary bytes to the parser of events in files and request bodies.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ordain_fuzz_targets::line(bytes));
