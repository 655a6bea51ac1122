//! What the attachments of one pod share while they are made, where each of them takes nothing but the kernel: one visit of the pod's
//! namespace, one look at each parent, one commit, and the announcements after that.
//!
//! What may wait, is executed, or has to enter a namespace by itself leaves the shared visit first: an entered namespace cannot die,
//! and a thread is in one at a time. The next attachment enters it again.

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::ops::{Deref, DerefMut};

use fairlead_cni::CniError;
use fairlead_host::announce::Announcement;
use fairlead_host::{Kernel, Net, NetError, ParentLink};

use crate::engine::errors;
use crate::engine::recorded_netns::{self, Reach};
use crate::store::{Commit, Namespace};

/// The visit of a pod's namespace, as one of the attachments sees it.
pub(crate) trait PodVisit: fmt::Debug {
    /// The namespace, entered if it was left.
    fn view(&self) -> Result<PodNet<'_>, CniError>;

    /// Leaves the namespace.
    fn leave(&self);

    /// The link of the host that has this name, if it was looked up since the namespace was entered.
    fn parent(&self, name: &str) -> Option<ParentLink>;

    /// The link of this name was looked up.
    fn parent_found(&self, name: &str, link: &ParentLink);

    /// An attachment that is whole, to be put on record with the pod's others.
    fn commit_later(&self, commit: Commit);

    /// Neighbours that are told when all is on record.
    fn announce_later(&self, announcement: Announcement);
}

/// A pod's namespace: entered for one attachment alone, or for all of the pod's.
pub(crate) enum PodNet<'a> {
    Own(Box<dyn Net + 'a>),
    Shared(RefMut<'a, dyn Net + 'a>),
}

impl PodNet<'_> {
    /// The attachment for which alone the namespace was entered is on record, and only the answer is left.
    pub(crate) fn close_when_answered(&mut self) {
        if let PodNet::Own(net) = self {
            net.close_when_answered();
        }
    }
}

impl<'a> Deref for PodNet<'a> {
    type Target = dyn Net + 'a;

    fn deref(&self) -> &Self::Target {
        match self {
            PodNet::Own(net) => net.as_ref(),
            PodNet::Shared(net) => &**net,
        }
    }
}

impl DerefMut for PodNet<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            PodNet::Own(net) => net.as_mut(),
            PodNet::Shared(net) => &mut **net,
        }
    }
}

/// Enters the namespace of a pod whose networks are being attached.
pub(crate) fn enter_again<'k>(
    kernel: &'k dyn Kernel,
    netns: &Namespace,
) -> Result<Box<dyn Net + 'k>, CniError> {
    let told = |e: NetError| errors::kernel("", "entering the pod's namespace again", &e);
    match recorded_netns::reach(kernel, netns).map_err(told)? {
        Reach::Inside(net) => Ok(net),
        _ => Err(errors::internal("the namespace of a pod went while its networks were attached")),
    }
}

/// The visit itself, which belongs to the attachment of the pod's default network.
pub(crate) struct SharedVisit<'k> {
    kernel: &'k dyn Kernel,
    netns: Namespace,
    view: RefCell<Option<Box<dyn Net + 'k>>>,
    parents: RefCell<Vec<(String, ParentLink)>>,
    commits: RefCell<Vec<Commit>>,
    announcements: RefCell<Vec<Announcement>>,
}

impl fmt::Debug for SharedVisit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedVisit").field("netns", &self.netns).finish_non_exhaustive()
    }
}

impl<'k> SharedVisit<'k> {
    /// Goes on from where the namespace was entered and looked at.
    pub(crate) fn of(kernel: &'k dyn Kernel, netns: Namespace, view: Box<dyn Net + 'k>) -> SharedVisit<'k> {
        SharedVisit {
            kernel,
            netns,
            view: RefCell::new(Some(view)),
            parents: RefCell::default(),
            commits: RefCell::default(),
            announcements: RefCell::default(),
        }
    }

    /// What is to be committed with the default network's attachment, and before it.
    pub(crate) fn take_commits(&self) -> Vec<Commit> {
        self.commits.take()
    }

    /// What is to be announced once all is committed.
    pub(crate) fn take_announcements(&self) -> Vec<Announcement> {
        self.announcements.take()
    }
}

impl PodVisit for SharedVisit<'_> {
    fn view(&self) -> Result<PodNet<'_>, CniError> {
        let mut view = self.view.borrow_mut();
        if view.is_none() {
            *view = Some(enter_again(self.kernel, &self.netns)?);
        }
        let entered = RefMut::filter_map(view, |view| view.as_mut().map(|net| net.as_mut() as &mut dyn Net));
        entered.map(PodNet::Shared).map_err(|_| errors::internal("a namespace that was entered is not there"))
    }

    fn leave(&self) {
        self.view.take();
        // What comes now may take its time, and the host's links with it.
        self.parents.take();
    }

    fn parent(&self, name: &str) -> Option<ParentLink> {
        self.parents.borrow().iter().find(|(known, _)| known == name).map(|(_, link)| link.clone())
    }

    fn parent_found(&self, name: &str, link: &ParentLink) {
        self.parents.borrow_mut().push((name.to_owned(), link.clone()));
    }

    fn commit_later(&self, commit: Commit) {
        self.commits.borrow_mut().push(commit);
    }

    fn announce_later(&self, announcement: Announcement) {
        self.announcements.borrow_mut().push(announcement);
    }
}
