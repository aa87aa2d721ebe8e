//! See [`callsight_fuzz::resync`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| callsight_fuzz::resync(data));
