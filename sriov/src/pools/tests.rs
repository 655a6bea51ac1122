//! Pools on a kernel in memory, without a daemon around them: what a member goes through, whatever befalls the machine.

mod bound_by_others;
mod configuration;
mod failures;
mod hotplug;
mod lifecycle;
mod machine;
mod offers;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_host::double::{FakeKernel, KernelRequest, NetnsSnapshot, Snapshot};
use fairlead_host::{Link, NetKernel, PciKernel, Vf};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use serde_json::Value;

use super::*;
use crate::ResourcePrefix;
use crate::wait_out_reset::SETTLES;
use machine::{drive_by, sysfs};

/// The first VF, the second one of the same PF, and that PF's interface and address.
const VF: &str = "0000:21:10.0";
const SECOND: &str = "0000:21:10.2";
const PF: &str = "pf0";
const PHYSICAL: &str = "0000:21:00.0";
/// A VF of another PF, which vfio-pci has; no pool selects it, because its PF has no SR-IOV by sysfs.
const VFIO: &str = "0000:41:10.0";
const VFIO_PF: &str = "0000:41:00.0";
const VFIO_LINK: &str = "pf1";

const POOL: &str = "pools: [{name: radio, selectors: {vendors: ['8086']}, profile: {vlan: 7, trust: on}}]";

/// Pools on a kernel in memory, with directories of their own. Nobody owns a VF but whom a test lends it to.
struct Rig {
    kernel: Arc<FakeKernel>,
    pools: Option<Arc<Pools>>,
    registry: Registry,
    dir: tempfile::TempDir,
    configuration: PoolsConfiguration,
}

/// The part of the daemon's configuration that is about pools.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ConfigurationFile {
    #[serde(deserialize_with = "deserialize_pools")]
    pools: Vec<PoolSettings>,
    device_plugin_config: Option<PathBuf>,
}

fn configuration(text: &str) -> PoolsConfiguration {
    let file: Option<ConfigurationFile> = serde_saphyr::from_str(text).unwrap();
    let ConfigurationFile { pools, device_plugin_config } = file.unwrap_or_default();
    let file = |path: PathBuf| {
        let text = fs::read_to_string(&path).map_err(|e| e.to_string());
        DevicePluginFile { path, text, prefix: ResourcePrefix::default() }
    };
    PoolsConfiguration { pools, device_plugin: device_plugin_config.map(file), unreadable: false }
}

fn pci(address: &str) -> PciAddr {
    address.parse().unwrap()
}

fn nobody() -> VfOwners<'static> {
    VfOwners { ours: &|_| None, sriov_cni: &|| Ok(Arc::default()) }
}

/// A machine with two VFs and this configuration; nothing was looked at yet.
fn with(text: &str) -> Rig {
    on(FakeKernel::new(), text)
}

/// The same, with this kernel.
fn on(kernel: FakeKernel, text: &str) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    for sub in ["run", "state"] {
        fs::create_dir_all(dir.path().join(sub)).unwrap();
    }
    let kernel = Arc::new(kernel);
    let pf = kernel.add_host_link(PF);
    kernel.add_vf(pf, VF, "vf0");
    kernel.add_vf(kernel.add_host_link(VFIO_LINK), VFIO, "vf1-of-vfio");
    let sys = dir.path().join("sys");
    sysfs(&sys);
    kernel.show_in(&sys);
    kernel.drive(VFIO, Some("vfio-pci")).unwrap();
    kernel.add_vf(pf, SECOND, "vf1");
    machine::plug(&sys, (PHYSICAL, PF), 1, (SECOND, "vf1"));
    drive_by(&sys, SECOND, "igbvf");
    kernel.show_in(&sys);
    let rig =
        Rig { kernel, pools: None, registry: Registry::default(), dir, configuration: configuration(text) };
    rig.set_up(PF, true);
    rig
}

/// The first, with everything ready.
fn kept(text: &str) -> Rig {
    let mut rig = with(text);
    rig.restart();
    rig.keep();
    rig
}

impl Rig {
    fn pools(&self) -> &Arc<Pools> {
        self.pools.as_ref().unwrap()
    }

