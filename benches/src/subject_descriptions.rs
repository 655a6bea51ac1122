//! Who was measured, in the words of the report: plain values that outlive the subjects and their daemons.

use serde::Serialize;

use crate::subject::{OURS_WAITING, RAW_AT_ONCE, Role, Subject};

/// One subject that was measured, in the words of the report.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MeasuredSubject {
    /// The name in tables.
    pub(crate) name: String,
    /// What the subject is to the targets.
    pub(crate) role: Role,
    /// The path of its executable.
    pub(crate) path: String,
    /// What the executable says of itself.
    pub(crate) version: String,
}

impl MeasuredSubject {
    fn of(subject: &Subject) -> MeasuredSubject {
        MeasuredSubject {
            name: subject.name.clone(),
            role: subject.role,
            path: subject.binary.display().to_string(),
            version: subject.version.clone(),
        }
    }
}

/// All subjects that were measured.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct MeasuredSubjects(pub(crate) Vec<MeasuredSubject>);

impl MeasuredSubjects {
    /// Describes these subjects, ours with `del: wait`, and the raw kernel calls many at once.
    pub(crate) fn describe(subjects: &[Subject]) -> MeasuredSubjects {
        let mut all: Vec<_> = subjects.iter().map(MeasuredSubject::of).collect();
        let waiting = all.iter().find(|t| t.role == Role::Ours).cloned();
        all.extend(waiting.map(|ours| MeasuredSubject {
            name: OURS_WAITING.to_owned(),
            role: Role::OursWaiting,
            version: format!("{} (`del: wait`, in the cases of DELs)", ours.version),
            ..ours
        }));
        let bare = all.iter().find(|t| t.role == Role::Bare).cloned();
        all.extend(bare.map(|bare| MeasuredSubject {
            name: RAW_AT_ONCE.to_owned(),
            role: Role::RawAtOnce,
            version: "the same, many at once and in no order: no bound".to_owned(),
            ..bare
        }));
        MeasuredSubjects(all)
    }

    /// Describes the subjects of a run with VFs or with whole pods.
    pub(crate) fn of_others(subjects: &[Subject]) -> MeasuredSubjects {
        MeasuredSubjects(subjects.iter().map(MeasuredSubject::of).collect())
    }

    /// The names of the subjects in a role.
    pub(crate) fn names_of(&self, role: Role) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |one| one.role == role).map(|one| one.name.as_str())
    }

    /// The name of the only subject in a role.
    pub(crate) fn name_of(&self, role: Role) -> Option<&str> {
        self.names_of(role).next()
    }

    #[cfg(test)]
    pub(crate) fn of(named: &[(&str, Role)]) -> MeasuredSubjects {
        let subject = |(name, role): &(&str, Role)| MeasuredSubject {
            name: (*name).to_owned(),
            role: *role,
            path: String::new(),
            version: String::new(),
        };
        MeasuredSubjects(named.iter().map(subject).collect())
    }
}
