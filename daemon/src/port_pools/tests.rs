//! Pools of ports while the disk with their MAC addresses hangs.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

fn declared(pools: &str) -> Vec<PortPoolSettings> {
    let settings: VhostUserSettings = serde_saphyr::from_str(&format!("pools: [{pools}]")).unwrap();
    settings.pools
}

const BLUE: &str = "{name: blue, resourceName: example.com/blue, count: 1, numaNode: 1}";
const RED: &str = "{name: red, resourceName: example.com/red, count: 1}";

/// Pools without any port, in this directory.
fn pools(dir: &Path) -> Arc<PortPools> {
    let (run, state, count) = (dir.join("run"), dir.join("state"), AtomicU64::new(1));
    fs::create_dir(&run).unwrap();
    fs::create_dir(&state).unwrap();
    let store = Arc::new(Store::open(&run, "this boot").unwrap().0);
    let random = Box::new(move || count.fetch_add(1, Ordering::Relaxed) << 8);
    Arc::new(PortPools::new(&run, &state, store, random))
}

/// What kubelet is shown of each port, by name.
fn offered(pools: &PortPools) -> Vec<(String, bool)> {
    let lists = pools.offers().into_iter().filter_map(|offer| offer.list().borrow().clone());
    lists.flatten().map(|port| (port.id, port.healthy)).collect()
}

fn port(id: &str, healthy: bool) -> (String, bool) {
    (id.to_owned(), healthy)
}

#[test]
fn while_the_disk_hangs_adds_get_their_ports_and_no_port_is_offered_whose_address_is_not_on_record() {
    let dir = tempfile::tempdir().unwrap();
    let pools = pools(dir.path());
    pools.configure(&declared(BLUE));
    let mac = pools.mac_address("blue-00").unwrap();
    assert!(mac.is_some());
    // Opened only when somebody reads: a disk that hangs.
    let hangs = dir.path().join("state/port-mac-addresses.tmp");
    mkfifo(&hangs, Mode::S_IRWXU).unwrap();
    let ask = || {
        let (resource, mode) = pools.port("blue-00").unwrap();
        assert_eq!((resource.as_str(), mode), ("example.com/blue", PortMode::Client));
        assert_eq!(pools.numa_node("blue-00"), Some(1));
        assert_eq!(pools.mac_address("blue-00").unwrap(), mac);
        assert!(pools.take("blue-00").unwrap().is_some());
        pools.mend();
        assert_eq!(offered(&pools), [port("blue-00", true), port("red-00", false)]);
        assert_eq!(pools.allocate("red-00").unwrap_err(), NOT_ON_RECORD);
        pools.give_back("red-00", 7).unwrap();
        assert_eq!(offered(&pools), [port("blue-00", true), port("red-00", false)]);
        pools.allocate("blue-00").unwrap();
    };
    thread::scope(|scope| {
        let configures = scope.spawn(|| pools.configure(&declared(&format!("{BLUE}, {RED}"))));
        while pools.mac_addresses.try_lock().is_some() && !configures.is_finished() {
            thread::yield_now();
        }
        let asks = scope.spawn(ask);
        let limit = Instant::now() + Duration::from_secs(20);
        while !asks.is_finished() && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
        let is_answered = asks.is_finished();
        // Ends all threads, before anything can fail. What is written there cannot be flushed: the write fails.
        drop(fs::read(&hangs));
        configures.join().unwrap();
        asks.join().unwrap();
        assert!(is_answered, "an ADD waits for the disk");
    });
    let table = pools.table();
    let reason = table[1]["reason"].as_str().unwrap();
    assert!(reason.starts_with("its MAC address cannot be put on record: "), "{reason}");
    pools.mend();
    assert_eq!(offered(&pools), [port("blue-00", true), port("red-00", true)]);
    let told = pools.allocate("red-00").unwrap().mac;
    let state = dir.path().join("state");
    assert_eq!(MacAddresses::read(&state).of("red-00"), Some(told));
    assert_eq!(MacAddresses::read(&state).of("blue-00"), mac);
}
