//! Who is served when: a bounded number of calls at work, the others in order behind them.
//!
//! Calls run on threads made for that, never on the server's: [`Lane::Fast`] has a few, and one more for each that is
//! stuck while others wait, [`Lane::Slow`] gets threads on demand, STATUS has one of its own. A call is answered once.
//! A queued call whose caller has hung up is dropped unexecuted, except DEL and GC, which always go on. Before
//! [`Admission::open`] everything is held in order; after [`Admission::stop`] nothing is begun.

mod crew;
mod job;
mod queue;
#[cfg(test)]
mod tests;
mod work;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fairlead_cni::wire::{Command, Request};
use fairlead_host::scheduling::prefer_this_thread;
use tokio::sync::oneshot;
use tracing::error;

use self::crew::Crew;
use self::job::{Delivery, Job, Ticket};
pub use self::job::{Outcome, Receipt, Submitted};
pub use self::queue::{Attachment, attachment_of};
use self::queue::{Line, Queue};
pub use self::work::Done;
pub(crate) use self::work::{guarded, panic_text};
use crate::call::{Call, CallerGone, Lane, Service};
use crate::health::Health;
use crate::metrics::Calls;

/// How long a caller waits when it does not say.
const UNTOLD_DEADLINE: Duration = Duration::from_secs(30);
/// No caller is believed to wait longer than this.
const LONGEST_DEADLINE: Duration = Duration::from_secs(600);
/// A delivered answer is put on record within this time.
const CONFIRMED_AFTER: Duration = Duration::from_millis(5);

/// STATUS waits no longer than this for its turn. What hangs is told by the executable after 100 ms; a daemon that is only
/// short of processors must not be called broken.
const STATUS_DEADLINE: Duration = Duration::from_secs(1);
/// An idle thread of the slow lane ends after this.
const SLOW_IDLE: Duration = Duration::from_secs(10);

/// How many calls at once.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Threads of the fast lane that are not stuck.
    pub fast: usize,
    /// At most so many threads of the slow lane, and as many further ones of the fast lane.
    pub slow: usize,
    /// Calls queued at most; a further one is told to try again.
    pub queued: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { fast: 4, slow: 64, queued: 4096 }
    }
}

#[derive(Debug, Default)]
struct State {
    queue: Queue,
    /// What came before [`Admission::open`].
    held: Vec<Job>,
    open: bool,
    stopping: bool,
    /// Begun, and not yet on record as answered.
    running: usize,
    crew: Crew,
    /// A call is carried out by the thread that accepted it.
    inline: bool,
    slow_threads: usize,
    slow_idle: usize,
}

impl State {
    fn is_quiet(&self) -> bool {
        let at_work = self.inline || self.crew.is_at_work() || self.queue.has(Line::Fast);
        self.open && !self.stopping && !at_work
    }
}

struct Shared {
    state: Mutex<State>,
    /// One for each line.
    work: [Condvar; 3],
    idle: Condvar,
    service: OnceLock<Arc<dyn Service>>,
    receipts: OnceLock<Sender<Delivery>>,
    limits: Limits,
    calls: Calls,
    health: Arc<Health>,
}

/// The gate that every call passes.
#[derive(Clone)]
pub struct Admission(Arc<Shared>);

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

impl Admission {
    /// A gate that is shut: calls are taken and held.
    pub fn new(limits: Limits, calls: Calls, health: Arc<Health>) -> Admission {
        let limits = Limits { fast: limits.fast.max(1), ..limits };
        Admission(Arc::new(Shared {
            state: Mutex::default(),
            work: Default::default(),
            idle: Condvar::new(),
            service: OnceLock::new(),
            receipts: OnceLock::new(),
            limits,
            calls,
            health,
        }))
    }

    /// Opens the gate: what was held is put in line, and the threads begin.
    ///
    /// # Errors
    /// When a thread can't be made.
    pub fn open(&self, service: Arc<dyn Service>) -> std::io::Result<()> {
        let service = self.0.service.get_or_init(|| service);
        self.0.lock().crew.threads = self.0.limits.fast;
        for n in 0..self.0.limits.fast {
            self.spawn(format!("call-{n}"), Line::Fast)?;
        }
        self.spawn("status".into(), Line::Status)?;
        // One slow thread is always there: when no further one can be made, what is in line is begun all the same.
        self.0.lock().slow_threads = 1;
        self.spawn("slow-0".into(), Line::Slow)?;
        let (receipts, given_back) = channel();
        let gate = self.clone();
        std::thread::Builder::new().name("answered".into()).spawn(move || gate.confirm(&given_back))?;
        let _ = self.0.receipts.set(receipts);
        let mut state = self.0.lock();
        state.open = true;
        for mut job in std::mem::take(&mut state.held) {
            job.line = line_of(&**service, &job.call.request);
            if let Some(line) = state.queue.push(job) {
                self.staffed(&mut state, line);
            }
        }
        drop(state);
        self.0.work.iter().for_each(Condvar::notify_all);
        Ok(())
    }

