//! What no definition of a tenant may have, whatever the policy says: nothing that reaches the host's files, its memory, or a
//! program that is not listed.

use std::path::Path;

use fairlead_cni::config::host_device::Device;
use fairlead_cni::config::sriov;
use fairlead_cni::config::userspace::SharedDir;
use fairlead_cni::config::vhost_user::Place;
use fairlead_cni::go_json::folded;
use ipnet::IpNet;
use serde_json::Value;

use super::data_dir::root_of;
use super::definition::{executed_data_dir, names_data_dir};
use super::refusal::shown;
use super::{Addresses, Interface, Link, PolicySettings, Refusal, Tenant};
use crate::conf_dir::META_PLUGINS;
use crate::engine::kinds::BUILT_IN;
use crate::own_executable::ORIGINAL;

/// The most range sets of host-local.
const MAX_RANGE_SETS: usize = 16;
/// The kernel's own length of a macvlan master's queue of broadcasts. The longest one that is asked for counts for all of the
/// master's interfaces, and is memory of the host.
const MAX_BCQUEUELEN: u32 = 1000;
/// The beginnings of URLs whose slashes are no path of this host's.
const WEB: [&str; 2] = ["http://", "https://"];

/// Refuses what no tenant may have.
pub(super) fn never(
    settings: &PolicySettings,
    tenant: &Tenant,
    interface: &Interface,
) -> Result<(), Refusal> {
    let about = About { tenant, interface };
    about.executes(settings)?;
    about.link()?;
    about.addresses(settings)
}

struct About<'a> {
    tenant: &'a Tenant,
    interface: &'a Interface,
}

