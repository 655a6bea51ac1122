//! `switch-threads`: frames between two ports of one poll thread, against frames between ports of two threads, which cross the link
//! between them.
//!
//! Each poll thread has a processor to itself, and the pods need none ([`FilledPod`]): testpmd would need a third. Whoever counts the frames
//! looks now and then, and sleeps else.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::scheduling::prefer_this_thread;

use super::SwitchBench;
use super::cases::{LONG, SHORT};
use super::contender::{Contender, mac};
use super::filled_pod::{Chain, FilledPod, Filling, MOST_ENTRIES};
use crate::bench::BenchError;
use crate::case_size::CaseSize;

const CASE: &str = "switch-threads";
/// How often the frames are counted that have come.
const LOOK: Duration = Duration::from_micros(250);
/// Fewer of them say nothing: somebody else had the processors. Then it goes on for this many times the time.
const FEWEST_LOOKS: u32 = 20;
const MOST_TIMES: u32 = 20;
/// A queue is forwarded within this time, or the switch is gone.
const QUEUE_WITHIN: Duration = Duration::from_secs(60);
/// So often the last frames of a queue are looked for when their senders have given them away.
const MOST_WAITS: u32 = 400;

/// Frames of one length in one or both directions.
pub(crate) struct Flow {
    frame: u16,
    senders: usize,
    /// The reading of frames in a second.
    pub(crate) forwarded: &'static str,
    /// The reading of what two threads forward, as a multiple of one.
    pub(crate) of_one: &'static str,
    /// The reading of frames that found the link full: its receiver did not have its processor, or takes longer for a frame than its sender.
    lost: &'static str,
}

/// What is measured.
pub(crate) const FLOWS: [Flow; 4] = [
    Flow {
        frame: SHORT,
        senders: 2,
        forwarded: "64 B, both ways",
        of_one: "64 B, both ways, of one thread's",
        lost: "64 B, both ways, lost",
    },
    Flow {
        frame: SHORT,
        senders: 1,
        forwarded: "64 B, one way",
        of_one: "64 B, one way, of one thread's",
        lost: "64 B, one way, lost",
    },
    Flow {
        frame: LONG,
        senders: 2,
        forwarded: "1518 B, both ways",
        of_one: "1518 B, both ways, of one thread's",
        lost: "1518 B, both ways, lost",
    },
    Flow {
        frame: LONG,
        senders: 1,
        forwarded: "1518 B, one way",
        of_one: "1518 B, one way, of one thread's",
        lost: "1518 B, one way, lost",
    },
];

/// Runs `switch-threads`: frames between two ports of one poll thread, and of two.
pub(crate) fn run(run: &mut SwitchBench, size: &CaseSize) -> Result<(), BenchError> {
    let (one, two) = (Contender::Ours, Contender::TwoThreads);
    if !run.has_two_processors(CASE, two, "two threads need") {
        return Ok(());
    }
    for _ in 0..size.rounds {
        for flow in &FLOWS {
            let of_one = forwarded(run, one, flow, size.time)?;
            let of_two = forwarded(run, two, flow, size.time)?;
            if let (Some(of_one), Some(of_two)) = (of_one, of_two) {
                run.results.read(CASE, two.name(), flow.of_one, "×", of_two / of_one);
            }
        }
    }
    Ok(())
}

