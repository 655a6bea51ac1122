//! Decides when each call is carried out: a bounded number at a time, the others in order behind them.
//!
//! Calls run on threads made for them, never on the server's. A group of such threads is a lane, and the calls that wait for one of them
//! stand in its line. The fast lane has a few threads, and one more for each that is stuck while calls wait. The slow lane gets threads on
//! demand. STATUS has a thread of its own. Each call is answered exactly once.
//!
//! A queued call whose caller has hung up is dropped unexecuted; DEL and GC always go on. Before
//! [`Admission::open`] every call is held in order; after [`Admission::stop`] none is begun.

mod execution;
mod fast_lane_threads;
mod faulty_call;
mod line_threads;
mod queue;
mod queued_call;
mod slow_shares;
#[cfg(test)]
mod tests;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fairlead_cni::wire::{Command, Request};
use fairlead_host::vital_thread;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

pub use self::execution::FinishedCall;
pub(crate) use self::execution::serve_catching_panics;
use self::fast_lane_threads::WorkerThreads;
use self::queue::{Line, Queue, by_arrival};
pub use self::queue::{PodInterface, pod_interface_of};
pub use self::queued_call::{ArrivedCall, Outcome, Receipt, SubmittedCall};
use self::queued_call::{CallProgress, Delivery, Preparation, UnqueuedCall, outlives_its_caller};
use self::slow_shares::SlowShares;
use crate::call::{CallerGone, Reply, Service, Waiting};
use crate::health::Health;
use crate::metrics::Calls;

/// The deadline of a call whose caller names none.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
/// A caller that says it waits longer is treated as if it had said this.
const LONGEST_DEADLINE: Duration = Duration::from_secs(600);
/// The time after which a delivered answer is put on record, if no call is at work then.
const CONFIRMED_AFTER: Duration = Duration::from_millis(5);
/// How long that waits for the calls of a burst, which go first.
const CONFIRMED_AT_LATEST: Duration = Duration::from_millis(100);

/// The time that STATUS waits for its turn. The executable reports a daemon that does not answer within 100 ms; a
/// daemon that is only short of processors must not be called broken.
const STATUS_DEADLINE: Duration = Duration::from_secs(1);
/// So many calls of the fast line are carried out in some 30 ms on two processors.
const SHORT_LINE: usize = 64;

/// How many calls are carried out and queued at once.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Threads of the fast lane, not counting those whose call is stuck.
    pub fast: usize,
    /// The largest number of threads in the slow lane, and of further threads in the fast lane.
    pub slow: usize,
    /// The largest number of queued calls; a further one is answered with "try again" (code 11).
    pub queued: usize,
}

impl Limits {
    /// How many calls that are no DELs may be at work in the slow lane. An eighth of its threads, one at least, is left to DELs: ADDs that
    /// wait for what does not come would have all.
    fn most_slow_without_dels(&self) -> usize {
        self.slow.saturating_sub((self.slow / 8).max(1)).max(1)
    }

    /// How many of these may be of one namespace's pods. A quarter, one at least, is left to others: what has them wait may be a tenant's
    /// definition.
    fn most_slow_of_namespace(&self) -> usize {
        let most = self.most_slow_without_dels();
        most.saturating_sub((most / 4).max(1)).max(1)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { fast: 4, slow: 64, queued: 4096 }
    }
}

#[derive(Debug, Default)]
struct AdmissionState {
    queue: Queue,
    /// Calls that came before [`Admission::open`].
    held: Vec<UnqueuedCall>,
    open: bool,
    stopping: bool,
    /// Calls that were begun and are not yet on record as answered.
    running: usize,
    workers: WorkerThreads,
    /// How many calls are carried out by the threads that accepted their connections.
    inline: usize,
    slow_threads: usize,
    slow_idle: usize,
    slow_shares: SlowShares,
}

impl AdmissionState {
    /// Whether a call of the fast line that comes now would not be begun before others that came earlier.
    fn has_nobody_in_line(&self) -> bool {
        self.open && !self.stopping && !self.queue.has(Line::Fast)
    }

    /// Whether a call is carried out in the fast lane, or waits in its line.
    fn is_at_work(&self) -> bool {
        self.inline > 0 || self.workers.is_at_work() || self.queue.has(Line::Fast)
    }
}

struct Shared {
    state: Mutex<AdmissionState>,
    /// What the idle threads of each lane wait on.
    work: [Condvar; 3],
    idle: Condvar,
    service: OnceLock<Arc<dyn Service>>,
    receipts: OnceLock<Sender<Delivery>>,
    limits: Limits,
    calls: Calls,
    health: Arc<Health>,
}

/// The queue that every call passes.
#[derive(Clone)]
pub struct Admission(Arc<Shared>);

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

