//! Directories that the members of one group of the host may pass through, beside who may by their mode.
//!
//! It is an entry of the directory's access control list (acl(5)) and not its group: to give a directory to a group takes CAP_CHOWN, which
//! a daemon in a container need not have.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{XattrFlags, fsetxattr};

use crate::host_root::HostRoot;

/// The files of groups; the second is where the first has only what was added to the image (ostree).
const FILES: [&str; 2] = ["/etc/group", "/usr/lib/group"];
/// The longest file of groups that is read. In bytes.
const LONGEST: u64 = 4 << 20;

/// The list as the kernel takes it (`linux/posix_acl_xattr.h`, `linux/posix_acl.h`).
const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The id of an entry that is nobody's by name.
const UNDEFINED: u32 = u32::MAX;
/// Passing through a directory, without listing it.
const PASS: u16 = 0o1;

/// The number of a group of the host, which is given by its name or its number; `None` where none has that name.
///
/// # Errors
/// A file of groups cannot be read.
pub fn number_of(root: &HostRoot, group: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = group.parse() {
        return Ok(Some(number));
    }
    for file in FILES {
        let text = match root.read(Path::new(file), LONGEST) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        let number = text.lines().find_map(|line| {
            let mut fields = line.split(':');
            if fields.next()? != group {
                return None;
            }
            fields.nth(1)?.parse().ok()
        });
        if number.is_some() {
            return Ok(number);
        }
    }
    Ok(None)
}

/// Gives a directory this mode, and lets the members of a group pass through it.
///
/// # Errors
/// The kernel's: a file system may have no such lists.
pub fn let_pass(directory: impl AsFd, mode: u16, group: u32) -> io::Result<()> {
    let of_group = (mode >> 3) & 0o7;
    let entries = [
        (USER_OBJ, (mode >> 6) & 0o7, UNDEFINED),
        (GROUP_OBJ, of_group, UNDEFINED),
        (GROUP, PASS, group),
        (MASK, of_group | PASS, UNDEFINED),
        (OTHER, mode & 0o7, UNDEFINED),
    ];
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    Ok(fsetxattr(directory, ATTRIBUTE, &list, XattrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

    use super::*;

    #[test]
    fn a_group_is_known_by_the_hosts_files_or_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path().to_owned());
        assert_eq!(number_of(&root, "hugetlbfs").unwrap(), None);
        fs::create_dir_all(dir.path().join("usr/lib")).unwrap();
        fs::write(dir.path().join("usr/lib/group"), "hugetlbfs:x:801:openvswitch\nqemu:x:107:\n").unwrap();
        assert_eq!(number_of(&root, "hugetlbfs").unwrap(), Some(801));
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/group"), "root:x:0:\nhugetlbfs:x:802:\nbroken\n").unwrap();
        assert_eq!(number_of(&root, "hugetlbfs").unwrap(), Some(802));
        assert_eq!(number_of(&root, "qemu").unwrap(), Some(107));
        assert_eq!(number_of(&root, "65001").unwrap(), Some(65001));
        assert_eq!(number_of(&root, "broken").unwrap(), None);
    }

    /// Needs root: a thread becomes another user for what it does with files.
    #[test]
    fn members_of_the_group_pass_through_and_list_nothing_and_others_do_neither() {
        let above = tempfile::tempdir().unwrap();
        fs::set_permissions(above.path(), Permissions::from_mode(0o755)).unwrap();
        let directory = above.path().join("mounts");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), "").unwrap();
        // A second time with another group: the first has lost it.
        for group in [70_001, 70_002] {
            let_pass(File::open(&directory).unwrap(), 0o700, group).unwrap();
        }
        let seen_by = |group: u32| {
            let directory = directory.clone();
            let as_member = move || {
                setfsgid(Gid::from_raw(group));
                setfsuid(Uid::from_raw(70_000));
                (fs::metadata(directory.join("file")).is_ok(), fs::read_dir(&directory).is_ok())
            };
            thread::spawn(as_member).join().unwrap()
        };
        assert_eq!(seen_by(70_002), (true, false));
        assert_eq!(seen_by(70_001), (false, false));
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o710);
    }
}