    /// Tells the engine which ADDs' answers were delivered, a little later and many at once: woken for each, this thread
    /// would take a processor from the next call.
    fn confirm(&self, given_back: &Receiver<Delivery>) {
        while let (Some(service), Ok(first)) = (self.0.service.get(), given_back.recv()) {
            std::thread::sleep(CONFIRMED_AFTER);
            for (call, delivered) in std::iter::once(first).chain(given_back.try_iter()) {
                service.answered(&call, delivered);
                self.ended();
            }
        }
    }

    /// True once [`Admission::open`] was called.
    pub fn is_open(&self) -> bool {
        self.0.lock().open
    }

    /// Hands a call in.
    pub fn submit(&self, request: Request, arrived: Instant) -> Submitted {
        let line = self.0.service.get().map_or(Line::Fast, |service| line_of(&**service, &request));
        let deadline = arrived + patience(&request);
        let (sender, answer) = oneshot::channel();
        let (gone, ticket) = (CallerGone::default(), Ticket::default());
        let call = Call { request, arrived, deadline, gone: gone.clone() };
        let call = Arc::new(call);
        let job = Job { number: 0, call, line, ticket: ticket.clone(), answer: sender };
        let (gate, durable) = (self.clone(), job.outlives_its_caller());
        let submitted = Submitted { answer, ticket, gone, durable, gate, line, deadline };
        self.enqueue(job);
        submitted
    }

    /// Whether a call that came now would be begun at once, and be the only one at work in the fast line.
    pub fn is_quiet(&self) -> bool {
        self.0.lock().is_quiet()
    }

    /// Carries a call out on the thread that asks, where it is the only one and starts no other program; gives it back
    /// otherwise. The caller must see to it that [`Admission::conclude`] follows when the answer has left.
    ///
    /// # Errors
    /// The request, for [`Admission::submit`].
    pub fn serve_here(
        &self,
        request: Request,
        arrived: Instant,
        gone: CallerGone,
    ) -> Result<(Outcome, Done), Box<Request>> {
        let Some(service) = self.0.service.get() else { return Err(Box::new(request)) };
        if line_of(&**service, &request) != Line::Fast {
            return Err(Box::new(request));
        }
        let mut state = self.0.lock();
        if !state.is_quiet() || !state.queue.enter(&request) {
            return Err(Box::new(request));
        }
        state.running += 1;
        state.inline = true;
        self.0.gauge(&state);
        drop(state);
        let deadline = arrived + patience(&request);
        let call = Arc::new(Call { request, arrived, deadline, gone });
        Ok(self.0.perform(&**service, call))
    }

    /// The end of [`Admission::serve_here`].
    pub fn conclude(&self, done: &Done) {
        let mut state = self.0.lock();
        state.inline = false;
        let woken = state.queue.finish(done.container());
        self.wake(state, woken);
        self.counted(done);
    }

    /// The answer has left and the next call may begin; only now is this one counted and logged.
    fn counted(&self, done: &Done) {
        self.0.note(done);
        if !done.receipt {
            self.ended();
        }
    }

    fn enqueue(&self, job: Job) {
        let mut state = self.0.lock();
        let refused = if state.stopping {
            Outcome::NotBegun
        } else if state.queue.len() + state.held.len() >= self.0.limits.queued {
            Outcome::Full
        } else if state.open {
            let woken = state.queue.push(job);
            self.0.gauge(&state);
            return self.wake(state, woken);
        } else {
            state.held.push(job);
            return;
        };
        drop(state);
        let _ = job.answer.send(refused);
    }

    /// No ADD of this attachment is begun until [`Admission::release`]: a spooled DEL of it is still to be done.
    pub fn hold(&self, attachment: Attachment) {
        self.0.lock().queue.block(attachment);
    }

    /// The spooled DEL is done.
    pub fn release(&self, attachment: &Attachment) {
        let mut state = self.0.lock();
        let woken = state.queue.unblock(attachment);
        self.wake(state, woken);
    }

    /// How many calls wait and are at work.
    pub fn counts(&self) -> serde_json::Value {
        let state = self.0.lock();
        let queued = state.queue.len() + state.held.len();
        serde_json::json!({ "queued": queued, "running": state.running, "stopping": state.stopping })
    }

    /// Begins nothing any more: what waits is answered [`Outcome::NotBegun`], except a DEL or GC whose caller has gone,
    /// which nobody would send again.
    pub fn stop(&self) {
        let mut state = self.0.lock();
        state.stopping = true;
        let mut out = state.queue.drain(|job| job.outlives_its_caller() && job.call.gone.get());
        out.append(&mut state.held);
        drop(state);
        for job in out {
            let _ = job.answer.send(Outcome::NotBegun);
        }
        for condvar in &self.0.work {
            condvar.notify_all();
        }
    }

