//! What systemd is told, where it has started this process: ready, stopping, and to its watchdog that the daemon is alive.
//!
//! The watchdog hears nothing more of a daemon that is found dead, and then restarts it. It is asked for the same, with the same
//! patience, as by the manifests' liveness probe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::health::{Health, unmet};

/// So many looks in a row must have found the daemon dead: the probe's `failureThreshold`.
const FAILURES: u32 = 4;
/// A look that takes longer has found it dead: the probe's `timeoutSeconds`.
const LOOK_LIMIT: Duration = Duration::from_secs(12);

/// Tells systemd; does nothing where systemd has not started this process.
pub(crate) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "the service manager could not be told");
    }
}

/// Reports to systemd's watchdog, where there is one, that the daemon is alive, and that the thread runs which polls this. Does not end
/// then.
pub(crate) async fn report_to_watchdog(health: Arc<Health>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    report_while_alive(limit, &health, || notify(&[NotifyState::Watchdog])).await;
}

async fn report_while_alive(limit: Duration, health: &Arc<Health>, report: impl Fn()) {
    let failures = AtomicU32::new(0);
    // Three reports within the limit: one that is late does not end the daemon. The unit's limit is the probe's `periodSeconds`.
    tokio::join!(report_every(limit / 3, report, &failures), look_every(limit, health, &failures));
}

/// Reports while fewer looks in a row have failed than end a daemon.
async fn report_every(period: Duration, report: impl Fn(), failures: &AtomicU32) {
    loop {
        if failures.load(Ordering::Relaxed) < FAILURES {
            report();
        }
        sleep(period).await;
    }
}

/// Looks whether the daemon is alive, and counts how often in a row it was not.
async fn look_every(period: Duration, health: &Arc<Health>, failures: &AtomicU32) {
    let mut under_way: Option<Look> = None;
    loop {
        sleep(period).await;
        let look = under_way.get_or_insert_with(|| Look::of(health));
        let seen = timeout(LOOK_LIMIT, &mut look.seen).await;
        let wrong = match seen {
            Ok(seen) => {
                under_way = None;
                seen.unwrap_or_else(|error| error.to_string())
            }
            Err(_) if !look.is_begun.load(Ordering::Relaxed) => {
                // Nothing is known to be wrong with the daemon, and a restart would have no thread either.
                warn!(
                    "no thread is to be had that looks whether the daemon is alive, which counts for nothing; raise TasksMax"
                );
                continue;
            }
            // It is waited for again: another would hang behind it.
            Err(_) => format!("the probes have not ended within {} s", LOOK_LIMIT.as_secs()),
        };
        count(failures, &wrong);
    }
}

/// A look of a thread that may wait.
struct Look {
    /// False where the runtime's threads have other work and the system gives no further one.
    is_begun: Arc<AtomicBool>,
    seen: JoinHandle<String>,
}

impl Look {
    fn of(health: &Arc<Health>) -> Look {
        let (health, is_begun) = (Arc::clone(health), Arc::<AtomicBool>::default());
        let begun = Arc::clone(&is_begun);
        let seen = spawn_blocking(move || {
            begun.store(true, Ordering::Relaxed);
            unmet(&health.conditions_of_life())
        });
        Look { is_begun, seen }
    }
}

/// Counts one look, which has found this wrong, if anything.
fn count(failures: &AtomicU32, wrong: &str) {
    let before = failures.load(Ordering::Relaxed);
    if wrong.is_empty() {
        failures.store(0, Ordering::Relaxed);
        if before > 0 {
            info!("the daemon is alive again");
        }
        return;
    }
    failures.store(before.saturating_add(1), Ordering::Relaxed);
    warn!(
        wrong,
        in_a_row = before.saturating_add(1),
        "the daemon is not alive; systemd restarts it after {FAILURES} looks in a row"
    );
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// How many reports come within this time.
    async fn reported(reports: &AtomicU32, time: Duration) -> u32 {
        let before = reports.load(Ordering::Relaxed);
        sleep(time).await;
        reports.load(Ordering::Relaxed) - before
    }

    #[test]
    fn the_reports_end_after_four_looks_in_a_row_without_life_and_come_again_with_it() {
        let (lives, told) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicU32>::default());
        let (health, seen) = (Arc::<Health>::default(), Arc::clone(&lives));
        let probe =
            move || if seen.load(Ordering::Relaxed) { Ok(String::new()) } else { Err("mute".to_owned()) };
        health.probe_of_life("netlink", Box::new(probe));
        health.probe("store", Box::new(|| Err("what no restart ends".into())));
        let counted = Arc::clone(&told);
        let report = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            tokio::spawn(async move { report_while_alive(LIMIT, &health, report).await });
            // All that follows happens in the middle between two looks.
            assert!(reported(&told, LIMIT * 21 / 2).await >= 30);
            for _ in 0..2 {
                lives.store(false, Ordering::Relaxed);
                assert!(reported(&told, 3 * LIMIT).await >= 8, "three looks are not four");
                lives.store(true, Ordering::Relaxed);
                assert!(reported(&told, LIMIT).await >= 2);
            }
            lives.store(false, Ordering::Relaxed);
            sleep(4 * LIMIT).await;
            assert_eq!(reported(&told, 10 * LIMIT).await, 0);
            lives.store(true, Ordering::Relaxed);
            assert!(reported(&told, 2 * LIMIT).await >= 2);
        });
    }

    #[test]
    fn a_look_for_which_there_is_no_thread_does_not_end_the_reports() {
        let told = Arc::<AtomicU32>::default();
        let counted = Arc::clone(&told);
        let report = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).max_blocking_threads(1).build().unwrap();
        runtime.block_on(async move {
            let (let_go, held) = channel::<()>();
            // The one thread has other work, as where the system refuses a second one.
            spawn_blocking(move || held.recv());
            tokio::spawn(async move { report_while_alive(LIMIT, &Arc::default(), report).await });
            let mut before = 0;
            for second in 0..40 * LIMIT.as_secs() {
                if second == 20 * LIMIT.as_secs() {
                    before = told.load(Ordering::Relaxed);
                }
                // Time does not go on by itself while a thread is at work.
                advance(Duration::from_secs(1)).await;
                yield_now().await;
            }
            assert!(told.load(Ordering::Relaxed) - before >= 40, "twenty times the limit");
            drop(let_go);
        });
    }

    #[test]
    fn systemd_restarts_the_daemon_for_what_the_liveness_probe_does_and_as_late() {
        let manifest = include_str!("../../deploy/base/daemonset.yaml");
        let (_, probe) = manifest.split_once("livenessProbe:").unwrap();
        let of_probe = |key: &str| {
            let line = probe.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap();
            line.trim().parse::<u64>().unwrap()
        };
        assert_eq!(of_probe("failureThreshold:"), u64::from(FAILURES));
        assert_eq!(of_probe("timeoutSeconds:"), LOOK_LIMIT.as_secs());
        let unit = include_str!("../systemd/fairleadd.service");
        let period = format!("\nWatchdogSec={}\n", of_probe("periodSeconds:"));
        assert!(unit.contains(&period), "{period}");
    }
}
