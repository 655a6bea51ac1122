//! Named steps at which the crash tests end the daemon with SIGKILL. A release build has none of it.
//!
//! `FAIRLEAD_FAILPOINT=<step>` kills at the first passage of that step, `<step>:<n>` at the n-th.

/// Ends the process here if the variable names this step.
#[cfg(feature = "failpoints")]
pub fn pass(step: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};

    static TARGET: OnceLock<Option<(String, AtomicI64)>> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let value = std::env::var("FAIRLEAD_FAILPOINT").ok()?;
        let (step, n) = value.split_once(':').unwrap_or((&value, "1"));
        Some((step.to_owned(), AtomicI64::new(n.parse().unwrap_or(1))))
    });
    if let Some((wanted, left)) = target
        && wanted == step
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        crate::process::kill_self();
    }
}

/// Nothing, in a build without failpoints.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn pass(_step: &str) {}
