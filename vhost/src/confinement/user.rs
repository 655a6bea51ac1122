//! A user and a group by number, as the command line names them.

use std::fmt;
use std::str::FromStr;

/// Who the process is to be. Numbers only: the switch reads no user database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// Its only group.
    pub gid: u32,
}

/// A text that names no user and group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no user and group; give two numbers below 4294967295, such as 65534:65534")]
pub struct BadUser(pub String);

impl FromStr for User {
    type Err = BadUser;

    fn from_str(text: &str) -> Result<User, BadUser> {
        let bad = || BadUser(text.to_owned());
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            // The highest number means "leave it as it is" to setresuid(2).
            digits.then(|| part.parse().ok()).flatten().filter(|number| *number != u32::MAX)
        };
        let (uid, gid) = text.split_once(':').ok_or_else(bad)?;
        Ok(User { uid: number(uid).ok_or_else(bad)?, gid: number(gid).ok_or_else(bad)? })
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_numbers_are_a_user_and_nothing_else_is() {
        assert_eq!("65534:100".parse(), Ok(User { uid: 65_534, gid: 100 }));
        for text in ["", "1", "1:", ":1", "nobody:nogroup", "+1:1", "1:-1", "4294967295:1", "1:4294967296"] {
            assert_eq!(text.parse::<User>(), Err(BadUser(text.into())));
        }
    }
}
