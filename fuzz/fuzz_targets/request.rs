//! Feeds arbitrary bytes to the parsers of HTTP requests with events and of replay answers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ordain_fuzz_targets::request(bytes));
