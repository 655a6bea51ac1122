//! What OVS has against what it is to have: the ports to remove, and those to put back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::super::port_spec::{PortName, PortSpec};
use super::super::request::{Request, Task};
use super::State;

impl State {
    /// What is to be done so that OVS has exactly these ports of ours, but for those that have a request.
    pub(crate) fn reconciliation(&mut self, owned: &[PortSpec]) -> Vec<Task> {
        let busy = self.busy();
        let free = owned.iter().filter(|spec| !busy.contains(&spec.name));
        let owned: BTreeMap<PortName, PortSpec> =
            free.map(|spec| (spec.name.clone(), spec.clone())).collect();
        self.wanted.retain(|name, _| busy.contains(name));
        self.wanted.extend(owned.clone());
        let ours = self.mirror.our_ports(&self.node);
        let there: BTreeSet<PortName> =
            ours.filter_map(|ours| PortName::new(ours.port.text("name")?).ok()).collect();
        let unowned = there.into_iter().filter(|name| !owned.contains_key(name) && !busy.contains(name));
        let mut tasks: Vec<Task> = unowned.map(Task::Remove).collect();
        tasks.extend(owned.into_values().map(|spec| Task::Add(Box::new(spec))));
        tasks
    }

    /// Asks for ports that are wanted and that OVS has no more, where it has their bridge.
    pub(crate) fn repair(&mut self, now: Instant, limit: Duration) {
        let missing = self.missing();
        if missing.is_empty() || now < self.repair_at {
            return;
        }
        self.repair_at = now + self.repairs.failed();
        for spec in missing {
            let request = Request::own(Task::Add(Box::new(spec)), Some(now + limit));
            self.queue.push_back(request.of_records());
        }
    }

    /// The ports that are wanted, that OVS has not, and that it could have.
    pub(super) fn missing(&self) -> Vec<PortSpec> {
        let there: BTreeSet<&str> =
            self.mirror.our_ports(&self.node).filter_map(|ours| ours.port.text("name")).collect();
        let lost = self.wanted.values().filter(|spec| !there.contains(spec.name.as_str()));
        let lost: Vec<&PortSpec> = lost.filter(|spec| self.check_switch(spec).is_ok()).collect();
        let busy = if lost.is_empty() { BTreeSet::new() } else { self.busy() };
        lost.into_iter().filter(|spec| !busy.contains(&spec.name)).cloned().collect()
    }
}
