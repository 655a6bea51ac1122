//! The colour of each subject: the same in every drawing and every table of a page.

use plotters::prelude::RGBColor;

use crate::subject::Role;
use crate::subject_descriptions::MeasuredSubjects;

/// Ours, and ours with `del: wait`.
const OURS: RGBColor = RGBColor(0, 114, 178);
const OURS_WAITING: RGBColor = RGBColor(86, 180, 233);
/// What is no plugin.
const FLOOR: RGBColor = RGBColor(120, 120, 120);
/// References and peers in their order. With those above, colours that people who see colours differently can distinguish (Okabe
/// and Ito).
const OTHERS: [RGBColor; 4] =
    [RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167), RGBColor(230, 159, 0)];

/// The colour of a subject by its name; one that nobody described has the floor's.
pub(crate) fn of_subject(subjects: &MeasuredSubjects, name: &str) -> RGBColor {
    let role = subjects.0.iter().find(|subject| subject.name == name).map(|subject| subject.role);
    match role {
        Some(Role::Ours) => OURS,
        Some(Role::OursWaiting) => OURS_WAITING,
        Some(Role::Reference | Role::Peer) => {
            let is_other = |role: Role| matches!(role, Role::Reference | Role::Peer);
            let mut others = subjects.0.iter().filter(|subject| is_other(subject.role));
            let position = others.position(|subject| subject.name == name).unwrap_or(0);
            OTHERS.iter().cycle().nth(position).copied().unwrap_or(FLOOR)
        }
        Some(Role::Floor | Role::Bare | Role::RawAtOnce) | None => FLOOR,
    }
}

/// The colour as CSS has it.
pub(crate) fn css(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_have_colours_of_their_own_whoever_else_is_drawn() {
        let subjects = MeasuredSubjects::of(&[
            ("ours", Role::Ours),
            ("debian", Role::Reference),
            ("floor", Role::Floor),
            ("multus", Role::Peer),
            ("bare", Role::Bare),
            ("raw-at-once", Role::RawAtOnce),
        ]);
        let of = |name| css(of_subject(&subjects, name));
        assert_eq!(
            (of("ours"), of("debian"), of("multus")),
            ("#0072b2".into(), "#d55e00".into(), "#009e73".into())
        );
        assert_eq!([of("bare"), of("raw-at-once")], [of("floor"), of("floor")]);
    }
}
