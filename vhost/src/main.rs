//! `fairlead-vswitch`: the data plane of vhost-user ports, in a process without privileges.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use fairlead_host::topology::CpuList;
use fairlead_vhost::confinement::User;
use fairlead_vhost::dataplane::{MemoryLimits, Polling};
use fairlead_vhost::error_chain::sentence;
use fairlead_vhost::switch::Limits;
use fairlead_vhost::vswitch_process::{Settings, end_with_any_thread, run};
use tracing_subscriber::filter::LevelFilter;

/// Forwards Ethernet frames between vhost-user ports, as the node daemon tells it over its control socket.
#[derive(Debug, Parser)]
#[command(name = "fairlead-vswitch", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs in the foreground until SIGTERM.
    Run(Run),
}

#[derive(Debug, Parser)]
struct Run {
    /// Where the control socket is made. Only root and the user that starts the program can use it.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Processors that forward frames, such as 2,4-5: one thread for each NUMA node that they are of. May be given again, for more
    /// threads. Without it each node has one, on all of its processors that the process may use and that are not isolated.
    #[arg(long, value_name = "LIST", value_parser = processors)]
    cpus: Vec<CpuList>,
    /// How they wait for frames.
    #[arg(long, value_enum, default_value_t)]
    polling: PollingMode,
    /// The user and group that the process becomes, as numbers.
    #[arg(long, value_name = "UID:GID")]
    user: Option<User>,
    /// What the memory that one port's guest shares may cost the switch: pages that nobody has used yet, and page tables.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    port_memory: u32,
    /// What that may cost for all ports together. Less than the process' memory limit by at least 128 MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    guest_memory: u32,
    /// How many frames to groups and unknown addresses a port may send in a second; a fifth of them at once.
    #[arg(long, value_name = "COUNT", default_value_t = Limits::STORM_FRAMES)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    storm_frames: u32,
    /// What is logged to standard error: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum PollingMode {
    /// Poll while frames come, and sleep while none do.
    #[default]
    Adaptive,
    /// Never sleep: a processor is used up, and no frame waits for a wake-up.
    Always,
}

impl From<Run> for Settings {
    fn from(run: Run) -> Settings {
        let polling = match run.polling {
            PollingMode::Adaptive => Polling::Adaptive,
            PollingMode::Always => Polling::Always,
        };
        let bytes = |mib: u32| u64::from(mib) << 20;
        let memory = MemoryLimits { port: bytes(run.port_memory), total: bytes(run.guest_memory) };
        Settings {
            socket: run.socket,
            cpus: run.cpus,
            polling,
            memory,
            storm_frames: run.storm_frames,
            user: run.user,
        }
    }
}

/// A list of processors with at least one in it: a variable that is not set would be taken for none named.
fn processors(list: &str) -> Result<CpuList, String> {
    match list.parse::<CpuList>() {
        Ok(_) if list.trim().is_empty() => {
            Err("it names no processor; leave the option out for all".to_owned())
        }
        Ok(cpus) => Ok(cpus),
        Err(error) => Err(error.to_string()),
    }
}

fn main() -> ExitCode {
    let Command::Run(arguments) = Cli::parse().command;
    end_with_any_thread();
    tracing_subscriber::fmt()
        .with_max_level(arguments.log_level)
        .with_writer(io::stderr)
        // They go to standard error too, by a macro that panics when that cannot be written.
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(false)
        .init();
    match run(&arguments.into()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("fairlead-vswitch can't run: {}", sentence(&error));
            ExitCode::FAILURE
        }
    }
}
