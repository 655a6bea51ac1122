//! What is typed: the commands, their arguments and what these are where they are not named.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fairlead_sriov::pools::Verb;
use fairlead_vhost::capture::CaptureDirection;

use super::VERSION;
use crate::doctor;
use crate::node_paths::{NodePaths, TypedPaths};
use crate::run_dir::SOCKET;

/// The configuration, where no other is named.
pub(super) const CONFIG: &str = "/etc/fairlead/config.yaml";
/// What outlives a reboot, where no other is named.
const STATE_DIR: &str = "/var/lib/fairlead";

/// Fairlead's node daemon, and the commands by which it is looked after.
#[derive(Debug, Parser)]
#[command(name = "fairleadd", version = VERSION, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Serve this node, until SIGTERM.
    Run(RunArgs),
    /// Say whether the daemon is ready, healthy and alive, and what waits or fails.
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
    pub(super) fn is_roots(&self) -> bool {
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
pub(super) struct Dirs {
    /// The run directory: socket and journal. A reboot empties it.
    #[arg(long, default_value = "/run/fairlead")]
    pub(super) run_dir: PathBuf,
    /// The state directory: spool and records that outlive a reboot.
    #[arg(long, default_value = STATE_DIR)]
    pub(super) state_dir: PathBuf,
    /// The host's root directory as this process sees it.
    #[arg(long, default_value = "/")]
    pub(super) host_root: PathBuf,
    /// The daemon's configuration file.
    #[arg(long, default_value = CONFIG)]
    pub(super) config: PathBuf,
}

impl Dirs {
    pub(super) fn paths(self) -> NodePaths {
        NodePaths::new(self.run_dir, self.state_dir, self.host_root, self.config).with_environment()
    }
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) dirs: Dirs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Table,
    Json,
}

#[derive(Debug, Args)]
pub(super) struct QueryArgs {
    /// The daemon's run directory.
    #[arg(long, default_value = "/run/fairlead")]
    pub(super) run_dir: PathBuf,
    /// A table for people of 80 columns, one with everything, or JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(super) output: Listing,
}

impl QueryArgs {
    pub(super) fn socket(&self) -> PathBuf {
        self.run_dir.join(SOCKET)
    }
}

/// The form of what the daemon answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Listing {
    /// What a person needs first, in 80 columns.
    Table,
    /// Every column, as wide as it is.
    Wide,
    /// Everything, for programs.
    Json,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    pub(super) ask: QueryArgs,
    /// Go on, and print it again whenever it has changed, until SIGINT.
    #[arg(short, long)]
    pub(super) watch: bool,
}

#[derive(Debug, Args)]
pub(super) struct VswitchArgs {
    #[command(subcommand)]
    pub(super) question: VswitchQuestion,
}

/// What the switch can be asked for.
#[derive(Debug, Subcommand)]
pub(super) enum VswitchQuestion {
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
pub(super) struct CaptureArgs {
    /// The port's name, or the pod that has one port.
    #[arg(value_name = "PORT|[NAMESPACE/]POD")]
    pub(super) of: String,
    /// The file; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(super) write: PathBuf,
    /// End after so many frames.
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// Keep so many bytes of each frame at most.
    #[arg(short, long, default_value = "262144", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub(super) snaplen: u32,
    /// Which frames, as the pod sees them.
    #[arg(short = 'Q', long, value_enum, default_value = "both")]
    pub(super) direction: Direction,
    /// The daemon's run directory, in which the switch has its socket.
    #[arg(long, default_value = "/run/fairlead")]
    pub(super) run_dir: PathBuf,
}

/// Which frames of a port are captured, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Direction {
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
pub(super) struct DescribeArgs {
    #[command(flatten)]
    pub(super) ask: QueryArgs,
    /// A pod's name or uid, or a container's id or its first 8 characters.
    #[arg(value_name = "[NAMESPACE/]POD|CONTAINER")]
    pub(super) of: String,
}

#[derive(Debug, Args)]
pub(super) struct VersionArgs {
    /// A line for people, or JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    pub(super) ask: QueryArgs,
    /// Exit status 1 unless it is ready.
    #[arg(long)]
    pub(super) ready: bool,
    /// Exit status 1 unless it is healthy.
    #[arg(long)]
    pub(super) healthy: bool,
    /// Exit status 1 unless all is well that a restart of it could end, as a liveness probe asks.
    #[arg(long)]
    pub(super) alive: bool,
}

#[derive(Debug, Args)]
pub(super) struct PoolsArgs {
    #[command(flatten)]
    pub(super) list: ListArgs,
    /// An order; without one they are listed.
    #[arg(requires = "of")]
    pub(super) order: Option<Order>,
    /// A pool's name, or a VF's PCI address.
    #[arg(value_name = "POOL|PCI")]
    pub(super) of: Option<String>,
}

/// What can be ordered of a pool, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
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
pub(super) struct GcArgs {
    #[command(flatten)]
    pub(super) ask: QueryArgs,
    /// Also release host-local allocations whose container is unknown here. They are listed first, and asked about.
    #[arg(long)]
    pub(super) orphans: bool,
    /// Do it without asking first, as a script must.
    #[arg(long, requires = "orphans")]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct ForgetArgs {
    #[command(flatten)]
    pub(super) ask: QueryArgs,
    /// The container's id.
    pub(super) container: String,
    /// The interface's name in the container.
    pub(super) ifname: String,
    /// The network, where the interface is on record of several.
    #[arg(long)]
    pub(super) network: Option<String>,
    /// Do it without asking first, as a script must.
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct InstallArgs {
    /// The plugins' names.
    #[arg(long = "as", value_delimiter = ',', required = true, value_name = "NAME,…")]
    pub(super) names: Vec<String>,
    /// Where the runtime looks for plugins.
    #[arg(long, default_value = crate::conf_dir::PLUGIN_DIR)]
    pub(super) bin_dir: PathBuf,
    /// The executable; by default `fairlead` beside this program.
    #[arg(long)]
    pub(super) from: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct UninstallArgs {
    /// The plugins' names; by default all under which ours stands.
    #[arg(long = "as", value_delimiter = ',', value_name = "NAME,…")]
    pub(super) names: Vec<String>,
    /// Where the runtime looks for plugins.
    #[arg(long, default_value = crate::conf_dir::PLUGIN_DIR)]
    pub(super) bin_dir: PathBuf,
    /// The daemon's run directory.
    #[arg(long, default_value = "/run/fairlead")]
    pub(super) run_dir: PathBuf,
    /// Do it though pods have interfaces that only Fairlead can take down.
    #[arg(long)]
    pub(super) force: bool,
}

impl UninstallArgs {
    /// The paths of the daemon that runs here; the usual ones where none answers.
    pub(super) fn paths(&self) -> NodePaths {
        doctor::paths_in_use(typed_or_usual(&self.run_dir, None, None, None), TypedPaths::default())
    }
}

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The run directory of the daemon, which is asked for what is not named here.
    #[arg(long, default_value = "/run/fairlead")]
    pub(super) run_dir: PathBuf,
    /// The state directory: spool and records that outlive a reboot [default: the running daemon's, else /var/lib/fairlead].
    #[arg(long)]
    pub(super) state_dir: Option<PathBuf>,
    /// The host's root directory as this process sees it [default: the running daemon's, else /].
    #[arg(long)]
    pub(super) host_root: Option<PathBuf>,
    /// The daemon's configuration file [default: the running daemon's, else /etc/fairlead/config.yaml].
    #[arg(long)]
    pub(super) config: Option<PathBuf>,
    /// A table for people, JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(super) output: Output,
}

impl DoctorArgs {
    /// The paths for where no daemon answers.
    pub(super) fn paths(&self) -> NodePaths {
        let (host_root, config) = (self.host_root.as_deref(), self.config.as_deref());
        typed_or_usual(&self.run_dir, self.state_dir.as_deref(), host_root, config)
    }

