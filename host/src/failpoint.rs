//! Named steps at which the crash tests end the daemon with SIGKILL. A release build has none of it.
//!
//! `FAIRLEAD_FAILPOINT=<step>` kills at the first passage of that step, `<step>:<n>` at the n-th.
//! `FAIRLEAD_FAILPOINT_PAUSE=<step>:<file>` makes that file at each passage, and goes on when a test has removed it.

#[cfg(feature = "failpoints")]
use std::sync::OnceLock;

/// Ends the process here, or pauses it, if a variable names this step.
#[cfg(feature = "failpoints")]
pub fn pass(step: &str) {
    use std::sync::atomic::{AtomicI64, Ordering};

    pause(step);
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

/// Waits here, for 20 s at most, until the file that says so is removed.
#[cfg(feature = "failpoints")]
fn pause(step: &str) {
    use std::time::{Duration, Instant};

    static PAUSE: OnceLock<Option<(String, String)>> = OnceLock::new();
    let pause = PAUSE.get_or_init(|| {
        let value = std::env::var("FAIRLEAD_FAILPOINT_PAUSE").ok()?;
        value.split_once(':').map(|(step, file)| (step.to_owned(), file.to_owned()))
    });
    let Some((_, file)) = pause.as_ref().filter(|(wanted, _)| wanted == step) else { return };
    let until = Instant::now() + Duration::from_secs(20);
    if std::fs::write(file, step).is_ok() {
        while std::path::Path::new(file).exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Nothing, in a build without failpoints.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn pass(_step: &str) {}