impl About<'_> {
    fn never(&self, key: &str, value: String, why: &'static str, remedy: &str) -> Refusal {
        let namespace = self.tenant.namespace().to_owned();
        Refusal::Never { namespace, key: self.interface.key(key), value, why, remedy: remedy.to_owned() }
    }

    /// Programs that would be executed are listed, make nothing that is judged where Fairlead makes it, and are told of no file of
    /// the host.
    fn executes(&self, settings: &PolicySettings) -> Result<(), Refusal> {
        let conf = &self.interface.conf;
        let own = matches!(self.interface.link, Link::Executed).then_some(("type", &conf.plugin_type));
        let ipam = match &self.interface.addresses {
            Addresses::Executed(kind) => Some(("ipam.type", kind)),
            Addresses::None | Addresses::HostLocal(_) | Addresses::Static(_) => None,
        };
        let programs = || own.into_iter().chain(ipam);
        for (key, program) in programs() {
            self.program(settings, key, program)?;
        }
        if programs().next().is_none() {
            return Ok(());
        }
        let handed_over = self.handed_over();
        self.executes_no_other(settings, &handed_over)?;
        if self.interface.executes_host_local() && names_data_dir(&handed_over) {
            return Err(self.never(
                "ipam.dataDir",
                shown("dataDir"),
                "a directory that an executed host-local would share with other namespaces",
                "leave it out",
            ));
        }
        let is_allowed = |text: &str| settings.executed_paths.iter().any(|path| path.as_os_str() == text);
        let is_meant = |found: &Found<'_>| is_path(found.text) && (found.is_key || !is_allowed(found.text));
        match text_in(&handed_over, "", &is_meant) {
            Some(Found { place, text, .. }) => {
                let why = "a path of the host for a program that is executed";
                let remedy =
                    "leave it out, or have the node's administrator list it in \"policy.executedPaths\"";
                Err(self.never(&place, shown(text), why, remedy))
            }
            None => Ok(()),
        }
    }

    /// One program that would be executed, and the key that names it.
    fn program(&self, settings: &PolicySettings, key: &str, program: &str) -> Result<(), Refusal> {
        if program.contains(ORIGINAL) {
            return Err(self.original(key, program));
        }
        // Its own keys stand beside `ipam`, where nobody has read them.
        if BUILT_IN.contains(&program) {
            let why = "a plugin that makes interfaces, and no IPAM";
            return Err(self.never(key, shown(program), why, "name an IPAM, such as \"host-local\""));
        }
        match &settings.execute {
            Some(listed) if listed.iter().any(|one| one == program) => Ok(()),
            Some(listed) => Err(Refusal::NotExecuted {
                namespace: self.tenant.namespace().to_owned(),
                key: self.interface.key(key),
                value: shown(program),
                allowed: listed.join(", "),
            }),
            None if META_PLUGINS.contains(&program) => {
                let why = "a plugin that attaches other networks, which nobody would judge";
                let remedy = "give each network a definition of its own, or have the node's administrator list the plugin in \
                     \"policy.execute\" beside all others that may be executed";
                Err(self.never(key, shown(program), why, remedy))
            }
            None => Ok(()),
        }
    }

    /// What is handed to a program names no other one for it to execute, whose keys nobody would judge. One that is listed may have
    /// delegates.
    fn executes_no_other(&self, settings: &PolicySettings, handed_over: &Value) -> Result<(), Refusal> {
        if let Some(Found { place, text, .. }) =
            text_in(handed_over, "", &|found| found.text.contains(ORIGINAL))
        {
            return Err(self.original(&place, text));
        }
        // `delegate` of flannel, `delegates` of Multus under whatever name.
        let is_delegates_type = |found: &Found<'_>| {
            let place = folded(&found.place);
            !found.is_key && place.starts_with("delegate") && place.ends_with(".type")
        };
        match text_in(handed_over, "", &is_delegates_type) {
            Some(Found { place, text, .. }) if settings.execute.is_none() => {
                let why = "a plugin that another one would execute, and nobody would judge";
                let remedy = "leave it out, or have the node's administrator list the one that executes it in \"policy.execute\" \
                     beside all others that may be executed";
                Err(self.never(&place, shown(text), why, remedy))
            }
            _ => Ok(()),
        }
    }

    fn original(&self, key: &str, value: &str) -> Refusal {
        let why = "the name by which the node keeps a plugin whose place Fairlead has taken, and nobody would judge its keys";
        self.never(
            key,
            shown(value),
            why,
            &format!("leave out {ORIGINAL:?}: Fairlead serves the type itself"),
        )
    }

    /// The text as it is handed over, not as it was read: the program may tell `logFile` from `LOGFILE`. What is not the tenant's is
    /// left out.
    fn handed_over(&self) -> Value {
        let mut handed_over = serde_json::from_str(&self.interface.conf.raw).unwrap_or(Value::Null);
        // A tenant's own text never has this key (`definition.rs`): what stands there is the runtime's.
        if let Value::Object(keys) = &mut handed_over {
            keys.remove("runtimeConfig");
        }
        // Nor this one, which keeps the addresses of two namespaces apart.
        let separate = executed_data_dir(self.tenant.namespace());
        if let Some(Value::Object(ipam)) = handed_over.get_mut("ipam")
            && ipam.get("dataDir").is_some_and(|dir| *dir == separate)
        {
            ipam.remove("dataDir");
        }
        handed_over
    }

    fn link(&self) -> Result<(), Refusal> {
        match &self.interface.link {
            Link::Macvlan(n) => {
                if let Some(length) = n.bcqueuelen.filter(|length| *length > MAX_BCQUEUELEN) {
                    let remedy = format!("take at most {MAX_BCQUEUELEN}, the kernel's own length");
                    return Err(self.never(
                        "bcqueuelen",
                        length.to_string(),
                        "a queue in the host's memory",
                        &remedy,
                    ));
                }
                self.netdevs("master", &n.masters)
            }
            Link::Ipvlan(n) => self.netdevs("master", &n.masters),
            Link::Vlan(n) => self.netdev("master", Some(&n.master)),
            Link::HostDevice(n) => match n.as_ref().map(|n| &n.device) {
                Some(Device::Name(name)) => self.netdev("device", Some(name)),
                Some(Device::KernelPath(path)) => {
                    let remedy = "name the device by \"device\" or \"pciBusID\"";
                    Err(self.never("kernelpath", shown(path), "a directory of the host", remedy))
                }
                Some(Device::HwAddr(_) | Device::BusId(_)) | None => Ok(()),
            },
            Link::Sriov(_, Some(sriov::Device::OfPool(pool))) => self.offer("pool", pool),
            Link::Sriov(_, Some(sriov::Device::OfResource(resource))) => self.offer("resourceName", resource),
            Link::VhostUser(port) => {
                self.netdev("master", port.master.as_deref())?;
                match &port.place {
                    Place::Directory(directory) => {
                        let remedy = "name a volume of the pod by \"volume\"";
                        Err(self.never("directory", shown(directory), "a directory of the host", remedy))
                    }
                    Place::Resource(resource) => self.offer("resourceName", resource),
                    Place::Port(id) => self.offer("deviceID", id),
                    Place::SharedDir(SharedDir { base: Some(base), .. }) => {
                        let remedy = "leave it out, and give the pods an emptyDir volume \"shared-dir\"";
                        Err(self.never("sharedDir", shown(base), "a directory of the host", remedy))
                    }
                    Place::Volume(_) | Place::SharedDir(SharedDir { base: None, .. }) => Ok(()),
                }
            }
            Link::Sriov(..) | Link::Nothing | Link::ClusterNetwork(_) | Link::Executed => Ok(()),
        }
    }

    fn netdevs(&self, key: &str, names: &[String]) -> Result<(), Refusal> {
        names.iter().try_for_each(|name| self.netdev(key, Some(name)))
    }

    /// The kernel ends a name at its first NUL: what is judged would not be what it looks for.
    fn netdev(&self, key: &str, name: Option<&str>) -> Result<(), Refusal> {
        let odd = |c: char| c.is_control() || c.is_whitespace() || c == '/';
        match name.filter(|name| name.contains(odd)) {
            Some(name) => {
                Err(self.never(key, shown(name), "which no interface is called", "correct the name"))
            }
            None => Ok(()),
        }
    }

    /// A name with a control character matches a glob of the policy, and is not what it looks like in any table or log.
    fn offer(&self, key: &str, name: &str) -> Result<(), Refusal> {
        match name.contains(char::is_control) {
            true => {
                Err(self.never(key, shown(name), "which no pool or resource is called", "correct the name"))
            }
            false => Ok(()),
        }
    }

    fn addresses(&self, settings: &PolicySettings) -> Result<(), Refusal> {
        let Addresses::HostLocal(config) = &self.interface.addresses else { return Ok(()) };
        if config.ranges.len() > MAX_RANGE_SETS {
            return Err(Refusal::TooMany {
                namespace: self.tenant.namespace().to_owned(),
                key: self.interface.key("ipam.ranges"),
                number: config.ranges.len(),
                most: MAX_RANGE_SETS,
            });
        }
        if let Some(file) = &config.resolv_conf {
            let remedy = "write the name servers into \"dns\"";
            return Err(self.never("ipam.resolvConf", shown(file), "a file of the host", remedy));
        }
        data_dir_root(
            settings,
            self.tenant.namespace(),
            &self.interface.key("ipam.dataDir"),
            &config.data_dir,
        )
        .map(drop)
    }
}

