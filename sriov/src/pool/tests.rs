//! What a pool promises, whatever happens to it in whatever order.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn address(n: u8) -> PciAddr {
    format!("0000:21:10.{n}").parse().unwrap()
}

fn physical(n: u8) -> PciAddr {
    format!("0000:{}1:00.0", 2 * (1 + n / 4)).parse().unwrap()
}

fn member(n: u8) -> Member {
    Member::new(address(n), physical(n), Some(u32::from(n / 4)))
}

fn pool(members: u8, stock: Stock) -> Pool {
    let mut pool = Pool::new(stock);
    (0..members).for_each(|n| pool.appeared(member(n)));
    pool
}

/// When every pause is over.
fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn ready(pool: &Pool) -> usize {
    pool.members().filter(|m| m.is_ready()).count()
}

/// Carries out everything that is due, until nothing is.
fn settle(pool: &mut Pool) {
    for _ in 0..20 {
        for task in pool.due(later()) {
            match task {
                Task::Prepare(address) => pool.prepared(address),
                Task::GiveBack(address) => pool.given_back(address),
            }
        }
    }
}

#[test]
fn k25_a_pool_without_numbers_keeps_all_its_members_ready() {
    let mut pool = pool(7, Stock::default());
    assert_eq!(pool.due(later()).len(), 7);
    assert_eq!(pool.due(later()), []);
}

#[test]
fn k25_below_min_a_batch_is_prepared_and_what_comes_home_above_max_is_given_back() {
    let mut pool = pool(7, Stock { min: Some(2), max: Some(4), batch: 3 });
    assert_eq!(pool.due(later()).len(), 3, "a batch, though two would do");
    (0..3).for_each(|n| pool.prepared(address(n)));
    assert_eq!(pool.due(later()), []);
    (0..2).for_each(|n| pool.lend(address(n)).unwrap());
    assert_eq!(pool.due(later()).len(), 3, "one is left, and four at most");
    (3..6).for_each(|n| pool.prepared(address(n)));
    assert_eq!(ready(&pool), 4);
    pool.returned(address(0));
    assert_eq!(pool.due(later()), [Task::GiveBack(address(0))]);
    pool.given_back(address(0));
    assert_eq!(pool.member(address(0)).unwrap().state(), "idle");
}

#[test]
fn k25_a_smaller_max_frees_what_is_above_it_and_touches_nobody_who_has_one() {
    let mut pool = pool(6, Stock::default());
    settle(&mut pool);
    pool.lend(address(0)).unwrap();
    pool.set_stock(Stock { min: None, max: Some(2), batch: 1 });
    settle(&mut pool);
    assert_eq!(ready(&pool), 2);
    assert_eq!(pool.member(address(0)).unwrap().state(), "lent");
}

#[test]
fn x07_a_member_that_fails_twice_is_quarantined_until_it_is_released() {
    let mut pool = pool(1, Stock::default());
    let (vf, now) = (address(0), Instant::now());
    assert_eq!(pool.due(now), [Task::Prepare(vf)]);
    assert!(!pool.failed(vf, "no answer", now));
    assert_eq!(pool.due(now), [], "not at once");
    let next = pool.next_try().unwrap();
    assert!(next > now + Duration::from_secs(1));
    assert_eq!(pool.lend(vf), Err(Refusal::NotYet("preparing: no answer".to_owned())));
    assert_eq!(pool.due(next), [Task::Prepare(vf)]);
    assert!(pool.failed(vf, "still none", next));
    assert_eq!((pool.due(later()), pool.next_try()), (vec![], None));
    assert_eq!(pool.lend(vf), Err(Refusal::Quarantined("still none".to_owned())));
    pool.release(vf);
    assert_eq!(pool.due(now), [Task::Prepare(vf)]);
    pool.prepared(vf);
    assert_eq!(pool.lend(vf), Ok(()));
}

#[test]
fn x07_what_its_physical_function_keeps_from_a_member_is_tried_ever_more_seldom_and_is_no_failure_of_it() {
    let mut pool = pool(1, Stock::default());
    let (vf, mut now, mut pauses) = (address(0), Instant::now(), Vec::new());
    for _ in 0..9 {
        assert_eq!(pool.due(now), [Task::Prepare(vf)]);
        pool.hindered(vf, "its physical function is not there", now);
        let next = pool.next_try().unwrap();
        pauses.push((next - now).as_secs());
        now = next;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60, 60]);
    let member = pool.member(vf).unwrap();
    assert_eq!((member.state(), member.reason()), ("preparing", "its physical function is not there"));
    pool.due(now);
    assert!(!pool.failed(vf, "no answer", now), "the first of its own");
    settle(&mut pool);
    assert_eq!((ready(&pool), pool.member(vf).unwrap().reason()), (1, ""));
}

