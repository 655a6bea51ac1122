//! `fairlead-contest`: judges a directory of CNI plugins beside the reference plugins.
//!
//! Starts itself again in mount and process namespaces of its own, so that whatever a case leaves behind, even when
//! the program is killed, dies with it.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

mod own_namespaces;
mod runner;

fn main() -> ExitCode {
    match runner::run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // When standard error is gone too, nobody is left to report that to.
            writeln!(std::io::stderr(), "fairlead-contest: {error}").ok();
            ExitCode::from(2)
        }
    }
}
