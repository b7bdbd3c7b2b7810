//! Feeds arbitrary bytes to the decoder of a broker's messages.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ordain_fuzz_targets::delivery(bytes));
