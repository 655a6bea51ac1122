//! No wake-up is lost: all that can come of a poll thread that goes to sleep while others have something for it.
//!
//! loom runs each model in every order of its threads' steps, and with every value that the memory model lets a load have. It is the code
//! of the switch that is run, `waker.rs`, `wake_fence.rs` and `mailbox.rs`, on loom's atomics and channels; an eventfd and epoll are a counter here, and a
//! link is a number in place of rtrb's ring. A wake-up that is lost leaves nobody who can go on, which loom calls a deadlock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::model::Builder;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

use mailbox::{Inbox, Mailbox, mailbox};
use wake_fence::Fenced;
use waker::Waker;

/// An eventfd: readable from a ring until it is hushed.
mod bell {
    use loom::sync::{Condvar, Mutex};

    #[derive(Debug)]
    pub(super) struct Bell {
        is_readable: Mutex<bool>,
        waiting: Condvar,
    }

    impl Bell {
        pub(super) fn new() -> Result<Bell, nix::Error> {
            Ok(Bell { is_readable: Mutex::new(false), waiting: Condvar::new() })
        }

        pub(super) fn ring(&self) {
            *self.is_readable.lock().unwrap() = true;
            self.waiting.notify_one();
        }

        pub(super) fn hush(&self) {
            *self.is_readable.lock().unwrap() = false;
        }

        /// What epoll does, without a limit.
        pub(super) fn wait(&self) {
            let mut is_readable = self.is_readable.lock().unwrap();
            while !*is_readable {
                is_readable = self.waiting.wait(is_readable).unwrap();
            }
        }
    }
}

/// What the switch has of the standard library.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, fence};
    pub(crate) use loom::sync::mpsc;
}

#[allow(dead_code, reason = "the model waits for no answer")]
#[path = "../src/dataplane/mailbox.rs"]
mod mailbox;
#[path = "../src/wake_fence.rs"]
mod wake_fence;
#[path = "../src/dataplane/waker.rs"]
mod waker;

/// One direction between two threads: how many records were put in.
type Link = Arc<AtomicUsize>;

/// A poll thread as others know it.
#[derive(Clone)]
struct Known {
    commands: Mailbox<usize>,
    waker: Arc<Waker>,
    links: Vec<Link>,
}

/// The thread itself.
struct Poll {
    inbox: Inbox<usize>,
    waker: Arc<Waker>,
    links: Vec<Link>,
}

/// A poll thread to which so many others have links.
fn poll_thread(links: usize) -> (Known, Poll) {
    let (commands, inbox) = mailbox().unwrap();
    let waker = Arc::new(Waker::new(Arc::clone(inbox.bell())));
    let links: Vec<Link> = (0..links).map(|_| Link::default()).collect();
    let known = Known { commands, waker: Arc::clone(&waker), links: links.clone() };
    (known, Poll { inbox, waker, links })
}

impl Known {
    /// Puts a record into a link, as `ThreadLinks::wake` finds it there.
    fn put(&self, link: usize) {
        self.links[link].fetch_add(1, Ordering::Release);
        self.waker.wake(Fenced::now());
    }
}

impl Poll {
    fn records(&self) -> usize {
        self.links.iter().map(|link| link.load(Ordering::Acquire)).sum()
    }

    /// Rounds, with a sleep after each that found nothing, until so many commands and records have come: `PollThread::run`.
    fn run(self, commands: usize, records: usize) {
        let (mut obeyed, mut taken) = (0, 0);
        loop {
            while let Some(command) = self.inbox.next().unwrap() {
                obeyed += command;
            }
            taken = self.records().max(taken);
            if (obeyed, taken) == (commands, records) {
                return;
            }
            self.waker.sleep_unless(|| self.records() > taken, || self.inbox.bell().wait());
        }
    }
}

/// Runs `model` in every order in which no thread is interrupted more than `interruptions` times where it could have gone on.
fn in_every_order(interruptions: Option<usize>, model: fn()) {
    let mut builder = Builder::new();
    builder.preemption_bound = interruptions;
    builder.check(model);
}

#[test]
fn a_thread_that_goes_to_sleep_is_woken_for_what_is_put_into_a_link_meanwhile() {
    in_every_order(None, || {
        let (known, poll) = poll_thread(1);
        let sender = thread::spawn(move || known.put(0));
        poll.run(0, 1);
        sender.join().unwrap();
    });
}

#[test]
fn a_thread_that_sleeps_again_is_woken_again() {
    in_every_order(Some(4), || {
        let (known, poll) = poll_thread(1);
        let sender = thread::spawn(move || (0..2).for_each(|_| known.put(0)));
        poll.run(0, 2);
        sender.join().unwrap();
    });
}

#[test]
fn of_two_threads_that_wake_a_third_neither_relies_on_the_other_in_vain() {
    in_every_order(Some(3), || {
        let (known, poll) = poll_thread(2);
        let senders = [0, 1].map(|link| {
            let known = known.clone();
            thread::spawn(move || known.put(link))
        });
        poll.run(0, 2);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_command_wakes_a_thread_that_is_woken_for_a_link_at_the_same_time() {
    in_every_order(Some(3), || {
        let (known, poll) = poll_thread(1);
        let commander = {
            let commands = known.commands.clone();
            thread::spawn(move || commands.send(1).unwrap())
        };
        let sender = thread::spawn(move || known.put(0));
        poll.run(1, 1);
        commander.join().unwrap();
        sender.join().unwrap();
    });
}

#[test]
fn two_threads_that_have_something_for_each_other_both_get_it() {
    in_every_order(Some(4), || {
        let ((first, first_poll), (second, second_poll)) = (poll_thread(1), poll_thread(1));
        let other = thread::spawn(move || {
            first.put(0);
            second_poll.run(0, 1);
        });
        second.put(0);
        first_poll.run(0, 1);
        other.join().unwrap();
    });
}

/// The same as in the first test, with a thread that looks first and says then that it sleeps: the model finds what is wrong with it.
#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_looks_before_it_says_that_it_sleeps_is_found_to_sleep_for_ever() {
    in_every_order(None, || {
        let (known, poll) = poll_thread(1);
        let sender = thread::spawn(move || known.put(0));
        while poll.records() == 0 {
            poll.waker.sleep_unless(|| false, || poll.inbox.bell().wait());
        }
        sender.join().unwrap();
    });
}