#[test]
fn what_is_a_member_no_more_is_given_back_however_often_that_fails_or_whoever_uses_it_first() {
    let mut pool = pool(2, Stock::default());
    settle(&mut pool);
    pool.taken(address(1), "a VM");
    (0..2).for_each(|n| pool.dismiss(address(n), true));
    for _ in 0..5 {
        assert_eq!(pool.due(later()), [Task::GiveBack(address(0))]);
        assert!(!pool.failed(address(0), "no answer", Instant::now()));
        assert_eq!(pool.forget_dismissed(|_| true), []);
    }
    pool.left(address(1));
    settle(&mut pool);
    assert_eq!(pool.forget_dismissed(|_| true), [address(0), address(1)]);
}

#[test]
fn x17_one_that_vanishes_is_withdrawn_and_offered_again_when_it_is_back() {
    let mut pool = pool(2, Stock::default());
    settle(&mut pool);
    pool.vanished(address(1));
    assert_eq!(pool.lend(address(1)), Err(Refusal::Gone));
    assert_eq!(pool.due(later()), []);
    pool.appeared(member(1));
    settle(&mut pool);
    assert_eq!(ready(&pool), 2);
}

#[test]
fn one_that_vanishes_under_a_pod_is_the_pods_until_it_is_returned() {
    let mut pool = pool(1, Stock::default());
    settle(&mut pool);
    pool.lend(address(0)).unwrap();
    pool.vanished(address(0));
    pool.appeared(member(0));
    assert_eq!(pool.lend(address(0)), Err(Refusal::Lent));
    pool.returned(address(0));
    settle(&mut pool);
    assert_eq!(ready(&pool), 1);
}

#[test]
fn k26_a_drained_member_is_given_back_at_once_or_after_its_pod_and_filled_on_order() {
    let mut pool = pool(2, Stock::default());
    settle(&mut pool);
    pool.lend(address(1)).unwrap();
    (0..2).for_each(|n| pool.drain(address(n)));
    assert_eq!(pool.due(later()), [Task::GiveBack(address(0))]);
    pool.given_back(address(0));
    pool.returned(address(1));
    assert_eq!(pool.due(later()), [Task::GiveBack(address(1))]);
    pool.given_back(address(1));
    assert_eq!(pool.member(address(1)).unwrap().state(), "drained");
    (0..2).for_each(|n| pool.fill(address(n)));
    settle(&mut pool);
    assert_eq!(ready(&pool), 2);
}

#[test]
fn one_that_is_a_member_no_more_is_given_back_after_its_pod_and_forgotten() {
    let mut pool = pool(2, Stock::default());
    settle(&mut pool);
    pool.lend(address(1)).unwrap();
    (0..2).for_each(|n| pool.dismiss(address(n), true));
    settle(&mut pool);
    assert_eq!(pool.forget_dismissed(|_| true), [address(0)]);
    pool.returned(address(1));
    assert_eq!(pool.lend(address(1)), Err(Refusal::NotYet("draining".to_owned())));
    settle(&mut pool);
    assert_eq!(pool.forget_dismissed(|_| true), [address(1)]);
}

#[test]
fn x07_one_that_was_given_and_never_lent_is_prepared_before_it_is_given_again() {
    let mut pool = pool(1, Stock::default());
    let vf = address(0);
    settle(&mut pool);
    pool.give(vf).unwrap();
    assert_eq!(pool.member(vf).unwrap().state(), "given");
    assert_eq!(pool.due(Instant::now()), [], "nothing is done to it while a pod may have it");
    assert_eq!(pool.give(vf), Err(Refusal::NotYet("preparing".to_owned())));
    assert_eq!(pool.due(Instant::now()), [Task::Prepare(vf)]);
    pool.prepared(vf);
    pool.give(vf).unwrap();
    pool.lend(vf).unwrap();
    pool.give(vf).unwrap(); // the next pod's ADD waits for it
    pool.returned(vf);
    settle(&mut pool);
    assert_eq!(pool.member(vf).unwrap().state(), "given");
}

#[test]
fn draws_use_one_nic_up_or_go_over_all_as_the_pool_says_and_the_rank_goes_before() {
    let drawn = |spread, rank: fn(&Member) -> Option<u32>| {
        let mut pool = pool(8, Stock::default());
        settle(&mut pool);
        let all: Vec<PciAddr> = (0..4).filter_map(|_| pool.draw(spread, rank)).collect();
        all
    };
    let expected = |all: [u8; 4]| all.map(address).to_vec();
    assert_eq!(drawn(Spread::Packed, |_| Some(0)), expected([0, 1, 2, 3]));
    assert_eq!(drawn(Spread::Spread, |_| Some(0)), expected([0, 4, 1, 5]));
    assert_eq!(drawn(Spread::Packed, |m| m.numa_node.map(|n| 1 - n)), expected([4, 5, 6, 7]));
    assert_eq!(drawn(Spread::Packed, |_| None), []);
}

#[derive(Debug, Clone, Copy)]
enum Happening {
    Work(u8),
    Fails(u8),
    Hindered(u8),
    Give(u8),
    Lend(u8),
    Draw,
    Returned(u8),
    Vanished(u8),
    Appeared(u8),
    Taken(u8),
    Left(u8),
    Fill(u8),
    Drain(u8),
    Quarantine(u8),
    Release(u8),
}

