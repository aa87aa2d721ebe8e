//! See [`callsight_fuzz::config`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| callsight_fuzz::config(data));
