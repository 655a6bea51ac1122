//! The command line, and the order of things: rows are run by a few workers and printed in the table's order.

use std::io;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use fairlead_contest::case::Case;
use fairlead_contest::implementation::Implementation;
use fairlead_contest::kernel_kinds::{self, Kind};
use fairlead_contest::report::{Columns, Mark, Report, Row};
use fairlead_contest::run_row::{self, Outcome, RowError};
use fairlead_contest::spec::{self, SpecCase};
use fairlead_contest::vf::nic::Nic;
use fairlead_contest::vf::{self, Behaviour};
use fairlead_contest::{shared_store, table};

use crate::own_namespaces;

/// Judges CNI plugins beside the reference plugins: the same networks, the same calls, everything compared.
#[derive(Debug, Parser)]
#[command(name = "fairlead-contest", version)]
struct Options {
    /// Directory of the reference plugins' executables.
    #[arg(long, default_value = ".cache/bin/plugins")]
    reference: PathBuf,
    /// Directory of the executables that are judged, under the plugins' names; what it lacks is taken from the
    /// reference. Without it Fairlead is judged: `fairlead` and `fairleadd` of --dist.
    #[arg(long)]
    subject: Option<PathBuf>,
    /// A `fairleadd` that is run on each of the subject's nodes.
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// Where Fairlead's programs lie.
    #[arg(long, default_value = "dist")]
    dist: PathBuf,
    /// Only these parts. Without it, all but the one that needs NICs.
    #[arg(long, value_enum, value_delimiter = ',', requires_if("functions", "nics"))]
    part: Vec<Part>,
    /// Two NICs of this machine, by PCI address, whose VFs the part `functions` makes anew and lends.
    #[arg(long = "nic", num_args = 2, value_names = ["PCI", "PCI"])]
    nics: Vec<String>,
    /// Another plugin for `sriov` networks, put to the cases of `functions` after the subject: a row says what both did.
    #[arg(long, value_name = "NAME=PATH", value_parser = named, requires = "nics")]
    peer: Option<(String, PathBuf)>,
    /// Only rows whose title contains this text.
    #[arg(long)]
    only: Option<String>,
    /// A row that this kernel can't run is a failure.
    #[arg(long)]
    require_all: bool,
    /// Only rows that need links of a kind that not every kernel has: for a second run in the lab.
    #[arg(long)]
    lab_only: bool,
    /// Tell the differences that are meant, too.
    #[arg(long)]
    show_allowed: bool,
    /// Rows at work at the same time: most of a row is waiting for what DEL left to go.
    #[arg(long, default_value = "8")]
    workers: NonZero<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The equality table.
    Equality,
    /// The specification's cases.
    Spec,
    /// Both on one host-local directory.
    Shared,
    /// The machine's own VFs.
    #[value(name = "functions")]
    Vfs,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("it is NAME=PATH")?;
    Ok((name.to_owned(), path.into()))
}

