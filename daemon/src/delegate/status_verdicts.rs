//! What plugins that are executed have last said to STATUS. On a busy node a plugin takes longer than a STATUS may, and load alone must
//! not take the node out of service. So a thread asks the plugin, and the caller takes what it says in time, or else what it said last.
//!
//! Invariants: a plugin is asked by one process at a time for one configuration. What it says counts once it has said it, and so does that
//! it was killed after its own time limit. As long as nothing is known of a plugin it is taken to be ready. What is known is of one
//! configuration, and is forgotten when nobody asks for that any more.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_cni::wire::Command;
use fairlead_host::exec::ExecError;
use nix::errno::Errno;
use parking_lot::{Condvar, Mutex};

use super::{DelegateCall, DelegateError, DelegateOutcome, Delegates, Parameters};

/// What nobody has asked for during this time is forgotten. A runtime asks every few seconds.
const KEPT: Duration = Duration::from_secs(300);

/// So many plugins, each with its configuration, are known at most; all of them may be asked at once.
const MOST: usize = 64;

/// Killed plugins are waited for so long when the daemon stops: one that hangs in the kernel does not end.
const END_LIMIT: Duration = Duration::from_secs(3);

type Verdict = Result<DelegateOutcome, DelegateError>;

/// What a verdict is of: two STATUS calls that have all of it in common ask the same.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Question {
    plugin: String,
    config: String,
    path: String,
    of_tenant: bool,
}

/// What is known of a question.
#[derive(Debug)]
struct Known {
    asked: Instant,
    is_running: bool,
    last: Option<Verdict>,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<Arc<Question>, Known>,
    is_ending: bool,
}

/// The last verdicts, and the runs that are under way.
#[derive(Debug, Default)]
pub(super) struct StatusVerdicts {
    state: Mutex<State>,
    run_ended: Condvar,
}

impl StatusVerdicts {
    /// Has the plugin asked, unless it still is. Waits for what it says as long as the caller does; then its last verdict is the answer.
    pub(super) fn ask(self: &Arc<Self>, delegates: &Delegates, call: &DelegateCall<'_>) -> Verdict {
        let now = Instant::now();
        let until = now + call.patience.min(call.time_limit);
        let question = Arc::new(Question::of(call));
        if let Some(run) = self.begin(&question, call, now) {
            let delegates = delegates.clone();
            let thread = thread::Builder::new().name("plugin-status".to_owned());
            // Where there is no thread, there is no process either.
            thread
                .spawn(move || run.carry_out(&delegates))
                .map_err(|error| not_started(call.plugin, &error))?;
        }
        let mut state = self.state.lock();
        let is_running = |state: &mut State| state.known.get(&question).is_some_and(|known| known.is_running);
        self.run_ended.wait_while_until(&mut state, is_running, until);
        let last = state.known.get(&question).and_then(|known| known.last.clone());
        last.unwrap_or_else(|| Ok(DelegateOutcome::Output(String::new())))
    }

    /// Kills what runs, and waits for its end. Nothing is begun from now on.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.is_ending = true;
        let any_runs = |state: &mut State| state.known.values().any(|known| known.is_running);
        self.run_ended.wait_while_for(&mut state, any_runs, END_LIMIT);
    }

    /// Notes that this is asked. The run that is to be carried out; `None` where one is under way, or none may be begun.
    fn begin(
        self: &Arc<Self>,
        question: &Arc<Question>,
        call: &DelegateCall<'_>,
        now: Instant,
    ) -> Option<StatusRun> {
        let mut state = self.state.lock();
        if state.is_ending || !state.has_room_for(question, now) {
            return None;
        }
        let new = || Known { asked: now, is_running: false, last: None };
        let known = state.known.entry(Arc::clone(question)).or_insert_with(new);
        known.asked = now;
        if known.is_running {
            return None;
        }
        known.is_running = true;
        Some(StatusRun {
            verdicts: Arc::clone(self),
            question: Arc::clone(question),
            env: call.parameters.env.to_vec(),
            time_limit: call.time_limit,
            is_ours: call.is_ours,
            verdict: None,
        })
    }
}

impl State {
    /// Forgets what nobody asks for any more, and for a new question, if need be, what was asked longest ago. False while all that is
    /// known runs.
    fn has_room_for(&mut self, question: &Question, now: Instant) -> bool {
        self.known.retain(|_, known| known.is_running || now.duration_since(known.asked) < KEPT);
        if self.known.len() < MOST || self.known.contains_key(question) {
            return true;
        }
        let at_rest = self.known.iter().filter(|(_, known)| !known.is_running);
        let oldest = at_rest.min_by_key(|(_, known)| known.asked).map(|(question, _)| Arc::clone(question));
        oldest.is_some_and(|oldest| self.known.remove(&oldest).is_some())
    }
}

impl Question {
    fn of(call: &DelegateCall<'_>) -> Question {
        Question {
            plugin: call.plugin.to_owned(),
            config: call.config.to_owned(),
            path: call.parameters.path.to_owned(),
            of_tenant: call.parameters.of_tenant,
        }
    }
}

