//! Running other programs: their pipes, their time, their death, their namespaces. Needs root.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fairlead_host::NetKernel;
use fairlead_host::exec::{Exec, ExecError, Output, STDERR_LIMIT};
use fairlead_host::process::{open_files, raise_open_files};
use fairlead_host::real::RealKernel;
use fairlead_host::scheduling::raise_priority;
use fairlead_host::scratch_mounts::with_mounts_bound_at;
use fairlead_host::scratch_netns::ScratchNetns;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

fn shell(script: &str) -> Exec<'static> {
    Exec {
        program: PathBuf::from("/bin/sh"),
        args: vec!["-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        stdin: Vec::new(),
        time_limit: Duration::from_secs(20),
        host_root: None,
        cgroup: None,
        directory: None,
        keeps_open: None,
        cancelled: &|| false,
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap().trim()
}

fn run(script: &str) -> Output {
    shell(script).run().unwrap()
}

#[test]
fn it_gets_exactly_its_environment_arguments_and_input() {
    let env: Vec<(OsString, OsString)> =
        vec![("CNI_COMMAND".into(), "ADD".into()), ("PATH".into(), "/usr/bin:/bin".into())];
    let output =
        Exec { program: PathBuf::from("/usr/bin/env"), args: Vec::new(), env, ..shell("") }.run().unwrap();
    assert_eq!(text(&output.stdout), "CNI_COMMAND=ADD\nPATH=/usr/bin:/bin");
    let output = Exec { stdin: b"{\"a\":1}".to_vec(), ..shell("cat; echo oops >&2; exit 3") }.run().unwrap();
    assert_eq!(
        (text(&output.stdout), text(&output.stderr), output.status.code()),
        ("{\"a\":1}", "oops", Some(3))
    );
}

#[test]
fn full_pipes_on_all_sides_lock_nothing_up() {
    let input = vec![b'x'; 700 << 10];
    let output = Exec {
        stdin: input.clone(),
        ..shell("head -c 300000 /dev/zero >&2; cat; tail -c 9 /etc/passwd >&2")
    }
    .run()
    .unwrap();
    assert_eq!(output.stdout, input);
    assert_eq!(output.stderr.len(), STDERR_LIMIT, "the end of standard error is kept");
    assert_ne!(output.stderr.last(), Some(&0));
}

#[test]
fn a_process_that_raises_its_own_limit_of_open_files_leaves_its_programs_the_one_it_had() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(hard > 500, "{hard}");
    setrlimit(Resource::RLIMIT_NOFILE, 500, hard).unwrap();
    raise_open_files().unwrap();
    assert_eq!(open_files().unwrap(), hard);
    let script = "ulimit -Sn; ulimit -Hn";
    assert_eq!(text(&run(script).stdout), format!("500\n{hard}"));
    raise_open_files().unwrap();
    assert_eq!(text(&run(script).stdout), format!("500\n{hard}"), "the first one counts");
}

#[test]
fn a_thread_that_goes_first_leaves_its_programs_the_usual_priority() {
    let usual = text(&run("nice").stdout).parse::<i32>().unwrap();
    let (ours, theirs) = std::thread::spawn(|| {
        raise_priority().unwrap();
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        let nice = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().parse::<i32>();
        (nice.unwrap(), text(&run("nice").stdout).parse::<i32>().unwrap())
    })
    .join()
    .unwrap();
    assert_eq!((ours, theirs), (usual - 10, usual));
}

#[test]
fn input_that_nobody_reads_is_no_error() {
    let output = Exec { stdin: vec![b'x'; 1 << 20], ..shell("exec <&-; echo done") }.run().unwrap();
    assert_eq!(text(&output.stdout), "done");
}

#[test]
fn endless_output_ends_the_program() {
    let outcome = shell("yes").run();
    assert!(matches!(outcome, Err(ExecError::TooMuchOutput { .. })), "{outcome:?}");
}

