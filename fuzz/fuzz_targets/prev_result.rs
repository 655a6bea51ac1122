//! The guided run of [`fairlead_fuzz::prev_result`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairlead_fuzz::prev_result(data));
