//! See [`callsight_fuzz::ring`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| callsight_fuzz::ring(data));
