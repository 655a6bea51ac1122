//! The guided run of [`fairlead_fuzz::netlink`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fairlead_fuzz::netlink(data));
