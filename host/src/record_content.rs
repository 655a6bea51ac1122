//! Reading a file that holds a record, and what becomes of a record that nobody can read.
//!
//! Only the file itself makes its record unreadable: its content does not parse, its sectors are bad, or it is no regular file. Then it
//! is set aside, for a person. Any other error of opening or reading (no more descriptors, no memory, no permission) says nothing of
//! the record: its file stays where it is, and whoever wants it must not go on as if there were none.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::files::{paths_in, regular};
use crate::shortage;

/// What a record that cannot be read is called from then on.
const UNREADABLE: &str = "unreadable";

/// Reads the whole file of a record: [`read`], or what a caller or a test has in its place.
pub type ReadFile = fn(&Path) -> io::Result<Vec<u8>>;

/// Why it is not known what a record says, though it may be known later.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be read, and is left as it is: {source}; {}", remedy_of(.source))]
pub struct UnreadRecord {
    path: PathBuf,
    source: io::Error,
}

fn remedy_of(error: &io::Error) -> String {
    shortage::remedy_of(error).unwrap_or_else(|| {
        let text = "see that fairleadd may read it and that its file system is well, or give up what it says and move it away";
        text.to_owned()
    })
}

impl From<UnreadRecord> for io::Error {
    fn from(unread: UnreadRecord) -> io::Error {
        io::Error::new(unread.source.kind(), unread)
    }
}

/// What the file of a record says.
#[derive(Debug, PartialEq, Eq)]
pub enum Content<K, N> {
    /// A record that this version can act on.
    Known(K),
    /// A record that only the newer version can act on that wrote it.
    Newer(N),
    /// Nothing, and why.
    Unreadable(String),
}

impl<K, N> Content<K, N> {
    /// What the file at `path` says: `read` has its bytes, `parse` knows what they mean.
    ///
    /// # Errors
    /// When the file cannot be read for a reason that can pass.
    pub fn of(
        path: &Path,
        read: ReadFile,
        parse: impl FnOnce(&[u8]) -> Content<K, N>,
    ) -> Result<Content<K, N>, UnreadRecord> {
        match bytes_of(path, read)? {
            Ok(bytes) => Ok(parse(&bytes)),
            Err(error) => Ok(Content::Unreadable(error.to_string())),
        }
    }
}

/// The bytes of the file at `path`, or why it is none that could hold a record: it is no regular file, or there is none.
///
/// # Errors
/// When the file cannot be read for a reason that can pass.
pub fn bytes_of(path: &Path, read: ReadFile) -> Result<io::Result<Vec<u8>>, UnreadRecord> {
    match read(path) {
        Err(source) if can_pass(&source) => Err(UnreadRecord { path: path.to_path_buf(), source }),
        done => Ok(done),
    }
}

/// Whether the same file may be read later. Errors that nobody has thought of count as such: nothing is lost by that.
fn can_pass(error: &io::Error) -> bool {
    match error.raw_os_error().map(Errno::from_raw) {
        // Nothing is there; a link that is not followed or leads in a circle; a socket or a device; a directory.
        Some(Errno::ENOENT | Errno::ELOOP | Errno::ENXIO | Errno::ENODEV | Errno::EISDIR) => false,
        // Bad sectors and a damaged file system stay: the file is kept aside, and the node has its network.
        Some(Errno::EIO | Errno::EUCLEAN | Errno::EBADMSG | Errno::ENODATA) => false,
        Some(_) => true,
        // Not the kernel's: what `regular` says.
        None => error.kind() != io::ErrorKind::InvalidInput,
    }
}

/// Reads a regular file. A pipe that nobody writes to keeps nobody waiting.
///
/// # Errors
/// The kernel's, and `InvalidInput` for what is no regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut file = regular(File::options().read(true).custom_flags(flags).open(path)?)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Gives the file of an unreadable record another ending, so that a person still has it and no start reads it again.
///
/// # Errors
/// The kernel's.
pub fn set_aside(path: &Path) -> io::Result<()> {
    fs::rename(path, path.with_extension(UNREADABLE))
}

/// The files in a directory that were [set aside](set_aside); none where there is no such directory.
///
/// # Errors
/// When the directory cannot be read.
pub fn set_aside_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let files = paths_in(directory)?;
    Ok(files.into_iter().filter(|path| path.extension().is_some_and(|e| e == UNREADABLE)).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn content(path: &Path, read: ReadFile) -> Result<Content<String, ()>, UnreadRecord> {
        Content::of(path, read, |bytes| match std::str::from_utf8(bytes) {
            Ok(text) => Content::Known(text.to_owned()),
            Err(error) => Content::Unreadable(error.to_string()),
        })
    }

    #[test]
    fn what_does_not_parse_and_what_is_no_regular_file_is_unreadable_and_a_pipe_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        fs::write(place("whole"), "known").unwrap();
        fs::write(place("damaged"), [0xff]).unwrap();
        fs::create_dir(place("directory")).unwrap();
        mkfifo(&place("pipe"), Mode::S_IRWXU).unwrap();
        let _socket = UnixListener::bind(place("socket")).unwrap();
        symlink("circle", place("circle")).unwrap();
        symlink("whole", place("link")).unwrap();
        for name in ["whole", "link"] {
            assert_eq!(content(&place(name), read).unwrap(), Content::Known("known".to_owned()), "{name}");
        }
        for name in ["damaged", "directory", "pipe", "socket", "circle", "absent"] {
            let says = content(&place(name), read).unwrap();
            assert!(matches!(says, Content::Unreadable(_)), "{name}: {says:?}");
        }
    }

    #[test]
    fn an_error_that_can_pass_names_file_reason_and_remedy_and_says_nothing_of_the_record() {
        let path = Path::new("/state/7.json");
        let told = |read: ReadFile| io::Error::from(content(path, read).unwrap_err()).to_string();
        let short = told(|_| Err(Errno::EMFILE.into()));
        assert!(short.starts_with("/state/7.json cannot be read, and is left as it is: "), "{short}");
        assert!(short.contains("raise LimitNOFILE"), "{short}");
        let failing = told(|_| Err(Errno::EACCES.into()));
        assert!(failing.contains("fairleadd may read it"), "{failing}");
        assert!(!can_pass(&io::Error::from(Errno::EIO)), "a bad sector stays");
        for errno in [Errno::ENFILE, Errno::ENOMEM, Errno::EACCES, Errno::ESTALE] {
            assert!(can_pass(&io::Error::from(errno)), "{errno:?}");
        }
        assert!(can_pass(&io::Error::from(io::ErrorKind::OutOfMemory)), "the allocator's");
    }

    #[test]
    fn what_is_set_aside_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(set_aside_in(&dir.path().join("absent")).unwrap().is_empty());
        let file = dir.path().join("7.json");
        fs::write(&file, "damaged").unwrap();
        assert!(set_aside_in(dir.path()).unwrap().is_empty());
        set_aside(&file).unwrap();
        assert_eq!(set_aside_in(dir.path()).unwrap(), [dir.path().join("7.unreadable")]);
    }
}
