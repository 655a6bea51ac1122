//! What a pod can leave on a link and a move does not take away: programs, and what ethtool sets.

use std::collections::BTreeSet;
use std::path::Path;

use nix::errno::Errno;

use super::model::Model;
use crate::seam::{AttachedProgram, NetdevSettings};

/// What is on one link.
#[derive(Debug, Clone, Default)]
pub(super) struct LeftOnLink {
    pub(super) programs: Vec<AttachedProgram>,
    pub(super) settings: NetdevSettings,
    /// The features that are on, by ethtool's names.
    pub(super) features: BTreeSet<String>,
    kept_programs: Vec<AttachedProgram>,
    keeps_settings: bool,
}

impl LeftOnLink {
    pub(super) fn attach(&mut self, program: AttachedProgram, kept: bool) {
        self.programs.push(program);
        self.kept_programs.extend(Some(program).filter(|_| kept));
    }

    pub(super) fn set(&mut self, now: NetdevSettings, kept: bool) {
        self.settings = now;
        self.keeps_settings = kept;
    }

    pub(super) fn switch(&mut self, features: &[String], on: bool) {
        for feature in features {
            if on {
                self.features.insert(feature.clone());
            } else {
                self.features.remove(feature);
            }
        }
    }

    /// Takes off what can be; answers the rest in words.
    pub(super) fn take_programs(&mut self) -> Vec<String> {
        self.programs.clone_from(&self.kept_programs);
        self.programs.iter().map(|program| format!("{program}: it cannot be taken off")).collect()
    }

    /// Restores the settings, if they can be; else answers that in words.
    pub(super) fn restore(&mut self, before: &NetdevSettings) -> Vec<String> {
        if self.settings == *before {
            return Vec::new();
        }
        if self.keeps_settings {
            return vec!["the driver does not take the settings".to_owned()];
        }
        self.settings.clone_from(before);
        Vec::new()
    }
}

impl Model {
    pub(super) fn left_on(&mut self, key: u64, index: u32) -> Result<&mut LeftOnLink, Errno> {
        let namespace = self.namespace(key)?;
        namespace.links.get(&index).ok_or(Errno::ENODEV)?;
        Ok(namespace.left.entry(index).or_default())
    }

    pub(super) fn left_on_named(&mut self, path: &Path, name: &str) -> Option<&mut LeftOnLink> {
        let key = *self.paths.get(path)?;
        let index = self.link_named(key, name)?.index;
        self.left_on(key, index).ok()
    }
}
