//! STATUS of a daemon that does not answer: an error within 100 ms when its process does not work, a longer wait when it does.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

mod rig;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rig::{Outcome, Rig};

/// Twice the time that is promised, because the machine may be busy with other tests.
const AT_ONCE: Duration = Duration::from_millis(200);

/// A process of its own that listens and never answers. It is Perl, because all of its threads must be known. It leads a group, so that
/// what it has forked ends with it.
struct Hung(Child);

impl Hung {
    /// Starts the process. It runs `then` once it listens, with the listener in `$s`.
    fn listening(rig: &Rig, backlog: u32, then: &str) -> Hung {
        let script = format!(
            r#"$s = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => {backlog}) or die; $| = 1; print "on\n"; {then}"#
        );
        let mut child = Command::new("perl")
            .args(["-MIO::Socket::UNIX", "-e", &script])
            .arg(rig.socket())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "on\n");
        Hung(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn stopped(self) -> Hung {
        assert!(
            Command::new("kill").args(["-s", "STOP", &self.pid().to_string()]).status().unwrap().success()
        );
        self
    }

    /// Waits until it is in a state (proc(5)).
    fn until(self, state: char) -> Hung {
        let came = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with(state)
        });
        assert!(came, "it never came to {state}");
        self
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-s", "KILL", "--", &format!("-{}", self.pid())]).status();
        let _ = self.0.wait();
    }
}

fn status(rig: &Rig) -> Outcome {
    rig.call("STATUS").unset("FAIRLEAD_TIMEOUT").run()
}

/// Tries until it is fast enough, at most thirty times: other work of the machine may slow some of them.
fn is_told_at_once(rig: &Rig, words: &str, remedy: &str) {
    let at_once = (0..30).map(|_| told(rig, words, remedy)).any(|took| took < AT_ONCE);
    assert!(at_once, "none of thirty is told within {AT_ONCE:?}");
}

fn told(rig: &Rig, words: &str, remedy: &str) -> Duration {
    let outcome = status(rig);
    let error = outcome.error();
    assert_eq!(error.code.number(), 50, "{outcome:?}");
    assert!(error.msg.contains(words), "{}", error.msg);
    assert!(error.details.contains(remedy), "{}", error.details);
    outcome.took
}

#[test]
fn x04_status_of_a_daemon_that_never_accepts_is_50_in_time_and_says_who_sleeps() {
    let rig = Rig::new();
    let hung = Hung::listening(&rig, 8, "sleep 60").until('S');
    let words = format!("fairleadd (pid {}) does not answer, and no thread of it is at work", hung.pid());
    is_told_at_once(&rig, &words, "systemctl restart fairleadd");
}

#[test]
fn x04_status_of_a_daemon_that_accepts_and_never_answers_is_50_in_time() {
    let rig = Rig::new();
    let _hung = Hung::listening(&rig, 8, "while ($c = $s->accept) { sysread $c, $b, 65536; push @all, $c }");
    is_told_at_once(&rig, "does not answer", "systemctl restart fairleadd");
}

#[test]
fn x04_status_of_a_stopped_daemon_is_50_in_time_and_success_when_its_stop_was_announced() {
    let rig = Rig::new();
    let hung = Hung::listening(&rig, 8, "sleep 60").stopped().until('T');
    let words = format!("fairleadd (pid {}) is stopped", hung.pid());
    is_told_at_once(&rig, &words, "kill -CONT");
    File::create(rig.path("stopping")).unwrap();
    status(&rig).silent_success();
}

#[test]
fn x04_status_of_a_dead_daemon_whose_socket_another_process_holds_is_50_in_time() {
    let rig = Rig::new();
    let _hung = Hung::listening(&rig, 8, "exit if fork; sleep 60").until('Z');
    is_told_at_once(&rig, "has ended", "systemctl restart fairleadd");
}

#[test]
fn x04_status_meets_a_full_backlog_and_says_what_the_daemon_of_the_lock_does() {
    let rig = Rig::new();
    let hung = Hung::listening(&rig, 1, "sleep 60").stopped().until('T');
    let held: Vec<_> =
        (0..2).map(|_| std::os::unix::net::UnixStream::connect(rig.socket()).unwrap()).collect();
    is_told_at_once(&rig, "busy", "try again");
    fs::write(rig.path("lock"), format!("{}\n", hung.pid())).unwrap();
    is_told_at_once(&rig, "is stopped", "kill -CONT");
    drop(held);
}

#[test]
fn x04_status_of_a_busy_daemon_waits_for_its_answer_and_gives_up_after_a_second() {
    let works = |seconds: &str| {
        format!(
            r#"$c = $s->accept; sysread $c, $b, 65536; do {{ @t = times }} while $t[0] + $t[1] < {seconds}; syswrite $c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"; sleep 60"#
        )
    };
    let rig = Rig::new();
    let _busy = Hung::listening(&rig, 8, &works("0.3"));
    let outcome = status(&rig);
    outcome.silent_success();
    outcome.took_at_least(250);
    let rig = Rig::new();
    let _busy = Hung::listening(&rig, 8, &works("60"));
    let outcome = rig.call("STATUS").set("FAIRLEAD_TIMEOUT", "30").run();
    assert_eq!(outcome.refused(), 50);
    assert!(outcome.error().msg.contains("did not answer within the time limit"), "{outcome:?}");
    outcome.took_at_least(1000);
    outcome.took_less_than(10_000);
}
