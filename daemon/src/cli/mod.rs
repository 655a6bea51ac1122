//! The command line: `run`, the operator's commands over the socket, and what is put on the node.

mod capture_command;
mod confirmation;
mod describe;
mod generated;
mod listings;
mod operator_commands;
mod removal_commands;
mod run;
mod still_needed;
mod table;
mod vswitch_commands;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fairlead_sriov::pools::Verb;
use fairlead_vhost::capture::CaptureDirection;

use crate::doctor;
use crate::install::{self, InstallError};
use crate::node_paths::NodePaths;
use crate::operator_client::ClientError;
use crate::policy_check::{self, PolicyCheckError, Question};
use crate::run_dir::SOCKET;
use crate::validate;

/// The configuration, where no other is named.
const CONFIG: &str = "/etc/fairlead/config.yaml";
/// What outlives a reboot, where no other is named.
const STATE_DIR: &str = "/var/lib/fairlead";

/// The release, and the revision that it was built from.
pub(crate) const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (revision ", env!("FAIRLEAD_REVISION"), ")");

/// Fairlead's node daemon, and the commands by which it is looked after.
#[derive(Debug, Parser)]
#[command(name = "fairleadd", version = VERSION, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve this node, until SIGTERM.
    Run(RunArgs),
    /// How the daemon is.
    Status(StatusArgs),
    /// What is attached on this node.
    Attachments(ListArgs),
    /// Everything about one pod or container: its interfaces with timings, and the calls for it that failed. Exit status 1 when
    /// nothing is known.
    Describe(DescribeArgs),
    /// The networks of the conf dir, and those that are refused.
    Networks(ListArgs),
    /// Pools of VFs that are ready before they are asked for: how each stands, or an order about them.
    Pools(PoolsArgs),
    /// Remove now what nobody needs any more, without waiting for the periodic collection.
    Gc(GcArgs),
    /// Give up an attachment whose removal cannot succeed: says what may be left behind, asks, and forgets it.
    Forget(ForgetArgs),
    /// What the switch of vhost-user ports has.
    Vswitch(VswitchArgs),
    /// Put the executable under the plugins' names; the originals are kept aside.
    Install(InstallArgs),
    /// Put the originals back.
    Uninstall(UninstallArgs),
    /// Say what on this node is missing or wrong, and the remedy. Exit status 1 when something is.
    Doctor(DoctorArgs),
    /// Say what ADD and the policy would refuse of networks, definitions (NetworkAttachmentDefinition) and the daemon's
    /// configuration; without files, of this node's. Exit status 1 when something is wrong.
    Validate(ValidateArgs),
    /// The policy for tenants' definitions.
    Policy(PolicyArgs),
    /// The release and the revision of this program.
    Version(VersionArgs),
    /// Print the completions for a shell.
    Completions {
        /// The shell that the completions are for.
        shell: Shell,
    },
    /// Write the pages of the manual into a directory.
    #[command(hide = true)]
    ManPages {
        /// The directory, which is made where it is missing.
        dir: PathBuf,
    },
}

impl Command {
    /// Whether nobody but root can have it: the daemon serves root alone. What is told of files anybody may ask, as far as they
    /// are readable.
    fn is_roots(&self) -> bool {
        match self {
            Command::Run(_)
            | Command::Status(_)
            | Command::Attachments(_)
            | Command::Describe(_)
            | Command::Networks(_)
            | Command::Pools(_)
            | Command::Vswitch(_)
            | Command::Gc(_)
            | Command::Forget(_) => true,
            Command::Install(_)
            | Command::Uninstall(_)
            | Command::Doctor(_)
            | Command::Validate(_)
            | Command::Policy(_)
            | Command::Version(_)
            | Command::Completions { .. }
            | Command::ManPages { .. } => false,
        }
    }
}

#[derive(Debug, Clone, Args)]
struct Dirs {
    /// What dies with the reboot: socket and store.
    #[arg(long, default_value = "/run/fairlead")]
    run_dir: PathBuf,
    /// What outlives it: the spool of DELs and the records of attachments with delegates.
    #[arg(long, default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// The host's root directory as this process sees it.
    #[arg(long, default_value = "/")]
    host_root: PathBuf,
    /// The configuration.
    #[arg(long, default_value = CONFIG)]
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
    /// A table for people of 80 columns, one with everything, or JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Listing,
}

impl QueryArgs {
    fn socket(&self) -> PathBuf {
        self.run_dir.join(SOCKET)
    }
}

