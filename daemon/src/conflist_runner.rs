//! Runs a whole configuration list without a container runtime: each plugin in order, built-in ones in process,
//! all others executed.
//!
//! It does what libcni does: each plugin of an ADD gets the result of the one before; a DEL goes backwards and
//! past errors. It also does what libcni leaves to the runtime: after a failed ADD every plugin that was begun
//! gets its DEL, the failed one included.

use std::fs::File;
use std::time::{Duration, Instant};

use fairlead_cni::config::{AttachmentRef, ConfList};
use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, CniResult, CniVersion, Code};
use serde_json::{Map, Value};

use crate::delegate::{DelegateCall, DelegateOutcome, Delegates, Parameters, says_it_has_no_check};

/// The plugins that are part of the daemon.
pub trait BuiltIn {
    /// Whether a type is served in process, whatever lies in `CNI_PATH`.
    fn serves(&self, plugin: &str) -> bool;

    /// Carries a call out, as an executed plugin would: a result for ADD, nothing for other commands.
    fn call(&self, command: Command, plugin: &str, config: &str) -> Result<String, CniError>;
}

/// Why a list could not be added.
#[derive(Debug)]
pub struct AddFailure {
    /// What its caller is told.
    pub error: CniError,
    /// Nothing of it needs a removal: the plugin that failed could not even be started, and those before it had their DEL with
    /// success.
    pub nothing_is_left: bool,
}

/// Why a plugin did not do what it was called for.
struct CallFailure {
    error: CniError,
    /// It was never executed.
    never_ran: bool,
}

impl From<CallFailure> for CniError {
    fn from(failure: CallFailure) -> CniError {
        failure.error
    }
}

/// Of what a plugin that ran has answered, and of one that is part of the daemon.
impl From<CniError> for CallFailure {
    fn from(error: CniError) -> CallFailure {
        CallFailure { error, never_ran: false }
    }
}

/// One list, and everything that its plugins are called with.
pub struct Chain<'a> {
    /// The list whose plugins are called.
    pub list: &'a ConfList,
    /// Executes the plugins that are not built in.
    pub delegates: &'a Delegates,
    /// Serves the plugins that are built in.
    pub built_in: &'a dyn BuiltIn,
    /// The parameters of the call, which every plugin of the list gets.
    pub parameters: Parameters<'a>,
    /// The capability arguments; each plugin gets those that it declares.
    pub runtime: &'a Map<String, Value>,
    /// The time by which ADD, CHECK and STATUS must have ended. DEL and GC go on; only each plugin has its limit.
    pub deadline: Instant,
    /// The time limit of one plugin.
    pub plugin_limit: Duration,
    /// Asked every 20 ms; true kills the running plugin, but never that of a DEL or a STATUS.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Whether a plugin's file is Fairlead's own executable, which is not started.
    pub is_ours: fn(&File) -> bool,
}

