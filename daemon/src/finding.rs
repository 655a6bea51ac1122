//! What an examination of a node or of files found: one thing each, and what a person should do about it.

use serde::Serialize;

/// Whether a thing is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is as it should be.
    Good,
    /// It works, with less than could be.
    Less,
    /// It does not work.
    Wrong,
}

/// One thing that was examined, and the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the thing, the same for all findings about it.
    pub about: &'static str,
    /// Whether it is as it should be.
    pub verdict: Verdict,
    /// What was found, for a person.
    pub seen: String,
    /// What a person should do about it; empty where nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

pub(crate) fn good(about: &'static str, seen: impl Into<String>) -> Finding {
    Finding { about, verdict: Verdict::Good, seen: seen.into(), remedy: String::new() }
}

pub(crate) fn less(about: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { about, verdict: Verdict::Less, seen: seen.into(), remedy: remedy.into() }
}

pub(crate) fn wrong(about: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { about, verdict: Verdict::Wrong, seen: seen.into(), remedy: remedy.into() }
}

/// Formats findings for a person: what is wrong comes with its remedy.
pub fn report(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.about.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { about, verdict, seen, remedy } in findings {
        let mark = match verdict {
            Verdict::Good => "ok   ",
            Verdict::Less => "less ",
            Verdict::Wrong => "WRONG",
        };
        text.push_str(&format!("{mark}  {about:width$}  {seen}\n"));
        if !remedy.is_empty() {
            text.push_str(&format!("{:pad$}→ {remedy}\n", "", pad = width + 9));
        }
    }
    text
}
