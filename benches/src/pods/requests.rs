//! `pod-requests`: what is asked of the API server for a pod, by the audit log: until its ADD is answered, and until all is quiet.

use std::thread;
use std::time::Duration;

use super::{BY_CALL, BY_WATCH, PodBench, THICK, THIN, names_of};
use crate::bench::BenchError;
use crate::case_size::CaseSize;
use crate::plugin_exec::Verb;

const CASE: &str = "pod-requests";
/// The reading of what is asked before the answer.
pub(crate) const BEFORE_THE_ANSWER: &str = "requests per pod until ADD's answer";
/// The reading of everything that is asked for an ADD.
pub(crate) const IN_ALL: &str = "requests per pod in all";
/// After it, what an ADD has set off is done.
const QUIET: Duration = Duration::from_millis(400);

/// Runs it.
pub(crate) fn run(run: &mut PodBench, settings: &CaseSize) -> Result<(), BenchError> {
    for (name, user) in [(BY_CALL, "ours"), (BY_WATCH, "ours"), (THICK, THICK), (THIN, THIN)] {
        let Some(who) = run.bench.subjects.iter().position(|subject| subject.name == name) else { continue };
        let mut pods = run.pods(who, settings.calls)?;
        for pod in &mut pods {
            thread::sleep(QUIET);
            let before = run.cluster.requests_of(user)?;
            let done = run.bench.subjects[who].job(&run.bench.node, Verb::Add, pod).run();
            let answered = run.cluster.requests_of(user)?;
            thread::sleep(QUIET);
            let in_all = run.cluster.requests_of(user)?;
            if run.bench.added(CASE, who, pod, done).is_some() {
                let results = &mut run.bench.results;
                results.read(CASE, name, BEFORE_THE_ANSWER, "", (answered - before) as f64);
                results.read(CASE, name, IN_ALL, "", (in_all - before) as f64);
            }
        }
        for pod in &pods {
            let done = run.bench.subjects[who].job(&run.bench.node, Verb::Del, pod).run();
            run.bench.deleted(CASE, who, pod, done);
        }
        let names = names_of(&pods);
        run.bench.put_away(pods)?;
        run.forget(&names)?;
    }
    Ok(())
}
