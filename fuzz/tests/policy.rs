//! Definitions in every spelling against a policy, made by chance.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn no_spelling_of_what_a_policy_forbids_passes() {
    let cases = 5_000;
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let allowed = std::cell::Cell::new(0);
    runner
        .run(&prop::collection::vec(any::<u8>(), 0..400), |bytes| {
            // Anything but '{', which would be taken for a text.
            let bytes = [&[0xff, bytes.first().copied().unwrap_or(0)], bytes.as_slice()].concat();
            allowed.set(allowed.get() + u32::from(fairlead_fuzz::policy::definition(&bytes)));
            Ok(())
        })
        .unwrap();
    // Of a policy that refused everything this test would say nothing.
    assert!(allowed.get() > cases / 500, "{} of {cases} were allowed", allowed.get());
}
