//! `fairlead-bench`: times CNI plugins the way a runtime calls them, ours and others, side by side in one run.
//!
//! A plugin is exec'd with three pipes, the CNI environment and its config on stdin, for pods that are real network
//! namespaces on a private node; every interface is verified. It never touches the host's network, and it never
//! counts a call whose result is wrong.

#![forbid(unsafe_code)]

mod bench;
mod cases;
mod cli;
mod course;
mod daemon;
mod exec;
mod vfs;
mod lineup;
mod machine;
mod network;
mod node;
mod process;
mod report;
mod results;
mod statistics;
mod subject;
mod targets;
mod verify;

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::bench::{Bench, BenchError};
use crate::cases::{CASES, Case, Course, Settings};
use crate::cli::Options;
use crate::vfs::Functions;
use crate::lineup::{LineupError, Workshop};
use crate::machine::Machine;
use crate::node::{Node, NodeError};
use crate::report::{Report, Subjects};
use crate::subject::Subject;

/// Why there is no report, or not all of it.
#[derive(Debug, thiserror::Error)]
enum MainError {
    /// A case that does not exist was asked for.
    #[error("there is no case {0}; `--list` tells the cases")]
    Case(String),
    /// A directory or report could not be written.
    #[error("{path}: {source}")]
    Write {
        /// Which.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Standard output is closed.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// The node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The subjects.
    #[error(transparent)]
    Lineup(#[from] LineupError),
    /// The measurement.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The JSON.
    #[error(transparent)]
    Json(#[from] report::json::JsonError),
    /// The page.
    #[error(transparent)]
    Page(#[from] report::page::PageError),
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            // There is nobody to tell when standard error is closed too.
            let _ = writeln!(io::stderr(), "fairlead-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

/// True when every call succeeded and every interface was right.
fn run(options: &Options) -> Result<bool, MainError> {
    if options.list {
        for case in CASES {
            writeln!(io::stdout(), "{:14} {}", case.name, case.about)?;
        }
        return Ok(true);
    }
    let vfs = !options.vfs.is_empty();
    let cases =
        cases::chosen(&options.only, vfs).map_err(|unknown| MainError::Case(unknown.join(", ")))?;
    let report = if vfs { measure_vfs(options, cases)? } else { measure(options, cases)? };
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
    let machine = Machine::this(options);
    let workshop = Workshop::make(options)?;
    many_open_files();
    let node = Node::enter(&workshop.data.join("netns"))?;
    let subjects = lineup::subjects(options, &workshop)?;
    let told = Subjects::tell(&subjects);
    let waiting = lineup::waiting(options, &workshop);
    let (data_dir, results) = (workshop.allocations(), results::Results::default());
    let mut bench = Bench { node, subjects, waiting, data_dir, results, serial: 0, leaked: HashSet::new() };
    let outcome = run_cases(options, &cases, |case, settings| match case.course {
        Course::Node(course) => course(&mut bench, settings),
        Course::Functions(_) => Ok(()),
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
    // A smoke test proves nothing about speed, so it is held against nothing.
    let verdicts = if options.quick { Vec::new() } else { targets::verdicts(&results, &told) };
    Ok(Report { machine, subjects: told, cases, quick: options.quick, results, verdicts })
}

/// The same with VFs, which are this machine's own.
fn measure_vfs(options: &Options, cases: Vec<&'static Case>) -> Result<Report, MainError> {
    let machine = Machine::this(options);
    let workshop = Workshop::make(options)?;
    let node = Node::this_machine(&workshop.data.join("netns"))?;
    let subjects = lineup::for_vfs(options, &workshop)?;
    let vfs = Functions::new(node, subjects, options, &workshop.allocations());
    let mut vfs = vfs.map_err(BenchError::from)?;
    let outcome = run_cases(options, &cases, |case, settings| match case.course {
        Course::Functions(course) => course(&mut vfs, settings),
        Course::Node(_) => Ok(()),
    });
    if outcome.is_err() || !vfs.results.failures.is_empty() {
        tell_logs(&vfs.subjects)?;
    }
    outcome?;
    let (told, results) = vfs.close();
    let verdicts = if options.quick { Vec::new() } else { targets::of_vfs(&results, &told) };
    Ok(Report { machine, subjects: told, cases, quick: options.quick, results, verdicts })
}

fn run_cases(
    options: &Options,
    cases: &[&'static Case],
    mut course: impl FnMut(&'static Case, &Settings) -> Result<(), BenchError>,
) -> Result<(), MainError> {
    for turn in 1..=options.runs {
        for case in cases {
            // Measured already, by the course of another case that was chosen too.
            if case.beside.is_some_and(|other| cases.iter().any(|c| c.name == other)) {
                continue;
            }
            writeln!(io::stderr(), "{} (run {turn} of {}) …", case.name, options.runs)?;
            course(case, if options.quick { &case.quick } else { &case.settings })?;
        }
    }
    Ok(())
}

/// When something went wrong, the daemons' own words are worth more than ours.
fn tell_logs(subjects: &[Subject]) -> io::Result<()> {
    for (name, daemon) in subjects.iter().filter_map(|s| Some((&s.name, s.daemon.as_ref()?))) {
        writeln!(io::stderr(), "the end of the log of {name}:\n{}", daemon.last_words())?;
    }
    Ok(())
}

/// Five hundred plugins at once have three pipes each.
fn many_open_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With the old limit `storm-500` fails by itself, and says so.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

fn write(path: &Path, text: &str) -> Result<(), MainError> {
    fs::write(path, text).map_err(|source| MainError::Write { path: path.to_owned(), source })
}
