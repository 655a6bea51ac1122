//! Device information files (NPWG device-info 1.1.0) of allocated devices, where Multus looks for them. A device's file is
//! written again with every allocation of the device.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use serde::Serialize;

use fairlead_host::Mac;
use fairlead_host::host_root::HostRoot;

use super::allocate_answer::DeviceAccess;

const DIRECTORY: &str = "/var/run/k8s.cni.cncf.io/devinfo/dp";

/// The file on the host in which a device plugin describes a device, ours or another.
pub fn device_info_path(resource: &str, id: &str) -> String {
    format!("{DIRECTORY}/{}", file_name(resource, id))
}

/// Multus looks for this name; without a slash it cannot lead out of the directory.
fn file_name(resource: &str, id: &str) -> String {
    format!("{}-{}-device.json", resource.replace('/', "-"), id.replace('/', "-"))
}

#[derive(Serialize)]
struct DeviceInfo<'a> {
    r#type: &'static str,
    version: &'static str,
    #[serde(flatten)]
    device: Kind<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fairlead: Option<Own>,
}

/// The device under the key that its type has.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind<'a> {
    Pci(Pci<'a>),
    VhostUser { mode: &'a str, path: String },
}

/// What the specification has no key for.
#[derive(Serialize)]
struct Own {
    mac: Mac,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Pci<'a> {
    pci_address: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma_device: Option<String>,
}

/// The directory of the files on the host.
#[derive(Debug)]
pub(super) struct DeviceInfoFiles {
    root: HostRoot,
}

impl DeviceInfoFiles {
    pub(super) fn new(root: HostRoot) -> DeviceInfoFiles {
        DeviceInfoFiles { root }
    }

    /// Writes the file of a device. A reader finds the old file or the new one, never a part.
    pub(super) fn write(&self, resource: &str, id: &str, access: &DeviceAccess) -> io::Result<()> {
        let (r#type, device) = match &access.vhost_user {
            Some(socket) => ("vhost-user", Kind::VhostUser { mode: socket.mode, path: socket.path() }),
            None => {
                let rdma_device = access.rdma.as_ref().map(|rdma| rdma.devices.join(","));
                ("pci", Kind::Pci(Pci { pci_address: id, rdma_device }))
            }
        };
        let fairlead = access.vhost_user.as_ref().map(|socket| Own { mac: socket.mac });
        let info = DeviceInfo { r#type, version: "1.1.0", device, fairlead };
        let directory = self.root.make_directory(Path::new(DIRECTORY))?;
        let place = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
        let name = file_name(resource, id);
        let draft = place.join(format!(".{name}"));
        // A daemon that was killed while it wrote leaves its draft behind, and `create_new` would fail on that.
        let _ = fs::remove_file(&draft);
        let mut file = File::options().write(true).create_new(true).mode(0o444).open(&draft)?;
        file.write_all(serde_json::to_string(&info)?.as_bytes())?;
        // The umask may have taken bits from the mode above.
        file.set_permissions(Permissions::from_mode(0o444))?;
        fs::rename(&draft, place.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocate_answer::{RdmaAccess, VhostUserSocket};
    use super::*;

    #[test]
    fn the_file_is_where_multus_looks_and_nobody_can_write_it() {
        let root = tempfile::tempdir().unwrap();
        let files = DeviceInfoFiles::new(HostRoot::new(root.path().into()));
        let path =
            root.path().join("var/run/k8s.cni.cncf.io/devinfo/dp/intel.com-radio-0000:3b:02.0-device.json");
        files.write("intel.com/radio", "0000:3b:02.0", &DeviceAccess::default()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, r#"{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:3b:02.0"}}"#);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o444);
        let rdma = Some(RdmaAccess { devices: vec!["mlx5_2".into()], nodes: Vec::new() });
        files
            .write("intel.com/radio", "0000:3b:02.0", &DeviceAccess { rdma, ..DeviceAccess::default() })
            .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(r#""rdma-device":"mlx5_2""#), "{text}");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_port_is_told_by_the_path_of_its_socket_in_the_container_and_its_mac_address() {
        let root = tempfile::tempdir().unwrap();
        let files = DeviceInfoFiles::new(HostRoot::new(root.path().into()));
        let socket = VhostUserSocket {
            mode: "client",
            host_directory: "/run/fairlead/vhost-user/blue-00".to_owned(),
            directory: "/run/vhost-user/blue-00".to_owned(),
            name: "vhost-user.sock",
            read_only: true,
            mac: Mac::local(0x100),
        };
        let access = DeviceAccess { vhost_user: Some(socket), ..DeviceAccess::default() };
        files.write("example.com/blue", "blue-00", &access).unwrap();
        let path =
            root.path().join("var/run/k8s.cni.cncf.io/devinfo/dp/example.com-blue-blue-00-device.json");
        let wanted = r#"{"type":"vhost-user","version":"1.1.0","vhost-user":{"mode":"client","path":"/run/vhost-user/blue-00/vhost-user.sock"},"fairlead":{"mac":"02:01:00:00:00:00"}}"#;
        assert_eq!(fs::read_to_string(path).unwrap(), wanted);
    }
}
