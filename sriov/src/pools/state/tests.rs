//! What a pool promises, whatever happens to it in whatever order.

mod histories;

use std::time::Duration;

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
    assert_eq!(pool.member(address(0)).unwrap().state_name(), "idle");
}

#[test]
fn k25_a_smaller_max_frees_what_is_above_it_and_touches_nobody_who_has_one() {
    let mut pool = pool(6, Stock::default());
    settle(&mut pool);
    pool.lend(address(0)).unwrap();
    pool.set_stock(Stock { min: None, max: Some(2), batch: 1 });
    settle(&mut pool);
    assert_eq!(ready(&pool), 2);
    assert_eq!(pool.member(address(0)).unwrap().state_name(), "lent");
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
fn x07_what_its_pf_keeps_from_a_member_is_tried_ever_more_seldom_and_is_no_failure_of_it() {
    let mut pool = pool(1, Stock::default());
    let (vf, mut now, mut pauses) = (address(0), Instant::now(), Vec::new());
    for _ in 0..9 {
        assert_eq!(pool.due(now), [Task::Prepare(vf)]);
        pool.hindered(vf, "its PF is not there", now);
        let next = pool.next_try().unwrap();
        pauses.push((next - now).as_secs());
        now = next;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60, 60]);
    let member = pool.member(vf).unwrap();
    assert_eq!((member.state_name(), member.reason()), ("preparing", "its PF is not there"));
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
    assert_eq!(pool.member(address(1)).unwrap().state_name(), "drained");
    (0..2).for_each(|n| pool.fill(address(n)));
    settle(&mut pool);
    assert_eq!(ready(&pool), 2);
}

#[test]
fn k26_a_drained_member_is_lent_to_nobody_before_it_is_filled() {
    let mut pool = pool(1, Stock::default());
    let vf = address(0);
    settle(&mut pool);
    pool.drain(vf);
    settle(&mut pool);
    let refused = (pool.lend(vf), pool.allocate(vf, Instant::now()));
    assert_eq!(refused, (Err(Refusal::Drained), Err(Refusal::Drained)));
    assert!(!pool.member(vf).unwrap().is_awaited(), "nobody waits for the operator");
    pool.fill(vf);
    assert_eq!(pool.lend(vf), Err(Refusal::NotYet("preparing".to_owned())));
    settle(&mut pool);
    assert_eq!(pool.lend(vf), Ok(()));
}

#[test]
fn k25_an_idle_member_that_an_add_names_is_prepared_first_and_above_max_another_one_is_given_back() {
    let mut pool = pool(3, Stock { min: Some(1), max: Some(1), batch: 1 });
    let [ready_one, named] = [0, 2].map(address);
    settle(&mut pool);
    assert_eq!(pool.lend(named), Err(Refusal::NotYet("preparing".to_owned())));
    assert_eq!(pool.due(later()), [Task::Prepare(named)]);
    assert_eq!(pool.due(later()), [Task::GiveBack(ready_one)]);
    pool.given_back(ready_one);
    pool.prepared(named);
    assert_eq!(pool.due(later()), []);
    assert_eq!(pool.lend(named), Ok(()));
}

#[test]
fn an_idle_member_is_taken_for_work_on_its_name_drained_or_not_and_is_idle_after_that() {
    let mut pool = pool(3, Stock { min: Some(0), max: None, batch: 0 });
    pool.drain(address(1));
    pool.quarantine(address(2), "no answer");
    assert_eq!([0, 1, 2].map(|n| pool.take_idle(address(n))), [true, true, false]);
    assert_eq!(pool.lend(address(1)), Err(Refusal::Lent));
    (0..2).for_each(|n| pool.unused(address(n), MemberState::Idle));
    let states: Vec<&str> = pool.members().map(Member::state_name).collect();
    assert_eq!(states, ["idle", "drained", "quarantined"]);
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
    pool.allocate(vf, Instant::now()).unwrap();
    assert_eq!(pool.member(vf).unwrap().state_name(), "given");
    assert_eq!(pool.due(Instant::now()), [], "nothing is done to it while a pod may have it");
    assert_eq!(pool.allocate(vf, later()), Err(Refusal::NotYet("preparing".to_owned())));
    assert_eq!(pool.due(Instant::now()), [Task::Prepare(vf)]);
    pool.prepared(vf);
    assert_eq!(pool.allocated_when_ready(vf), Ok(()));
    pool.lend(vf).unwrap();
    pool.allocate(vf, Instant::now()).unwrap(); // the next pod's ADD waits for it
    pool.returned(vf);
    settle(&mut pool);
    assert_eq!(pool.member(vf).unwrap().state_name(), "given");
}