fn happening() -> impl Strategy<Value = Happening> {
    let n = || 0_u8..8;
    prop_oneof![
        4 => n().prop_map(Happening::Work),
        1 => n().prop_map(Happening::Fails),
        1 => n().prop_map(Happening::Hindered),
        2 => n().prop_map(Happening::Give),
        2 => n().prop_map(Happening::Lend),
        2 => Just(Happening::Draw),
        3 => n().prop_map(Happening::Returned),
        1 => n().prop_map(Happening::Vanished),
        1 => n().prop_map(Happening::Appeared),
        1 => n().prop_map(Happening::Taken),
        1 => n().prop_map(Happening::Left),
        1 => n().prop_map(Happening::Fill),
        1 => n().prop_map(Happening::Drain),
        1 => n().prop_map(Happening::Quarantine),
        1 => n().prop_map(Happening::Release),
    ]
}

/// A pool, and what a strict observer knows of it.
struct Watched {
    pool: Pool,
    /// Told by `due`, and not ended yet.
    tasks: Vec<Task>,
    lent: BTreeSet<PciAddr>,
    never: BTreeSet<PciAddr>,
}

impl Watched {
    fn gave(&mut self, address: PciAddr) {
        assert!(!self.never.contains(&address), "{address} is quarantined or somebody else's");
        assert!(self.lent.insert(address), "{address} was given twice");
    }

    fn task(&mut self, n: u8) -> Option<Task> {
        let at = self.tasks.iter().position(|task| task.address() == address(n))?;
        Some(self.tasks.remove(at))
    }

    fn happens(&mut self, what: Happening) {
        match what {
            Happening::Work(n) => match self.task(n) {
                Some(Task::Prepare(address)) => self.pool.prepared(address),
                Some(Task::GiveBack(address)) => self.pool.given_back(address),
                None => {}
            },
            Happening::Fails(n) => {
                if let Some(task) = self.task(n)
                    && self.pool.failed(task.address(), "it fails", Instant::now())
                {
                    self.never.insert(task.address());
                }
            }
            Happening::Hindered(n) => {
                if let Some(task) = self.task(n) {
                    self.pool.hindered(task.address(), "nobody there", Instant::now());
                }
            }
            Happening::Give(n) => drop(self.pool.give(address(n))),
            Happening::Lend(n) => {
                if self.pool.lend(address(n)).is_ok() {
                    self.gave(address(n));
                }
            }
            Happening::Draw => {
                if let Some(address) = self.pool.draw(Spread::Packed, |_| Some(0)) {
                    self.gave(address);
                }
            }
            Happening::Returned(n) => {
                if self.lent.remove(&address(n)) {
                    self.pool.returned(address(n));
                }
            }
            // Whoever is at work on one that vanishes sees that it is gone.
            Happening::Vanished(n) => {
                self.task(n);
                self.pool.vanished(address(n));
            }
            Happening::Appeared(n) => self.pool.appeared(member(n)),
            Happening::Taken(n) => {
                self.task(n);
                self.pool.taken(address(n), "a VM");
            }
            Happening::Left(n) => self.pool.left(address(n)),
            Happening::Fill(n) => self.pool.fill(address(n)),
            Happening::Drain(n) => {
                self.never.remove(&address(n));
                self.pool.drain(address(n));
            }
            Happening::Quarantine(n) => {
                self.never.insert(address(n));
                self.pool.quarantine(address(n), "the operator says so");
            }
            Happening::Release(n) => {
                self.never.remove(&address(n));
                self.pool.release(address(n));
            }
        }
    }

    fn look(&mut self, stock: Stock) {
        for task in self.pool.due(later()) {
            assert!(!self.lent.contains(&task.address()), "{task:?} though it is lent");
            assert!(!self.tasks.iter().any(|t| t.address() == task.address()), "{task:?} is at work");
            self.tasks.push(task);
        }
        assert!(ready(&self.pool) <= stock.max(), "{} of at most {}", ready(&self.pool), stock.max());
        let able = |m: &&Member| m.hold.is_none() && m.condition == Condition::Idle;
        let idle = self.pool.members().filter(able).count();
        assert!(self.pool.supply() >= stock.min() || idle == 0, "too few, and {idle} could be had");
    }
}

proptest! {
    #[test]
    fn nothing_is_given_twice_nothing_bad_is_given_and_the_numbers_are_kept(
        min in proptest::option::of(0_usize..5), more in proptest::option::of(0_usize..4), batch in 0_usize..5,
        happenings in proptest::collection::vec(happening(), 0..80),
    ) {
        let stock = Stock { min, max: more.map(|more| min.unwrap_or(2) + more), batch };
        let mut watched =
            Watched { pool: pool(8, stock), tasks: Vec::new(), lent: BTreeSet::new(), never: BTreeSet::new() };
        watched.look(stock);
        for what in happenings {
            watched.happens(what);
            watched.look(stock);
        }
    }
}
