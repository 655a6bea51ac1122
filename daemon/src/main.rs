//! `fairleadd`, the node daemon and the operator's commands.

use std::process::ExitCode;

use clap::Parser as _;
use fairlead_daemon::cli::{self, Cli};

fn main() -> ExitCode {
    match cli::main(Cli::parse()) {
        Ok(status) => status,
        Err(error) => {
            // The one place where this program speaks to a person about its own failure.
            #[allow(clippy::print_stderr)]
            {
                eprintln!("fairleadd: {error}");
            }
            error.exit_status()
        }
    }
}
