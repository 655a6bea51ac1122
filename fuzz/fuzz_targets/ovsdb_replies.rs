//! The guided run of [`fairlead_fuzz::ovsdb_replies`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairlead_fuzz::ovsdb_replies(data));