#[test]
fn x13_a_program_that_floods_its_stderr_is_ended_at_its_limit_and_when_its_call_is_cancelled() {
    let flood = || shell("cat /dev/zero >&2 & cat /dev/zero >&2 & exec cat /dev/zero >&2");
    let begun = Instant::now();
    let outcome = Exec { time_limit: Duration::from_millis(200), ..flood() }.run();
    let Err(ExecError::TimedOut { limit, stderr, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((limit, stderr.len()), (Duration::from_millis(200), STDERR_LIMIT));
    let outcome = Exec { cancelled: &|| begun.elapsed() > Duration::from_millis(400), ..flood() }.run();
    assert!(matches!(outcome, Err(ExecError::Cancelled { .. })), "{outcome:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn x13_the_whole_group_is_killed_at_the_limit_and_its_stderr_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let pid_file = directory.path().join("pid");
    let script = format!("echo working >&2; sleep 300 & echo $! > {}; wait", pid_file.display());
    let begun = Instant::now();
    let error = Exec { time_limit: Duration::from_nanos(300_019_456), ..shell(&script) }.run().unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(
        error.to_string(),
        "/bin/sh was killed after its time limit of 300ms; its standard error: working"
    );
    let child = fs::read_to_string(pid_file).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while is_running(child.trim()) {
        assert!(Instant::now() < deadline, "the grandchild lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A zombie that nobody reaps in this container is as dead as can be.
fn is_running(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_cancelled_call_kills_the_program() {
    let asked = AtomicUsize::new(0);
    let cancelled = || asked.fetch_add(1, Ordering::Relaxed) > 3;
    let outcome = Exec { cancelled: &cancelled, ..shell("sleep 300") }.run();
    assert!(matches!(outcome, Err(ExecError::Cancelled { .. })), "{outcome:?}");
}

#[test]
fn a_daemon_left_behind_with_the_pipes_is_not_waited_for_and_not_killed() {
    let directory = tempfile::tempdir().unwrap();
    let pid_file = directory.path().join("pid");
    let begun = Instant::now();
    let output = run(&format!("sleep 60 & echo $! > {}; echo result", pid_file.display()));
    assert_eq!(text(&output.stdout), "result");
    assert!(begun.elapsed() < Duration::from_secs(30));
    let pid = fs::read_to_string(pid_file).unwrap();
    assert!(is_running(pid.trim()));
    shell(&format!("kill {pid}")).run().unwrap();
}

#[test]
fn what_cannot_be_started_is_told_with_its_path_and_without_the_words_that_containerd_takes_for_success() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, "x").unwrap();
    let outcome = |program: &Path| Exec { program: program.to_owned(), ..shell("") }.run().unwrap_err();
    assert!(matches!(outcome(&plain), ExecError::NotExecutable { .. }), "{:?}", outcome(&plain));
    // What the kernel does not know is never read as a shell's script.
    let unknown = directory.path().join("unknown");
    fs::write(&unknown, format!("touch {}\n", directory.path().join("executed").display())).unwrap();
    fs::set_permissions(&unknown, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(outcome(&unknown).never_ran() && !directory.path().join("executed").exists());
    assert!(matches!(outcome(directory.path()), ExecError::NotExecutable { .. }));
    assert!(matches!(outcome(Path::new("bridge")), ExecError::Missing { .. }));
    let missing = outcome(&directory.path().join("missing"));
    assert!(matches!(missing, ExecError::Missing { .. }), "{missing:?}");
    let no_host = Exec { host_root: Some(directory.path().to_owned()), ..shell("") }.run().unwrap_err();
    assert!(matches!(no_host, ExecError::HostMounts { .. }), "{no_host:?}");
    for text in [missing.to_string(), no_host.to_string()] {
        let text = text.to_lowercase();
        assert!(!text.contains("not found") && !text.contains("no such file"), "{text}");
    }
    let signalled = shell("kill -9 $$").run().unwrap_err();
    assert!(matches!(signalled, ExecError::Signalled { signal: 9, .. }), "{signalled:?}");
}

#[test]
fn it_runs_in_the_daemons_namespaces_while_the_thread_is_in_a_pods() {
    let directory = tempfile::tempdir().unwrap();
    let pod = ScratchNetns::new(directory.path(), "pod").unwrap();
    let home = fs::read_link("/proc/thread-self/ns/net").unwrap();
    let kernel = RealKernel::new().unwrap();
    let _view = kernel.pod(pod.path()).unwrap();
    assert_ne!(fs::read_link("/proc/thread-self/ns/net").unwrap(), home);
    assert_eq!(text(&run("readlink /proc/self/ns/net").stdout), home.to_str().unwrap());
    // No descriptor of the daemon's, the namespace's least of all, is in the program's hands.
    assert_eq!(text(&run("ls /proc/self/fd | tr '\\n' ' '").stdout), "0 1 2 3");
}

#[test]
fn it_runs_in_the_hosts_mount_namespace() {
    let directory = tempfile::tempdir().unwrap();
    let proc = directory.path().join("proc/1/ns");
    fs::create_dir_all(&proc).unwrap();
    // The test's own process stands in for the host's first one; only the thread below leaves its mounts.
    let host = format!("/proc/{}/ns/mnt", std::process::id());
    std::os::unix::fs::symlink(&host, proc.join("mnt")).unwrap();
    let wanted = fs::read_link(&host).unwrap();
    let seen = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS | nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let outside = run("readlink /proc/self/ns/mnt").stdout;
        let exec =
            Exec { host_root: Some(directory.path().to_owned()), ..shell("readlink /proc/self/ns/mnt") };
        (outside, exec.run().unwrap().stdout)
    });
    let (outside, inside) = seen.join().unwrap();
    assert_ne!(text(&outside), wanted.to_str().unwrap());
    assert_eq!(text(&inside), wanted.to_str().unwrap());
}

#[test]
fn it_runs_in_the_mount_namespace_of_kubelet_and_the_runtime_where_they_have_one_of_their_own() {
    for place in ["run/kubens/mnt", "run/container-mount-namespace/mnt"] {
        let directory = tempfile::tempdir().unwrap();
        let first_process = directory.path().join("proc/1");
        fs::create_dir_all(first_process.join("ns")).unwrap();
        let of_first_process = format!("/proc/{}/ns/mnt", std::process::id());
        std::os::unix::fs::symlink(&of_first_process, first_process.join("ns/mnt")).unwrap();
        // What a container of the runtime sees of it that has /run mounted.
        fs::create_dir_all(directory.path().join(place).parent().unwrap()).unwrap();
        fs::write(directory.path().join(place), "").unwrap();
        let of_a_program = || {
            let host_root = Some(directory.path().to_owned());
            let output = Exec { host_root, ..shell("readlink /proc/self/ns/mnt") }.run().unwrap();
            text(&output.stdout).to_owned()
        };
        let bound = first_process.join("root").join(place);
        let seen = || (of_a_program(), format!("mnt:[{}]", fs::metadata(&bound).unwrap().ino()));
        let (seen, wanted) = with_mounts_bound_at(&bound, seen).unwrap();
        assert_eq!(seen, wanted, "{place}");
        // When the service has stopped, its file is an ordinary one.
        assert_eq!(of_a_program(), fs::read_link(&of_first_process).unwrap().to_str().unwrap());
    }
}

#[test]
fn it_works_in_the_hosts_root_or_in_the_directory_that_is_wanted() {
    assert_eq!(text(&run("pwd -P").stdout), "/");
    let directory = tempfile::tempdir().unwrap();
    let wanted = directory.path().canonicalize().unwrap();
    let exec = Exec { directory: Some(wanted.clone()), ..shell("pwd -P; echo x > below") };
    assert_eq!(text(&exec.run().unwrap().stdout), wanted.to_str().unwrap());
    assert!(wanted.join("below").exists());
    let missing = Exec { directory: Some(wanted.join("none")), ..shell("true") }.run().unwrap_err();
    assert!(matches!(missing, ExecError::Directory { .. }), "{missing}");
}

#[test]
fn it_enters_its_cgroup_or_tells_why_not_and_runs() {
    let directory = tempfile::tempdir().unwrap();
    // A plain file takes what the kernel would: the number 0, which means whoever writes it.
    fs::write(directory.path().join("cgroup.procs"), "").unwrap();
    let output = Exec { cgroup: Some(directory.path().to_owned()), ..shell("echo ran") }.run().unwrap();
    assert!(output.cgroup_error.is_none());
    assert_eq!(fs::read_to_string(directory.path().join("cgroup.procs")).unwrap(), "0");
    let missing = Exec { cgroup: Some(directory.path().join("none")), ..shell("echo ran") }.run().unwrap();
    assert!(missing.cgroup_error.is_some());
    assert_eq!(text(&missing.stdout), "ran");
    fs::remove_file(directory.path().join("cgroup.procs")).unwrap();
    std::os::unix::fs::symlink("/dev/full", directory.path().join("cgroup.procs")).unwrap();
    let refused = Exec { cgroup: Some(directory.path().to_owned()), ..shell("echo ran") }.run().unwrap();
    assert_eq!(refused.cgroup_error.unwrap().raw_os_error(), Some(nix::errno::Errno::ENOSPC as i32));
    assert_eq!(text(&refused.stdout), "ran");
}

#[test]
fn what_a_program_started_keeps_a_lock_that_nobody_else_here_has_any_more() {
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let lock = fs::File::options().write(true).open(&path).unwrap();
    lock.lock().unwrap();
    // Left in a group of its own, so that it is not killed with the program's.
    let script = "setsid sleep 0.3 >/dev/null 2>&1 </dev/null &";
    Exec { keeps_open: Some(&lock), ..shell(script) }.run().unwrap();
    drop(lock);
    let other = fs::File::options().write(true).open(&path).unwrap();
    assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
    other.lock().unwrap();
}
