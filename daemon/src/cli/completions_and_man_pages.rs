//! What is made of the command line's own description: completions of a shell, pages of the manual.

use std::io;
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, table};

/// Prints the completions for a shell, to be put where that looks for them.
pub(super) fn completions(shell: Shell) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fairleadd", &mut script);
    table::print(&String::from_utf8_lossy(&script))
}

/// Writes a page for the program and one for each of its commands into a directory, which is made where it is missing.
pub(super) fn man_pages(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command(), dir)
}
