//! Directories of sockets in which nothing can be made, or that are none: what is refused leaves nothing that cannot be removed.

use std::fs;
use std::path::{Path, PathBuf};

use fairlead_cni::Code;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::userspace::{Node, of_own_switch};
use super::vhost_user::switch;
use super::*;

const DIRECTORY: &str = "/run/sockets";
const IN_DIRECTORY: &str =
    r#"{"cniVersion":"1.1.0","name":"blue","type":"vhost-user","directory":"/run/sockets"}"#;

/// A file system to which nobody can write.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn at(directory: PathBuf) -> ReadOnly {
        fs::create_dir_all(&directory).unwrap();
        mount(Some("tmpfs"), &directory, Some("tmpfs"), MsFlags::MS_RDONLY, None::<&str>).unwrap();
        ReadOnly(directory)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

/// An ADD is refused, its DEL succeeds, and the next ADD is refused for the same reason.
fn refused_without_a_trace(rig: &Rig, call: impl Fn(Command) -> Result<(), CniError>) {
    let before = rig.state();
    for _ in 0..2 {
        let refused = call(Command::Add).unwrap_err();
        assert!(refused.code == Code::Io && refused.details.contains("directory in which root"), "{refused}");
        call(Command::Del).unwrap();
        assert_eq!(rig.state(), before);
    }
}

#[test]
fn a_shared_dir_that_is_a_pipe_or_read_only_is_refused_and_its_del_succeeds() {
    let node = Node::new();
    let (_server, _ports) = switch(&node.rig);
    let config = of_own_switch(r#","sharedDir":"/run/usrspcni""#);
    let shared = node.on_host("/run/usrspcni");
    let call = |command| node.call(command, &config).map(drop);
    fs::create_dir_all(shared.parent().unwrap()).unwrap();
    mkfifo(&shared, Mode::S_IRWXU).unwrap();
    refused_without_a_trace(&node.rig, call);
    fs::remove_file(&shared).unwrap();
    let read_only = ReadOnly::at(shared);
    refused_without_a_trace(&node.rig, call);
    drop(read_only);
    call(Command::Add).unwrap();
    call(Command::Del).unwrap();
}

#[test]
fn a_volume_that_is_read_only_is_refused_and_its_del_succeeds() {
    let node = Node::new();
    let (_server, _ports) = switch(&node.rig);
    let volume = node.on_host("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/shared-dir");
    let _read_only = ReadOnly::at(volume);
    refused_without_a_trace(&node.rig, |command| node.call(command, &of_own_switch("")).map(drop));
}

#[test]
fn a_directory_that_is_read_only_is_refused_and_its_del_succeeds() {
    let rig = Rig::new();
    let (_server, _ports) = switch(&rig);
    let _read_only = ReadOnly::at(on_host(&rig));
    let call = |command| rig.call(rig.request(command, "c1", IN_DIRECTORY)).map(drop);
    refused_without_a_trace(&rig, call);
}

#[test]
fn del_succeeds_where_the_directory_was_replaced_by_a_file_which_stays() {
    let rig = Rig::new();
    let (_server, ports) = switch(&rig);
    let directory = on_host(&rig);
    fs::create_dir_all(&directory).unwrap();
    let before = rig.state();
    rig.add(IN_DIRECTORY).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    fs::write(&directory, "somebody's").unwrap();
    rig.del(IN_DIRECTORY).unwrap();
    assert!(ports.names().is_empty());
    assert_eq!((rig.state(), fs::read_to_string(&directory).unwrap()), (before, "somebody's".to_owned()));
}

fn on_host(rig: &Rig) -> PathBuf {
    rig.root.join(Path::new(DIRECTORY).strip_prefix("/").unwrap())
}
