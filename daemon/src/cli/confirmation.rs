//! The question before what cannot be taken back.

use std::io::{self, BufRead, IsTerminal, Write};

/// Whether the operator wants it: `--yes` says so, else a terminal is asked. Without either it is not done, which is said.
pub(super) fn confirmed(question: &str, yes: bool) -> io::Result<bool> {
    if yes {
        return Ok(true);
    }
    let stdin = io::stdin();
    let mut stderr = io::stderr().lock();
    if !stdin.is_terminal() {
        writeln!(stderr, "nothing was done: {question} Nobody can be asked here; --yes says so")?;
        return Ok(false);
    }
    write!(stderr, "{question} [y/N] ")?;
    stderr.flush()?;
    is_yes(&mut stdin.lock())
}

fn is_yes(answers: &mut impl BufRead) -> io::Result<bool> {
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for (answer, wanted) in [("y\n", true), ("YES\n", true), ("\n", false), ("", false), ("yep\n", false)]
        {
            assert_eq!(is_yes(&mut answer.as_bytes()).unwrap(), wanted, "{answer:?}");
        }
    }
}
