//! A pod that fills its namespace: its own end comes in bounded time, and others are served meanwhile.

use std::fmt::Write;
use std::time::{Duration, Instant};

use fairlead_host::NetKernel;

use crate::rig::{Rig, median, until};

/// Far above what any of these takes, far below what the pod would make it take: deleting its addresses one by one takes many seconds.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn a_pod_with_thousands_of_addresses_routes_neighbours_and_links_ends_at_once_and_delays_nobody() {
    let rig = Rig::new();
    let daemon = rig.start();
    let before = rig.leftovers(&[]);
    let served = |n: u32| {
        let pod = rig.pod(&format!("p{n}"));
        let other = rig.call(&format!("c{n}"), &pod, &rig.macvlan("net"));
        let begun = Instant::now();
        other.check(&other.add()).succeeds();
        other.del().succeeds();
        begun.elapsed()
    };
    let quiet = median((100..110).map(served));
    let full = rig.pod("full");
    let call = rig.call("full", &full, &rig.macvlan("net"));
    let added = call.add();
    added.succeeds();
    fill(&full);
    let (links, addresses, routes) = full.inside(|kernel| {
        let mut own = kernel.host().unwrap();
        let index = own.link_by_name("eth0").unwrap().unwrap().index;
        (own.links().unwrap().len(), own.addresses(index).unwrap().len(), own.routes().unwrap().len())
    });
    assert!(links > 500 && addresses >= 3_000 && routes >= 50_000, "{links} {addresses} {routes}");
    let memory = resident(daemon.pid());
    std::thread::scope(|scope| {
        let end = scope.spawn(|| {
            let begun = Instant::now();
            call.check(&added).succeeds();
            call.del().succeeds();
            begun.elapsed()
        });
        // Only those that began before its end count. Other work of the machine slows some of them; a lock that its end held would slow
        // all of them.
        let begun_meanwhile = (0..20).take_while(|n| *n == 0 || !end.is_finished()).map(served);
        let meanwhile = begun_meanwhile.min().unwrap();
        assert!(meanwhile < 4 * quiet + Duration::from_millis(100), "{meanwhile:?}, before {quiet:?}");
        let took = end.join().unwrap();
        assert!(took < PATIENCE, "CHECK and DEL of the full namespace: {took:?}");
    });
    until("nothing is on record", || rig.attachments().is_empty());
    let grown = resident(daemon.pid()).saturating_sub(memory);
    assert!(grown < 48 << 10, "the daemon has grown by {grown} KiB");
    drop(full);
    rig.is_as(&before, &[], "the end");
}

/// 3,000 addresses, 50,000 routes, 20,000 neighbours and 500 links: what the machine makes in some seconds.
fn fill(pod: &crate::rig::Pod) {
    let mut orders = String::new();
    for n in 0..3_000 {
        let _ = writeln!(orders, "address add 10.200.{}.{}/32 dev eth0", n / 250, n % 250 + 1);
    }
    for n in 0..50_000 {
        let _ = writeln!(orders, "route add 172.{}.{}.{}/32 dev eth0", 16 + n / 62_500, n / 250, n % 250);
    }
    for n in 0..20_000 {
        let _ = writeln!(
            orders,
            "neigh add 10.90.{}.{} lladdr 02:00:00:00:00:01 dev eth0 nud permanent",
            n / 250,
            n % 250 + 1
        );
    }
    for n in 0..250 {
        let _ = writeln!(orders, "link add a{n} type veth peer name b{n}");
    }
    pod.ip_batch(&orders);
}

/// The memory of a process, in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
