//! The cases of switches: how much goes through, what each feature costs, how long a frame takes, and what an idle switch uses.

use std::thread;
use std::time::Duration;

use super::SwitchBench;
use super::contender::{Contender, FurtherPorts, NETWORK};
use super::generator::{Generator, Traffic};
use crate::bench::BenchError;
use crate::case_size::CaseSize;
use crate::process_cost;

/// The reading of frames in a second.
pub(crate) const FORWARDED: &str = "forwarded";
/// The reading of a frame's time.
pub(crate) const ONE_WAY: &str = "one frame, testpmd to testpmd, mean";
/// The reading of what an idle switch takes of a processor.
pub(crate) const IDLE: &str = "CPU, idle";

/// All, and none of whom only a feature is compared.
pub(super) const SWITCHES: [Contender; 4] =
    [Contender::Ours, Contender::OvsNormal, Contender::OvsFlows, Contender::DpdkVhost];
const FEATURES: [Contender; 6] = [
    Contender::Ours,
    Contender::SpoofCheck,
    Contender::Vlan,
    Contender::Rates,
    Contender::All,
    Contender::OvsNormal,
];
/// Those whose frames are timed.
pub(super) const WAITING: [Contender; 4] =
    [Contender::Ours, Contender::Adaptive, Contender::OvsNormal, Contender::DpdkVhost];

/// Frames of 64 bytes with their checksum.
pub(crate) const SHORT: u16 = 60;
/// Frames of 1518 bytes with their checksum.
pub(crate) const LONG: u16 = 1514;

/// Runs `switch-64`: frames of the shortest length, by every switch.
pub(crate) fn short_frames(run: &mut SwitchBench, size: &CaseSize) -> Result<(), BenchError> {
    throughput(run, "switch-64", (SHORT, FORWARDED), &SWITCHES, size)
}

/// Runs `switch-1518`: the longest frames without jumbo, by every switch.
pub(crate) fn long_frames(run: &mut SwitchBench, size: &CaseSize) -> Result<(), BenchError> {
    throughput(run, "switch-1518", (LONG, FORWARDED), &SWITCHES, size)
}

/// Runs `switch-features`: the shortest frames, with each feature of ours by itself and with all, beside OVS-DPDK.
pub(crate) fn features(run: &mut SwitchBench, size: &CaseSize) -> Result<(), BenchError> {
    throughput(run, "switch-features", (SHORT, FORWARDED), &FEATURES, size)
}

/// Frames of one length, and the reading of how many were forwarded.
pub(super) fn throughput(
    run: &mut SwitchBench,
    case: &'static str,
    (frame, what): (u16, &'static str),
    who: &[Contender],
    size: &CaseSize,
) -> Result<(), BenchError> {
    let traffic = Traffic { frame, burst: 32, bursts: 4 };
    rounds(run, case, traffic, who, size, |results, name, rate| {
        results.read(case, name, what, "Mpps", rate / 1e6);
    })
}

/// `switch-latency`: each port has one frame under way, so that a frame's time is that between two of one port.
pub(crate) fn latency(run: &mut SwitchBench, size: &CaseSize) -> Result<(), BenchError> {
    let traffic = Traffic { frame: SHORT, burst: 1, bursts: 1 };
    rounds(run, "switch-latency", traffic, &WAITING, size, |results, name, rate| {
        results.read("switch-latency", name, ONE_WAY, "µs", 2e6 / rate);
    })
}

fn rounds(
    run: &mut SwitchBench,
    case: &'static str,
    traffic: Traffic,
    who: &[Contender],
    size: &CaseSize,
    read: impl Fn(&mut crate::results::Results, &str, f64),
) -> Result<(), BenchError> {
    for _ in 0..size.rounds {
        for contender in who {
            let running = contender.start(run)?;
            let mut generator = Generator::start(&run.dir, &running.sockets, running.connects, &run.memory)?;
            let rate = generator.rate(traffic, size.time)?;
            if rate > 0.0 {
                read(&mut run.results, contender.name(), rate);
            } else {
                run.results.fail(case, contender.name(), "no frame came through".to_owned());
            }
        }
    }
    Ok(())
}

/// `switch-idle`: what a switch uses with `at_once` ports to which nobody is connected, and with two pods that send nothing.
pub(crate) fn idle(run: &mut SwitchBench, size: &CaseSize) -> Result<(), BenchError> {
    for _ in 0..size.rounds {
        let further = FurtherPorts { count: size.at_once.saturating_sub(2), network: NETWORK };
        let running = Contender::Adaptive.start_with(run, further)?;
        let _pods = Generator::start(&run.dir, &running.sockets, running.connects, &run.memory)?;
        thread::sleep(Duration::from_secs(1));
        for process in &running.processes {
            let used = |what| process_cost::cpu_of(process.pid).map_err(BenchError::process(what));
            let before = used("the processor time of a switch")?;
            thread::sleep(size.time);
            let took = used("the processor time of a switch")?.saturating_sub(before);
            let share = took.as_secs_f64() / size.time.as_secs_f64() * 100.0;
            run.results.read("switch-idle", Contender::Adaptive.name(), IDLE, "% of a core", share);
        }
    }
    Ok(())
}
