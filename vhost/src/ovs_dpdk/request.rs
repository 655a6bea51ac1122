//! What the driver is asked for, and what it answers.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use super::error::OvsError;
use super::port_spec::{PortName, PortOwner, PortSpec};

/// A port that is at work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedPort {
    /// Its OpenFlow port number.
    pub ofport: u16,
    /// The socket between OVS and the application, as Fairlead sees it.
    pub socket: PathBuf,
    /// True if it was made now; false if it was there.
    pub created: bool,
}

/// What became of a port that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// OVS has let go of its socket and of the pod's memory.
    Gone,
    /// There was none of ours with that name.
    Absent,
    /// The database has it no more; `ovs-vswitchd` has not answered, and forgets it when it comes back.
    Pending,
}

/// What is to be done.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    /// Make a port, or find it as it is to be.
    Add(Box<PortSpec>),
    /// Remove a port of ours.
    Remove(PortName),
}

impl Task {
    /// The port that it is about.
    pub(crate) fn name(&self) -> &PortName {
        match self {
            Task::Add(spec) => &spec.name,
            Task::Remove(name) => name,
        }
    }
}

/// What was done.
#[derive(Debug, Clone)]
pub(crate) enum Done {
    /// The port is there.
    Added(AddedPort),
    /// The port is not there.
    Removed(Removal),
}

/// A task, and who waits for it.
#[derive(Debug)]
pub(crate) struct Request {
    /// What is to be done.
    pub(crate) task: Task,
    /// Since when it waits.
    pub(crate) queued: Instant,
    /// Until when it may wait; absent: for ever.
    pub(crate) deadline: Option<Instant>,
    /// How often the database refused it for a reason that passes.
    pub(crate) tries: u32,
    /// A transaction of it was sent, and nobody knows whether it was carried out.
    pub(crate) unknown: bool,
    /// Whose port it is by our own records, though it may have another node's name: this node may have had that.
    pub(crate) owner_on_record: Option<PortOwner>,
    /// That port is to get this node's name now.
    pub(crate) is_claimed: bool,
    answer: Option<SyncSender<Result<Done, OvsError>>>,
}

impl Request {
    /// A request that somebody waits for.
    pub(crate) fn new(task: Task, deadline: Instant) -> (Request, Receiver<Result<Done, OvsError>>) {
        let (sender, answer) = sync_channel(1);
        let request = Request { answer: Some(sender), ..Request::own(task, Some(deadline)) };
        (request, answer)
    }

    /// A request of the driver itself.
    pub(crate) fn own(task: Task, deadline: Option<Instant>) -> Request {
        Request {
            task,
            queued: Instant::now(),
            deadline,
            tries: 0,
            unknown: false,
            owner_on_record: None,
            is_claimed: false,
            answer: None,
        }
    }

    /// The same, for a port that is on record.
    pub(crate) fn on_record(self, owner: &PortOwner) -> Request {
        Request { owner_on_record: Some(owner.clone()), ..self }
    }

    /// The same, for a port that is on record where it is to be made.
    pub(crate) fn of_records(self) -> Request {
        match &self.task {
            Task::Add(spec) => {
                let owner = spec.owner.clone();
                self.on_record(&owner)
            }
            Task::Remove(_) => self,
        }
    }

    /// Whether the driver itself asked.
    pub(crate) fn is_own(&self) -> bool {
        self.answer.is_none()
    }

    /// Answers it, and ends it.
    pub(crate) fn finish(self, outcome: Result<Done, OvsError>) {
        match (self.answer, outcome) {
            (Some(answer), outcome) => drop(answer.try_send(outcome)), // whoever asked may have gone
            (None, Err(error)) => tracing::warn!(port = %self.task.name(), %error, "OVS port not put right"),
            (None, Ok(_)) => {}
        }
    }
}
