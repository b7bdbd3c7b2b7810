//! Feeds arbitrary bytes to the decoders of packed events and messages.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ordain_fuzz_targets::packed(bytes));
