//! `switch-neighbours`: the times of single frames between two ports of ours beside two further ports of the same poll thread, whose guests
//! behave, stall, flood or break the rules.
//!
//! One poll thread serves all rings in turn, a burst of each, so a neighbour that sends without end costs its share of the time: what one
//! costs that behaves. What a bad one costs is held against that. The neighbours' frames are in their queues before and their
//! descriptors are filled once, so that flooding takes no processor but the switch's.
//!
//! What a breach of the rules costs is over in a moment, and too seldom for a percentile of all frames. So the longest time of the frames
//! from each breach until its guest is disconnected is held against the longest of as many frames beside silent neighbours.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fairlead_host::Mac;

use super::SwitchBench;
use super::cases::{LONG, SHORT};
use super::contender::{Contender, FurtherPorts, NETWORK, Running, mac};
use super::filled_pod::{Chain, FilledPod, Filling, MOST_ENTRIES};
use super::frame_path::{FramePath, FrameTimes, microseconds, on_second_processor, udp_frame};
use super::generator::Connects;
use crate::bench::BenchError;
use crate::case_size::CaseSize;
use crate::results::median;
use crate::round::until_one_counts;

/// The case's name.
pub(crate) const CASE: &str = "switch-neighbours";
/// The network of neighbours that are strangers.
pub(crate) const OTHER_NETWORK: &str = "other";
/// The entries of the queues of one who breaks the rules: it connects often.
const FEW_ENTRIES: u16 = 256;

/// What the neighbours do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Both are connected, and send nothing.
    Silent,
    /// One sends to the other as fast as it is served, and that one takes all.
    Behaves,
    /// The same, but the other takes nothing.
    Stalls,
    /// One sends to everybody and to addresses that nobody has.
    Floods,
    /// One sends long frames in as many pieces as the switch follows.
    Pieces,
    /// One has descriptors in a loop, and connects again when it was disconnected.
    Breaks,
}

impl Behaviour {
    /// All but [`Behaviour::Silent`].
    const BUSY: [Behaviour; 5] =
        [Behaviour::Behaves, Behaviour::Stalls, Behaviour::Floods, Behaviour::Pieces, Behaviour::Breaks];

    /// What it does, in words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Behaviour::Silent => "is silent",
            Behaviour::Behaves => "behaves",
            Behaviour::Stalls => "stalls",
            Behaviour::Floods => "floods",
            Behaviour::Pieces => "sends frames in 256 pieces",
            Behaviour::Breaks => "has loops in its ring",
        }
    }

    /// The names of the readings of p50 and p99, in microseconds.
    pub(crate) fn percentiles(self, network: &str) -> [String; 2] {
        let place = if network == NETWORK { "same network" } else { "another network" };
        ["p50", "p99"].map(|percentile| format!("{percentile}, neighbour {}, {place}", self.name()))
    }

    /// The name of the reading of the longest time of a stretch of frames, in microseconds: the median of all stretches.
    pub(crate) fn longest(self, network: &str) -> String {
        let [name, _] = self.percentiles(network);
        format!("longest of a stretch{}", name.trim_start_matches("p50"))
    }

    /// Whom its frames are for, and how they are made.
    fn frames(self) -> (Vec<Vec<u8>>, Chain) {
        let (sender, receiver) = (mac(2), mac(3));
        match self {
            Behaviour::Floods => {
                let of =
                    |n: u8| if n.is_multiple_of(2) { Mac([0xff; 6]) } else { Mac([2, 0, 0, 0, 0xff, n]) };
                ((0..=u8::MAX).map(|n| udp_frame(sender, of(n), SHORT)).collect(), Chain::Single)
            }
            Behaviour::Pieces => (vec![udp_frame(sender, receiver, LONG)], Chain::Pieces),
            Behaviour::Breaks => (vec![udp_frame(sender, receiver, SHORT)], Chain::Loop),
            _ => (vec![udp_frame(sender, receiver, SHORT)], Chain::Single),
        }
    }
}

/// Runs it: `calls` frames beside each kind of neighbour, in stretches of `at_once`; one that breaks the rules does it anew with each.
pub(crate) fn run(run: &mut SwitchBench, size: &CaseSize) -> Result<(), BenchError> {
    if !run.has_two_processors(CASE, Contender::Ours, "a switch and its pods need") {
        return Ok(());
    }
    for _ in 0..size.rounds {
        let mut silent = None;
        until_one_counts(|| {
            let times = round(run, (Behaviour::Silent, OTHER_NETWORK), None, size)?;
            silent = times;
            Ok(times.is_some())
        })?;
        for network in [OTHER_NETWORK, NETWORK] {
            for behaviour in Behaviour::BUSY {
                until_one_counts(|| Ok(round(run, (behaviour, network), silent, size)?.is_some()))?;
            }
        }
    }
    Ok(())
}