    /// Kills the daemon where it stands and starts another.
    fn restart(&mut self) {
        self.pools = None;
        self.registry = Registry::with_prefix("fairlead");
        let count = std::sync::atomic::AtomicU64::new(0);
        let kernel = Arc::clone(&self.kernel) as Arc<dyn Kernel>;
        let pools = Pools::open(PoolsContext {
            state_dir: &self.dir.path().join("state"),
            run_dir: &self.dir.path().join("run"),
            boot_id: "this boot",
            admin: Arc::new(Administrator::new(Arc::clone(&kernel), SETTLES)),
            kernel,
            inventory: Inventory::new(&self.sys()),
            udev: self.udev(),
            dev: self.dir.path().join("dev"),
            metrics: PoolMetrics::new(&mut self.registry, || Histogram::new([0.1])),
            random: Box::new(move || 7 + count.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
        });
        let pools = Arc::new(pools.unwrap());
        pools.count();
        pools.configure(self.configuration.clone());
        pools.look(Look::First, nobody());
        self.pools = Some(pools);
    }

    fn udev(&self) -> PathBuf {
        self.dir.path().join("udev")
    }

    fn sys(&self) -> PathBuf {
        self.dir.path().join("sys")
    }

    fn configure(&mut self, text: &str) {
        self.configuration = configuration(text);
        self.pools().configure(self.configuration.clone());
        self.keep();
    }

    fn look(&self, how: Look) {
        self.pools().look(how, nobody());
    }

    /// What the threads would do.
    fn keep(&self) {
        self.look(Look::Quick);
        self.pools().work_here();
    }

    /// The same when every pause is over.
    fn keep_on(&self) {
        self.pools().wake(Instant::now() + Duration::from_secs(3600));
        self.pools().work_here();
    }

    fn check_pools(&self) {
        self.look(Look::Thorough);
        self.pools().work_here();
    }

    /// The look that comes next; the thorough one, which is due at its time, where nothing else is.
    fn look_due(&self) -> Look {
        // Before the second look of any start: a slow machine comes to nothing else.
        let at_the_start = Instant::now() - Duration::from_secs(3600);
        self.pools().take_look(at_the_start).unwrap_or(Look::Thorough)
    }

    fn table(&self) -> Value {
        self.pools().table(nobody())
    }

    fn members(&self) -> Vec<Value> {
        self.table()["functions"].as_array().unwrap().clone()
    }

    fn states(&self) -> Vec<String> {
        self.members().iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
    }

    fn asked(&self, is: impl Fn(&KernelRequest) -> bool) -> usize {
        self.kernel.calls().iter().filter(|call| is(&call.request)).count()
    }

    fn changes(&self) -> usize {
        self.asked(|asked| {
            matches!(
                asked,
                KernelRequest::Op(_)
                    | KernelRequest::Unbind(_)
                    | KernelRequest::Bind(..)
                    | KernelRequest::Reset(_)
                    | KernelRequest::SetSysctl(..)
            )
        })
    }

    fn order(&self, verb: Verb, of: &str) {
        // The threads would do it while the order is waited for.
        std::thread::scope(|scope| {
            let ordered = scope.spawn(|| self.pools().order(verb, of, nobody()).unwrap());
            while !ordered.is_finished() {
                self.keep_on();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }

    /// The machine, without what no give-back can bring back: a new interface has another index.
    fn machine(&self) -> Snapshot {
        let mut kernel = self.kernel.snapshot();
        for netns in kernel.namespaces.values_mut() {
            netns.sysctls.clear();
            forget_indices(netns);
        }
        kernel
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }

    /// The first VF's settings, and its interface at home.
    fn settings(&self) -> Vf {
        self.kernel.snapshot().vfs.values().next().unwrap()[0].clone()
    }

    fn at_home(&self) -> Option<Link> {
        let links = self.kernel.host().unwrap().links().unwrap();
        links.into_iter().find(|link| link.device.as_deref() == Some(VF))
    }
}

/// An interface that a driver made anew has another index.
fn forget_indices(netns: &mut NetnsSnapshot) {
    let mine = |link: &Link| link.device.is_some();
    let mut found: Vec<Link> = netns.links.values().filter(|link| mine(link)).cloned().collect();
    found.sort_by(|a, b| a.device.cmp(&b.device));
    netns.links.retain(|_, link| !mine(link));
    for (at, link) in (0..).zip(found) {
        netns.links.insert(u32::MAX - at, Link { index: 0, ..link });
    }
}