/// Frames in a second; absent if none could be counted, which is a failure in the report.
fn forwarded(
    run: &mut SwitchBench,
    contender: Contender,
    flow: &Flow,
    time: Duration,
) -> Result<Option<f64>, BenchError> {
    let running = contender.start(run)?;
    let doing = || BenchError::process("driving the pods of a switch");
    let pod = |at: usize| {
        let frames = [frame(at, flow.frame)];
        let filling = Filling { entries: MOST_ENTRIES, frames: &frames, chain: Chain::Single };
        FilledPod::connect(&running.sockets[at], running.connects, &filling)
    };
    let mut pods = [pod(0).map_err(doing())?, pod(1).map_err(doing())?];
    let counted = thread::scope(|scope| {
        let counting = scope.spawn(|| {
            // A poll thread has the processor when it is time to look; what else this process starts has the usual priority.
            prefer_this_thread();
            count(&mut pods, flow.senders, time)
        });
        counting.join().unwrap_or_else(|_| Err(io::Error::other("the thread that counts ended early")))
    });
    let counted = counted.map_err(doing())?;
    if counted.looks < FEWEST_LOOKS || counted.frames == 0 {
        let why = format!("{}: the processors were not free, {counted:?}", flow.forwarded);
        run.results.fail(CASE, contender.name(), why);
        return Ok(None);
    }
    if contender == Contender::TwoThreads {
        let lost = counted.lost as f64 / counted.sent as f64 * 100.0;
        run.results.read(CASE, contender.name(), flow.lost, "%", lost);
    }
    let rate = counted.frames as f64 / counted.time.as_secs_f64();
    run.results.read(CASE, contender.name(), flow.forwarded, "Mpps", rate / 1e6);
    Ok(Some(rate))
}

/// A frame of pod `at` to the other.
fn frame(at: usize, length: u16) -> Vec<u8> {
    let mut frame = [mac(1 - at).0.as_slice(), &mac(at).0, &[0x08, 0x00]].concat();
    frame.resize(length.into(), 0x5a);
    frame
}

/// What was counted.
#[derive(Debug, Default)]
struct Counted {
    /// Frames that came between two looks while no sender was through.
    frames: u64,
    /// The time between those looks.
    time: Duration,
    looks: u32,
    /// All frames that were sent.
    sent: u64,
    /// Those of them that never came.
    lost: u64,
}

/// Sends whole queues of frames, one after the other, for this long, and longer if little could be counted.
fn count(pods: &mut [FilledPod; 2], senders: usize, time: Duration) -> io::Result<Counted> {
    let (started, mut counted) = (Instant::now(), Counted::default());
    let is_enough = |counted: &Counted| counted.looks >= FEWEST_LOOKS && counted.frames > 0;
    let most = time * MOST_TIMES;
    while started.elapsed() < time || (!is_enough(&counted) && started.elapsed() < most) {
        pods[..senders].iter_mut().try_for_each(|pod| pod.send().map(drop))?;
        counted.sent += u64::from(MOST_ENTRIES) * senders as u64;
        count_queue(pods, senders, &mut counted)?;
        pods.iter().try_for_each(FilledPod::offer_buffers)?;
    }
    Ok(counted)
}

/// Counts what comes of one queue of each sender.
fn count_queue(pods: &mut [FilledPod; 2], senders: usize, counted: &mut Counted) -> io::Result<()> {
    let (begun, mut last, mut waits): (Instant, Option<Instant>, u32) = (Instant::now(), None, 0);
    let mut left = u64::from(MOST_ENTRIES) * senders as u64;
    loop {
        thread::sleep(LOOK);
        let now = Instant::now();
        if now.duration_since(begun) > QUEUE_WITHIN {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the switch does not take what a pod has sent",
            ));
        }
        let came = pods.iter_mut().map(|pod| pod.look().map(u64::from)).sum::<io::Result<u64>>()?;
        left = left.saturating_sub(came);
        let through: io::Result<Vec<bool>> = pods[..senders].iter().map(FilledPod::is_through).collect();
        let through = through?;
        if through.iter().all(|is_through| *is_through) {
            // The rest is on its way, or lost.
            waits += 1;
            if left == 0 || waits > MOST_WAITS {
                counted.lost += left;
                return Ok(());
            }
        } else if !through.contains(&true)
            && let Some(last) = last.replace(now)
        {
            counted.frames += came;
            counted.time += now.duration_since(last);
            counted.looks += 1;
        }
    }
}
