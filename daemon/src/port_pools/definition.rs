//! Pools of vhost-user ports as the configuration declares them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use fairlead_cni::config::vhost_user::Mode;
use fairlead_sriov::check_resource_name;
use fairlead_sriov::pools::Bounded;
use fairlead_vhost::ovs_dpdk::{DatabaseAddress, TlsFiles};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most bytes of a pool's name: a pod reaches a socket by a path that has it, and a socket's address has 108 at most.
const MAX_NAME: usize = 40;

/// The section `vhostUser` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct VhostUserSettings {
    /// Pools of ports that kubelet allocates to pods. In force at once; a port that a pod has stays its own.
    #[serde(deserialize_with = "deserialize_port_pools")]
    pub pools: Vec<PortPoolSettings>,
    /// The SELinux label of the ports' directories, where their file system has labels; empty: they are left as they are made. In force for
    /// directories that are made from then on.
    pub selinux_label: SelinuxLabel,
    /// The OVS-DPDK of this node; absent: the one at the usual place, once a pod asks for a port of it. In force from the next start.
    #[serde(deserialize_with = "deserialize_ovs")]
    pub ovs: Option<OvsSettings>,
}

/// A label, by default that of files which any container may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SelinuxLabel(pub String);

impl Default for SelinuxLabel {
    fn default() -> SelinuxLabel {
        SelinuxLabel("system_u:object_r:container_file_t:s0".to_owned())
    }
}

/// How OVS-DPDK is reached. Its keys are part of the configuration file's format.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OvsSettings {
    /// Its database, as OVS's own programs take it: `unix:` and an absolute path of the host, `ssl:HOST:PORT`, or `tcp:` and an address of
    /// the loopback interface.
    #[serde(serialize_with = "serialize_database", deserialize_with = "deserialize_database")]
    pub database: DatabaseAddress,
    /// PEM file of the CA that has signed the database's certificate, as the daemon sees it. This and the next two go with `ssl:`, and are
    /// read for each connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// PEM file of the daemon's own certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// PEM file of its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<PathBuf>,
    /// The group that its processes are of, by name or number, where they are not root's: it may pass through to the sockets of pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl OvsSettings {
    /// What a database that is reached by TLS needs.
    pub(crate) fn tls_files(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            ca: self.ca.clone()?,
            certificate: self.certificate.clone()?,
            private_key: self.private_key.clone()?,
        })
    }

    /// What of it cannot be, or does not go together.
    fn wrong(&self) -> Option<String> {
        if self.group.as_deref() == Some("") {
            let why = "group is empty: name that of ovs-vswitchd, or leave the key out where it is root's";
            return Some(why.to_owned());
        }
        let files = [&self.ca, &self.certificate, &self.private_key];
        let (named, relative) = (
            files.iter().filter(|file| file.is_some()).count(),
            files.into_iter().flatten().find(|file| !file.is_absolute()),
        );
        if let Some(file) = relative {
            return Some(format!("{} is no absolute path", file.display()));
        }
        match (&self.database, named) {
            (DatabaseAddress::Ssl(_), 3) => None,
            (DatabaseAddress::Ssl(_), _) => {
                Some(format!("database {}: TLS needs ca, certificate and privateKey", self.database))
            }
            (_, 0) => None,
            (_, _) => {
                Some(format!("database {}: ca, certificate and privateKey are for ssl:", self.database))
            }
        }
    }
}

/// A pool of ports. Its keys are part of the configuration file's format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortPoolSettings {
    /// The name by which the operator knows it; its ports are called `<name>-00` and so on.
    pub name: String,
    /// Kubelet allocates them under this resource name.
    pub resource_name: String,
    /// So many ports it has.
    pub count: Bounded<1, 1000>,
    /// The pods' side of their sockets.
    #[serde(default)]
    pub mode: PortMode,
    /// The NUMA node that kubelet is to align pods with these ports to; absent: none.
    #[serde(default)]
    pub numa_node: Option<u32>,
}

/// Who makes the sockets of a pool, as the key `mode` says it of the pods' side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortMode {
    /// The pods' processes connect. They may make nothing in the directory of the socket.
    #[default]
    Client,
    /// The pods' processes make the sockets.
    Server,
}

impl From<PortMode> for Mode {
    fn from(mode: PortMode) -> Mode {
        match mode {
            PortMode::Client => Mode::Client,
            PortMode::Server => Mode::Server,
        }
    }
}

impl PortPoolSettings {
    /// The names of its ports.
    pub(super) fn ids(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.count.get()).map(|n| format!("{}-{n:02}", self.name))
    }

    fn wrong(&self) -> Option<String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if !self.name.starts_with(|c: char| c.is_ascii_alphanumeric())
            || !self.name.chars().all(plain)
            || self.name.len() > MAX_NAME
        {
            let expected = format!("at most {MAX_NAME} letters, digits, - _, a letter or digit first");
            return Some(format!("{:?} is no name of a pool of ports ({expected})", self.name));
        }
        let bad = check_resource_name(&self.resource_name).err()?;
        Some(format!("pool {:?}: {bad}", self.name))
    }
}

