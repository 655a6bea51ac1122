//! Requests that come while others are under way are carried out together, by one of the threads that wait. A request that
//! comes while nothing is under way is carried out alone and loses no time.

use std::collections::BTreeMap;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// A place where requests `Q` wait for their answers `A`.
#[derive(Debug)]
pub(super) struct CombinedRequests<Q, A> {
    state: Mutex<State<Q, A>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<Q, A> {
    next: u64,
    /// The requests that are not under way yet, by number, in the order of their coming.
    waiting: BTreeMap<u64, Q>,
    /// The answers by number; `None` where the thread that carried a request out did not end.
    answers: BTreeMap<u64, Option<A>>,
    under_way: bool,
}

impl<Q, A> Default for CombinedRequests<Q, A> {
    fn default() -> CombinedRequests<Q, A> {
        let state = State { next: 0, waiting: BTreeMap::new(), answers: BTreeMap::new(), under_way: false };
        CombinedRequests { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<Q, A> CombinedRequests<Q, A> {
    /// The answer to a request, which `carry_out` gives with those to all others that wait by then (one for each, in order);
    /// it is called on whichever of their threads finds nothing under way, and not before the request has come. `None` where
    /// that thread did not end it.
    pub(super) fn pass(&self, request: Q, carry_out: impl Fn(&[Q]) -> Vec<A>) -> Option<A> {
        let mut state = self.state();
        let mine = state.next;
        state.next += 1;
        state.waiting.insert(mine, request);
        loop {
            if let Some(answer) = state.answers.remove(&mine) {
                return answer;
            }
            if state.under_way {
                self.changed.wait(&mut state);
                continue;
            }
            state.under_way = true;
            let (numbers, requests): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.waiting).into_iter().unzip();
            // One reading of 64 VFs can take hundreds of milliseconds: whoever comes meanwhile waits for the next turn.
            drop(state);
            // Made before the work begins: a panic in the work drops it, and nobody waits for ever.
            let mut turn = Turn { place: self, numbers, answers: Vec::new() };
            turn.answers = carry_out(&requests);
            drop(turn);
            state = self.state();
        }
    }

    fn state(&self) -> MutexGuard<'_, State<Q, A>> {
        self.state.lock()
    }
}

/// Answers everybody when it is dropped, even where the thread panics.
struct Turn<'p, Q, A> {
    place: &'p CombinedRequests<Q, A>,
    numbers: Vec<u64>,
    answers: Vec<A>,
}

impl<Q, A> Drop for Turn<'_, Q, A> {
    fn drop(&mut self) {
        let mut answers = std::mem::take(&mut self.answers).into_iter();
        let mut state = self.place.state();
        for number in &self.numbers {
            // `None` after a panic, or where answers are missing: the caller gets an error instead of an endless wait.
            state.answers.insert(*number, answers.next());
        }
        state.under_way = false;
        self.place.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn whoever_comes_meanwhile_is_answered_together_each_with_its_own() {
        let place = CombinedRequests::default();
        let (go, wait) = channel();
        let sizes = Mutex::new(Vec::new());
        let answer = |requests: &[u32]| {
            sizes.lock().push(requests.len());
            requests.iter().map(|one| one * 2).collect()
        };
        thread::scope(|scope| {
            let wait = Mutex::new(wait);
            let (place, answer) = (&place, &answer);
            scope.spawn(move || {
                let first = |requests: &[u32]| {
                    wait.lock().recv().unwrap();
                    answer(requests)
                };
                assert_eq!(place.pass(0, first), Some(0));
            });
            while !place.state().under_way {
                thread::yield_now();
            }
            for n in 1..=20 {
                scope.spawn(move || assert_eq!(place.pass(n, answer), Some(n * 2)));
            }
            while place.state().waiting.len() < 20 {
                thread::yield_now();
            }
            go.send(()).unwrap();
        });
        assert_eq!(*sizes.lock(), [1, 20]);
        assert!(place.state().answers.is_empty());
    }

    #[test]
    fn nobody_waits_for_a_thread_that_died_at_it() {
        let place: CombinedRequests<u32, u32> = CombinedRequests::default();
        thread::scope(|scope| {
            let died = scope.spawn(|| place.pass(1, |_| panic!("as ordered")));
            died.join().unwrap_err();
        });
        assert_eq!(place.pass(2, |requests| requests.to_vec()), Some(2));
        let short = |_: &[u32]| Vec::new();
        assert_eq!(place.pass(3, short), None);
    }
}
