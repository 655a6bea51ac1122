//! The guided run of [`fairlead_fuzz::policy_of_definitions`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairlead_fuzz::policy_of_definitions(data));
