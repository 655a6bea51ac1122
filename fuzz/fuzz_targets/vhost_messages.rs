//! The guided run of [`fairlead_fuzz::vhost_messages`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairlead_fuzz::vhost_messages(data));