    pub(super) fn typed(&self) -> TypedPaths {
        TypedPaths {
            state_dir: self.state_dir.is_some(),
            host_root: self.host_root.is_some(),
            config: self.config.is_some(),
        }
    }
}

/// The paths that were typed; the usual ones where none was.
fn typed_or_usual(
    run_dir: &Path,
    state_dir: Option<&Path>,
    host_root: Option<&Path>,
    config: Option<&Path>,
) -> NodePaths {
    let path = |typed: Option<&Path>, usual: &str| typed.unwrap_or(Path::new(usual)).to_path_buf();
    let (state_dir, host_root) = (path(state_dir, STATE_DIR), path(host_root, "/"));
    NodePaths::new(run_dir.to_path_buf(), state_dir, host_root, path(config, CONFIG)).with_environment()
}

#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    /// Configurations, conflists, definitions (YAML or JSON), or the daemon's configuration; - is standard input.
    pub(super) files: Vec<PathBuf>,
    /// The run directory of the daemon, which is asked for what is not named here.
    #[arg(long, default_value = "/run/fairlead")]
    pub(super) run_dir: PathBuf,
    /// The host's root directory as this process sees it [default: the running daemon's, else /].
    #[arg(long)]
    pub(super) host_root: Option<PathBuf>,
    /// The daemon's configuration file [default: the running daemon's, else /etc/fairlead/config.yaml].
    #[arg(long)]
    pub(super) config: Option<PathBuf>,
    /// A table for people, JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(super) output: Output,
}

impl ValidateArgs {
    /// The paths that are named. Where the host's root is not, those of the daemon that runs here: in its container `/` is not the host's.
    pub(super) fn paths(&self) -> NodePaths {
        let own = typed_or_usual(&self.run_dir, None, self.host_root.as_deref(), self.config.as_deref());
        match &self.host_root {
            Some(_) => own,
            None => doctor::paths_in_use(own, self.typed()),
        }
    }

    pub(super) fn typed(&self) -> TypedPaths {
        let (host_root, config) = (self.host_root.is_some(), self.config.is_some());
        TypedPaths { state_dir: false, host_root, config }
    }
}

#[derive(Debug, Args)]
pub(super) struct PolicyArgs {
    #[command(subcommand)]
    pub(super) question: PolicyQuestion,
}

#[derive(Debug, Subcommand)]
pub(super) enum PolicyQuestion {
    /// Say what the policy decides about each interface of a definition. Exit status 1 when one is refused, 2 when the
    /// definition or the configuration can't be read.
    Check(PolicyCheckArgs),
}

#[derive(Debug, Args)]
pub(super) struct PolicyCheckArgs {
    /// A network's configuration (JSON), or a NetworkAttachmentDefinition (YAML or JSON); - is standard input.
    pub(super) file: PathBuf,
    /// The pod's namespace, and the definition's unless that says its own.
    #[arg(long)]
    pub(super) namespace: String,
    /// A label of the definition's namespace.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(super) labels: Vec<(String, String)>,
    /// The configuration with the policy [default: /etc/fairlead/config.yaml, and the defaults without one].
    #[arg(long)]
    pub(super) config: Option<PathBuf>,
    /// A table for people, JSON for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(super) output: Output,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