/// Times frames beside such neighbours, and answers p50 and p99; absent if the round does not count. `silent` is what these were where
/// the neighbours were silent.
fn round(
    run: &mut SwitchBench,
    (behaviour, network): (Behaviour, &'static str),
    silent: Option<[f64; 2]>,
    size: &CaseSize,
) -> Result<Option<[f64; 2]>, BenchError> {
    let who = Contender::Ours;
    let running = who.start_with(run, FurtherPorts { count: 2, network })?;
    let doing = || BenchError::process(format!("timing frames beside a neighbour that {}", behaviour.name()));
    let mut path = FramePath::connect(&running).map_err(doing())?;
    let mut neighbours = Neighbours::connect(&running, behaviour, size.at_once).map_err(doing())?;
    let mut percentiles = None;
    let counts = run.round(CASE, &running, |results| {
        let measured = on_second_processor(|| {
            let begun = Instant::now();
            let times = path.times(size.calls, |_, _| neighbours.go_on())?;
            let took = begun.elapsed();
            neighbours.end()?;
            Ok((times, took))
        });
        let (FrameTimes { series, lost, longest }, took) = measured.map_err(doing())?;
        if series.is_empty() {
            results.fail(CASE, who.name(), format!("neighbour {}: no frame came", behaviour.name()));
            return Ok(());
        }
        let measured = [0.5, 0.99].map(|quantile| microseconds(&series, quantile));
        for (at, name) in behaviour.percentiles(network).into_iter().enumerate() {
            if let Some(silent) = silent {
                let of_silent = format!("{name}, of silent ones'");
                results.read(CASE, who.name(), of_silent, "×", measured[at] / silent[at]);
            }
            results.read(CASE, who.name(), name, "µs", measured[at]);
        }
        let [name, _] = behaviour.percentiles(network);
        let of_it = |what: &str| format!("{what}{}", name.trim_start_matches("p50"));
        results.read(CASE, who.name(), of_it("lost"), "%", lost as f64 / size.calls as f64 * 100.0);
        let longest: Vec<f64> = longest.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        if let Some(longest) = median(&longest) {
            results.read(CASE, who.name(), behaviour.longest(network), "µs", longest);
        }
        let sent = neighbours.taken as f64 / took.as_secs_f64() / 1e6;
        results.read(CASE, who.name(), of_it("the neighbour's frames"), "Mpps", sent);
        percentiles = Some(measured);
        Ok(())
    })?;
    Ok(percentiles.filter(|_| counts))
}

/// The guests of the two further ports.
struct Neighbours {
    behaviour: Behaviour,
    sender: FilledPod,
    receiver: FilledPod,
    socket: PathBuf,
    /// Frames of the sender that the switch has taken.
    taken: u64,
    /// How many frames of others are a stretch, and how many of this one there were.
    stretch: usize,
    since: usize,
}

impl Neighbours {
    fn connect(running: &Running, behaviour: Behaviour, stretch: usize) -> io::Result<Neighbours> {
        let socket = |at: usize| {
            running.further.get(at).cloned().ok_or_else(|| io::Error::other("the switch lacks further ports"))
        };
        let frames = [udp_frame(mac(3), mac(2), SHORT)];
        let filling = Filling { entries: MOST_ENTRIES, frames: &frames, chain: Chain::Single };
        let receiver = FilledPod::connect(&socket(1)?, Connects::ToTheSwitch, &filling)?;
        if behaviour == Behaviour::Stalls {
            receiver.offer_no_buffers()?;
        }
        let socket = socket(0)?;
        let mut sender = sender(&socket, behaviour)?;
        if behaviour != Behaviour::Silent {
            sender.send()?;
        }
        Ok(Neighbours { behaviour, sender, receiver, socket, taken: 0, stretch, since: 0 })
    }

    /// Does what they do next; true if a stretch begins. Between two calls the frames in the sender's queue are enough for the switch.
    fn go_on(&mut self) -> io::Result<bool> {
        self.since += 1;
        match self.behaviour {
            Behaviour::Silent => return Ok(self.begins()),
            Behaviour::Breaks => return self.break_anew(),
            Behaviour::Stalls => {}
            Behaviour::Behaves | Behaviour::Floods | Behaviour::Pieces => self.receiver.offer_buffers()?,
        }
        self.taken += u64::from(self.sender.send()?);
        Ok(self.begins())
    }

    fn begins(&mut self) -> bool {
        let begins = self.since >= self.stretch;
        if begins {
            self.since = 0;
        }
        begins
    }

    /// Connects again and breaks the rules, once the switch has found out the guest before. Until then the stretch goes on.
    fn break_anew(&mut self) -> io::Result<bool> {
        if self.since < self.stretch || !self.sender.is_disconnected()? {
            return Ok(false);
        }
        self.sender = sender(&self.socket, self.behaviour)?;
        self.sender.send()?;
        Ok(self.begins())
    }

    /// Waits until the switch has found out the last guest that breaks the rules.
    fn end(&mut self) -> io::Result<()> {
        if self.behaviour == Behaviour::Breaks { self.sender.until_disconnected() } else { Ok(()) }
    }
}

fn sender(socket: &Path, behaviour: Behaviour) -> io::Result<FilledPod> {
    let (frames, chain) = behaviour.frames();
    let entries = if behaviour == Behaviour::Breaks { FEW_ENTRIES } else { MOST_ENTRIES };
    FilledPod::connect(socket, Connects::ToTheSwitch, &Filling { entries, frames: &frames, chain })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairlead_vhost::port::{DropReason, PortCounters};

    use super::*;
    use crate::switches::test_switch::TestSwitch;

    /// Frames beside such neighbours until the counters of the sender and of the receiver show what they do.
    fn beside(behaviour: Behaviour, network: &str, shows: impl Fn(&PortCounters, &PortCounters) -> bool) {
        let switch = TestSwitch::start(network);
        let mut path = FramePath::connect(&switch.running).unwrap();
        let mut neighbours = Neighbours::connect(&switch.running, behaviour, 5).unwrap();
        let begun = Instant::now();
        let mut came = 0;
        loop {
            let times = path.times(20, |_, _| neighbours.go_on()).unwrap();
            came += times.series.summary().calls;
            let (sender, receiver) = (switch.counters(2), switch.counters(3));
            if shows(&sender, &receiver) && came > 0 {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{behaviour:?}: {sender:?} {receiver:?}");
        }
    }

    #[test]
    fn neighbours_do_what_their_names_say() {
        let dropped = |counters: &PortCounters, reason| counters.from_guest_drops.get(&reason) > Some(&0);
        for network in [OTHER_NETWORK, NETWORK] {
            beside(Behaviour::Silent, network, |sender, receiver| {
                sender.from_guest_frames + receiver.from_guest_frames == 0
            });
            beside(Behaviour::Behaves, network, |_, receiver| receiver.to_guest_frames > 40_000);
            beside(Behaviour::Stalls, network, |sender, receiver| {
                let no_room = receiver.to_guest_drops.get(&DropReason::NoRoom) > Some(&40_000);
                no_room && sender.from_guest_frames > 40_000 && receiver.to_guest_frames == 0
            });
            beside(Behaviour::Floods, network, |sender, receiver| {
                dropped(sender, DropReason::Storm) && receiver.to_guest_frames > 0
            });
            beside(Behaviour::Pieces, network, |_, receiver| {
                receiver.to_guest_frames > 0
                    && receiver.to_guest_bytes == receiver.to_guest_frames * u64::from(LONG)
            });
        }
    }

    #[test]
    fn stretches_are_as_long_beside_all_who_keep_the_rules() {
        let switch = TestSwitch::start(OTHER_NETWORK);
        let mut neighbours = Neighbours::connect(&switch.running, Behaviour::Silent, 5).unwrap();
        let begin: Vec<usize> = (1..=20).filter(|_| neighbours.go_on().unwrap()).collect();
        assert_eq!(begin, [5, 10, 15, 20]);
    }

    #[test]
    fn who_breaks_the_rules_is_disconnected_and_does_it_anew() {
        let switch = TestSwitch::start(OTHER_NETWORK);
        let mut path = FramePath::connect(&switch.running).unwrap();
        let mut neighbours = Neighbours::connect(&switch.running, Behaviour::Breaks, 5).unwrap();
        let (begun, mut breaches) = (Instant::now(), 0);
        while breaches < 4 {
            let times = path.times(20, |_, _| neighbours.go_on()).unwrap();
            assert!(times.longest.iter().all(|time| *time > Duration::ZERO));
            breaches += times.longest.len();
            assert!(begun.elapsed() < Duration::from_secs(60), "{breaches} breaches");
        }
        neighbours.end().unwrap();
        assert_eq!(switch.counters(2).from_guest_frames, 0);
    }
}
