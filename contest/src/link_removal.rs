//! How long an interface lives on under another name after the answer of its DEL.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::observe;

/// Where it is told among all that is seen of an implementation.
pub(crate) const SEEN_AS: &str = "links after del";
/// What is told where every interface was gone in time.
pub(crate) const IN_TIME: &str = "gone in time";

/// So long may an interface live on.
const LONGEST_LIFE: Duration = Duration::from_secs(2);
/// What is added where threads wait for a processor. With 13 threads for each of two processors Fairlead's lived for 1.6 s and not 1.5.
const BUSY_MACHINE_ADDS: Duration = Duration::from_secs(2);
/// What the looks themselves take.
const LOOKS_TAKE: Duration = Duration::from_millis(500);
/// For so long it is waited, so that what is left then is left for good.
const LOOKED_FOR: Duration = Duration::from_secs(20);

/// Waits until every interface is gone that appeared while DEL was answered (it was renamed to be removed later),
/// and its addresses are free. Returns what to tell of the interfaces.
pub(crate) fn wait_for_it(before: &[String], id: &str, answered: Instant) -> String {
    let (mut lived, mut load, mut looks) = (Duration::ZERO, 0.0, 0.0);
    loop {
        let renamed = observe::names().iter().any(|name| !before.contains(name));
        let elapsed = answered.elapsed();
        if renamed {
            lived = elapsed;
            load += threads_per_processor();
            looks += 1.0;
        }
        if elapsed > LOOKED_FOR || !renamed && !observe::files().to_string().contains(id) {
            return told(lived, if looks > 0.0 { load / looks } else { 1.0 });
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// What to tell of an interface that lived for so long, where so many threads wanted each processor.
fn told(lived: Duration, load: f64) -> String {
    let busy = if load > 1.0 { BUSY_MACHINE_ADDS } else { Duration::ZERO };
    if lived <= LONGEST_LIFE + LOOKS_TAKE + busy {
        return IN_TIME.to_owned();
    }
    let (seconds, longest) = (lived.as_secs_f64(), LONGEST_LIFE.as_secs());
    format!("there for {seconds:.1} s and not {longest} s at most, with {load:.1} threads for each processor")
}

/// How many threads want each processor at the moment; 1 where that can't be read.
fn threads_per_processor() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let running = text.lines().find_map(|line| line.strip_prefix("procs_running ")?.trim().parse().ok());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    running.map_or(1.0, |running: f64| running / processors as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_may_live_for_two_seconds_and_longer_only_on_a_busy_machine() {
        let is_in_time = |seconds, load| told(Duration::from_secs_f64(seconds), load) == IN_TIME;
        assert!(is_in_time(0.0, 0.5) && is_in_time(2.4, 0.5) && !is_in_time(2.6, 0.5));
        assert!(!is_in_time(2.6, 1.0) && is_in_time(4.4, 1.5) && !is_in_time(4.6, 13.0));
        assert!(told(Duration::from_secs(5), 1.0).starts_with("there for 5.0 s and not 2 s"));
    }

    #[test]
    fn the_thread_that_looks_is_one_of_those_that_run() {
        assert!(threads_per_processor() > 0.0);
    }

    #[test]
    fn an_interface_that_stays_is_told() {
        let answered = Instant::now().checked_sub(LOOKED_FOR).unwrap();
        assert!(wait_for_it(&[], "no file has this", answered).starts_with("there for 20"));
    }
}
