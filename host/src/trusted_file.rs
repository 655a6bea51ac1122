//! Files in a directory where somebody else may have put something else of that name: nothing is followed, nothing is waited for.
//!
//! What has the name is looked at before it is opened (`O_PATH` opens nothing, so that no device notices it). Only a regular file
//! of root's with a single name is opened, and what is opened is the inode that was looked at. So neither a symbolic or hard link
//! leads to a file of the host, nor does a FIFO keep the caller, nor a file whose owner may still change it pass for root's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

/// Such a file is looked for and made anew, where somebody takes it away in between, this often at most.
const ATTEMPTS: usize = 8;

/// Something that has the name of a file and must not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{name:?} is {what}; it has to be a regular file of root's without another name")]
pub struct UntrustedFile {
    name: String,
    what: String,
}

/// Opens a file for reading, writing or both.
///
/// # Errors
/// [`UntrustedFile`] (kind `InvalidInput`) for what must not be opened; the kernel's otherwise.
pub fn open(dir: impl AsFd, name: &str, access: OFlags) -> io::Result<(OwnedFd, Stat)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let seen = openat(dir, name, flags, Mode::empty())?;
    let stat = fstat(&seen)?;
    trust(name, &stat)?;
    Ok((opened(&seen, access)?, stat))
}

/// Opens what an `O_PATH` descriptor stands for, and waits neither for a FIFO's other end nor for a device.
pub(crate) fn opened(seen: &OwnedFd, access: OFlags) -> io::Result<OwnedFd> {
    let itself = format!("/proc/self/fd/{}", seen.as_raw_fd());
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(CWD, itself, flags, Mode::empty()) {
        // It must not be taken for a file that is gone: what is open is there.
        Err(Errno::NOENT) => Err(io::Error::other("/proc is not mounted")),
        file => Ok(file?),
    }
}

/// Opens a file as [`open`] does, and makes it first where nothing has the name.
///
/// # Errors
/// Those of [`open`], and what the kernel says where the file can't be made.
pub fn open_or_create(dir: impl AsFd, name: &str, access: OFlags, mode: u32) -> io::Result<OwnedFd> {
    for _ in 0..ATTEMPTS {
        match open(&dir, name, access) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            done => return done.map(|(file, _)| file),
        }
        // EXCL follows no link, and what it makes is root's alone.
        let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&dir, name, flags, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) => {}
            file => return Ok(file?),
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is made and removed by somebody else")))
}

/// Refuses a name that something has which [`open`] would refuse; a name that nothing has is free.
///
/// # Errors
/// Those of [`open`].
pub fn is_ours_or_free(dir: impl AsFd, name: &str) -> io::Result<()> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        stat => trust(name, &stat?),
    }
}

/// Whether the error says that something must not be opened.
pub fn is_untrusted(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<UntrustedFile>())
}

fn trust(name: &str, stat: &Stat) -> io::Result<()> {
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_uid != 0 => format!("a file of uid {}", stat.st_uid),
        FileType::RegularFile if stat.st_nlink > 1 => {
            format!("one of {} names of a file (hard links)", stat.st_nlink)
        }
        FileType::RegularFile => return Ok(()),
        FileType::Symlink => "a symbolic link".to_owned(),
        FileType::Directory => "a directory".to_owned(),
        FileType::Fifo => "a FIFO".to_owned(),
        FileType::Socket => "a socket".to_owned(),
        FileType::CharacterDevice | FileType::BlockDevice => "a device".to_owned(),
        FileType::Unknown => "of an unknown kind".to_owned(),
    };
    let untrusted = UntrustedFile { name: name.to_owned(), what };
    Err(io::Error::new(io::ErrorKind::InvalidInput, untrusted))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::{Mode as FileMode, SFlag, makedev, mknod};

    use super::*;

    fn refused(dir: &OwnedFd, name: &str) -> String {
        let error = open(dir, name, OFlags::RDWR).unwrap_err();
        assert!(is_untrusted(&error), "{error}");
        for other in [
            open_or_create(dir, name, OFlags::RDWR, 0o600).unwrap_err(),
            is_ours_or_free(dir, name).unwrap_err(),
        ] {
            assert_eq!(other.to_string(), error.to_string());
        }
        error.to_string()
    }

    #[test]
    fn a_link_a_fifo_a_device_a_directory_a_socket_and_anothers_file_are_refused_and_never_opened() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let dir: OwnedFd = fs::File::open(place.path()).unwrap().into();
        fs::write(at("victim"), "of the host").unwrap();
        symlink(at("victim"), at("symlink")).unwrap();
        fs::hard_link(at("victim"), at("hardlink")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), FileMode::S_IRWXU).unwrap();
        mknod(&at("device"), SFlag::S_IFCHR, FileMode::S_IRWXU, makedev(1, 3)).unwrap();
        fs::create_dir(at("directory")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        fs::write(at("anothers"), "").unwrap();
        chown(at("anothers"), Some(1000), None).unwrap();
        for (name, what) in [
            ("symlink", "a symbolic link;"),
            ("hardlink", "one of 2 names of a file (hard links);"),
            ("victim", "one of 2 names of a file (hard links);"),
            ("fifo", "a FIFO;"),
            ("device", "a device;"),
            ("directory", "a directory;"),
            ("socket", "a socket;"),
            ("anothers", "a file of uid 1000;"),
        ] {
            let told = refused(&dir, name);
            assert!(told.starts_with(&format!("{name:?} is {what}")), "{told}");
        }
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "of the host");
    }

    #[test]
    fn roots_own_file_is_opened_made_where_there_is_none_and_its_absence_told_as_such() {
        let place = tempfile::tempdir().unwrap();
        let dir: OwnedFd = fs::File::open(place.path()).unwrap().into();
        let absent = open(&dir, "file", OFlags::RDONLY).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        is_ours_or_free(&dir, "file").unwrap();
        let made = open_or_create(&dir, "file", OFlags::WRONLY, 0o640).unwrap();
        rustix::io::write(&made, b"text").unwrap();
        let (file, stat) = open(&dir, "file", OFlags::RDONLY).unwrap();
        assert_eq!((stat.st_size, stat.st_mode & 0o777), (4, 0o640));
        assert_eq!(io::read_to_string(fs::File::from(file)).unwrap(), "text");
        is_ours_or_free(&dir, "file").unwrap();
    }
}
