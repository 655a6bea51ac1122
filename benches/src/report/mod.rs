//! The report: one value with everything in it, written as a table for people, as JSON and as a page.
//!
//! All three tell the same numbers; none computes any of its own.

pub(crate) mod json;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod table;

use serde::Serialize;

use crate::cases::Case;
use crate::machine::Machine;
use crate::results::Results;
use crate::subject::{Role, Subject};
use crate::targets::Verdict;

/// Everything that a reader needs.
#[derive(Debug)]
pub(crate) struct Report {
    /// On what.
    pub(crate) machine: Machine,
    /// Who.
    pub(crate) subjects: Subjects,
    /// In which cases.
    pub(crate) cases: Vec<&'static Case>,
    /// True when numbers were so small that they measure nothing.
    pub(crate) quick: bool,
    /// What was measured.
    pub(crate) results: Results,
    /// Against the targets; none in a smoke test.
    pub(crate) verdicts: Vec<Verdict>,
}

/// Who was measured, as told to a reader.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Told {
    /// Name.
    pub(crate) name: String,
    /// Role.
    pub(crate) role: Role,
    /// Executable.
    pub(crate) path: String,
    /// What the executable says of itself.
    pub(crate) version: String,
}

impl Told {
    fn of(subject: &Subject) -> Told {
        Told {
            name: subject.name.clone(),
            role: subject.role,
            path: subject.binary.display().to_string(),
            version: subject.version.clone(),
        }
    }
}

/// All who were measured.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Subjects(pub(crate) Vec<Told>);

impl Subjects {
    /// Those, and ours with `del: wait` where ours is among them.
    pub(crate) fn tell(subjects: &[Subject]) -> Subjects {
        let mut told: Vec<_> = subjects.iter().map(Told::of).collect();
        let waiting = told.iter().find(|t| t.role == Role::Ours).cloned();
        told.extend(waiting.map(|ours| Told {
            name: "ours-wait".to_owned(),
            role: Role::OursWaiting,
            version: format!("{} (`del: wait`, in the case `silence`)", ours.version),
            ..ours
        }));
        Subjects(told)
    }

    /// Those alone, where VFs were measured.
    pub(crate) fn of_vfs(subjects: &[Subject]) -> Subjects {
        Subjects(subjects.iter().map(Told::of).collect())
    }

    /// The names in a role.
    pub(crate) fn names_of(&self, role: Role) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |told| told.role == role).map(|told| told.name.as_str())
    }

    /// The only name in a role.
    pub(crate) fn name_of(&self, role: Role) -> Option<&str> {
        self.names_of(role).next()
    }

    #[cfg(test)]
    pub(crate) fn of(named: &[(&str, Role)]) -> Subjects {
        let told = |(name, role): &(&str, Role)| Told {
            name: (*name).to_owned(),
            role: *role,
            path: String::new(),
            version: String::new(),
        };
        Subjects(named.iter().map(told).collect())
    }
}
