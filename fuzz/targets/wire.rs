//! See [`callsight_fuzz::wire`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| callsight_fuzz::wire(data));
