//! `install` and `uninstall`: the executable under the plugins' names.

use std::path::Path;

use super::arguments::{InstallArgs, UninstallArgs};
use super::uninstall_check::{self, StillNeeded};
use super::{CliError, table};
use crate::plugin_installation::{self, OWN_NAME};

pub(super) fn install(args: InstallArgs) -> Result<(), CliError> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("fairlead"));
    let from = args.from.map_or_else(beside, Ok)?;
    // All or none: half of what was asked for would be a surprise.
    args.names.iter().try_for_each(|name| plugin_installation::must_be_served(name))?;
    may_change(&args.bin_dir)?;
    for name in &args.names {
        let done = plugin_installation::install(&args.bin_dir, name, &from)?;
        table::print(&format!("{}: {}\n", args.bin_dir.join(name).display(), done.message()))?;
    }
    Ok(())
}

pub(super) fn uninstall(args: UninstallArgs) -> Result<(), CliError> {
    let paths = args.paths();
    let names = match args.names.is_empty() {
        true => plugin_installation::names_with_our_files(&args.bin_dir),
        false => args.names,
    };
    match uninstall_check::needed_by_node(&paths, &args.bin_dir, &names) {
        Some(StillNeeded::Wanted { config }) if args.force => table::print(&format!(
            "{config} says `install: {{cni: present}}`: the daemon puts {OWN_NAME} back within seconds, unless it says `absent` there\n"
        ))?,
        Some(StillNeeded::Named { file }) if args.force => table::print(&format!(
            "{} names {OWN_NAME}: no pod of this node starts before that file is removed, or {OWN_NAME} is back\n",
            file.display()
        ))?,
        Some(why) => return Err(why.into()),
        None => {}
    }
    if !args.force {
        uninstall_check::must_not_be_needed(&args.run_dir, &names)?;
    }
    if names.is_empty() {
        table::print(&format!("{}: no file of Fairlead's is there\n", args.bin_dir.display()))?;
    }
    may_change(&args.bin_dir)?;
    for name in &names {
        let done = plugin_installation::uninstall(&args.bin_dir, name)?;
        table::print(&format!("{}: {}\n", args.bin_dir.join(name).display(), done.message()))?;
    }
    if plugin_installation::names_with_our_files(&args.bin_dir).is_empty()
        && let Some(told) = uninstall_check::about_pools(&args.run_dir)
    {
        table::print(&told)?;
    }
    Ok(())
}

/// Refuses whoever has no right to write there: what follows would blame a file.
fn may_change(directory: &Path) -> Result<(), CliError> {
    let there = directory.ancestors().find(|part| part.exists()).unwrap_or(directory);
    let writable = nix::unistd::access(there, nix::unistd::AccessFlags::W_OK).is_ok();
    if writable || nix::unistd::geteuid().is_root() { Ok(()) } else { Err(CliError::NotRoot) }
}
