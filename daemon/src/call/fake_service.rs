//! A stand-in for the engine in tests that need none. A test says how a call is answered, and of the rest only what it is about.

use std::sync::Arc;

use fairlead_cni::CniError;
use fairlead_cni::config::NetConf;
use fairlead_cni::wire::Request;
use fairlead_sriov::pools::Verb;
use serde_json::Value;

use super::{
    ChangeOver, Lane, NamedAttachment, OrphansListed, PodNetwork, PreparedCall, Reply, Service, Waiting,
};
use crate::store::Key;

/// What a test does in the engine's place. A type with this trait is a [`Service`], which has nothing on record.
pub(crate) trait FakeService: Send + Sync + 'static {
    /// Carries a call out and answers it.
    fn answer(&self, request: &Request) -> Reply;

    /// The lane that a call belongs to.
    fn lane_of(&self, _: &Request) -> Lane {
        Lane::Fast
    }

    /// Called when a request is prepared.
    fn note_prepared(&self, _: &Request) {}

    /// Called by [`PreparedCall::delivered`].
    fn note_delivered(&self, _: &Request) {}

    /// Called by [`PreparedCall::answered`]; told whether the caller got the answer.
    fn note_answered(&self, _: &Request, _: bool) {}

    /// What [`Service::table`] answers.
    fn rows_of(&self, _: &str) -> Option<Value> {
        None
    }

    /// What [`Service::collect`] answers.
    fn collected(&self, _: Option<OrphansListed>) -> Value {
        Value::Null
    }

    /// What [`Service::forget`] answers; told whether the record is removed.
    fn forgotten(&self, _: &NamedAttachment, _: bool) -> Value {
        Value::Null
    }
}

struct FakeCall<F>(Arc<F>, Request);

impl<F: FakeService> PreparedCall for FakeCall<F> {
    fn request(&self) -> &Request {
        &self.1
    }

    fn conf(&self) -> Option<&NetConf> {
        None
    }

    fn lane(&self) -> Lane {
        self.0.lane_of(&self.1)
    }

    fn serve(&self, _: Waiting) -> Reply {
        self.0.answer(&self.1)
    }

    fn count_phases(&self) {}

    fn delivered(&self) {
        self.0.note_delivered(&self.1);
    }

    fn answered(&self, delivered: bool) {
        self.0.note_answered(&self.1, delivered);
    }
}

impl<F: FakeService> Service for F {
    fn prepare(self: Arc<Self>, request: Request) -> Arc<dyn PreparedCall> {
        self.note_prepared(&request);
        Arc::new(FakeCall(self, request))
    }

    fn table(&self, name: &str) -> Option<Value> {
        self.rows_of(name)
    }

    fn describe(&self, named: &str) -> Value {
        Value::String(named.to_owned())
    }

    fn pod_networks(&self, _: &Key) -> Vec<PodNetwork> {
        Vec::new()
    }

    fn order_pools(&self, _: Verb, of: &str) -> Result<Value, CniError> {
        Ok(vec![of].into())
    }

    fn collect(&self, orphans: Option<OrphansListed>) -> Result<Value, CniError> {
        Ok(self.collected(orphans))
    }

    fn change_over(&self, _: ChangeOver, _: &str) -> Result<(), CniError> {
        Ok(())
    }

    fn forget(&self, named: &NamedAttachment, carry_out: bool) -> Result<Value, CniError> {
        Ok(self.forgotten(named, carry_out))
    }
}
