//! How it stands with one watch: what may be answered from memory, and what an operator is told.

use std::mem;
use std::time::{Duration, Instant};

/// While the first list is under way and nothing has failed, what the snapshot says is not used for this long: the list says it
/// better in a moment.
const FIRST_LIST: Duration = Duration::from_secs(2);
/// A watch that goes on from an older version begins with the events that were missed. For this long one of them may be on its way.
const CATCHES_UP: Duration = Duration::from_secs(1);

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Pods,
    Definitions,
    LegacyNetworks,
    Namespaces,
}

/// One value for each kind.
#[derive(Debug, Default)]
pub(super) struct PerKind<T>([T; 4]);

impl<T> PerKind<T> {
    pub(super) fn new(of: impl Fn(Kind) -> T) -> PerKind<T> {
        PerKind(Kind::ALL.map(of))
    }

    pub(super) fn of(&self, kind: Kind) -> &T {
        let [pods, definitions, legacy_networks, namespaces] = &self.0;
        match kind {
            Kind::Pods => pods,
            Kind::Definitions => definitions,
            Kind::LegacyNetworks => legacy_networks,
            Kind::Namespaces => namespaces,
        }
    }

    pub(super) fn of_mut(&mut self, kind: Kind) -> &mut T {
        let [pods, definitions, legacy_networks, namespaces] = &mut self.0;
        match kind {
            Kind::Pods => pods,
            Kind::Definitions => definitions,
            Kind::LegacyNetworks => legacy_networks,
            Kind::Namespaces => namespaces,
        }
    }
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub(super) const ALL: [Kind; 4] = [Kind::Pods, Kind::Definitions, Kind::LegacyNetworks, Kind::Namespaces];

    /// Those without which the node cannot serve its pods. The legacy kind is named by few of them, which are told what fails.
    pub(super) const NEEDED: [Kind; 3] = [Kind::Pods, Kind::Definitions, Kind::Namespaces];

    /// Its path in the API.
    pub(super) fn path(self) -> &'static str {
        match self {
            Kind::Pods => "/api/v1/pods",
            Kind::Definitions => "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions",
            Kind::LegacyNetworks => "/apis/alpha.network.k8s.io/v1/networks",
            Kind::Namespaces => "/api/v1/namespaces",
        }
    }

    /// Its name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Pods => "pods",
            Kind::Definitions => "network-attachment-definitions.k8s.cni.cncf.io",
            Kind::LegacyNetworks => "networks.alpha.network.k8s.io",
            Kind::Namespaces => "namespaces",
        }
    }

    /// True where the metadata of its objects say all that is needed. Of a pod its volumes are needed, too.
    pub(super) fn metadata_is_enough(self) -> bool {
        self == Kind::Namespaces
    }

    /// How many objects a page of a list has: the memory for reading them stays the same, however many there are. Whole ones may have
    /// 1.5 MiB each, which is what etcd takes.
    pub(super) fn page(self) -> u32 {
        if self.metadata_is_enough() { 100 } else { 25 }
    }
}

/// Where a watch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nobody wants it.
    Off,
    /// The first list is under way.
    Starting,
    /// Events come as they happen.
    Live,
    /// The events since the last one are gone, or not all of the objects are known: they are to be listed anew.
    Listing,
    /// The API server does not answer, or refuses; tried again.
    Failing,
    /// The API has no such kind: its CustomResourceDefinition is not applied.
    NoSuchKind,
}

/// The state of one watch.
#[derive(Debug)]
pub(super) struct WatchState {
    pub(super) phase: Phase,
    /// True once a list was whole in this process.
    pub(super) listed: bool,
    pub(super) last_heard: Option<Instant>,
    pub(super) last_error: Option<String>,
    since: Instant,
    failed_before: bool,
    /// The last list has ended, and no attempt has failed since.
    is_fresh: bool,
    /// No event that was missed is on its way from then on.
    caught_up: Instant,
}

impl WatchState {
    pub(super) fn new(wanted: bool) -> WatchState {
        WatchState {
            phase: if wanted { Phase::Starting } else { Phase::Off },
            listed: false,
            last_heard: None,
            last_error: None,
            since: Instant::now(),
            failed_before: false,
            is_fresh: false,
            caught_up: Instant::now(),
        }
    }

    /// The API server has answered, or sent an event.
    pub(super) fn heard(&mut self) {
        self.last_heard = Some(Instant::now());
    }

    /// A list is whole.
    pub(super) fn list_ended(&mut self) {
        self.listed = true;
        self.is_fresh = true;
    }

    /// The watch has begun, from where the list has ended or where it was. True if that is news.
    pub(super) fn live(&mut self) -> bool {
        self.heard();
        if self.phase != Phase::Live {
            let now = Instant::now();
            self.caught_up = if self.is_fresh { now } else { now + CATCHES_UP };
        }
        let had_failed = self.last_error.take().is_some();
        let before = mem::replace(&mut self.phase, Phase::Live);
        had_failed || !matches!(before, Phase::Live | Phase::Listing)
    }

    /// All objects are to be listed anew.
    pub(super) fn listing(&mut self) {
        self.phase = Phase::Listing;
        self.is_fresh = false;
    }

    /// An attempt has failed. True if that is news.
    pub(super) fn failed(&mut self, phase: Phase, error: String) -> bool {
        let news = self.phase != phase;
        self.phase = phase;
        self.last_error = Some(error);
        self.failed_before = true;
        self.is_fresh = false;
        news
    }

    /// True where what only the snapshot says may be answered.
    pub(super) fn snapshot_counts(&self) -> bool {
        self.failed_before || self.since.elapsed() >= FIRST_LIST
    }

    /// True where "there is none" is what the API says.
    pub(super) fn absence_counts(&self) -> bool {
        match self.phase {
            Phase::Live => self.listed && Instant::now() >= self.caught_up,
            // The kind, or the object, may come while somebody waits for it.
            Phase::NoSuchKind | Phase::Off | Phase::Starting | Phase::Listing | Phase::Failing => false,
        }
    }

    /// Why the watch has nothing, for people.
    pub(super) fn reason(&self) -> String {
        match (self.phase, &self.last_error) {
            (Phase::Live, _) => "the API server answers, and has not told of it".to_owned(),
            (Phase::Listing, _) => "the API server is asked for all of them anew".to_owned(),
            (Phase::Off, _) => "it is not watched".to_owned(),
            (Phase::NoSuchKind, _) => {
                "this cluster has no objects of the kind: apply its CustomResourceDefinition".to_owned()
            }
            (_, Some(error)) => format!("the API server cannot be asked: {error}"),
            (_, None) => "the API server has not answered yet".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> WatchState {
        let mut watch = WatchState::new(true);
        watch.list_ended();
        watch.live();
        watch
    }

    #[test]
    fn absence_counts_once_a_list_has_ended_and_never_while_all_are_listed_anew() {
        assert!(!WatchState::new(true).absence_counts());
        let mut watch = listed();
        assert!(watch.absence_counts());
        watch.listing();
        assert!(!watch.absence_counts());
        watch.list_ended();
        assert!(!watch.absence_counts(), "the watch has not begun");
        watch.live();
        assert!(watch.absence_counts());
    }

    #[test]
    fn absence_does_not_count_at_once_where_a_watch_goes_on_after_a_failure() {
        let mut watch = listed();
        watch.live();
        assert!(watch.absence_counts(), "the next watch after one that has ended as it should");
        watch.failed(Phase::Failing, "it is down".to_owned());
        watch.live();
        assert!(!watch.absence_counts());
        watch.caught_up = Instant::now();
        assert!(watch.absence_counts());
    }
}
