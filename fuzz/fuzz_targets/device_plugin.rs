//! The guided run of [`fairlead_fuzz::device_plugin`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairlead_fuzz::device_plugin(data));