#[test]
fn x07_one_that_is_allocated_again_at_once_is_so_for_another_container_of_the_same_pod() {
    let (mut pool, vf, two_seconds) = (pool(1, Stock::default()), address(0), Duration::from_secs(2));
    settle(&mut pool);
    // It is cleaned for another pod first: that takes longer than the two seconds, which begin with the answer.
    let first = Instant::now();
    pool.allocate(vf, first).unwrap();
    let second = first + two_seconds;
    assert!(pool.allocate(vf, second).unwrap_err().passes());
    settle(&mut pool);
    let answered = second + 2 * two_seconds;
    pool.allocated_when_ready(vf).unwrap();
    pool.allocation_answered(vf, answered);
    let mut container = answered;
    for _ in 0..3 {
        container += two_seconds - Duration::from_millis(1);
        assert_eq!(pool.allocate(vf, container), Ok(()));
        assert_eq!((pool.member(vf).unwrap().state_name(), pool.due(later())), ("given", Vec::new()));
    }
    assert!(pool.allocate(vf, container + two_seconds).unwrap_err().passes());
    assert_eq!(pool.due(later()), [Task::Prepare(vf)]);
}

#[test]
fn x07_nothing_is_done_to_one_that_was_given_until_nobody_has_it_whatever_the_pool_is_to_be() {
    let mut pool = pool(5, Stock::default());
    settle(&mut pool);
    (0..5).for_each(|n| pool.allocate(address(n), Instant::now()).unwrap());
    pool.drain(address(0));
    pool.dismiss(address(1), true);
    pool.quarantine(address(2), "the operator says so");
    pool.release(address(2));
    pool.set_stock(Stock { min: None, max: Some(1), batch: 1 });
    settle(&mut pool);
    let states: Vec<&str> = pool.members().map(Member::state_name).collect();
    assert_eq!(states, ["draining", "draining", "given", "given", "given"]);
    assert!(pool.member(address(0)).unwrap().reason().contains("release it by its address"));
    assert_eq!(pool.forget_dismissed(|_| true), []);
    assert_eq!(pool.draw(Spread::Packed, |_| Some(0)), None, "nor is it for anybody else");
    assert_eq!(pool.lend(address(0)), Ok(()), "its ADD has it, drained or not");
    pool.returned(address(0));
    (0..4).for_each(|n| pool.nobody_has(address(n)));
    let due = pool.due(later());
    let [zero, one, two, three] = [0, 1, 2, 3].map(address);
    assert_eq!(due, [Task::GiveBack(zero), Task::GiveBack(one), Task::Prepare(two), Task::GiveBack(three)]);
}

#[test]
fn what_pods_were_given_is_no_stock() {
    let mut pool = pool(6, Stock { min: Some(2), max: Some(2), batch: 1 });
    settle(&mut pool);
    (0..2).for_each(|n| pool.allocate(address(n), Instant::now()).unwrap());
    settle(&mut pool);
    assert_eq!(ready(&pool), 2);
    pool.allocate(address(0), later()).unwrap_err();
    assert_eq!(pool.due(later()), [Task::Prepare(address(0))], "for its pod, not for the stock");
}

#[test]
fn x07_what_is_not_there_or_not_well_is_given_to_nobody_and_what_is_at_work_when_it_is_ready() {
    let mut pool = pool(6, Stock::default());
    let refused = |pool: &mut Pool, n| {
        let refused = pool.allocate(address(n), Instant::now()).unwrap_err();
        assert!(!pool.member(address(n)).unwrap().is_allocated());
        refused
    };
    settle(&mut pool);
    pool.taken(address(0), "a VM");
    pool.vanished(address(1));
    pool.quarantine(address(2), "no answer");
    pool.drain(address(3));
    assert_eq!(refused(&mut pool, 0), Refusal::Foreign("a VM".to_owned()));
    assert_eq!(refused(&mut pool, 1), Refusal::Gone);
    assert_eq!(refused(&mut pool, 2), Refusal::Quarantined("no answer".to_owned()));
    assert_eq!(refused(&mut pool, 3), Refusal::NotYet("draining".to_owned()));
    pool.due(later());
    assert_eq!(refused(&mut pool, 3), Refusal::NotYet("draining".to_owned()), "at work");
    for n in [4, 5] {
        pool.lend(address(n)).unwrap();
        pool.returned(address(n));
        assert_eq!(pool.allocate(address(n), Instant::now()), Err(Refusal::NotYet("preparing".to_owned())));
    }
    pool.due(later());
    pool.prepared(address(4));
    assert_eq!(pool.allocated_when_ready(address(4)), Ok(()));
    let late = pool.allocated_when_ready(address(5));
    assert_eq!(late, Err(Refusal::NotYet("preparing".to_owned())));
    pool.prepared(address(5));
    assert_eq!(
        (pool.member(address(4)).unwrap().state_name(), pool.member(address(5)).unwrap().state_name()),
        ("given", "ready")
    );
}

