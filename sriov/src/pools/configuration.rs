//! The configuration of all pools: those of the daemon's own file and those of the SR-IOV network device plugin's file, and
//! what of them cannot be used. Pure.

use std::path::PathBuf;

use super::membership::Notice;
use super::pool_definition::PoolSettings;
use super::shared::Shared;
use super::state::Pool;
use super::target::DesiredState;
use super::{Look, shared::PoolEntry};
use crate::{DevicePluginConfig, ResourcePrefix};

/// What the daemon's configuration says of pools.
#[derive(Debug, Clone, Default)]
pub struct PoolsConfiguration {
    /// The pools that it declares, in its order: the first that selects a VF has it.
    pub pools: Vec<PoolSettings>,
    /// The SR-IOV network device plugin's file, whose resources are further pools.
    pub device_plugin: Option<DevicePluginFile>,
    /// The daemon's file could not be read: which pools it declares is not known.
    pub unreadable: bool,
}

/// The SR-IOV network device plugin's configuration file.
#[derive(Debug, Clone)]
pub struct DevicePluginFile {
    /// Where it is, for messages.
    pub path: PathBuf,
    /// Its text, or why that could not be read.
    pub text: Result<String, String>,
    /// The prefix of the resources that have none in the file.
    pub prefix: ResourcePrefix,
}

/// The pools of a configuration as far as they are known.
pub(super) struct Declaration {
    pools: Vec<PoolSettings>,
    /// What of the configuration cannot be used, and what of it is of no use.
    refused: Vec<Notice>,
    /// All of the configuration could be read.
    is_whole: bool,
}

impl PoolsConfiguration {
    /// The pools that it declares, what of it cannot be used, and whether all of it could be read.
    pub(super) fn declaration(self) -> Declaration {
        let mut all = self.all_pools();
        all.refused.extend(all.pools.iter().filter_map(unserved));
        all
    }

    fn all_pools(self) -> Declaration {
        let (mut pools, mut refused) = (self.pools, Vec::new());
        let Some(DevicePluginFile { path, text, prefix }) = self.device_plugin else {
            return Declaration { pools, refused, is_whole: !self.unreadable };
        };
        let mut refuse = |seen: String, remedy: &str| {
            let seen = format!("{}: {seen}", path.display());
            refused.push(Notice { wrong: true, seen, remedy: remedy.to_owned() });
        };
        let read = text.and_then(|text| DevicePluginConfig::read(&text, &prefix).map_err(|e| e.to_string()));
        let is_whole = read.is_ok();
        match read {
            Ok(config) => {
                for resource in config.refused {
                    refuse(
                        resource.to_string(),
                        "take out what is not served yet; the other resources are served",
                    );
                }
                let others = config.resources.into_iter().map(PoolSettings::of_resource);
                pools.extend(others);
            }
            Err(why) => refuse(why, "correct devicePluginConfig, or the file"),
        }
        Declaration { pools, refused, is_whole }
    }
}

/// A notice about a pool that asks for what no pod gets. Many nodes share one configuration, and an earlier release took it.
fn unserved(pool: &PoolSettings) -> Option<Notice> {
    let why = pool.unserved()?;
    Some(Notice {
        wrong: false,
        seen: format!("pool {:?}: {why}", pool.name),
        remedy: "take it out; the pool's other VFs are served, and so are the other pools".to_owned(),
    })
}

impl Shared {
    /// Takes a declaration; true when something has changed.
    pub(super) fn declare(&mut self, declaration: Declaration) -> bool {
        let Declaration { pools: mut declared, refused, is_whole } = declaration;
        self.partly_read = !is_whole;
        if !is_whole {
            // What cannot be read just now is no order to give everything back.
            let known = |pool: &PoolSettings| declared.iter().any(|declared| declared.name == pool.name);
            let of_file: Vec<PoolSettings> = self
                .declared
                .iter()
                .filter(|pool| pool.resource.is_some() && !known(pool))
                .cloned()
                .collect();
            declared.extend(of_file);
        }
        let has_changed = self.declared != declared || self.refused != refused;
        if has_changed {
            self.declared = declared;
            self.refused = refused;
            self.arrange();
            // Also whether what is ready still is what its pool wants.
            self.look = Some(Look::Thorough);
        }
        has_changed
    }

    /// Has the pools as they are declared, each with the members that it had; those that are declared no more come last.
    fn arrange(&mut self) {
        let mut before = std::mem::take(&mut self.pools);
        for settings in &self.declared {
            let known = before.iter().position(|entry| entry.name == settings.name);
            let mut pool = known.map_or_else(Pool::default, |at| before.remove(at).pool);
            pool.set_stock(settings.stock());
            self.pools.push(PoolEntry {
                name: settings.name.clone(),
                desired: DesiredState::of(settings),
                settings: Some(settings.clone()),
                pool,
            });
        }
        self.pools.extend(before.into_iter().map(|entry| PoolEntry { settings: None, ..entry }));
    }
}
