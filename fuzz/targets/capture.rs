//! See [`callsight_fuzz::capture`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| callsight_fuzz::capture(data));
