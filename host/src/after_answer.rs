//! What a thread that carries a call out may put off until the call's answer has left.
//!
//! To close a descriptor takes microseconds, and so does waking another thread; who waits for the answer should not wait for them.

use std::cell::RefCell;
use std::marker::PhantomData;

/// So much is put off by one call. What comes after that is done at once: it holds descriptors.
const MOST: usize = 16;

type Work = Box<dyn FnOnce()>;

thread_local! {
    /// What the call of this thread has put off, while it may.
    static PUT_OFF: RefCell<Option<Vec<Work>>> = const { RefCell::new(None) };
}

/// While this is alive its thread puts off what may wait; it is done when this is dropped.
#[derive(Debug)]
pub struct AnswerFirst(PhantomData<*const ()>);

impl AnswerFirst {
    /// Begins for the calling thread. A second one of the same thread ends the first one's time.
    pub fn begin() -> AnswerFirst {
        do_all();
        PUT_OFF.set(Some(Vec::new()));
        AnswerFirst(PhantomData)
    }
}

impl Drop for AnswerFirst {
    fn drop(&mut self) {
        do_all();
    }
}

/// Does what was put off; what it puts off itself is done at once.
fn do_all() {
    for work in PUT_OFF.take().unwrap_or_default() {
        work();
    }
}

/// Does `work` when the answer of this thread's call has left, or at once where no [`AnswerFirst`] is alive.
pub fn when_answered(work: impl FnOnce() + 'static) {
    let now = PUT_OFF.with_borrow_mut(|put_off| match put_off {
        Some(put_off) if put_off.len() < MOST => {
            put_off.push(Box::new(work));
            None
        }
        _ => Some(work),
    });
    if let Some(work) = now {
        work();
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn work_waits_for_the_answer_of_its_own_thread_and_only_so_much_of_it() {
        let done = Rc::new(RefCell::new(Vec::new()));
        let note = |n: usize| {
            let done = Rc::clone(&done);
            when_answered(move || done.borrow_mut().push(n));
        };
        note(0);
        assert_eq!(*done.borrow(), [0], "no call is under way");
        let first = AnswerFirst::begin();
        (1..=MOST).for_each(note);
        assert_eq!(*done.borrow(), [0]);
        note(100);
        assert_eq!(*done.borrow(), [0, 100], "too much was put off");
        drop(first);
        let expected: Vec<usize> = [0, 100].into_iter().chain(1..=MOST).collect();
        assert_eq!(*done.borrow(), expected);
        note(101);
        assert_eq!(done.borrow().last(), Some(&101));
    }
}
