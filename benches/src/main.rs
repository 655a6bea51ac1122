//! `fairlead-bench`: times CNI plugins the way a runtime calls them, ours and others, side by side in one run.
//!
//! A plugin is exec'd with three pipes, the CNI environment and its config on stdin, for pods that are real network
//! namespaces on a private node; every interface is verified. It never touches the host's network, and it never
//! counts a call whose result is wrong.

#![forbid(unsafe_code)]

mod bare_program;
mod bench;
mod case_size;
mod cases;
mod cli;
mod comparison;
mod daemon;
mod foreign_cpu;
mod machine;
mod network_config;
mod node;
mod node_cases;
mod node_file_systems;
mod plugin_exec;
mod pods;
mod process_cost;
mod report;
mod results;
mod round;
mod statistics;
mod subject;
mod subject_descriptions;
mod subject_setup;
mod switches;
mod targets;
mod verify;
mod vf;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::bench::{Bench, BenchError};
use crate::case_size::CaseSize;
use crate::cases::{CASES, Case, Place, Procedure};
use crate::cli::{Options, Suite};
use crate::comparison::Comparison;
use crate::machine::Machine;
use crate::node::{Node, NodeError};
use crate::pods::{PodBench, PodsError};
use crate::report::Report;
use crate::subject::Subject;
use crate::subject_descriptions::MeasuredSubjects;
use crate::subject_setup::{RunDirectories, SubjectSetupError};
use crate::switches::SwitchBench;
use crate::vf::VfBench;