/// One run of a plugin. It is under way until this is dropped, also where its thread could not be had or has panicked.
struct StatusRun {
    verdicts: Arc<StatusVerdicts>,
    question: Arc<Question>,
    env: Vec<(String, String)>,
    time_limit: Duration,
    is_ours: fn(&File) -> bool,
    verdict: Option<Verdict>,
}

impl StatusRun {
    fn carry_out(mut self, delegates: &Delegates) {
        self.verdict = Some(self.run(delegates));
    }

    /// A STATUS is of no pod, and other callers have the same answer: the plugin gets nothing that is one caller's but its environment.
    fn run(&self, delegates: &Delegates) -> Verdict {
        let Question { plugin, config, path, of_tenant } = &*self.question;
        let parameters = Parameters {
            container_id: "",
            netns: "",
            ifname: "",
            args: "",
            path,
            env: &self.env,
            of_tenant: *of_tenant,
        };
        let done = delegates.run_to_its_end(&DelegateCall {
            command: Command::Status,
            plugin,
            config,
            parameters,
            time_limit: self.time_limit,
            patience: Duration::MAX,
            cancelled: &|| self.verdicts.state.lock().is_ending,
            is_ours: self.is_ours,
        })?;
        Ok(match done {
            // Nobody reads it, and it would be kept.
            DelegateOutcome::Output(_) => DelegateOutcome::Output(String::new()),
            DelegateOutcome::Ours => done,
        })
    }
}

impl Drop for StatusRun {
    fn drop(&mut self) {
        if let Some(known) = self.verdicts.state.lock().known.get_mut(&self.question) {
            known.is_running = false;
            if let Some(verdict) = self.verdict.take() {
                known.last = Some(verdict);
            }
        }
        self.verdicts.run_ended.notify_all();
    }
}

fn not_started(plugin: &str, error: &io::Error) -> DelegateError {
    let errno = error.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw);
    let source = ExecError::NotStarted { program: plugin.into(), errno };
    DelegateError::Exec { plugin: plugin.to_owned(), command: Command::Status, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delegate::script;

    /// A plugin, and who asks it.
    struct Asking {
        dir: tempfile::TempDir,
        delegates: Delegates,
    }

    impl Asking {
        fn of(body: &str) -> Asking {
            let dir = tempfile::tempdir().unwrap();
            script::write(&dir.path().join("p"), body);
            Asking { dir, delegates: Delegates::new("/".into(), None, "/nowhere".into()) }
        }

        fn with<T>(&self, config: &str, patience: Duration, then: impl FnOnce(&DelegateCall<'_>) -> T) -> T {
            let path = self.dir.path().display().to_string();
            then(&DelegateCall {
                command: Command::Status,
                plugin: "p",
                config,
                parameters: Parameters { args: "A=b", ..script::parameters(&path) },
                time_limit: Duration::from_secs(60),
                patience,
                cancelled: &|| false,
                is_ours: |_| false,
            })
        }

        fn ask(&self, config: &str, patience: Duration) -> Verdict {
            self.with(config, patience, |call| self.delegates.run(call))
        }

        fn begin(&self, n: usize, now: Instant) -> Option<StatusRun> {
            self.with(&n.to_string(), Duration::ZERO, |call| {
                self.delegates.statuses.begin(&Arc::new(Question::of(call)), call, now)
            })
        }

        fn known(&self) -> usize {
            self.delegates.statuses.state.lock().known.len()
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn x04_what_a_plugin_says_too_late_is_the_answer_to_the_next_status_of_the_same_configuration_alone() {
        let says_that_it_is_not_ready = r#"case "$(cat)$CNI_COMMAND$CNI_CONTAINERID$CNI_NETNS$CNI_IFNAME$CNI_ARGS" in
badSTATUS) while [ ! -e "$0.go" ]; do sleep 0.02; done; echo '{"code":51,"msg":"half of it"}'; exit 1;;
goodSTATUS) sleep 60;;
esac
exit 2"#;
        let asking = Asking::of(says_that_it_is_not_ready);
        let soon = Duration::from_millis(20);
        asking.ask("bad", soon).unwrap();
        std::fs::write(asking.dir.path().join("p.go"), "").unwrap();
        let told = asking.ask("bad", LONG).unwrap_err();
        assert!(told.to_string().ends_with("half of it"), "{told}");
        std::fs::remove_file(asking.dir.path().join("p.go")).unwrap();
        let last = asking.ask("bad", soon).unwrap_err();
        assert_eq!(last.to_string(), told.to_string());
        asking.ask("good", soon).unwrap();
        asking.delegates.end_statuses();
        assert!(asking.delegates.statuses.state.lock().known.values().all(|known| !known.is_running));
    }

    #[test]
    fn x04_plugins_are_asked_once_at_a_time_and_no_more_of_them_than_may_be() {
        let asking = Asking::of("exit 0");
        let now = Instant::now();
        let runs: Vec<StatusRun> = (0..MOST).map(|n| asking.begin(n, now).unwrap()).collect();
        assert!(asking.begin(0, now).is_none(), "it is being asked");
        assert!(asking.begin(MOST, now).is_none(), "there is no room");
        drop(runs);
        drop(asking.begin(MOST, now).unwrap());
        assert_eq!(asking.known(), MOST);
        drop(asking.begin(0, now + KEPT).unwrap());
        assert_eq!(asking.known(), 1, "nobody has asked for the others");
    }
}
