//! Runs another program (a delegated plugin) to its end, or to the end of its time limit.
//!
//! The program gets a process group of its own, which is killed whole when its time is over or the call is
//! cancelled; it gets exactly the environment it is given; it runs in the daemon's network namespace even if the
//! calling thread is in a pod's, and among the mounts of kubelet and the runtime when the daemon lives in a container. Its
//! pipes are served together, so no amount of input or output can lock both sides up.
//!
//! `PR_SET_PDEATHSIG` is left alone on purpose: a plugin whose daemon is killed must be able to finish its work,
//! a half-done DEL above all. (It would also fire when the *thread* that started it ends.)
//!
//! The thread that a program is left to, and any other that is begun during a visit of a pod, is made by [`spawn_at_home`].

mod running_program;
mod thread_at_home;

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use crate::process::open_files_of_programs;
use crate::real::home_of_this_thread;
use crate::runtime_mounts::{self, UnopenedMounts};
use crate::scheduling::nice_of_programs;
use running_program::{End, RunningProgram};

pub use thread_at_home::spawn_at_home;

/// More on standard output than this is an error: a CNI result has a few hundred bytes.
pub const STDOUT_LIMIT: usize = 1 << 20;
/// Of standard error the last so many bytes are kept.
pub const STDERR_LIMIT: usize = 64 << 10;

/// A program to be run.
pub struct Exec<'call> {
    /// Absolute path, as the host has it if `host_root` is set.
    pub program: PathBuf,
    /// Arguments after its name.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Its standard input.
    pub stdin: Vec<u8>,
    /// How long it may take.
    pub time_limit: Duration,
    /// Where the host's root is mounted. If that is not `/`, the program runs in the mount namespace of
    /// [kubelet and the runtime](crate::runtime_mounts).
    pub host_root: Option<PathBuf>,
    /// Directory of the cgroup that it is put into, out of the daemon's own memory limit.
    pub cgroup: Option<PathBuf>,
    /// The directory that it works in, as this process sees it; `None`: the root of the host.
    pub directory: Option<PathBuf>,
    /// A file that it and all that it starts keep open: whoever has the file's lock thereby knows, even after this
    /// process was killed, that it is still at work.
    pub keeps_open: Option<&'call File>,
    /// Called every 20 ms; true kills the program.
    pub cancelled: &'call dyn Fn() -> bool,
}

/// What a program left behind that ended by itself, with whatever status.
#[derive(Debug)]
pub struct Output {
    /// Its exit status; never a signal.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// The end of its standard error.
    pub stderr: Vec<u8>,
    /// Why it could not be put into the cgroup, where it was not: it ran all the same.
    pub cgroup_error: Option<io::Error>,
}