    /// Waits until nothing is at work; false when `limit` passed before.
    pub fn drained(&self, limit: Duration) -> bool {
        let state = self.0.lock();
        let busy = |state: &mut State| state.running > 0 || state.queue.len() > 0;
        let (_state, timeout) =
            self.0.idle.wait_timeout_while(state, limit, busy).unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }

    /// Lets go of the lock, then wakes the lines that have got work: nobody is woken into a lock that is still held.
    fn wake(&self, mut state: MutexGuard<'_, State>, lines: impl IntoIterator<Item = Line>) {
        let lines = lines.into_iter().map(|line| self.staffed(&mut state, line));
        let lines: [Option<Line>; 3] = {
            let mut set = [None; 3];
            lines.for_each(|line| set[line as usize] = Some(line));
            set
        };
        drop(state);
        for line in lines.into_iter().flatten() {
            self.0.work[line as usize].notify_one();
        }
    }

    /// Makes a thread for the slow line where none is idle.
    fn staffed(&self, state: &mut State, line: Line) -> Line {
        if line == Line::Slow && state.slow_idle == 0 && state.slow_threads < self.0.limits.slow {
            state.slow_threads += 1;
            if let Err(error) = self.spawn(format!("slow-{}", state.slow_threads - 1), line) {
                // The call stays in line for the threads that there are.
                state.slow_threads -= 1;
                error!(%error, "no further thread for calls that start other programs");
            }
        }
        line
    }

    /// Makes a further thread for the fast line where a call waits because others are stuck.
    fn relieve(&self) {
        let mut state = self.0.lock();
        if state.queue.has(Line::Fast) && state.crew.is_short(&self.0.limits, Instant::now()) {
            match self.spawn(format!("call-{}", state.crew.threads), Line::Fast) {
                Ok(()) => state.crew.threads += 1,
                Err(error) => error!(%error, "no further thread for calls that wait behind slow ones"),
            }
        }
    }

    fn spawn(&self, name: String, line: Line) -> std::io::Result<()> {
        let gate = self.clone();
        std::thread::Builder::new().name(name).spawn(move || gate.work(line)).map(drop)
    }

    fn work(&self, line: Line) {
        prefer_this_thread();
        while let Some(job) = self.next(line) {
            let (number, container) = (job.number, job.call.request.container_id.clone());
            let done = self.0.carry_out(job);
            let mut state = self.0.lock();
            state.crew.end(number);
            let woken = state.queue.finish(&container);
            self.wake(state, woken);
            match &done {
                Some(done) => self.counted(done),
                None => self.ended(),
            }
        }
    }

    /// A call is over and on record.
    fn ended(&self) {
        let mut state = self.0.lock();
        state.running -= 1;
        self.0.gauge(&state);
        if state.running == 0 && state.queue.len() == 0 {
            self.0.idle.notify_all();
            if state.stopping {
                self.0.work.iter().for_each(Condvar::notify_all);
            }
        }
    }

    /// The next call of a line; `None`: this thread is not needed any more.
    fn next(&self, line: Line) -> Option<Job> {
        let mut state = self.0.lock();
        if line == Line::Fast && state.crew.is_large(&self.0.limits, Instant::now()) {
            state.crew.threads -= 1;
            return None;
        }
        loop {
            let mut woken = Vec::new();
            let job = state.queue.pop(line, &mut woken);
            for line in woken {
                let line = self.staffed(&mut state, line);
                self.0.work[line as usize].notify_one();
            }
            if let Some(job) = job {
                state.running += 1;
                if line == Line::Fast {
                    state.crew.begin(job.number, Instant::now());
                }
                self.0.gauge(&state);
                return Some(job);
            }
            if state.stopping && state.running == 0 && state.queue.len() == 0 {
                return None;
            }
            let condvar = &self.0.work[line as usize];
            if line == Line::Slow {
                let limit = if state.slow_threads > 1 { SLOW_IDLE } else { Duration::MAX };
                state.slow_idle += 1;
                let (again, timeout) =
                    condvar.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner);
                state = again;
                state.slow_idle -= 1;
                if timeout.timed_out() && state.slow_threads > 1 && !state.queue.has(line) {
                    state.slow_threads -= 1;
                    return None;
                }
            } else {
                state = condvar.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gauge(&self, state: &State) {
        self.calls.queued.set(i64::try_from(state.queue.len()).unwrap_or(i64::MAX));
        self.calls.running.set(i64::try_from(state.running).unwrap_or(i64::MAX));
    }
}

fn line_of(service: &dyn Service, request: &Request) -> Line {
    match (request.command, service.lane(request)) {
        (Command::Status, _) => Line::Status,
        (_, Lane::Fast) => Line::Fast,
        (_, Lane::Slow) => Line::Slow,
    }
}

fn patience(request: &Request) -> Duration {
    let told = Duration::from_millis(request.deadline_ms);
    match request.command {
        Command::Status if told.is_zero() => STATUS_DEADLINE,
        Command::Status => told.min(STATUS_DEADLINE),
        _ if told.is_zero() => UNTOLD_DEADLINE,
        _ => told.min(LONGEST_DEADLINE),
    }
}
