//! An error and its causes, for a log or for whoever is answered.

use std::error::Error;

/// An error and all its causes, as one line.
pub fn sentence(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the port does not listen")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("there is no socket")]
    struct Inner(#[source] std::fmt::Error);

    #[test]
    fn an_error_is_followed_by_its_causes_down_to_the_first() {
        let first = std::fmt::Error;
        let told = sentence(&Outer(Inner(first)));
        assert_eq!(told, format!("the port does not listen: there is no socket: {first}"));
        assert_eq!(sentence(&first), first.to_string());
    }
}