/// Why a program did not run to its end.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExecError {
    /// There is no such file, or its interpreter is missing.
    #[error("{program}: there is no such program (or no interpreter for it)")]
    Missing {
        /// Path of the program.
        program: PathBuf,
    },
    /// The file cannot be executed.
    #[error("{program} cannot be executed: {errno:?}")]
    NotExecutable {
        /// Path of the program.
        program: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The host's mount namespace cannot be opened.
    #[error("the host's mount namespace {path} cannot be opened: {errno:?}")]
    HostMounts {
        /// Its path as this process sees it.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
    /// Something else kept it from starting.
    #[error("{program} could not be started: {errno:?}")]
    NotStarted {
        /// Path of the program.
        program: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The directory that it is to work in cannot be opened.
    #[error("the directory {path} that it is to work in cannot be opened: {errno:?}")]
    Directory {
        /// Its path as this process sees it.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
    /// Its pipes failed.
    #[error("{program} could not be run: {errno:?}")]
    Failed {
        /// Path of the program.
        program: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
    /// It took too long and was killed with its process group.
    #[error("{program} was killed after its time limit of {limit:?}{}", quoted(stderr))]
    TimedOut {
        /// Path of the program.
        program: PathBuf,
        /// The limit, in whole milliseconds.
        limit: Duration,
        /// The end of its standard error so far.
        stderr: Vec<u8>,
    },
    /// The call was cancelled and the program was killed with its process group.
    #[error("{program} was killed because the call was cancelled{}", quoted(stderr))]
    Cancelled {
        /// Path of the program.
        program: PathBuf,
        /// The end of its standard error so far.
        stderr: Vec<u8>,
    },
    /// It was killed by a signal that was not ours.
    #[error("{program} was killed by signal {signal}{}", quoted(stderr))]
    Signalled {
        /// Path of the program.
        program: PathBuf,
        /// The signal's number.
        signal: i32,
        /// The end of its standard error.
        stderr: Vec<u8>,
    },
    /// It wrote more than [`STDOUT_LIMIT`] and was killed with its process group.
    #[error("{program} wrote more than {STDOUT_LIMIT} bytes to its standard output and was killed")]
    TooMuchOutput {
        /// Path of the program.
        program: PathBuf,
    },
}

impl ExecError {
    /// Whether not one instruction of the program was executed.
    pub fn never_ran(&self) -> bool {
        match self {
            ExecError::Missing { .. }
            | ExecError::NotExecutable { .. }
            | ExecError::HostMounts { .. }
            | ExecError::Directory { .. }
            | ExecError::NotStarted { .. } => true,
            ExecError::Failed { .. }
            | ExecError::TimedOut { .. }
            | ExecError::Cancelled { .. }
            | ExecError::Signalled { .. }
            | ExecError::TooMuchOutput { .. } => false,
        }
    }

    /// Whether this process may not do what it takes to start it: enter the host's namespaces.
    pub fn is_for_want_of_privilege(&self) -> bool {
        matches!(
            self,
            ExecError::HostMounts { errno: Errno::EACCES | Errno::EPERM, .. }
                | ExecError::NotStarted { errno: Errno::EPERM, .. }
        )
    }
}

/// What is left of a call's time has nanoseconds that nobody wants to read.
fn in_millis(limit: Duration) -> Duration {
    Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
}

fn quoted(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!("; its standard error: {text}") }
}

impl Exec<'_> {
    /// Runs it. An exit status other than 0 is no error here.
    pub fn run(&self) -> Result<Output, ExecError> {
        // A bare name would be looked for in a PATH, and a relative one in whatever directory the daemon is in.
        if !self.program.is_absolute() {
            return Err(ExecError::Missing { program: self.program.clone() });
        }
        let deadline = Instant::now() + self.time_limit;
        let (cgroup, mut cgroup_error) = match self.open_cgroup() {
            Ok(cgroup) => (cgroup, None),
            Err(error) => (None, Some(error)),
        };
        let child = self.spawn(cgroup.as_ref().map(|cgroup| &cgroup.procs))?;
        let mut running = RunningProgram::new(child, &self.stdin).map_err(|error| self.failed(&error))?;
        if let Some(cgroup) = cgroup {
            cgroup_error = cgroup.error();
        }
        let end = running.serve(deadline, self.cancelled);
        // Also after an error of its pipes. A program that has ended was reaped and is not touched.
        running.kill();
        let (stdout, stderr) = (std::mem::take(&mut running.stdout), std::mem::take(&mut running.stderr));
        let program = self.program.clone();
        match end.map_err(|error| self.failed(&error))? {
            End::Exited(status) => match status.signal() {
                Some(signal) => Err(ExecError::Signalled { program, signal, stderr }),
                None => Ok(Output { status, stdout, stderr, cgroup_error }),
            },
            End::TimedOut => Err(ExecError::TimedOut { program, limit: in_millis(self.time_limit), stderr }),
            End::Cancelled => Err(ExecError::Cancelled { program, stderr }),
            End::TooMuchOutput => Err(ExecError::TooMuchOutput { program }),
        }
    }

    fn failed(&self, error: &io::Error) -> ExecError {
        ExecError::Failed { program: self.program.clone(), errno: errno_of(error) }
    }

    fn spawn(&self, cgroup: Option<&CgroupFds>) -> Result<Child, ExecError> {
        let (mounts, directory) = (self.host_mounts()?, self.open_directory()?);
        let entry = Entry {
            mounts: mounts.as_ref().map(AsRawFd::as_raw_fd),
            directory: directory.as_ref().map(AsRawFd::as_raw_fd),
            network: home_of_this_thread(),
            cgroup: cgroup.map(|fds| (fds.procs.as_raw_fd(), fds.report.as_raw_fd())),
            keeps_open: self.keeps_open.map(AsRawFd::as_raw_fd),
            open_files: open_files_of_programs(),
            nice: nice_of_programs(),
        };
        let mut command = Command::new(&self.program);
        command.env_clear();
        // A group of its own is what can be killed whole. From "/" where nothing else is wanted, so that it keeps no mount busy.
        command.current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let image = Image::new(self).map_err(|error| self.not_started(errno_of(&error)))?;
        // SAFETY: `Entry::enter` and `Image::execute` make system calls only: no allocation, no lock, nothing that another thread
        // of this process could have left half done at the fork. Its descriptors live until `spawn` has returned.
        unsafe { command.pre_exec(move || entry.enter().and_then(|()| Err(image.execute()))) };
        command.spawn().map_err(|error| self.not_started(errno_of(&error)))
    }

    fn not_started(&self, errno: Errno) -> ExecError {
        let program = self.program.clone();
        match errno {
            Errno::ENOENT | Errno::ENOTDIR => ExecError::Missing { program },
            Errno::EACCES | Errno::ENOEXEC | Errno::EISDIR => ExecError::NotExecutable { program, errno },
            errno => ExecError::NotStarted { program, errno },
        }
    }

    fn host_mounts(&self) -> Result<Option<File>, ExecError> {
        let Some(root) = self.host_root.as_ref().filter(|root| root.as_path() != Path::new("/")) else {
            return Ok(None);
        };
        let unopened = |e: UnopenedMounts| ExecError::HostMounts { path: e.path, errno: errno_of(&e.source) };
        runtime_mounts::of_runtime(root).map(Some).map_err(unopened)
    }

    fn open_directory(&self) -> Result<Option<File>, ExecError> {
        let Some(path) = &self.directory else { return Ok(None) };
        let opened =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path);
        opened.map(Some).map_err(|error| ExecError::Directory { path: path.clone(), errno: errno_of(&error) })
    }

    fn open_cgroup(&self) -> io::Result<Option<Cgroup>> {
        let Some(directory) = &self.cgroup else { return Ok(None) };
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(directory.join("cgroup.procs"))?;
        // Non-blocking: mostly nothing is reported, and our own end for writing is still open when it is read.
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Some(Cgroup { procs: CgroupFds { procs: file, report: write }, report: read.into() }))
    }
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The cgroup that a child puts itself into, and the pipe on which it reports that it could not.
struct Cgroup {
    procs: CgroupFds,
    report: File,
}

struct CgroupFds {
    procs: File,
    report: OwnedFd,
}

impl Cgroup {
    /// Why the child could not enter the cgroup. The child has been started, so its report is in the pipe or will never be.
    fn error(mut self) -> Option<io::Error> {
        let mut errno = [0; 4];
        self.report.read_exact(&mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }
}

/// What execve(2) takes, made before the fork.
///
/// The standard library would call execvp(3), which gives a file that the kernel cannot execute (another machine's, ENOEXEC) to
/// /bin/sh, and that then reads it as a script.
struct Image {
    program: CString,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    /// What the pointers lead to.
    _texts: Vec<CString>,
}

// SAFETY: the pointers lead to the heap of `_texts` and `program`, which are owned, never changed and dropped with them.
unsafe impl Send for Image {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Image {}

impl Image {
    fn new(exec: &Exec<'_>) -> io::Result<Image> {
        let program = CString::new(exec.program.as_os_str().as_bytes())?;
        let mut texts = Vec::with_capacity(exec.args.len() + exec.env.len());
        for arg in &exec.args {
            texts.push(CString::new(arg.as_bytes())?);
        }
        for (key, value) in &exec.env {
            texts.push(CString::new([key.as_bytes(), b"=", value.as_bytes()].concat())?);
        }
        let pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        let (args, env) = pointers.split_at(exec.args.len());
        let end = std::ptr::null();
        let argv = [&[program.as_ptr()], args, &[end]].concat();
        Ok(Image { argv, envp: [env, &[end]].concat(), program, _texts: texts })
    }

    /// Becomes the program; comes back only with why not.
    fn execute(&self) -> io::Error {
        // SAFETY: the path and the texts end with NUL and both lists with a null pointer; all of them live as long as `self`.
        unsafe { libc::execve(self.program.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// What the child does between fork and exec.
#[derive(Clone, Copy)]
struct Entry {
    mounts: Option<RawFd>,
    directory: Option<RawFd>,
    network: Option<RawFd>,
    cgroup: Option<(RawFd, RawFd)>,
    keeps_open: Option<RawFd>,
    open_files: Option<libc::rlimit>,
    nice: Option<libc::c_int>,
}

impl Entry {
    /// Does it all, in the child, by system calls only.
    fn enter(self) -> io::Result<()> {
        if let Some((procs, report)) = self.cgroup {
            // `0` stands for the writer itself: a number would have to be written as text without an allocator.
            // SAFETY: the buffer is one static byte.
            if unsafe { libc::write(procs, c"0".as_ptr().cast(), 1) } < 0 {
                let errno = Errno::last_raw().to_ne_bytes();
                // SAFETY: `errno` is 4 bytes on this stack. A report that cannot be written is lost.
                unsafe { libc::write(report, errno.as_ptr().cast(), errno.len()) };
            }
        }
        // Entering a mount namespace sets the root directory too: the program's path is then the host's.
        for (fd, kind) in [(self.network, libc::CLONE_NEWNET), (self.mounts, libc::CLONE_NEWNS)] {
            let Some(fd) = fd else { continue };
            // SAFETY: setns takes two numbers; the child has one thread and shares no file system state.
            Errno::result(unsafe { libc::setns(fd, kind) })?;
        }
        // By descriptor: the path may lead elsewhere in the mount namespace that has just been entered.
        if let Some(fd) = self.directory {
            // SAFETY: fchdir takes a number; the descriptor is open in this child.
            Errno::result(unsafe { libc::fchdir(fd) })?;
        }
        // SAFETY: takes numbers only. It marks whatever a library of ours may have opened without O_CLOEXEC;
        // before kernel 5.11 it fails and the standard library's own O_CLOEXEC has to do.
        unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        // After close_range, which has marked this descriptor as well.
        if let Some(fd) = self.keeps_open {
            // SAFETY: fcntl takes numbers only; the flag is that of the child's own descriptor.
            Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })?;
        }
        if let Some(limit) = self.open_files {
            // SAFETY: `limit` outlives the call. What is open above it stays open; where it fails the program gets more.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        }
        if let Some(nice) = self.nice {
            // SAFETY: takes numbers only. Giving priority up needs no capability.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
        }
        Ok(())
    }
}
