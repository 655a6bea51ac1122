//! A call in the queue, and its other end: the caller's task that waits for the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use fairlead_cni::args::Args;
use fairlead_cni::wire::{Command, Request};
use fairlead_kube::PodRef;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::Admission;
use super::fast_lane_threads::STUCK;
use super::faulty_call::FaultyCall;
use super::queue::Line;
use crate::call::{CallerGone, Lane, PreparedCall, Reply, Service, Waiting, catching_panics};

/// How a call ended for its caller.
#[derive(Debug)]
pub enum Outcome {
    /// The call was carried out. The receipt must be given back when it is known whether the caller has the
    /// answer.
    Reply(Reply, Receipt),
    /// The daemon is stopping, and nothing was done.
    NotBegun,
    /// The deadline passed before the call's turn came, and nothing was done.
    TooLate,
    /// Too many calls are waiting, and nothing was done.
    Full,
}

/// An ADD, and whether its answer was delivered.
pub(super) type Delivery = (Arc<dyn PreparedCall>, bool);

/// Goes along with the answer of an ADD and comes back when it is known whether the caller got it. Only then may
/// the engine forget that the same ADD could be asked again. A receipt that is dropped reports that the answer
/// was lost.
#[derive(Debug)]
pub struct Receipt(Option<(Arc<dyn PreparedCall>, Sender<Delivery>)>);

impl Receipt {
    /// Makes a receipt that goes back to `to`; without `to` it goes nowhere.
    pub(super) fn new(call: &Arc<dyn PreparedCall>, to: Option<Sender<Delivery>>) -> Receipt {
        Receipt(to.map(|to| (Arc::clone(call), to)))
    }

    /// Reports whether the answer reached the caller.
    pub fn give_back(mut self, delivered: bool) {
        self.send(delivered);
    }

