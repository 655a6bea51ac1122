//! The command line: `run`, the operator's commands over the socket, and what is put on the node.

mod arguments;
mod capture_command;
mod completions_and_man_pages;
mod confirmation;
mod describe;
mod installation_commands;
mod listings;
mod removal_commands;
mod run;
mod status_command;
mod table;
mod uninstall_check;
mod vswitch_commands;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use self::arguments::Cli;
use self::arguments::{CONFIG, Command, DoctorArgs, Output, PolicyArgs, PolicyCheckArgs, PolicyQuestion};
use crate::finding::{Finding, Verdict, report};
use crate::operator_client::ClientError;
use crate::plugin_installation::InstallError;
use crate::policy_check::{self, PolicyCheckError, Question};
use crate::{doctor, validate};

/// The release, and the revision that it was built from.
pub(crate) const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (revision ", env!("FAIRLEAD_REVISION"), ")");

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
    StillNeeded(#[from] uninstall_check::StillNeeded),
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
        Command::Status(args) => return status_command::status(&args),
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
        Command::Install(args) => installation_commands::install(args)?,
        Command::Uninstall(args) => installation_commands::uninstall(args)?,
        Command::Doctor(args) => return run_doctor(&args),
        Command::Version(args) => tell_version(args.output)?,
        Command::Completions { shell } => completions_and_man_pages::completions(shell)?,
        Command::ManPages { dir } => completions_and_man_pages::man_pages(&dir)?,
        Command::Validate(args) => {
            let findings = validate::validate(&args.paths(), args.typed(), &args.files);
            return findings_told(&findings, args.output);
        }
        Command::Policy(PolicyArgs { question: PolicyQuestion::Check(args) }) => return check_policy(&args),
    }
    Ok(ExitCode::SUCCESS)
}

fn run_doctor(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    findings_told(&doctor::examine(args.paths(), args.typed()), args.output)
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
fn findings_told(findings: &[Finding], output: Output) -> Result<ExitCode, CliError> {
    match output {
        Output::Json => table::print_json(&serde_json::to_value(findings).unwrap_or_default())?,
        Output::Table => table::print(&report(findings))?,
    }
    let wrong = findings.iter().any(|f| f.verdict == Verdict::Wrong);
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
