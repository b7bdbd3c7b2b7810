//! Feeds arbitrary bytes to the parser of configurations.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ordain_fuzz_targets::config(bytes));