    fn send(&mut self, delivered: bool) {
        if let Some((call, to)) = self.0.take() {
            if delivered {
                // What is below may wait for more deliveries, and the caller may repeat its ADD before that.
                call.delivered();
            }
            // The thread at the other end lives as long as the process.
            let _ = to.send((call, delivered));
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.send(false);
    }
}

const WAITING: u8 = 0;
pub(super) const BEGUN: u8 = 1;
pub(super) const WITHDRAWN: u8 = 2;

/// How far a call has come; shared by the task that waits for the answer and the thread that carries the call
/// out. Whoever advances it first decides whether the call is begun or withdrawn.
#[derive(Debug, Clone, Default)]
pub(super) struct CallProgress(Arc<AtomicU8>);

impl CallProgress {
    /// Enters this state, unless another was entered before; false then.
    pub(super) fn advance(&self, to: u8) -> bool {
        self.0.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A request that has come, on its way to [`Admission::serve_here`] or [`Admission::submit`].
#[derive(Debug)]
pub struct ArrivedCall(pub(super) Preparation);

/// How far the engine has prepared a request.
#[derive(Debug)]
pub(super) enum Preparation {
    /// It is prepared, and belongs to this line.
    Done(Arc<dyn PreparedCall>, Line),
    /// There was no engine yet. Boxed, because every other call is passed on as two words.
    Missing(Box<Request>),
}

impl Preparation {
    pub(super) fn by(service: &Arc<dyn Service>, request: Request) -> Preparation {
        let call = Arc::clone(service).prepare(request);
        let line = match (call.request().command, call.lane()) {
            (Command::Status, _) => Line::Status,
            (_, Lane::Fast) => Line::Fast,
            (_, Lane::Slow) => Line::Slow,
        };
        Preparation::Done(call, line)
    }

    /// The same on the thread that opens the daemon: a fault of ours is this call's answer, and ends no start.
    fn whatever_comes(service: &Arc<dyn Service>, request: Request) -> Preparation {
        let prepared = catching_panics(request.command, || Ok(Preparation::by(service, request.clone())));
        prepared
            .unwrap_or_else(|error| Preparation::Done(Arc::new(FaultyCall { request, error }), Line::Fast))
    }
}

impl ArrivedCall {
    /// The request as the executable sent it.
    pub fn request(&self) -> &Request {
        match &self.0 {
            Preparation::Done(call, _) => call.request(),
            Preparation::Missing(request) => request,
        }
    }

    /// The line of the call, as far as it is known.
    pub(super) fn line(&self) -> Line {
        match self.0 {
            Preparation::Done(_, line) => line,
            Preparation::Missing(_) => Line::Fast,
        }
    }
}

/// A call that is not in the queue yet, and where its answer goes.
#[derive(Debug)]
pub(super) struct UnqueuedCall {
    pub(super) call: ArrivedCall,
    pub(super) waiting: Waiting,
    pub(super) progress: CallProgress,
    pub(super) answer: oneshot::Sender<Outcome>,
}

impl UnqueuedCall {
    /// The call as the queue takes it; the queue numbers it.
    pub(super) fn prepared(self, service: &Arc<dyn Service>) -> QueuedCall {
        let UnqueuedCall { call, waiting, progress, answer } = self;
        match call.0 {
            Preparation::Done(prepared, line) => {
                let namespace = if line == Line::Slow { namespace_of(prepared.request()) } else { None };
                QueuedCall { number: 0, prepared, line, namespace, waiting, progress, answer }
            }
            Preparation::Missing(request) => {
                let call = ArrivedCall(Preparation::whatever_comes(service, *request));
                UnqueuedCall { call, waiting, progress, answer }.prepared(service)
            }
        }
    }
}

/// A call in the queue, and where its answer goes.
#[derive(Debug)]
pub(super) struct QueuedCall {
    pub(super) number: u64,
    pub(super) prepared: Arc<dyn PreparedCall>,
    pub(super) line: Line,
    /// The namespace of its pod, as the runtime names it; of a call of the slow line only, whose threads namespaces share.
    pub(super) namespace: Option<Box<str>>,
    pub(super) waiting: Waiting,
    pub(super) progress: CallProgress,
    pub(super) answer: oneshot::Sender<Outcome>,
}

impl QueuedCall {
    /// The request as the executable sent it.
    pub(super) fn request(&self) -> &Request {
        self.prepared.request()
    }

    /// Whether it takes something down, which what asks for more must not hold up.
    pub(super) fn is_del(&self) -> bool {
        self.request().command == Command::Del
    }

    /// Whether it is begun past calls that wait: a DEL, and what nobody wants any more, behind which its container's DEL may stand.
    pub(super) fn goes_first(&self) -> bool {
        self.is_del() || (self.waiting.gone.get() && !self.outlives_its_caller())
    }

    /// Whether the call goes on without its caller.
    pub(super) fn outlives_its_caller(&self) -> bool {
        outlives_its_caller(self.request())
    }
}

fn namespace_of(request: &Request) -> Option<Box<str>> {
    let args = Args::parse(&request.args).ok()?;
    Some(PodRef::of_args(&args)?.namespace.into())
}

/// DEL and GC go on without their caller, because what they remove must go in any case.
pub(super) fn outlives_its_caller(request: &Request) -> bool {
    matches!(request.command, Command::Del | Command::Gc)
}

/// A call that was handed in. If it is dropped before the answer comes, the caller counts as gone.
#[derive(Debug)]
pub struct SubmittedCall {
    pub(super) answer: oneshot::Receiver<Outcome>,
    pub(super) progress: CallProgress,
    pub(super) gone: CallerGone,
    pub(super) durable: bool,
    pub(super) admission: Admission,
    pub(super) line: Line,
    /// The time at which the caller stops waiting.
    pub deadline: Instant,
}

impl SubmittedCall {
    /// Waits for the answer. At the deadline a call that has not been begun is answered [`Outcome::TooLate`]; a
    /// call at work is waited for, since only it knows what it has done.
    pub async fn outcome(mut self) -> Outcome {
        let answer = match self.until_begun().await {
            Some(answer) => Ok(answer),
            None => tokio::time::timeout_at(self.deadline.into(), &mut self.answer).await,
        };
        let outcome = match answer {
            Ok(answer) => answer,
            // A DEL stays in the queue: its caller is asked to try again, and then finds the work done.
            Err(_) if self.durable && self.progress.0.load(Ordering::Acquire) == WAITING => {
                Ok(Outcome::TooLate)
            }
            Err(_) if self.progress.advance(WITHDRAWN) => Ok(Outcome::TooLate),
            Err(_) => (&mut self.answer).await,
        };
        // The other end is dropped only by a thread that dies, and threads do not die: panics are caught.
        outcome.unwrap_or(Outcome::NotBegun)
    }

    /// Waits for the answer until the call is seen to be begun, or its deadline passes. Checks now and then that
    /// a call in the fast line is not held up by stuck ones.
    async fn until_begun(&mut self) -> Option<Result<Outcome, RecvError>> {
        while self.line == Line::Fast && self.progress.0.load(Ordering::Acquire) == WAITING {
            let look = Instant::now() + STUCK;
            if look >= self.deadline {
                return None;
            }
            if let Ok(answer) = tokio::time::timeout_at(look.into(), &mut self.answer).await {
                return Some(answer);
            }
            self.admission.add_thread_if_stuck();
        }
        None
    }

    /// Waits for the answer on a thread that may block, without a deadline.
    pub fn wait(mut self) -> Outcome {
        // A type with a `Drop` cannot be taken apart, so the receiver is exchanged for a closed one.
        let (_, closed) = oneshot::channel();
        let answer = std::mem::replace(&mut self.answer, closed);
        answer.blocking_recv().unwrap_or(Outcome::NotBegun)
    }
}

impl Drop for SubmittedCall {
    fn drop(&mut self) {
        self.gone.set();
        if self.progress.0.load(Ordering::Acquire) != BEGUN {
            self.admission.take_out_withdrawn();
        }
    }
}