/// The form of what the daemon answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Listing {
    /// What a person needs first, in 80 columns.
    Table,
    /// Every column, as wide as it is.
    Wide,
    /// Everything, for programs.
    Json,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    ask: QueryArgs,
    /// Go on, and print it again whenever it has changed, until SIGINT.
    #[arg(short, long)]
    watch: bool,
}

#[derive(Debug, Args)]
struct VswitchArgs {
    #[command(subcommand)]
    question: VswitchQuestion,
}

/// What the switch can be asked for.
#[derive(Debug, Subcommand)]
enum VswitchQuestion {
    /// Its ports: who is connected, and what went through them.
    Ports(ListArgs),
    /// Frames, bytes and drops by reason of each port, in both directions.
    Stats(ListArgs),
    /// The addresses that it knows, each with its port.
    MacTable(ListArgs),
    /// Write the frames of one port into a file (pcapng) for tcpdump and Wireshark, until SIGINT.
    Capture(CaptureArgs),
}

#[derive(Debug, Args)]
struct CaptureArgs {
    /// The port's name, or the pod that has one port.
    #[arg(value_name = "PORT|[NAMESPACE/]POD")]
    of: String,
    /// The file; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// End after so many frames.
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Keep so many bytes of each frame at most.
    #[arg(short, long, default_value = "262144", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    snaplen: u32,
    /// Which frames, as the pod sees them.
    #[arg(short = 'Q', long, value_enum, default_value = "both")]
    direction: Direction,
    /// The daemon's run directory, in which the switch has its socket.
    #[arg(long, default_value = "/run/fairlead")]
    run_dir: PathBuf,
}

/// Which frames of a port are captured, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Direction {
    /// Those that the pod sends, also those that are dropped.
    Sent,
    /// Those that the pod gets.
    Received,
    /// All of them.
    Both,
}

impl From<Direction> for CaptureDirection {
    fn from(direction: Direction) -> CaptureDirection {
        match direction {
            Direction::Sent => CaptureDirection::Sent,
            Direction::Received => CaptureDirection::Received,
            Direction::Both => CaptureDirection::Both,
        }
    }
}

#[derive(Debug, Args)]
struct DescribeArgs {
    #[command(flatten)]
    ask: QueryArgs,
    /// A pod's name or uid, or a container's id or its first 8 characters.
    #[arg(value_name = "[NAMESPACE/]POD|CONTAINER")]
    of: String,
}