/// Why there is no report, or only a part of it.
#[derive(Debug, thiserror::Error)]
enum MainError {
    /// A case that does not exist was asked for.
    #[error("there is no case {0}; `--list` tells the cases")]
    Case(String),
    /// A directory or report could not be written.
    #[error("{path}: {source}")]
    Write {
        /// The directory or report.
        path: PathBuf,
        /// Why it could not be written.
        #[source]
        source: io::Error,
    },
    /// Standard output is closed.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// The node could not be made or read.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A subject cannot be measured.
    #[error(transparent)]
    Setup(#[from] SubjectSetupError),
    /// There is no cluster to measure in.
    #[error(transparent)]
    Pods(#[from] PodsError),
    /// The measurement ended before its time.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The JSON document could not be made.
    #[error(transparent)]
    Json(#[from] report::json::JsonError),
    /// The page could not be made.
    #[error(transparent)]
    Page(#[from] report::page::PageError),
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            // When standard error is closed too, nobody is left to report that to.
            let _ = writeln!(io::stderr(), "fairlead-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the suite; true when every call succeeded and every interface was right.
fn run(options: &Options) -> Result<bool, MainError> {
    if options.list {
        for case in CASES {
            writeln!(io::stdout(), "{:14} {}", case.name, case.title(false))?;
        }
        return Ok(true);
    }
    let place = match options.suite {
        Some(Suite::Pods) => Place::Cluster,
        Some(Suite::Switches) => Place::Switches,
        None if options.vfs.is_empty() => Place::Node,
        None => Place::Vfs,
    };
    let cases = cases::chosen(&options.only, place).map_err(|unknown| MainError::Case(unknown.join(", ")))?;
    let report = match place {
        Place::Node => measure(options, cases)?,
        Place::Cluster => measure_pods(options, cases)?,
        Place::Switches => measure_switches(options, cases)?,
        Place::Vfs => measure_vfs(options, cases)?,
    };
    report::table::write(&report, &mut io::stdout().lock())?;
    if let Some(path) = &options.json {
        write(path, &report::json::document(&report)?)?;
    }
    if let Some(path) = &options.html {
        write(path, &report::page::page(&report)?)?;
    }
    Ok(report.results.failures.is_empty())
}

fn measure(options: &Options, cases: Vec<&'static Case>) -> Result<Report, MainError> {
    let dirs = RunDirectories::make(options)?;
    let machine = Machine::this(&dirs);
    many_open_files();
    let node = Node::enter(&dirs.data.join("netns"))?;
    let subjects = subject_setup::subjects(options, &dirs)?;
    let measured = MeasuredSubjects::describe(&subjects);
    let waiting = subject_setup::waiting(options, &dirs);
    let data_dir = dirs.allocations();
    let mut bench = Bench::new(node, subjects, waiting, data_dir);
    bench.with_switch = subject_setup::with_switch(options, &dirs);
    bench.keeps_disturbed = options.keeps_disturbed();
    let outcome = run_cases(options, &cases, |case, settings| match case.procedure {
        Procedure::Node(run) => run(&mut bench, settings),
        _ => Ok(()),
    });
    if outcome.is_err() || !bench.results.failures.is_empty() {
        tell_logs(&bench.subjects)?;
    }
    outcome?;
    let Bench { subjects, mut results, .. } = bench;
    // Daemons end while their directories are still there.
    drop(subjects);
    let chosen = |name: &str| cases.iter().any(|c| c.name == name);
    results.figures.retain(|figure| chosen(figure.case));
    results.readings.retain(|reading| chosen(reading.case));
    // A smoke test proves nothing about speed, so it is held against nothing.
    let verdicts = if options.quick { Vec::new() } else { targets::verdicts(&results, &measured) };
    let comparison = Comparison::of(&results, &measured, &cases, options.quick);
    Ok(Report { machine, subjects: measured, cases, quick: options.quick, results, comparison, verdicts })
}

/// Measures whole pods of a cluster.
fn measure_pods(options: &Options, cases: Vec<&'static Case>) -> Result<Report, MainError> {
    let dirs = RunDirectories::make(options)?;
    let machine = Machine::this(&dirs);
    many_open_files();
    let node = Node::enter(&dirs.data.join("netns"))?;
    let mut bench = PodBench::new(node, options, &dirs)?;
    bench.bench.keeps_disturbed = options.keeps_disturbed();
    let measured = MeasuredSubjects::of_others(&bench.bench.subjects);
    let outcome = run_cases(options, &cases, |case, settings| match case.procedure {
        Procedure::Pods(run) => run(&mut bench, settings),
        _ => Ok(()),
    });
    if outcome.is_err() || !bench.bench.results.failures.is_empty() {
        tell_logs(&bench.bench.subjects)?;
    }
    outcome?;
    let results = bench.close();
    let verdicts = if options.quick { Vec::new() } else { pods::targets::verdicts(&results) };
    let comparison = Comparison::of(&results, &measured, &cases, options.quick);
    Ok(Report { machine, subjects: measured, cases, quick: options.quick, results, comparison, verdicts })
}

/// Measures switches of vhost-user ports.
fn measure_switches(options: &Options, cases: Vec<&'static Case>) -> Result<Report, MainError> {
    let dirs = RunDirectories::make(options)?;
    let machine = Machine::this(&dirs);
    // A bridge of OVS makes an interface, and huge pages are mounted: none of that is the host's.
    let _node = Node::enter(&dirs.data.join("netns"))?;
    let mut bench = SwitchBench::new(options, &dirs)?;
    let measured = bench.subjects();
    run_cases(options, &cases, |case, settings| match case.procedure {
        Procedure::Switches(run) => run(&mut bench, settings),
        _ => Ok(()),
    })?;
    let results = bench.results;
    let verdicts = if options.quick { Vec::new() } else { switches::targets::verdicts(&results) };
    let comparison = Comparison::of(&results, &measured, &cases, options.quick);
    Ok(Report { machine, subjects: measured, cases, quick: options.quick, results, comparison, verdicts })
}

/// Measures with VFs, which are this machine's own.
fn measure_vfs(options: &Options, cases: Vec<&'static Case>) -> Result<Report, MainError> {
    let dirs = RunDirectories::make(options)?;
    let machine = Machine::this(&dirs);
    let node = Node::this_machine(&dirs.data.join("netns"))?;
    let subjects = subject_setup::for_vfs(options, &dirs)?;
    let bench = VfBench::new(node, subjects, options, &dirs.allocations());
    let mut bench = bench.map_err(BenchError::from)?;
    let outcome = run_cases(options, &cases, |case, settings| match case.procedure {
        Procedure::Vfs(run) => run(&mut bench, settings),
        _ => Ok(()),
    });
    if outcome.is_err() || !bench.results.failures.is_empty() {
        tell_logs(&bench.subjects)?;
    }
    outcome?;
    let (measured, results) = bench.close();
    let verdicts = if options.quick { Vec::new() } else { targets::of_vfs(&results, &measured) };
    let comparison = Comparison::of(&results, &measured, &cases, options.quick);
    Ok(Report { machine, subjects: measured, cases, quick: options.quick, results, comparison, verdicts })
}

fn run_cases(
    options: &Options,
    cases: &[&'static Case],
    mut run: impl FnMut(&'static Case, &CaseSize) -> Result<(), BenchError>,
) -> Result<(), MainError> {
    for turn in 1..=options.runs {
        for case in cases {
            // Measured already, by the course of another case that was chosen too.
            if case.beside.is_some_and(|other| cases.iter().any(|c| c.name == other)) {
                continue;
            }
            writeln!(io::stderr(), "{} (run {turn} of {}) …", case.name, options.runs)?;
            run(case, case.size(options.quick))?;
        }
    }
    Ok(())
}

/// Prints the end of each daemon's log: when something went wrong, it says more than the suite can.
fn tell_logs(subjects: &[Subject]) -> io::Result<()> {
    for (name, daemon) in subjects.iter().filter_map(|s| Some((&s.name, s.daemon.as_ref()?))) {
        writeln!(io::stderr(), "the end of the log of {name}:\n{}", daemon.last_words())?;
    }
    Ok(())
}

/// Raises the limit of open files: each of five hundred plugins at once has three pipes.
fn many_open_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With the old limit `storm-500` fails by itself, and says so.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

fn write(path: &Path, text: &str) -> Result<(), MainError> {
    fs::write(path, text).map_err(|source| MainError::Write { path: path.to_owned(), source })
}
