//! The threads that take calls out of the lines: how one waits for its next call, carries it out, and lets others follow.
//!
//! A thread serves one line for as long as it lives. One of the slow lane is made when a call comes and none is idle, and ends when it was
//! idle for long. How many the fast lane must have is known by `fast_lane_threads`.

use std::time::{Duration, Instant};

use fairlead_host::scheduling::prefer_this_thread;
use fairlead_host::vital_thread;
use parking_lot::MutexGuard;
use tracing::error;

use super::queue::{Line, by_arrival};
use super::queued_call::QueuedCall;
use super::{Admission, AdmissionState};

/// The time after which an idle thread of the slow lane ends.
const SLOW_IDLE: Duration = Duration::from_secs(10);

impl Admission {
    /// Releases the lock and then wakes a thread for each line that has got work: one that is woken earlier would only wait for the lock.
    pub(super) fn wake(
        &self,
        mut state: MutexGuard<'_, AdmissionState>,
        lines: impl IntoIterator<Item = Line>,
    ) {
        let lines = lines.into_iter().map(|line| self.ensure_thread(&mut state, line));
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

    /// Wakes a thread for a line that has got work, without releasing the lock.
    fn wake_one(&self, state: &mut AdmissionState, line: Line) {
        let line = self.ensure_thread(state, line);
        self.0.work[line as usize].notify_one();
    }

    /// Has what nobody wants any more taken out of the slow line. A DEL of its container may stand behind it, and others may not be begun.
    pub(super) fn take_out_withdrawn(&self) {
        let state = self.0.lock();
        if state.queue.has(Line::Slow) {
            self.wake(state, [Line::Slow]);
        }
    }

    /// Makes a thread for the slow lane where none is idle.
    pub(super) fn ensure_thread(&self, state: &mut AdmissionState, line: Line) -> Line {
        if line == Line::Slow && state.slow_idle == 0 && state.slow_threads < self.0.limits.slow {
            state.slow_threads += 1;
            if let Err(error) = self.spawn(format!("slow-{}", state.slow_threads - 1), line) {
                // Nothing is lost: the call stays in line for the threads that exist.
                state.slow_threads -= 1;
                error!(%error, "no further thread for calls that start other programs");
            }
        }
        line
    }

    /// Makes a further thread for the fast lane where a call waits because others are stuck.
    pub(super) fn add_thread_if_stuck(&self) {
        let mut state = self.0.lock();
        if state.queue.has(Line::Fast) && state.workers.needs_another(&self.0.limits, Instant::now()) {
            match self.spawn(format!("call-{}", state.workers.threads), Line::Fast) {
                Ok(()) => state.workers.threads += 1,
                Err(error) => error!(%error, "no further thread for calls that wait behind slow ones"),
            }
        }
    }

    /// Makes a thread that serves this line.
    pub(super) fn spawn(&self, name: String, line: Line) -> std::io::Result<()> {
        let admission = self.clone();
        vital_thread::begin(name, move || admission.work(line))
    }

    fn work(&self, line: Line) {
        prefer_this_thread();
        while let Some(call) = self.next(line) {
            let (number, is_counted) = (call.number, line == Line::Slow && !call.is_del());
            let namespace = call.namespace.clone();
            self.carry_out(call, |state| {
                state.workers.end(number);
                if is_counted {
                    state.slow_shares.end(namespace.as_deref());
                }
            });
        }
    }

    /// Carries a queued call out, and lets the next one of its container go on; `end`: the thread is not at work on it any more.
    pub(super) fn carry_out(&self, call: QueuedCall, end: impl FnOnce(&mut AdmissionState)) {
        let container = call.request().container_id.clone();
        let done = self.0.carry_out(call);
        let mut state = self.0.lock();
        end(&mut state);
        let woken = state.queue.finish(&container);
        self.wake(state, woken);
        match &done {
            Some(done) => self.counted(done),
            None => self.ended(),
        }
    }

    /// The next call of a line, for which it waits; `None` when this thread is not needed any more.
    fn next(&self, line: Line) -> Option<QueuedCall> {
        let mut state = self.0.lock();
        if line == Line::Fast && state.workers.has_one_too_many(&self.0.limits, Instant::now()) {
            state.workers.threads -= 1;
            return None;
        }
        loop {
            if let Some(call) = self.take_next(&mut state, line) {
                return Some(call);
            }
            if !self.wait_for_work(&mut state, line) {
                return None;
            }
        }
    }

    /// Takes the next call out of a line, if one may be begun, and notes that it is at work.
    fn take_next(&self, state: &mut AdmissionState, line: Line) -> Option<QueuedCall> {
        let (mut woken, limits) = (Vec::new(), &self.0.limits);
        let AdmissionState { queue, slow_shares, .. } = state;
        let call = match line {
            Line::Slow => queue.pop(line, |call| slow_shares.place(call, limits), &mut woken),
            Line::Fast | Line::Status => queue.pop(line, by_arrival, &mut woken),
        };
        for line in woken {
            self.wake_one(state, line);
        }
        let call = call?;
        state.running += 1;
        if line == Line::Slow && !call.is_del() {
            state.slow_shares.begin(call.namespace.as_deref());
        }
        if line == Line::Fast {
            state.workers.begin(call.number, Instant::now());
        } else if state.queue.has(line) {
            // Calls that came while this thread was being woken saw it idle, and no other was made for them.
            self.wake_one(state, line);
        }
        self.0.update_gauges(state);
        Some(call)
    }

    /// Waits until the line may have got work; false when this thread is not needed any more.
    fn wait_for_work(&self, state: &mut MutexGuard<'_, AdmissionState>, line: Line) -> bool {
        if state.stopping && state.running == 0 && state.queue.len() == 0 {
            return false;
        }
        let condvar = &self.0.work[line as usize];
        if line != Line::Slow {
            condvar.wait(state);
            return true;
        }
        let limit = if state.slow_threads > 1 { SLOW_IDLE } else { Duration::MAX };
        state.slow_idle += 1;
        let timeout = condvar.wait_for(state, limit);
        state.slow_idle -= 1;
        // A call that came at that moment saw this thread idle, and no other was made for it.
        if timeout.timed_out() && state.slow_threads > 1 && !state.queue.has(line) {
            state.slow_threads -= 1;
            return false;
        }
        true
    }
}
