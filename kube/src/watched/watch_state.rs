//! How it stands with one watch: what may be answered from memory, and what an operator is told.

use std::time::{Duration, Instant};

/// While the first list is under way and nothing has failed, what the snapshot says is not used for this long: the list says it
/// better in a moment.
const FIRST_LIST: Duration = Duration::from_secs(2);

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

    /// True where the metadata of its objects say all that is needed.
    pub(super) fn metadata_is_enough(self) -> bool {
        matches!(self, Kind::Pods | Kind::Namespaces)
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
        }
    }

    /// The API server has answered, or sent an event.
    pub(super) fn heard(&mut self) {
        self.last_heard = Some(Instant::now());
    }

    /// The list is whole, or the watch goes on where it was.
    pub(super) fn live(&mut self) {
        self.heard();
        self.phase = Phase::Live;
        self.last_error = None;
    }

    /// An attempt has failed. True if that is news.
    pub(super) fn failed(&mut self, phase: Phase, error: String) -> bool {
        let news = self.phase != phase;
        self.phase = phase;
        self.last_error = Some(error);
        self.failed_before = true;
        news
    }

    /// True where what only the snapshot says may be answered.
    pub(super) fn snapshot_counts(&self) -> bool {
        self.failed_before || self.since.elapsed() >= FIRST_LIST
    }

    /// True where "there is none" is what the API says.
    pub(super) fn absence_counts(&self) -> bool {
        match self.phase {
            Phase::Live => self.listed,
            // The kind may come while somebody waits for an object of it.
            Phase::NoSuchKind | Phase::Off | Phase::Starting | Phase::Failing => false,
        }
    }

    /// Why the watch has nothing, for people.
    pub(super) fn reason(&self) -> String {
        match (self.phase, &self.last_error) {
            (Phase::Live, _) => "the API server answers, and has not told of it".to_owned(),
            (Phase::Off, _) => "it is not watched".to_owned(),
            (Phase::NoSuchKind, _) => {
                "this cluster has no objects of the kind: apply its CustomResourceDefinition".to_owned()
            }
            (_, Some(error)) => format!("the API server cannot be asked: {error}"),
            (_, None) => "the API server has not answered yet".to_owned(),
        }
    }
}