#[derive(Debug, Args)]
struct VersionArgs {
    /// A line for people, or JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Debug, Args)]
struct StatusArgs {
    #[command(flatten)]
    ask: QueryArgs,
    /// Exit status 1 unless it is ready.
    #[arg(long)]
    ready: bool,
    /// Exit status 1 unless it is healthy.
    #[arg(long)]
    healthy: bool,
}

#[derive(Debug, Args)]
struct PoolsArgs {
    #[command(flatten)]
    list: ListArgs,
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
    /// Also release host-local allocations whose container is unknown here. They are listed first, and asked about.
    #[arg(long)]
    orphans: bool,
    /// Ask nothing.
    #[arg(long, requires = "orphans")]
    yes: bool,
}

#[derive(Debug, Args)]
struct ForgetArgs {
    #[command(flatten)]
    ask: QueryArgs,
    /// The container's id.
    container: String,
    /// The interface's name in the container.
    ifname: String,
    /// The network, where the interface is on record of several.
    #[arg(long)]
    network: Option<String>,
    /// Ask nothing.
    #[arg(long)]
    yes: bool,
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
    /// The daemon's run directory.
    #[arg(long, default_value = "/run/fairlead")]
    run_dir: PathBuf,
    /// Do it though pods have interfaces that only Fairlead can take down.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct DoctorArgs {
    #[command(flatten)]
    dirs: Dirs,
    /// A table for people, JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Debug, Args)]
struct ValidateArgs {
    /// Configurations, conflists, definitions (YAML or JSON), or the daemon's configuration; - is standard input.
    files: Vec<PathBuf>,
    /// The run directory of the daemon, which is asked for what is not named here.
    #[arg(long, default_value = "/run/fairlead")]
    run_dir: PathBuf,
    /// The host's root directory as this process sees it [default: the running daemon's, else /].
    #[arg(long)]
    host_root: Option<PathBuf>,
    /// The configuration [default: the running daemon's, else /etc/fairlead/config.yaml].
    #[arg(long)]
    config: Option<PathBuf>,
    /// A table for people, JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

impl ValidateArgs {
    /// The paths that are named. Where the host's root is not, those of the daemon that runs here: in its container `/` is not the host's.
    fn paths(&self) -> NodePaths {
        let named = |path: &Option<PathBuf>, usual: &str| path.clone().unwrap_or_else(|| usual.into());
        let (host_root, config) = (named(&self.host_root, "/"), named(&self.config, CONFIG));
        let own =
            NodePaths::new(self.run_dir.clone(), STATE_DIR.into(), host_root, config).with_environment();
        match &self.host_root {
            Some(_) => own,
            None => {
                let of_daemon = doctor::paths_in_use(own);
                NodePaths { config: self.config.clone().unwrap_or(of_daemon.config), ..of_daemon }
            }
        }
    }
}

#[derive(Debug, Args)]
struct PolicyArgs {
    #[command(subcommand)]
    question: PolicyQuestion,
}

#[derive(Debug, Subcommand)]
enum PolicyQuestion {
    /// Say what the policy decides about each interface of a definition. Exit status 1 when one is refused, 2 when the
    /// definition or the configuration can't be read.
    Check(PolicyCheckArgs),
}

#[derive(Debug, Args)]
struct PolicyCheckArgs {
    /// A network's configuration (JSON), or a NetworkAttachmentDefinition (YAML or JSON); - is standard input.
    file: PathBuf,
    /// The pod's namespace, and the definition's unless that says its own.
    #[arg(long)]
    namespace: String,
    /// A label of the definition's namespace.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// The configuration with the policy [default: /etc/fairlead/config.yaml, and the defaults without one].
    #[arg(long)]
    config: Option<PathBuf>,
    /// A table for people, JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
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
    /// Frames of a port were not captured.
    #[error(transparent)]
    Capture(#[from] capture_command::CaptureError),
    /// The host's root is not where it is said to be.
    #[error("the host's root {path} can't be used: {reason}; correct --host-root, in a container the mount of the host's directories there, or leave it out on the host itself", path = .path.display())]
    HostRoot {
        /// What `--host-root` says.
        path: PathBuf,
        /// Why it can't be used.
        reason: String,
    },
    /// What is to be uninstalled is needed.
    #[error(transparent)]
    StillNeeded(#[from] still_needed::StillNeeded),
    /// The switch of vhost-user ports does not answer the daemon.
    #[error("the switch has nothing to show: {0}")]
    NoSwitch(String),
    /// Only root is answered, and only root can do it.
    #[error("not root, and only root may do this: run it as root (sudo fairleadd …)")]
    NotRoot,
    /// A step of install or uninstall failed.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The policy can't decide: there is no definition, or no policy.
    #[error(transparent)]
    PolicyCheck(#[from] PolicyCheckError),
    /// Standard output can't be written, or this program does not know its own path.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl CliError {
    /// The program's exit status.
    pub fn exit_status(&self) -> ExitCode {
        match self {
            // 1 is the answer that something is refused.
            CliError::PolicyCheck(_) => ExitCode::from(2),
            CliError::Daemon(_)
            | CliError::Client(_)
            | CliError::Capture(_)
            | CliError::HostRoot { .. }
            | CliError::StillNeeded(_)
            | CliError::NoSwitch(_)
            | CliError::NotRoot
            | CliError::Install(_)
            | CliError::Io(_) => ExitCode::FAILURE,
        }
    }
}

/// Carries the command out; the exit status is success unless `doctor` found or `policy check` refused something, or the
/// daemon is not as `status` was asked.
///
/// # Errors
/// When the command fails.
pub fn main(cli: Cli) -> Result<ExitCode, CliError> {
    if cli.command.is_roots() && !nix::unistd::geteuid().is_root() {
        return Err(CliError::NotRoot);
    }
    match cli.command {
        Command::Run(args) => run::run(args.dirs)?,
        Command::Status(args) => return operator_commands::status(&args),
        Command::Attachments(list) => listings::attachments(&list)?,
        Command::Describe(args) => return describe::describe(&args),
        Command::Networks(list) => listings::networks(&list)?,
        Command::Pools(args) => match (args.order, args.of) {
            (Some(verb), Some(of)) => listings::order_pools(&args.list.ask, verb.into(), &of)?,
            _ => listings::pools(&args.list)?,
        },
        Command::Vswitch(args) => vswitch_commands::vswitch(&args.question)?,
        Command::Gc(args) if args.orphans => return removal_commands::collect_orphans(&args.ask, args.yes),
        Command::Gc(args) => return removal_commands::collect(&args.ask),
        Command::Forget(args) => return removal_commands::forget(&args),
        Command::Install(args) => install(args)?,
        Command::Uninstall(args) => uninstall(args)?,
        Command::Doctor(args) => return run_doctor(args),
        Command::Version(args) => tell_version(args.output)?,
        Command::Completions { shell } => generated::completions(shell)?,
        Command::ManPages { dir } => generated::man_pages(&dir)?,
        Command::Validate(args) => {
            let findings = validate::validate(&args.paths(), &args.files);
            return findings_told(&findings, args.output);
        }
        Command::Policy(PolicyArgs { question: PolicyQuestion::Check(args) }) => return check_policy(&args),
    }
    Ok(ExitCode::SUCCESS)
}

fn install(args: InstallArgs) -> Result<(), CliError> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("fairlead"));
    let from = args.from.map_or_else(beside, Ok)?;
    // All or none: half of what was asked for would be a surprise.
    args.names.iter().try_for_each(|name| install::must_be_served(name))?;
    may_change(&args.bin_dir)?;
    for name in &args.names {
        let done = install::install(&args.bin_dir, name, &from)?;
        table::print(&format!("{}: {}\n", args.bin_dir.join(name).display(), done.message()))?;
    }
    Ok(())
}

fn uninstall(args: UninstallArgs) -> Result<(), CliError> {
    let names = if args.names.is_empty() { install::names_with_our_files(&args.bin_dir) } else { args.names };
    let kept_by = still_needed::kept_by(&args.run_dir, &args.bin_dir, &names);
    match kept_by {
        Some(config) if args.force => table::print(&format!(
            "{config} says `install: {{cni: present}}`: the daemon puts {} back within seconds, unless it says `absent` there\n",
            install::OWN_NAME
        ))?,
        Some(config) => return Err(still_needed::StillNeeded::Wanted { config }.into()),
        None => {}
    }
    if !args.force {
        still_needed::must_not_be(&args.run_dir, &names)?;
    }
    if names.is_empty() {
        table::print(&format!("{}: no file of Fairlead's is there\n", args.bin_dir.display()))?;
    }
    may_change(&args.bin_dir)?;
    for name in &names {
        let done = install::uninstall(&args.bin_dir, name)?;
        table::print(&format!("{}: {}\n", args.bin_dir.join(name).display(), done.message()))?;
    }
    Ok(())
}

/// Refuses whoever has no right to write there: what follows would blame a file.
fn may_change(directory: &Path) -> Result<(), CliError> {
    let there = directory.ancestors().find(|part| part.exists()).unwrap_or(directory);
    let writable = nix::unistd::access(there, nix::unistd::AccessFlags::W_OK).is_ok();
    if writable || nix::unistd::geteuid().is_root() { Ok(()) } else { Err(CliError::NotRoot) }
}

fn run_doctor(args: DoctorArgs) -> Result<ExitCode, CliError> {
    findings_told(&doctor::examine(args.dirs.paths()), args.output)
}

fn tell_version(output: Output) -> Result<(), CliError> {
    let (version, revision) = (env!("CARGO_PKG_VERSION"), env!("FAIRLEAD_REVISION"));
    match output {
        Output::Table => table::print(&format!("fairleadd {VERSION}\n"))?,
        Output::Json => table::print_json(&serde_json::json!({ "version": version, "revision": revision }))?,
    }
    Ok(())
}

/// Prints findings; the exit status is failure when something is wrong.
fn findings_told(findings: &[doctor::Finding], output: Output) -> Result<ExitCode, CliError> {
    match output {
        Output::Json => table::print_json(&serde_json::to_value(findings).unwrap_or_default())?,
        Output::Table => table::print(&doctor::report(findings))?,
    }
    let wrong = findings.iter().any(|f| f.verdict == doctor::Verdict::Wrong);
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn check_policy(args: &PolicyCheckArgs) -> Result<ExitCode, CliError> {
    let question = Question { namespace: args.namespace.clone(), labels: args.labels.clone() };
    let policy = policy_check::Policy::read(args.config.as_deref(), Path::new(CONFIG))?;
    let decisions = policy_check::check(&policy, &args.file, &question)?;
    match args.output {
        Output::Json => table::print_json(&serde_json::to_value(&decisions).unwrap_or_default())?,
        Output::Table => {
            table::print(&format!("policy: {}\n", policy.found))?;
            for one in &decisions {
                let word = if one.allowed { "allowed" } else { "REFUSED" };
                let with = if one.ipam.is_empty() { String::new() } else { format!(" with {}", one.ipam) };
                let what = format!("{} {}{with}", one.place, one.r#type);
                table::print(&format!("{word}: {}: {}\n", what.trim_end(), one.reason))?;
            }
        }
    }
    let allowed = decisions.iter().all(|one| one.allowed);
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