/// Why nothing could be judged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContestError {
    /// The program's own namespaces or mounts could not be made.
    #[error("nothing can be judged: {0}")]
    Namespaces(#[from] io::Error),
    /// The kernel could not be probed for kinds of links.
    #[error("the kernel can't be probed: {0}")]
    Probe(#[from] fairlead_contest::node_commands::NodeError),
    /// A thread panicked.
    #[error("the kernel's probe panicked")]
    Panic,
}

/// One thing that a worker runs.
enum Job {
    Equality(&'static str, Box<Case>),
    Spec(SpecCase),
    Shared,
}

struct Contest {
    reference: Implementation,
    subject: Implementation,
    peer: Option<Implementation>,
    kinds: Vec<Kind>,
    shared_directory: String,
    show_allowed: bool,
}

/// Runs what the command line asks for; true when nothing failed.
pub(crate) fn run() -> Result<bool, ContestError> {
    let options = Options::parse();
    own_namespaces::enter()?;
    let begun = Instant::now();
    let contest = prepare(&options)?;
    let jobs = jobs(&options);
    let mut report = Report::new(io::stdout());
    let next = AtomicUsize::new(0);
    let printed = thread::scope(|scope| {
        let (said, hear) = mpsc::channel();
        let (jobs, contest, next) = (&jobs, &contest, &next);
        for _ in 0..options.workers.get() {
            let said = said.clone();
            scope.spawn(move || work(contest, jobs, next, &said));
        }
        drop(said);
        in_order(&hear, |rows| rows.iter().try_for_each(|row| report.row(row, options.require_all)))
    });
    printed?;
    contest.vfs(&options, &mut report)?;
    report.remark(&format!("{:.0} s", begun.elapsed().as_secs_f64()))?;
    Ok(report.finish()?)
}

fn prepare(options: &Options) -> Result<Contest, ContestError> {
    let places = places(options);
    let bound = own_namespaces::bind_plugins(&places)?;
    let place = |name: &str| bound.iter().find(|path| path.ends_with(name)).cloned();
    let theirs = place(REFERENCE).unwrap_or_default();
    let reference = Implementation { role: REFERENCE, dir: theirs.clone(), fallback: None, daemon: None };
    let daemon = place(DAEMON);
    let dir = own_namespaces::place(SUBJECT);
    let subject = Implementation { role: SUBJECT, dir, fallback: Some(theirs.clone()), daemon };
    let peer = options.peer.as_ref().map(|_| Implementation {
        role: PEER,
        dir: own_namespaces::place(PEER),
        fallback: Some(theirs),
        daemon: None,
    });
    let kinds = if part(options, Part::Equality) {
        thread::spawn(kernel_kinds::probe).join().map_err(|_| ContestError::Panic)??
    } else {
        Vec::new()
    };
    let shared_directory = own_namespaces::shared_directory()?;
    Ok(Contest { reference, subject, peer, kinds, shared_directory, show_allowed: options.show_allowed })
}

const REFERENCE: &str = "reference";
const SUBJECT: &str = "subject";
const PEER: &str = "peer";
const DAEMON: &str = "daemon";

/// The plugins that the one executable stands for.
const BUILT_IN: [&str; 7] = ["macvlan", "ipvlan", "vlan", "dummy", "host-device", "loopback", "sriov"];

/// The programs to bind: name in the scratch directory, path outside.
fn places(options: &Options) -> Vec<(String, PathBuf)> {
    let mut places = vec![(REFERENCE.to_owned(), options.reference.clone())];
    match &options.subject {
        Some(subject) => places.push((SUBJECT.to_owned(), subject.clone())),
        None => {
            let one = |plugin| (format!("{SUBJECT}/{plugin}"), options.dist.join("fairlead"));
            places.extend(BUILT_IN.into_iter().map(one));
        }
    }
    places.extend(options.peer.iter().map(|(_, path)| (format!("{PEER}/sriov"), path.clone())));
    let ours = options.subject.is_none().then(|| options.dist.join("fairleadd"));
    places.extend(options.daemon.clone().or(ours).map(|daemon| (DAEMON.to_owned(), daemon)));
    places
}

fn part(options: &Options, wanted: Part) -> bool {
    options.part.is_empty() || options.part.contains(&wanted)
}

fn wanted(options: &Options, title: &str) -> bool {
    options.only.as_ref().is_none_or(|only| title.contains(only.as_str()))
}

fn jobs(options: &Options) -> Vec<Job> {
    let part = |wanted| part(options, wanted);
    let wanted = |title: &str| wanted(options, title);
    let mut jobs = Vec::new();
    if part(Part::Equality) {
        for group in table::all() {
            let here = |row: &Case| !options.lab_only || !row.needs.is_empty();
            let rows = group.rows.into_iter().filter(|row| wanted(&row.title) && here(row));
            jobs.extend(rows.map(|row| Job::Equality(group.name, Box::new(row))));
        }
    }
    if part(Part::Spec) {
        jobs.extend(spec::all().into_iter().filter(|case| wanted(case.name)).map(Job::Spec));
    }
    if part(Part::Shared) && wanted("shared store") {
        jobs.push(Job::Shared);
    }
    jobs
}

fn work(contest: &Contest, jobs: &[Job], next: &AtomicUsize, said: &mpsc::Sender<(usize, Vec<Row>)>) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(job) = jobs.get(index) else { return };
        if said.send((index, contest.run(job))).is_err() {
            return;
        }
    }
}

