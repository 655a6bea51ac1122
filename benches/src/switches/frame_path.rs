//! Single frames from one pod to another: the next one is sent when the last has come, and each has its time.
//!
//! The pods' thread has the second processor and the switch the first. A frame's time goes from the moment at which the switch may take it
//! until its receiver has read the number in it, and includes one look at the clock ([`clock_cost`]). A frame of another number is
//! somebody else's, or one that was given up: neither ends the time.

use std::hint;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::Mac;
use fairlead_host::scheduling::prefer_this_thread;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::cases::SHORT;
use super::contender::{Running, mac};
use super::filled_pod::{Chain, FilledPod, Filling, NUMBER_AT};
use crate::statistics::Series;

/// The entries of a queue, as testpmd's have.
const ENTRIES: u16 = 256;
/// A frame that has not come after this time is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// A switch forwards its first frame within this time, or its ports do not work.
const FORWARDS_WITHIN: Duration = Duration::from_secs(60);
/// So often it is looked for a frame between two looks at the clock.
const LOOKS: u32 = 1_000;
/// Frames follow each other at times that have nothing to do with the turns of a switch: after 0 to so many nanoseconds.
const MOST_SPACE: u64 = 2_000;
/// A pause, in which a switch that can sleep is asleep.
const PAUSE: Duration = Duration::from_millis(2);

/// Two pods, and a frame from the first to the second at a time.
pub(crate) struct FramePath {
    from: FilledPod,
    to: FilledPod,
    /// The number of the last frame.
    number: u64,
    /// What the next space between two frames is made from.
    seed: u64,
}

/// The times of single frames.
pub(crate) struct FrameTimes {
    pub(crate) series: Series,
    /// Frames that did not come.
    pub(crate) lost: usize,
    /// The longest time of each stretch of frames. One that did not come counts as [`LOST_AFTER`].
    pub(crate) longest: Vec<Duration>,
}

impl FrameTimes {
    fn new() -> io::Result<FrameTimes> {
        let series = Series::new().map_err(io::Error::other)?;
        Ok(FrameTimes { series, lost: 0, longest: Vec::new() })
    }

    /// Adds a frame; one without a time did not come.
    fn record(&mut self, time: Option<Duration>) {
        match time {
            Some(time) => self.series.record(time),
            None => self.lost += 1,
        }
        if let Some(longest) = self.longest.last_mut() {
            *longest = time.unwrap_or(LOST_AFTER).max(*longest);
        }
    }
}

impl FramePath {
    /// Connects both pods, and waits until frames come through, both ways, so that the switch knows both.
    pub(crate) fn connect(running: &Running) -> io::Result<FramePath> {
        let pod = |at: usize| {
            let frames = [udp_frame(mac(at), mac(1 - at), SHORT)];
            let filling = Filling { entries: ENTRIES, frames: &frames, chain: Chain::Single };
            FilledPod::connect(&running.sockets[at], running.connects, &filling)
        };
        let mut path = FramePath { from: pod(0)?, to: pod(1)?, number: 0, seed: 1 };
        for _ in 0..2 {
            let started = Instant::now();
            while path.one()?.is_none() {
                if started.elapsed() > FORWARDS_WITHIN {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no frame comes through the switch"));
                }
            }
            std::mem::swap(&mut path.from, &mut path.to);
        }
        Ok(path)
    }

    /// The times of so many frames. `between` is called before each, while none is under way; true if a stretch of frames begins.
    pub(crate) fn times(
        &mut self,
        frames: usize,
        mut between: impl FnMut(usize, &FilledPod) -> io::Result<bool>,
    ) -> io::Result<FrameTimes> {
        let mut times = FrameTimes::new()?;
        for at in 0..frames {
            if between(at, &self.from)? {
                times.longest.push(Duration::ZERO);
            }
            // Others may send to it, too.
            while self.from.take()?.is_some() {}
            times.record(self.one()?);
            self.space();
        }
        Ok(times)
    }

    /// The times of so many frames, each after a pause. A switch that `sleeps` is asleep by then.
    pub(crate) fn times_after_pauses(&mut self, frames: usize, sleeps: bool) -> io::Result<FrameTimes> {
        self.times(frames, |_, from| {
            let begun = Instant::now();
            while sleeps && !from.is_awaited()? {
                if begun.elapsed() > FORWARDS_WITHIN {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the switch does not go to sleep"));
                }
            }
            thread::sleep(PAUSE);
            Ok(false)
        })
    }

    /// The time of one frame; absent if it did not come.
    fn one(&mut self) -> io::Result<Option<Duration>> {
        self.number += 1;
        self.from.number_next(self.number)?;
        let sent = Instant::now();
        self.from.send_one()?;
        let time = loop {
            if self.comes()? {
                break Some(sent.elapsed());
            }
            if sent.elapsed() > LOST_AFTER {
                break None;
            }
        };
        // Its buffer is the switch's until then.
        while time.is_some() && !self.from.is_through()? {
            if sent.elapsed() > FORWARDS_WITHIN {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the switch keeps what it has forwarded",
                ));
            }
        }
        Ok(time)
    }

    /// Looks for the last frame some times.
    fn comes(&mut self) -> io::Result<bool> {
        for _ in 0..LOOKS {
            if self.to.take()? == Some(self.number) {
                return Ok(true);
            }
            hint::spin_loop();
        }
        Ok(false)
    }

    /// Lets some time pass, which is another one each time (Knuth's linear congruential generator).
    fn space(&mut self) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (begun, space) = (Instant::now(), Duration::from_nanos((self.seed >> 33) % MOST_SPACE));
        while begun.elapsed() < space {
            hint::spin_loop();
        }
    }
}

