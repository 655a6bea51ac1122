//! SELinux labels of directories that containers get.
//!
//! Kubelet relabels volumes, and not what a device plugin has it mount: where SELinux is enforced, containers may use a directory if it has a label
//! of theirs. What is made in a directory gets its label.
//!
//! Whether a file system has labels is asked of the directory above: with SELinux, each file has one; without, none has.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use rustix::io::Errno;

const ATTRIBUTE: &str = "security.selinux";

/// Gives `directory` this label if the directory `above` has one; true if it did.
///
/// # Errors
/// The kernel's: SELinux may forbid it (`relabelto`), and does not know every label.
pub fn label_if_labelled(above: impl AsFd, directory: impl AsFd, label: &str) -> io::Result<bool> {
    match fgetxattr(above, ATTRIBUTE, &mut [0_u8; 256]) {
        // One that is longer is one, too.
        Ok(_) | Err(Errno::RANGE) => {}
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    // With the zero byte at its end, as SELinux' own programs write it.
    let value = [label.as_bytes(), &[0]].concat();
    fsetxattr(directory, ATTRIBUTE, &value, XattrFlags::empty())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const LABEL: &str = "system_u:object_r:container_file_t:s0";

    fn label_of(file: &File) -> Option<Vec<u8>> {
        let mut value = [0; 256];
        fgetxattr(file, ATTRIBUTE, &mut value).ok().map(|length| value[..length].to_vec())
    }

    /// Without SELinux a label is an attribute like others of `security.`, which root may set: what is written is seen.
    #[test]
    fn a_directory_gets_the_label_where_the_one_above_has_one_and_else_none() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("port");
        std::fs::create_dir(&path).unwrap();
        let (above, port) = (File::open(above.path()).unwrap(), File::open(&path).unwrap());
        if label_of(&above).is_none() {
            assert!(!label_if_labelled(&above, &port, LABEL).unwrap());
            assert_eq!(label_of(&port), None);
            let other = b"system_u:object_r:var_run_t:s0\0";
            fsetxattr(&above, ATTRIBUTE, other, XattrFlags::empty()).expect("root may set labels");
        }
        assert!(label_if_labelled(&above, &port, LABEL).unwrap());
        assert_eq!(label_of(&port), Some([LABEL.as_bytes(), &[0]].concat()));
        // Again: a directory that is made anew.
        assert!(label_if_labelled(&above, &port, LABEL).unwrap());
    }
}