impl Chain<'_> {
    /// Whether every plugin that would be executed is there. A list of which one is not is refused before anything is
    /// done: neither the ADD nor a DEL of it could succeed.
    pub fn must_be_installed(&self) -> Result<(), CniError> {
        let others = self.list.plugin_types().filter(|plugin| !self.built_in.serves(plugin));
        for plugin in others {
            let found = self.delegates.find(plugin, self.parameters.path);
            found.map_err(|error| self.of_list(error.to_cni_error(Command::Add)))?;
        }
        Ok(())
    }

    /// Calls ADD in order. On a failure every plugin that was begun gets its DEL, backwards. The error is that of
    /// the failed plugin; its details name what could not be undone.
    pub fn add(&self) -> Result<CniResult, AddFailure> {
        let mut result = None;
        for index in 0..self.list.len() {
            match self.add_one(index, result.as_ref()) {
                Ok(next) => result = Some(next),
                Err(failure) => return Err(self.undo_failed_add(index, result.as_ref(), failure)),
            }
        }
        result.ok_or_else(|| {
            let msg = format!("network {:?} has no plugins", self.list.name);
            AddFailure { error: CniError::new(Code::InvalidConfig, msg), nothing_is_left: true }
        })
    }

    /// Calls DEL in reverse order, past errors; the error names all of them. `prev` is the result of the ADD.
    pub fn del(&self, prev: Option<&CniResult>) -> Result<(), CniError> {
        self.del_from(self.list.len(), prev)
    }

    /// Calls CHECK in order, unless the list disables it or is below 0.4.0, which has none. A plugin that says it has none is passed over.
    /// `prev` is the result of the ADD.
    ///
    /// # Errors
    /// What the first plugin says that finds something changed.
    pub fn check(&self, prev: &CniResult) -> Result<(), CniError> {
        if self.list.disable_check || !self.list.version.has(Command::Check) {
            return Ok(());
        }
        for index in 0..self.list.len() {
            let config = self.list.plugin_config(index, Some(prev), self.runtime)?;
            match self.call(Command::Check, index, &config) {
                Err(failure) if says_it_has_no_check(&failure.error) => {}
                checked => drop(checked?),
            }
        }
        Ok(())
    }

    /// Calls GC on every plugin, past errors, unless the list disables it; the error names all of them. A list
    /// below 1.1.0 has no GC.
    pub fn gc(&self, valid: &[AttachmentRef]) -> Result<(), CniError> {
        if self.list.disable_gc || !self.list.version.has(Command::Gc) {
            return Ok(());
        }
        let one = |index| {
            let config = self.list.gc_config(index, valid)?;
            Ok::<_, CniError>(self.call(Command::Gc, index, &config)?)
        };
        CniError::all((0..self.list.len()).filter_map(|index| one(index).err()))
    }

    /// Calls STATUS in order, up to the first plugin that is not ready. A list below 1.1.0 has no STATUS.
    pub fn status(&self) -> Result<(), CniError> {
        if !self.list.version.has(Command::Status) {
            return Ok(());
        }
        for index in 0..self.list.len() {
            let config = self.list.plugin_config(index, None, &Map::new())?;
            self.call(Command::Status, index, &config)?;
        }
        Ok(())
    }

    fn add_one(&self, index: usize, prev: Option<&CniResult>) -> Result<CniResult, CallFailure> {
        let config = self.list.plugin_config(index, prev, self.runtime);
        let config = config.map_err(|error| CallFailure { error, never_ran: true })?;
        let answer = self.call(Command::Add, index, &config)?;
        CniResult::parse_text(&answer, self.list.version).map_err(|error| {
            let plugin = self.list.plugin_types().nth(index).unwrap_or_default();
            let msg = format!("plugin {plugin:?}: its result: {}", error.msg);
            self.of_list(CniError { code: Code::PluginFailed, msg, ..error }).into()
        })
    }

    /// Calls DEL on every plugin up to `index`, whose ADD failed, and on that one if it was executed; adds what could not be
    /// undone to the error.
    fn undo_failed_add(&self, index: usize, prev: Option<&CniResult>, failure: CallFailure) -> AddFailure {
        let CallFailure { error, never_ran } = failure;
        let Err(removal) = self.del_from(index + usize::from(!never_ran), prev) else {
            return AddFailure { error, nothing_is_left: never_ran };
        };
        let details = match error.details.as_str() {
            "" => format!("and it could not be undone: {removal}"),
            details => format!("{details}; and it could not be undone: {removal}"),
        };
        AddFailure { error: CniError { details, ..error }, nothing_is_left: false }
    }

    fn del_from(&self, end: usize, prev: Option<&CniResult>) -> Result<(), CniError> {
        // Before 0.4.0 a DEL has no prevResult.
        let prev = prev.filter(|_| self.list.version >= CniVersion::V0_4_0);
        let one = |index| {
            let config = self.list.plugin_config(index, prev, self.runtime)?;
            Ok::<_, CniError>(self.call(Command::Del, index, &config)?)
        };
        let removed = CniError::all((0..end).rev().filter_map(|index| one(index).err()));
        removed.map_err(|error| error.of_del())
    }

    fn call(&self, command: Command, index: usize, config: &str) -> Result<String, CallFailure> {
        let plugin = self.list.plugin_types().nth(index).unwrap_or_default();
        if self.built_in.serves(plugin) {
            return Ok(self.built_in.call(command, plugin, config)?);
        }
        let goes_on = matches!(command, Command::Del | Command::Gc);
        let patience =
            if goes_on { Duration::MAX } else { self.deadline.saturating_duration_since(Instant::now()) };
        let call = DelegateCall {
            command,
            plugin,
            config,
            parameters: self.parameters,
            time_limit: self.plugin_limit,
            patience,
            cancelled: if goes_on { &|| false } else { self.cancelled },
            is_ours: self.is_ours,
        };
        match self.delegates.run(&call) {
            Ok(DelegateOutcome::Output(answer)) => Ok(answer),
            Ok(DelegateOutcome::Ours) => {
                Ok(self.built_in.call(command, plugin, config).map_err(|e| self.of_list(e))?)
            }
            Err(error) => Err(CallFailure {
                error: self.of_list(error.to_cni_error(command)),
                never_ran: error.never_ran(),
            }),
        }
    }

    fn of_list(&self, error: CniError) -> CniError {
        error.of_network(&self.list.name)
    }
}

#[cfg(test)]
mod tests;