/// The root of the policy below which a tenant's `dataDir` has to lie, for whoever opens it. `key` is where that stands.
///
/// # Errors
/// When it is below none.
pub fn data_dir_root<'s>(
    settings: &'s PolicySettings,
    namespace: &str,
    key: &str,
    data_dir: &str,
) -> Result<&'s Path, Refusal> {
    root_of(data_dir, &settings.data_dir_roots).ok_or_else(|| {
        let roots: Vec<_> = settings.data_dir_roots.iter().map(|root| root.display().to_string()).collect();
        let remedy = format!(
            "leave it out, or take a directory below one of \"policy.dataDirRoots\": [{}]",
            roots.join(", ")
        );
        Refusal::Never {
            namespace: namespace.to_owned(),
            key: key.to_owned(),
            value: shown(data_dir),
            why: "where no address directory of a tenant may be",
            remedy,
        }
    })
}

/// A text or a key in a tree, and where it stands.
struct Found<'v> {
    place: String,
    text: &'v str,
    is_key: bool,
}

/// The first text or key in a tree that `is_meant`.
fn text_in<'v>(value: &'v Value, place: &str, is_meant: &dyn Fn(&Found<'_>) -> bool) -> Option<Found<'v>> {
    match value {
        Value::String(text) => Some(Found { place: place.to_owned(), text, is_key: false }).filter(is_meant),
        Value::Array(items) => {
            let at_place = |(at, item)| text_in(item, &format!("{place}[{at}]"), is_meant);
            items.iter().enumerate().find_map(at_place)
        }
        Value::Object(keys) => keys.iter().find_map(|(key, value)| {
            let below = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
            let found = Found { place: below, text: key, is_key: true };
            if is_meant(&found) { Some(found) } else { text_in(value, &found.place, is_meant) }
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Whether a text is, or has in it, a path of the host: absolute, upwards, or a URL of a file or socket. A relative one leads to
/// nothing: what a tenant's definition has executed works in an empty directory.
fn is_path(text: &str) -> bool {
    let text = text.trim_start();
    let scheme = text.get(..5).unwrap_or_default().to_ascii_lowercase();
    has_absolute_path(text) || leads_up(text) || scheme == "file:" || scheme == "unix:"
}

/// Whether `..` may lead upwards anywhere in the text, as in `--log=../x` or `a:..,b`: wherever it is not within a word.
fn leads_up(text: &str) -> bool {
    let of_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices("..").any(|(at, dots)| {
        let (before, after) =
            (text.get(..at).unwrap_or_default(), text.get(at + dots.len()..).unwrap_or_default());
        !(of_word(before.chars().next_back()) && of_word(after.chars().next()))
    })
}

/// Whether an absolute path begins anywhere in the text, as in `--log=/x`: a slash begins one unless a name stands before it, or it is
/// that of a subnet, alone or in a list (`10.0.0.0/16,fd00::/64`).
fn has_absolute_path(text: &str) -> bool {
    let mut words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !is_subnet(word));
    words.any(|word| {
        let url = WEB.iter().find_map(|scheme| {
            word.get(..scheme.len()).filter(|begin| begin.eq_ignore_ascii_case(scheme))?;
            word.get(scheme.len()..).filter(|host| !host.starts_with('/'))
        });
        let of_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
        let mut before = None;
        url.unwrap_or(word).chars().any(|c| {
            let begins = c == '/' && !before.is_some_and(of_name);
            before = Some(c);
            begins
        })
    })
}

/// Whether a word is a subnet: `fd00::/64`, or `fd00::/48/64` as OVN-Kubernetes has it with the length of each node's part.
fn is_subnet(word: &str) -> bool {
    let is_net = |word: &str| word.parse::<IpNet>().is_ok();
    let is_length = |text: &str| matches!(text.parse::<u8>(), Ok(1..=128));
    is_net(word) || word.rsplit_once('/').is_some_and(|(net, length)| is_net(net) && is_length(length))
}
