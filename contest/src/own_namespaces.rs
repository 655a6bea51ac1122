//! The namespaces that the whole program runs in, and what is mounted there: the plugins under fixed paths, and
//! scratch space that test nodes share. Nothing of it is seen from outside, and nothing outlives the program.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};

/// The variable that marks the second start of the program.
const INSIDE: &str = "FAIRLEAD_CONTEST_INSIDE";

/// The directory for everything that the program mounts for itself; it is empty on every Linux system.
const SCRATCH: &str = "/mnt";

/// Starts the program again in namespaces of its own. Returns only in there, or with the reason why that fails.
pub(crate) fn enter() -> io::Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let error = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(io::Error::new(error.kind(), format!("unshare (util-linux) can't be started: {error}")))
}

/// Binds directories and programs to fixed paths in the scratch directory, so that test nodes may mount over
/// `/run` and `/var/lib` whatever lies there.
pub(crate) fn bind_plugins(places: &[(String, PathBuf)]) -> io::Result<Vec<PathBuf>> {
    let opened: Vec<(PathBuf, File)> =
        places.iter().map(|(name, path)| Ok((place(name), open(path)?))).collect::<io::Result<_>>()?;
    mount(Some("tmpfs"), SCRATCH, Some("tmpfs"), MsFlags::empty(), None::<&str>)
        .map_err(|e| io::Error::other(format!("{SCRATCH} can't be covered (root is needed): {e}")))?;
    for (target, file) in &opened {
        fs::create_dir_all(target.parent().unwrap_or(target))?;
        if file.metadata()?.is_dir() {
            fs::create_dir_all(target)?;
        } else {
            File::create(target)?;
        }
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        mount(Some(source.as_str()), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    }
    Ok(opened.into_iter().map(|(target, _)| target).collect())
}

/// The path in the scratch directory for this name.
pub(crate) fn place(name: &str) -> PathBuf {
    Path::new(SCRATCH).join(name)
}

fn open(path: &Path) -> io::Result<File> {
    File::open(path).map_err(|e| io::Error::new(e.kind(), format!("{} can't be opened: {e}", path.display())))
}

/// Makes a directory in the scratch directory that all test nodes see.
pub(crate) fn shared_directory() -> io::Result<String> {
    let path = format!("{SCRATCH}/shared");
    fs::create_dir_all(&path)?;
    Ok(path)
}
