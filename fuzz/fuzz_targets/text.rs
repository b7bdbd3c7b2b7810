//! Feeds arbitrary bytes to the parsers of short texts, such as cursors and names.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ordain_fuzz_targets::text(bytes));
