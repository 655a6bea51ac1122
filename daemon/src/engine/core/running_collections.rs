//! Which networks are being collected by plugins that are executed, and the ADDs that come meanwhile.
//!
//! Such a plugin frees what it has of attachments that it is not told of. So an ADD of the network is on record before the plugin is told
//! what is valid, or begins when it has ended.

use std::collections::BTreeSet;
use std::time::Instant;

use fairlead_cni::{CniError, Code};
use parking_lot::{Condvar, Mutex};

/// The networks, by their names.
#[derive(Debug, Default)]
pub(crate) struct RunningCollections {
    networks: Mutex<BTreeSet<String>>,
    ended: Condvar,
}

impl RunningCollections {
    /// Whether the network is being collected.
    pub(crate) fn is_running(&self, network: &str) -> bool {
        self.networks.lock().contains(network)
    }

    /// Waits until the network is not being collected.
    ///
    /// # Errors
    /// Code 11 where the collection does not end in time.
    pub(crate) fn wait(&self, network: &str, deadline: Instant) -> Result<(), CniError> {
        self.begin(network, deadline, || ())
    }

    /// Calls `begin`, which puts an ADD on record, while the network is not being collected.
    ///
    /// # Errors
    /// Code 11 where the collection does not end in time.
    pub(crate) fn begin<T>(
        &self,
        network: &str,
        deadline: Instant,
        begin: impl FnOnce() -> T,
    ) -> Result<T, CniError> {
        let mut networks = self.networks.lock();
        while networks.contains(network) {
            if self.ended.wait_until(&mut networks, deadline).timed_out() {
                let msg =
                    format!("network {network:?}: its plugins are still collecting what is left over (GC)");
                return Err(CniError::new(Code::TryAgain, msg).with("the runtime will try again"));
            }
        }
        Ok(begin())
    }

    /// Calls `run` with what `valid` answers; no ADD of the network begins meanwhile.
    pub(crate) fn collect<V, T>(
        &self,
        network: &str,
        valid: impl FnOnce() -> V,
        run: impl FnOnce(V) -> T,
    ) -> T {
        let mut networks = self.networks.lock();
        while networks.contains(network) {
            self.ended.wait(&mut networks);
        }
        // Before the network is marked: where this panics nothing is to be ended.
        let valid = valid();
        networks.insert(network.to_owned());
        drop(networks);
        let _ends = Ends { of: self, network };
        run(valid)
    }
}

/// Ends a collection, however it ends. Made and dropped without the lock, which it takes.
struct Ends<'a> {
    of: &'a RunningCollections,
    network: &'a str,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.of.networks.lock().remove(self.network);
        self.of.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn x03_an_add_begins_before_the_plugins_are_told_or_after_they_have_ended() {
        let running = RunningCollections::default();
        let long = || Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let (told, began) = (mpsc::channel(), mpsc::channel());
            let running = &running;
            running.collect(
                "net",
                || (),
                |()| {
                    let began = began.0.clone();
                    scope.spawn(move || {
                        let _ = told.0.send(());
                        running.begin("net", long(), || began.send(())).unwrap().unwrap();
                    });
                    told.1.recv().unwrap();
                    running.begin("other", long(), || ()).unwrap();
                    let late = running.begin("net", Instant::now(), || ()).unwrap_err();
                    assert_eq!(late.code, Code::TryAgain);
                },
            );
            began.1.recv_timeout(Duration::from_secs(60)).unwrap();
        });
    }

    #[test]
    fn x03_a_collection_that_panics_has_ended_wherever_that_was() {
        let running = RunningCollections::default();
        let (ended, ends) = mpsc::channel();
        // Not joined: a lock that is never given back must not keep the test from failing.
        std::thread::spawn(move || {
            let panics = |valid: fn(), run: fn(())| {
                let collect = || running.collect("net", valid, run);
                catch_unwind(AssertUnwindSafe(collect)).is_err()
            };
            let both = [panics(|| panic!("as asked"), |()| ()), panics(|| (), |()| panic!("as asked"))];
            let soon = Instant::now() + Duration::from_secs(10);
            let begun = running.begin("net", soon, || "begun");
            let _ = ended.send((both, begun, running.collect("net", || 1, |valid| valid + 1)));
        });
        let (both, begun, collected) = ends.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!((both, begun.unwrap(), collected), ([true; 2], "begun", 2));
    }
}
