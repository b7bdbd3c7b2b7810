//! Feeds arbitrary bytes to the decoders of stored records.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ordain_fuzz_targets::record(bytes));