#[test]
fn one_that_was_given_and_whose_add_did_not_use_it_is_given_still() {
    let mut pool = pool(1, Stock::default());
    let vf = address(0);
    settle(&mut pool);
    pool.allocate(vf, Instant::now()).unwrap();
    pool.lend(vf).unwrap();
    pool.unused(vf, MemberState::Ready { allocated: true, verified: true });
    assert_eq!(pool.member(vf).unwrap().state_name(), "given");
}

#[test]
fn k26_a_quarantine_outlives_a_configuration_that_leaves_its_member_out_for_a_while() {
    let mut pool = pool(2, Stock::default());
    settle(&mut pool);
    (0..2).for_each(|n| pool.quarantine(address(n), "no answer"));
    (0..2).for_each(|n| pool.dismiss(address(n), true));
    pool.dismiss(address(0), true);
    assert_eq!(pool.member(address(0)).unwrap().state_name(), "draining");
    pool.release(address(1));
    (0..2).for_each(|n| pool.dismiss(address(n), false));
    assert_eq!(pool.lend(address(0)), Err(Refusal::Quarantined("no answer".to_owned())));
    assert_eq!(pool.lend(address(1)), Ok(()));
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

#[test]
fn one_that_a_pod_has_left_unclean_is_quarantined_until_it_was_bound_anew_whatever_the_stock() {
    let mut pool = pool(2, Stock { min: Some(0), max: Some(0), batch: 0 });
    let vf = address(0);
    pool.claimed(vf); // as it is: nothing was changed of it
    pool.soiled(vf, "XDP (driver) program 7");
    assert_eq!(pool.member(vf).unwrap().state_name(), "lent");
    pool.returned(vf);
    let member = pool.member(vf).unwrap();
    assert_eq!((member.state_name(), member.reason()), ("quarantined", "XDP (driver) program 7"));
    let waits = Refusal::NotYet("quarantined: XDP (driver) program 7".to_owned());
    assert_eq!((pool.lend(vf), pool.allocate(vf, Instant::now())), (Err(waits.clone()), Err(waits)));
    assert_eq!(pool.due(later()), [Task::Prepare(vf)]);
    assert_eq!(pool.member(vf).unwrap().state_name(), "quarantined");
    pool.prepared(vf);
    assert_eq!((pool.member(vf).unwrap().state_name(), &pool.member(vf).unwrap().hold), ("ready", &None));
    assert_eq!(pool.due(later()), [Task::GiveBack(vf)], "the stock counts again");
}

#[test]
fn one_that_a_pod_has_left_unclean_is_prepared_when_it_is_released_whatever_it_is_in() {
    let unclean = |n| Member { hold: Some(Hold::Unclean("a program".to_owned())), ..member(n) };
    let mut pool = Pool::new(Stock::default());
    pool.appeared(unclean(0));
    pool.appeared(Member { state: MemberState::Due(Pending::default()), ..unclean(1) });
    assert_eq!(pool.due(later()), [Task::Prepare(address(1))]);
    let now = Instant::now();
    pool.failed(address(1), "no answer", now);
    assert_eq!(pool.due(now), []);
    (0..2).for_each(|n| pool.release(address(n)));
    assert_eq!(pool.lend(address(1)), Err(Refusal::NotYet("quarantined: a program".to_owned())));
    assert_eq!(pool.due(now), [Task::Prepare(address(0)), Task::Prepare(address(1))]);
    (0..2).for_each(|n| pool.prepared(address(n)));
    assert_eq!(ready(&pool), 2);
}

#[test]
fn x07_one_that_was_allocated_and_is_lent_when_kubelet_has_waited_long_enough_is_the_next_pods_still() {
    let mut pool = pool(2, Stock::default());
    settle(&mut pool);
    (0..2).for_each(|n| pool.lend(address(n)).unwrap());
    pool.allocate(address(0), Instant::now()).unwrap();
    assert_eq!(pool.allocated_when_ready(address(0)), Ok(()));
    let refused = pool.allocated_when_ready(address(1));
    assert_eq!(refused, Err(Refusal::Lent), "which nobody has allocated");
    pool.returned(address(0));
    settle(&mut pool);
    assert_eq!(pool.member(address(0)).unwrap().state_name(), "given");
}

#[test]
fn one_that_a_pod_has_left_unclean_and_that_fails_twice_is_quarantined_for_both_until_it_is_released() {
    let mut pool = pool(1, Stock::default());
    let vf = address(0);
    settle(&mut pool);
    pool.lend(vf).unwrap();
    pool.soiled(vf, "a program");
    pool.returned(vf);
    for given_up in [false, true] {
        assert_eq!(pool.due(later()), [Task::Prepare(vf)]);
        assert_eq!(pool.failed(vf, "it hangs", Instant::now()), given_up);
    }
    assert_eq!(pool.due(later()), []);
    assert_eq!(pool.lend(vf), Err(Refusal::Quarantined("a program; it hangs".to_owned())));
    pool.release(vf);
    assert_eq!(pool.due(later()), [Task::Prepare(vf)]);
}
