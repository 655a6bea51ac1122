//! The guided run of [`fairlead_fuzz::annotations`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairlead_fuzz::annotations(data));
