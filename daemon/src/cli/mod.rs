//! The command line: `run`, the operator's commands over the socket, and what is put on the node.

mod operator_commands;
mod run;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fairlead_sriov::pools::Verb;

use crate::doctor;
use crate::install::{self, InstallError};
use crate::node_paths::NodePaths;
use crate::operator_client::ClientError;
use crate::run_dir::SOCKET;

/// Fairlead's node daemon, and the commands by which it is looked after.
#[derive(Debug, Parser)]
#[command(name = "fairleadd", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve this node, until SIGTERM.
    Run(RunArgs),
    /// How the daemon is.
    Status(QueryArgs),
    /// What is attached on this node.
    Attachments(QueryArgs),
    /// The networks of the conf dir, and those that are refused.
    Networks(QueryArgs),
    /// Pools of VFs that are ready before they are asked for: how each stands, or an order about them.
    Pools(PoolsArgs),
    /// Remove now what nobody needs any more, without waiting for the periodic collection.
    Gc(GcArgs),
    /// Put the executable under the plugins' names; the originals are kept aside.
    Install(InstallArgs),
    /// Put the originals back.
    Uninstall(UninstallArgs),
    /// Say what on this node is missing or wrong, and the remedy. Exit status 1 when something is.
    Doctor(DoctorArgs),
}

#[derive(Debug, Clone, Args)]
struct Dirs {
    /// What dies with the reboot: socket and store.
    #[arg(long, default_value = "/run/fairlead")]
    run_dir: PathBuf,
    /// What outlives it: the spool of DELs and the records of attachments with delegates.
    #[arg(long, default_value = "/var/lib/fairlead")]
    state_dir: PathBuf,
    /// The host's root directory as this process sees it.
    #[arg(long, default_value = "/")]
    host_root: PathBuf,
    /// The configuration.
    #[arg(long, default_value = "/etc/fairlead/config.yaml")]
    config: PathBuf,
}

impl Dirs {
    fn paths(self) -> NodePaths {
        NodePaths::new(self.run_dir, self.state_dir, self.host_root, self.config).with_environment()
    }
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    dirs: Dirs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(Debug, Args)]
struct QueryArgs {
    /// The daemon's run directory.
    #[arg(long, default_value = "/run/fairlead")]
    run_dir: PathBuf,
    /// A table for people, JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

impl QueryArgs {
    fn socket(&self) -> PathBuf {
        self.run_dir.join(SOCKET)
    }
}

#[derive(Debug, Args)]
struct PoolsArgs {
    #[command(flatten)]
    ask: QueryArgs,
    /// An order; without one they are listed.
    #[arg(requires = "of")]
    order: Option<Order>,
    /// A pool's name, or a VF's PCI address.
    of: Option<String>,
}

/// What can be ordered of a pool, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Make them ready, whatever `min` says.
    Fill,
    /// Give them back as they were, and keep them so.
    Drain,
    /// Give them to nobody.
    Quarantine,
    /// Try quarantined ones again; of one that is given, by its address: no pod has it.
    Release,
}

impl From<Order> for Verb {
    fn from(order: Order) -> Verb {
        match order {
            Order::Fill => Verb::Fill,
            Order::Drain => Verb::Drain,
            Order::Quarantine => Verb::Quarantine,
            Order::Release => Verb::Release,
        }
    }
}

#[derive(Debug, Args)]
struct GcArgs {
    #[command(flatten)]
    ask: QueryArgs,
    /// Also release host-local allocations whose container is unknown here. Look at them first: `doctor`.
    #[arg(long)]
    orphans: bool,
}

#[derive(Debug, Args)]
struct InstallArgs {
    /// The plugins' names.
    #[arg(long = "as", value_delimiter = ',', required = true, value_name = "NAME,…")]
    names: Vec<String>,
    /// Where the runtime looks for plugins.
    #[arg(long, default_value = crate::conf_dir::PLUGIN_DIR)]
    bin_dir: PathBuf,
    /// The executable; by default `fairlead` beside this program.
    #[arg(long)]
    from: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct UninstallArgs {
    /// The plugins' names; by default all under which ours stands.
    #[arg(long = "as", value_delimiter = ',', value_name = "NAME,…")]
    names: Vec<String>,
    /// Where the runtime looks for plugins.
    #[arg(long, default_value = crate::conf_dir::PLUGIN_DIR)]
    bin_dir: PathBuf,
}

#[derive(Debug, Args)]
struct DoctorArgs {
    #[command(flatten)]
    dirs: Dirs,
    /// A table for people, JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The daemon could not start, or ended by itself.
    #[error(transparent)]
    Daemon(#[from] crate::daemon::DaemonError),
    /// The daemon could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A step of install or uninstall failed.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// Standard output can't be written, or this program does not know its own path.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Carries the command out; the exit status is success unless `doctor` found something.
///
/// # Errors
/// When the command fails.
pub fn main(cli: Cli) -> Result<ExitCode, CliError> {
    match cli.command {
        Command::Run(args) => run::run(args.dirs)?,
        Command::Status(ask) => operator_commands::status(&ask)?,
        Command::Attachments(ask) => operator_commands::attachments(&ask)?,
        Command::Networks(ask) => operator_commands::networks(&ask)?,
        Command::Pools(args) => match (args.order, args.of) {
            (Some(verb), Some(of)) => operator_commands::order_pools(&args.ask, verb.into(), &of)?,
            _ => operator_commands::pools(&args.ask)?,
        },
        Command::Gc(args) => return operator_commands::collect(&args.ask, args.orphans),
        Command::Install(args) => install(args)?,
        Command::Uninstall(args) => uninstall(args)?,
        Command::Doctor(args) => return run_doctor(args),
    }
    Ok(ExitCode::SUCCESS)
}

fn install(args: InstallArgs) -> Result<(), CliError> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("fairlead"));
    let from = args.from.map_or_else(beside, Ok)?;
    for name in &args.names {
        let done = install::install(&args.bin_dir, name, &from)?;
        table::print(&format!("{}: {}\n", args.bin_dir.join(name).display(), done.message()))?;
    }
    Ok(())
}

fn uninstall(args: UninstallArgs) -> Result<(), CliError> {
    let names = if args.names.is_empty() { install::names_with_our_files(&args.bin_dir) } else { args.names };
    for name in &names {
        let done = install::uninstall(&args.bin_dir, name)?;
        table::print(&format!("{}: {}\n", args.bin_dir.join(name).display(), done.message()))?;
    }
    Ok(())
}

fn run_doctor(args: DoctorArgs) -> Result<ExitCode, CliError> {
    let findings = doctor::examine(args.dirs.paths());
    match args.output {
        Output::Json => table::print_json(&serde_json::to_value(&findings).unwrap_or_default())?,
        Output::Table => table::print(&doctor::report(&findings))?,
    }
    let wrong = findings.iter().any(|f| f.verdict == doctor::Verdict::Wrong);
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