impl Admission {
    /// Admission that is still closed: calls are accepted and held, and none is begun.
    pub fn new(limits: Limits, calls: Calls, health: Arc<Health>) -> Admission {
        // Without a thread, what is queued in the fast line would never be begun.
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

    /// Begins to serve: what was held is put in line, and the threads begin.
    ///
    /// # Errors
    /// When a thread can't be made.
    pub fn open(&self, service: Arc<dyn Service>) -> std::io::Result<()> {
        let service = self.0.service.get_or_init(|| service);
        self.0.lock().workers.threads = self.0.limits.fast;
        for n in 0..self.0.limits.fast {
            self.spawn(format!("call-{n}"), Line::Fast)?;
        }
        self.spawn("status".into(), Line::Status)?;
        // One slow thread always exists: where no further thread can be made, it begins what is in line.
        self.0.lock().slow_threads = 1;
        self.spawn("slow-0".into(), Line::Slow)?;
        let (receipts, given_back) = channel();
        let admission = self.clone();
        vital_thread::begin("answered", move || admission.confirm(&given_back))?;
        // Set before any call is begun: an ADD without it would never be on record as delivered.
        let _ = self.0.receipts.set(receipts);
        let mut state = self.0.lock();
        // Under the same lock as the held calls are queued: no later call gets in front of them.
        state.open = true;
        for call in std::mem::take(&mut state.held) {
            if let Some(line) = state.queue.push(call.prepared(service)) {
                self.ensure_thread(&mut state, line);
            }
        }
        drop(state);
        self.0.work.iter().for_each(wake_all);
        Ok(())
    }

    /// Reports to the engine which ADDs' answers were delivered. It waits a little and reports many at once: if
    /// this thread were woken for each answer, it would take a processor from the next call. So would what the
    /// engine does then, such as telling the cluster, while a burst is under way.
    fn confirm(&self, given_back: &Receiver<Delivery>) {
        while let Ok(first) = given_back.recv() {
            let latest = Instant::now() + CONFIRMED_AT_LATEST;
            std::thread::sleep(CONFIRMED_AFTER);
            while self.is_in_a_burst() && Instant::now() < latest {
                std::thread::sleep(CONFIRMED_AFTER);
            }
            for (call, delivered) in std::iter::once(first).chain(given_back.try_iter()) {
                call.answered(delivered);
                self.ended();
            }
        }
    }

    /// True once [`Admission::open`] was called.
    pub fn is_open(&self) -> bool {
        self.0.lock().open
    }

    /// Has the engine prepare a request, once: what is rejected by [`Admission::serve_here`] is handed in as it is.
    /// Before [`Admission::open`] there is no engine, and the request is prepared then.
    pub fn prepare(&self, request: Request) -> ArrivedCall {
        ArrivedCall(match self.0.service.get() {
            Some(service) => Preparation::by(service, request),
            None => Preparation::Missing(Box::new(request)),
        })
    }

    /// Hands a call in; its answer comes through the value that is returned.
    pub fn submit(&self, call: ArrivedCall, arrived: Instant) -> SubmittedCall {
        let (durable, line) = (outlives_its_caller(call.request()), call.line());
        let deadline = arrived + time_limit(call.request());
        let (sender, answer) = oneshot::channel();
        let (gone, progress) = (CallerGone::default(), CallProgress::default());
        let waiting = Waiting { arrived, deadline, gone: gone.clone() };
        let admission = self.clone();
        let call = UnqueuedCall { call, waiting, progress: progress.clone(), answer: sender };
        let submitted = SubmittedCall { answer, progress, gone, durable, admission, line, deadline };
        self.enqueue(call);
        submitted
    }

    /// How many threads that accept connections may carry calls out: as many as the fast lane has.
    pub fn threads_here(&self) -> usize {
        self.0.limits.fast
    }

    fn is_in_a_burst(&self) -> bool {
        let state = self.0.lock();
        !state.stopping && state.is_at_work()
    }

    /// Carries a call out on the thread that asks, where no other waits for its turn and it starts no other program; gives it back
    /// otherwise. The caller must see to it that [`Admission::conclude`] and [`Admission::counted`] follow when the answer has left.
    ///
    /// # Errors
    /// The call, for [`Admission::submit`].
    pub fn serve_here(
        &self,
        call: ArrivedCall,
        arrived: Instant,
        gone: CallerGone,
    ) -> Result<(Reply, Receipt, FinishedCall), ArrivedCall> {
        let call = match call.0 {
            Preparation::Done(call, Line::Fast) => call,
            // A call that starts programs would keep the acceptor for as long as they take.
            other => return Err(ArrivedCall(other)),
        };
        // Its connection may have waited for long. The queue drops it.
        if gone.get() && !outlives_its_caller(call.request()) {
            return Err(ArrivedCall(Preparation::Done(call, Line::Fast)));
        }
        let mut state = self.0.lock();
        if !state.has_nobody_in_line() || !state.queue.enter(call.request()) {
            return Err(ArrivedCall(Preparation::Done(call, Line::Fast)));
        }
        state.running += 1;
        state.inline += 1;
        self.0.update_gauges(&state);
        drop(state);
        let deadline = arrived + time_limit(call.request());
        Ok(self.0.perform(call, Waiting { arrived, deadline, gone }))
    }

    /// Whether calls of the fast line wait for their turn, and so few that they are soon carried out.
    pub fn has_short_line(&self) -> bool {
        (1..=SHORT_LINE).contains(&self.0.lock().queue.in_line(Line::Fast))
    }

    /// Carries out, on the thread that asks, the call that has waited longest in the fast line, if one still waits.
    pub fn serve_first_in_line(&self) {
        let mut woken = Vec::new();
        let mut state = self.0.lock();
        let first = state.queue.pop(Line::Fast, by_arrival, &mut woken);
        let count = usize::from(first.is_some());
        state.running += count;
        state.inline += count;
        self.0.update_gauges(&state);
        self.wake(state, woken);
        if let Some(call) = first {
            self.carry_out(call, |state| state.inline -= 1);
        }
    }

    /// Ends a call of [`Admission::serve_here`] once its answer has left: the next call may begin.
    /// [`Admission::counted`] must follow.
    pub fn conclude(&self, done: &FinishedCall) {
        let mut state = self.0.lock();
        state.inline -= 1;
        let woken = state.queue.finish(done.container());
        self.wake(state, woken);
    }

    /// Counts and logs a call. Called only when its answer has left and the next call may begin, so that neither
    /// waits for it.
    pub fn counted(&self, done: &FinishedCall) {
        self.0.note(done);
        if !done.receipt {
            self.ended();
        }
    }

    fn enqueue(&self, call: UnqueuedCall) {
        let mut state = self.0.lock();
        let refused = if state.stopping {
            Outcome::NotBegun
        } else if state.queue.len() + state.held.len() >= self.0.limits.queued {
            Outcome::Full
        } else if let Some(service) = self.0.service.get().filter(|_| state.open) {
            let woken = state.queue.push(call.prepared(service));
            self.0.update_gauges(&state);
            return self.wake(state, woken);
        } else {
            state.held.push(call);
            return;
        };
        drop(state);
        // It fails only where the caller has gone, and then nobody is to be told.
        let _ = call.answer.send(refused);
    }

    /// Holds every ADD of this attachment back until [`Admission::release`], because a spooled DEL of it is not
    /// done yet.
    pub fn hold(&self, attachment: PodInterface) {
        self.0.lock().queue.block(attachment);
    }

    /// Lets the ADDs of this attachment go on: the spooled DEL is done.
    pub fn release(&self, attachment: &PodInterface) {
        let mut state = self.0.lock();
        let woken = state.queue.unblock(attachment);
        self.wake(state, woken);
    }

    /// The numbers of calls that wait and that are at work, for `/v1/status`.
    pub fn counts(&self) -> serde_json::Value {
        let state = self.0.lock();
        let queued = state.queue.len() + state.held.len();
        serde_json::json!({ "queued": queued, "running": state.running, "stopping": state.stopping })
    }

    /// Begins no further call. What waits is answered [`Outcome::NotBegun`]; only a DEL or GC whose caller has
    /// gone is still carried out, because nobody would send it again.
    pub fn stop(&self) {
        let mut state = self.0.lock();
        state.stopping = true;
        let queued = state.queue.drain(|call| call.outlives_its_caller() && call.waiting.gone.get());
        let held = std::mem::take(&mut state.held);
        drop(state);
        let held = held.into_iter().map(|call| call.answer);
        for answer in queued.into_iter().map(|call| call.answer).chain(held) {
            let _ = answer.send(Outcome::NotBegun);
        }
        self.0.work.iter().for_each(wake_all);
    }

    /// Waits until no call is at work; false when `limit` passed before.
    pub fn drained(&self, limit: Duration) -> bool {
        let mut state = self.0.lock();
        // What `stop` has left in the queue counts too: DELs and GCs whose callers have gone.
        let busy = |state: &mut AdmissionState| state.running > 0 || state.queue.len() > 0;
        self.0.idle.wait_while_for(&mut state, busy, limit);
        !busy(&mut state)
    }

    /// Counts a call as over once it is on record as answered.
    fn ended(&self) {
        let mut state = self.0.lock();
        state.running -= 1;
        self.0.update_gauges(&state);
        if state.running == 0 && state.queue.len() == 0 {
            self.0.idle.notify_all();
            // Idle threads end only when nothing is at work, so they have to look again now.
            if state.stopping {
                self.0.work.iter().for_each(wake_all);
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, AdmissionState> {
        self.state.lock()
    }

    fn update_gauges(&self, state: &AdmissionState) {
        self.calls.queued.set(i64::try_from(state.queue.len()).unwrap_or(i64::MAX));
        self.calls.running.set(i64::try_from(state.running).unwrap_or(i64::MAX));
    }
}

fn wake_all(condvar: &Condvar) {
    condvar.notify_all();
}

fn time_limit(request: &Request) -> Duration {
    let named = Duration::from_millis(request.deadline_ms);
    match request.command {
        Command::Status if named.is_zero() => STATUS_DEADLINE,
        Command::Status => named.min(STATUS_DEADLINE),
        _ if named.is_zero() => DEFAULT_DEADLINE,
        _ => named.min(LONGEST_DEADLINE),
    }
}
