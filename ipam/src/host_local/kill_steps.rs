//! Steps at which a test ends its own process with SIGKILL, to prove that a kill at any point leaves nothing behind. In any other
//! build they do nothing.

/// All steps, in the order in which an ADD and a DEL reach them.
#[cfg(test)]
pub(super) const ALL: [&str; 7] =
    ["opened", "written", "linked", "cursor", "allocated", "removing", "removed"];

/// The environment variable that names the step.
#[cfg(test)]
pub(super) const VARIABLE: &str = "FAIRLEAD_IPAM_KILLED_AT";

/// Ends the process here if the variable names this step.
#[cfg(test)]
pub(super) fn reach(step: &str) {
    if std::env::var(VARIABLE).is_ok_and(|wanted| wanted == step) {
        nix::sys::signal::raise(nix::sys::signal::SIGKILL).unwrap();
    }
}

#[cfg(not(test))]
#[inline]
pub(super) fn reach(_step: &str) {}
