//! The settings that calls go by. The configuration can change them while the daemon runs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::netdev::setup::Dad;
use crate::policy::PolicySettings;
use crate::settings::{Dad as DadSetting, DelAnswer, Settings};

/// The part of the configuration that calls go by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSettings {
    /// DEL waits until the link is gone.
    pub del_waits: bool,
    /// Duplicate address detection of IPv6.
    pub dad: Dad,
    /// Time limit of one executed plugin.
    pub delegate_timeout: Duration,
    /// How long a silenced link waits for its namespace to take it along.
    pub reap_after: Duration,
    /// How long an ADD waits for a VF that is being restored or prepared.
    pub vf_wait: Duration,
    /// How long an ADD waits for its pod and its definitions to be seen in the API.
    pub pod_wait: Duration,
    /// The port on which the daemon tells its metrics.
    pub metrics_port: Option<u16>,
    /// Devices that may be lent though the node uses them, by name.
    pub lendable: Vec<String>,
    /// What tenants' definitions may use; `None` while that is not known, because the file was refused at the start.
    pub policy: Option<Arc<PolicySettings>>,
}

impl Default for CallSettings {
    fn default() -> CallSettings {
        CallSettings {
            del_waits: false,
            dad: Dad::Fast,
            delegate_timeout: Duration::from_secs(30),
            reap_after: Duration::from_millis(1500),
            vf_wait: Duration::from_secs(10),
            pod_wait: Duration::from_secs(25),
            metrics_port: None,
            lendable: Vec::new(),
            policy: Some(Arc::default()),
        }
    }
}

impl From<&Settings> for CallSettings {
    fn from(settings: &Settings) -> CallSettings {
        CallSettings {
            del_waits: settings.del == DelAnswer::Wait,
            dad: match settings.dad {
                DadSetting::Fast => Dad::Fast,
                DadSetting::Wait => Dad::Wait,
            },
            delegate_timeout: settings.delegate_timeout.0,
            reap_after: settings.reap_after.0,
            vf_wait: settings.function_wait.0,
            pod_wait: settings.pod_wait.0,
            metrics_port: settings.metrics.as_ref().map(|metrics| metrics.listen.port()),
            lendable: settings.policy.lendable.clone(),
            policy: (!settings.unread).then(|| Arc::new(settings.policy.clone())),
        }
    }
}

/// The settings in force. Whoever goes by them asks anew each time: a change is in force at once, also for calls under way.
#[derive(Debug)]
pub(crate) struct CurrentCallSettings(RwLock<Arc<CallSettings>>);

impl CurrentCallSettings {
    /// Begins with these.
    pub(crate) fn new(settings: CallSettings) -> CurrentCallSettings {
        CurrentCallSettings(RwLock::new(Arc::new(settings)))
    }

    /// Those in force.
    pub(crate) fn get(&self) -> Arc<CallSettings> {
        Arc::clone(&self.0.read())
    }

    /// Puts others in force.
    pub(crate) fn set(&self, settings: CallSettings) {
        *self.0.write() = Arc::new(settings);
    }
}