/// Passes on in the order of their numbers what arrives in any order.
fn in_order(
    hear: &mpsc::Receiver<(usize, Vec<Row>)>,
    mut print: impl FnMut(Vec<Row>) -> io::Result<()>,
) -> io::Result<()> {
    let mut early = std::collections::BTreeMap::new();
    let mut next = 0;
    for (index, rows) in hear {
        early.insert(index, rows);
        while let Some(rows) = early.remove(&next) {
            print(rows)?;
            next += 1;
        }
    }
    Ok(())
}

impl Contest {
    fn run(&self, job: &Job) -> Vec<Row> {
        match job {
            Job::Equality(group, case) => vec![self.equality(group, case)],
            Job::Spec(case) => vec![spec::run(case, &self.reference, &self.subject)],
            Job::Shared => shared_store::run(&self.reference, &self.subject, &self.shared_directory)
                .unwrap_or_else(|error| {
                    vec![broken("both on one host-local directory", "shared store", &error)]
                }),
        }
    }

    /// Runs the cases on the machine's own VFs, one after the other.
    fn vfs(&self, options: &Options, report: &mut Report<io::Stdout>) -> io::Result<()> {
        let [first, second] = options.nics.as_slice() else { return Ok(()) };
        let nics = [first, second].map(|address| Nic { address: address.clone() });
        let peer = options.peer.as_ref().map_or("", |(name, _)| name);
        let theirs = if peer.is_empty() { 0 } else { 70 };
        let ours = if options.subject.is_none() { "fairlead" } else { SUBJECT };
        report.columns(Columns { title: 74, reference: theirs, names: [peer.into(), ours.into()] });
        let cases: Vec<Behaviour> =
            vf::all().into_iter().filter(|case| wanted(options, case.title)).collect();
        let mut printed = Ok(());
        vf::run(&cases, &nics, &self.subject, self.peer.as_ref(), |row| {
            if printed.is_ok() {
                printed = report.row(row, options.require_all);
            }
        });
        printed
    }

    fn equality(&self, group: &'static str, case: &Case) -> Row {
        let missing: Vec<String> =
            case.needs.iter().filter(|kind| !self.kinds.contains(kind)).map(Kind::to_string).collect();
        if !missing.is_empty() {
            let reference = format!("needs the lab ({})", missing.join(", "));
            let mark = Mark::NeedsTheLab;
            return Row {
                group,
                title: case.title.clone(),
                mark,
                reference,
                subject: String::new(),
                notes: Vec::new(),
            };
        }
        match run_row::run(case, &self.reference, &self.subject) {
            Ok(outcome) => self.row(group, case, outcome),
            Err(error) => broken(group, &case.title, &error),
        }
    }

    fn row(&self, group: &'static str, case: &Case, outcome: Outcome) -> Row {
        let mark = match (outcome.faults.is_empty(), outcome.earlier.is_empty()) {
            (false, _) => Mark::Failed,
            (true, true) => Mark::Passed,
            (true, false) => Mark::PassedOnRun(outcome.runs),
        };
        let mut notes = outcome.faults;
        notes.extend(outcome.earlier);
        if self.show_allowed || mark == Mark::Failed {
            let allowed = outcome.allowed.iter();
            notes
                .extend(allowed.map(|(difference, reason)| {
                    format!("allowed: {} ({reason})", run_row::line(difference))
                }));
        }
        let [reference, subject] = outcome.adds;
        Row { group, title: case.title.clone(), mark, reference, subject, notes }
    }
}

fn broken(group: &'static str, title: &str, error: &RowError) -> Row {
    Row {
        group,
        title: title.to_owned(),
        mark: Mark::Failed,
        reference: String::new(),
        subject: "the row could not be run".into(),
        notes: vec![error.to_string()],
    }
}