fn deserialize_port_pools<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PortPoolSettings>, D::Error> {
    let pools = Vec::<PortPoolSettings>::deserialize(from)?;
    let mut names = BTreeSet::new();
    for pool in &pools {
        if let Some(why) = pool.wrong() {
            return Err(D::Error::custom(why));
        }
        if !names.insert(&pool.name) {
            return Err(D::Error::custom(format!("there are two pools {:?} of ports", pool.name)));
        }
    }
    Ok(pools)
}

fn deserialize_ovs<'de, D: Deserializer<'de>>(from: D) -> Result<Option<OvsSettings>, D::Error> {
    let ovs = Option::<OvsSettings>::deserialize(from)?;
    match ovs.as_ref().and_then(OvsSettings::wrong) {
        Some(why) => Err(D::Error::custom(why)),
        None => Ok(ovs),
    }
}

fn deserialize_database<'de, D: Deserializer<'de>>(from: D) -> Result<DatabaseAddress, D::Error> {
    DatabaseAddress::parse(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn serialize_database<S: Serializer>(database: &DatabaseAddress, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(database)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<VhostUserSettings, String> {
        serde_saphyr::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_pool_has_so_many_ports_each_with_a_name_of_its_own() {
        let settings = read("pools: [{name: blue, resourceName: example.com/blue, count: 101}]").unwrap();
        let [pool] = settings.pools.as_slice() else { panic!("{settings:?}") };
        let ids: Vec<String> = pool.ids().collect();
        assert_eq!((ids.len(), ids[0].as_str(), ids[100].as_str()), (101, "blue-00", "blue-100"));
        assert_eq!((pool.mode, pool.numa_node), (PortMode::Client, None));
    }

    #[test]
    fn ovs_is_reached_at_a_socket_of_the_host() {
        assert_eq!(read("pools: []").unwrap().ovs, None);
        let usual = read("ovs: {}").unwrap().ovs.unwrap();
        assert_eq!(usual.database.to_string(), "unix:/run/openvswitch/db.sock");
        let elsewhere = read("ovs: {database: 'unix:/opt/ovs/db.sock'}").unwrap();
        let written = serde_json::to_value(&elsewhere).unwrap();
        assert_eq!(written["ovs"]["database"], "unix:/opt/ovs/db.sock");
        let of_group = read("ovs: {group: hugetlbfs}").unwrap();
        assert_eq!(serde_json::to_value(&of_group).unwrap()["ovs"]["group"], "hugetlbfs");
        for wrong in [
            "ovs: {database: 'tcp:10.0.0.1:6640'}",
            "ovs: {database: db.sock}",
            "ovs: {bridge: br0}",
            "ovs: {group: ''}",
        ] {
            read(wrong).unwrap_err();
        }
    }

    #[test]
    fn ovs_is_reached_by_tls_with_three_files_and_by_tcp_on_the_node_alone() {
        let files = "ca: /tls/ca.pem, certificate: /tls/tls.crt, privateKey: /tls/tls.key";
        let by_tls = read(&format!("ovs: {{database: 'ssl:10.0.0.1:6640', {files}}}")).unwrap();
        let written = serde_json::to_value(&by_tls).unwrap();
        assert_eq!(written["ovs"]["privateKey"], "/tls/tls.key");
        assert_eq!(by_tls.ovs.unwrap().tls_files().unwrap().ca.to_str(), Some("/tls/ca.pem"));
        assert_eq!(read("ovs: {database: 'tcp:[::1]:6640'}").unwrap().ovs.unwrap().tls_files(), None);
        for (wrong, told) in [
            ("database: 'ssl:10.0.0.1:6640'".to_owned(), "needs ca, certificate and privateKey"),
            (
                "database: 'ssl:10.0.0.1', ca: /a, certificate: /b".to_owned(),
                "needs ca, certificate and privateKey",
            ),
            (files.to_owned(), "are for ssl:"),
            (format!("database: 'ssl:h', {}", files.replace("/tls/ca", "ca")), "is no absolute path"),
        ] {
            let error = read(&format!("ovs: {{{wrong}}}")).unwrap_err();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let long = format!("name: {}, resourceName: a.b/c, count: 1", "n".repeat(41));
        for (pools, told) in [
            ("name: a/b, resourceName: a.b/c, count: 1", "is no name of a pool of ports"),
            ("name: ../a, resourceName: a.b/c, count: 1", "is no name of a pool of ports"),
            ("name: -a, resourceName: a.b/c, count: 1", "is no name of a pool of ports"),
            (long.as_str(), "is no name of a pool of ports"),
            ("name: a, resourceName: c, count: 1", "is no name that kubelet takes"),
            ("name: a, resourceName: a.b/c, count: 0", "0 is not between 1 and 1000"),
            ("name: a, resourceName: a.b/c, count: 1001", "1001 is not between"),
            ("name: a, resourceName: a.b/c", "count"),
            ("name: a, resourceName: a.b/c, count: 1, mode: both", "both"),
            ("name: a, resourceName: a.b/c, count: 1, min: 1", "min"),
            (
                "name: a, resourceName: a.b/c, count: 1}, {name: a, resourceName: a.b/d, count: 1",
                "two pools \"a\"",
            ),
        ] {
            let error = read(&format!("pools: [{{{pools}}}]")).unwrap_err();
            assert!(error.contains(told), "{pools}: {error}");
        }
    }
}