/// Does this on the second processor, and before others.
pub(crate) fn on_second_processor<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            let mut second = CpuSet::new();
            second.set(1)?;
            sched_setaffinity(Pid::from_raw(0), &second)?;
            prefer_this_thread();
            work()
        });
        working.join().unwrap_or_else(|_| Err(io::Error::other("the pods' thread ended early")))
    })
}

/// The time between two looks at the clock with nothing between them, the median of many: a part of each frame's time.
pub(crate) fn clock_cost() -> io::Result<f64> {
    let mut series = Series::new().map_err(io::Error::other)?;
    for _ in 0..1_000 {
        let begun = Instant::now();
        series.record(begun.elapsed());
    }
    Ok(microseconds(&series, 0.5))
}

/// What a fraction `quantile` of the times did not exceed, in microseconds.
pub(crate) fn microseconds(series: &Series, quantile: f64) -> f64 {
    series.at(quantile) * 1e3
}

/// A UDP datagram in so many bytes, as testpmd sends it, with room for a number behind its headers.
pub(crate) fn udp_frame(from: Mac, to: Mac, length: u16) -> Vec<u8> {
    let (datagram, packet) = (length.saturating_sub(34), length.saturating_sub(14));
    let ipv4 = [0x4500, packet, 0, 0, 0x4011, 0, 0xc612, 0x0001, 0xc612, 0x0002];
    let sum: u32 = ipv4.iter().copied().map(u32::from).sum();
    let [low, high] = [sum & 0xffff, sum >> 16];
    let checksum = u16::try_from((low + high) & 0xffff).map_or(0, |sum| !sum);
    let udp = [9, 9, datagram, 0];
    let mut frame = [to.0.as_slice(), &from.0, &[0x08, 0x00]].concat();
    for (at, word) in ipv4.into_iter().chain(udp).enumerate() {
        frame.extend(if at == 5 { checksum } else { word }.to_be_bytes());
    }
    debug_assert_eq!(frame.len(), NUMBER_AT);
    frame.resize(length.into(), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switches::contender::NETWORK;
    use crate::switches::test_switch::TestSwitch;

    #[test]
    fn every_frame_has_its_time_and_a_switch_that_sleeps_is_woken() {
        let switch = TestSwitch::start(NETWORK);
        let mut path = FramePath::connect(&switch.running).unwrap();
        let (before, first) = (switch.counters(0).from_guest_frames, path.number);
        let times = path.times(600, |at, _| Ok(at == 100)).unwrap();
        let after_pauses = path.times_after_pauses(3, true).unwrap();
        let measured = times.series.summary().calls + after_pauses.series.summary().calls;
        assert_eq!(measured + (times.lost + after_pauses.lost) as u64, 603);
        assert_eq!((switch.counters(0).from_guest_frames - before, path.number - first), (603, 603));
        assert!(times.series.at(0.0) > 0.0 && after_pauses.lost < 3);
        // The stretch from the hundredth frame on has one that took longest, and that is one of all.
        let [longest] = times.longest[..] else { panic!("{:?}", times.longest) };
        assert!(longest.as_secs_f64() * 1e3 >= times.series.at(0.0) && after_pauses.longest.is_empty());
    }

    #[test]
    fn one_stall_of_a_stretch_is_its_longest_time_and_leaves_p99_as_it_is() {
        let (usual, stall) = (Duration::from_nanos(400), Duration::from_millis(5));
        let mut times = FrameTimes::new().unwrap();
        times.record(Some(stall)); // Before the first stretch.
        for frames in 0..3 {
            times.longest.push(Duration::ZERO);
            times.record(Some(if frames == 1 { stall } else { usual }));
            (0..500).for_each(|_| times.record(Some(usual)));
        }
        assert_eq!(times.longest, [usual, stall, usual]);
        assert!(microseconds(&times.series, 0.99) < 0.5);
        times.record(None);
        assert_eq!((times.lost, times.longest[2]), (1, LOST_AFTER));
    }

    #[test]
    fn somebody_elses_frame_ends_no_time() {
        let switch = TestSwitch::start(NETWORK);
        let mut path = FramePath::connect(&switch.running).unwrap();
        let before = switch.counters(1).to_guest_frames;
        path.from.number_next(path.number + 7).unwrap();
        path.from.send_one().unwrap();
        let begun = Instant::now();
        while switch.counters(1).to_guest_frames == before {
            assert!(begun.elapsed() < FORWARDS_WITHIN);
        }
        assert!(!path.comes().unwrap());
    }

    #[test]
    fn a_datagram_has_the_lengths_and_the_checksum_that_it_should() {
        let frame = udp_frame(mac(0), mac(1), SHORT);
        assert_eq!((frame.len(), &frame[..6], &frame[6..12]), (60, &mac(1).0[..], &mac(0).0[..]));
        let word = |at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        let sum: u32 = (14..34).step_by(2).map(word).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!((word(16), word(38)), (46, 26));
    }
}
