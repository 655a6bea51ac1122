//! The grammar of the names that a call carries (CNI SPEC.md, "Parameters"; libcni `pkg/utils`).
//!
//! A name that was accepted here can be part of a file name: none of them can hold a `/`, and none is `.` or `..`.

use crate::error::{CniError, Code};

/// The length of the longest interface name, in bytes (`IFNAMSIZ` less its terminator).
pub const MAX_IFNAME: usize = 15;

/// How many characters of a refused value its error repeats.
const SHOWN: usize = 64;

/// Checks `CNI_CONTAINERID`.
///
/// # Errors
/// Code 4, with the rule.
pub fn container_id(id: &str) -> Result<(), CniError> {
    if id.is_empty() {
        return Err(CniError::new(Code::BadEnvironment, "CNI_CONTAINERID is empty")
            .with("the runtime must set it to the container's id"));
    }
    word(id).map_err(|why| {
        CniError::new(Code::BadEnvironment, format!("CNI_CONTAINERID {} {why}", shown(id))).with(WORD_RULE)
    })
}

/// Checks `CNI_IFNAME`.
///
/// # Errors
/// Code 4, with the rule.
pub fn ifname(name: &str) -> Result<(), CniError> {
    interface(name).map_err(|why| {
        CniError::new(Code::BadEnvironment, format!("CNI_IFNAME {} {why}", shown(name))).with(IFNAME_RULE)
    })
}

/// Checks what else the `CNI_IFNAME` of an ADD must not hold, beside [`ifname`]. A DEL with it succeeds: the ADD has failed.
///
/// # Errors
/// Code 4, with the remedy.
pub fn ifname_of_add(name: &str) -> Result<(), CniError> {
    if !name.contains('%') {
        return Ok(());
    }
    let msg = format!("CNI_IFNAME {} holds '%'", shown(name));
    Err(CniError::new(Code::BadEnvironment, msg)
        .with("name the interface without '%', in whose place the kernel puts a number of its own choice"))
}

/// What is wrong with the name of an interface, wherever it was written; [`IFNAME_RULE`] says what would be right.
///
/// # Errors
/// The words that follow the name in an error, as in "is empty".
pub fn interface(name: &str) -> Result<(), String> {
    if name.is_empty() {
        Err("is empty".to_owned())
    } else if name.len() > MAX_IFNAME {
        Err(format!("is {} bytes long", name.len()))
    } else if name == "." || name == ".." {
        Err("is the name of a directory".to_owned())
    } else if let Some(bad) = name.chars().find(|c| matches!(c, '/' | ':' | '\0') || c.is_whitespace()) {
        Err(format!("holds {bad:?}"))
    } else {
        Ok(())
    }
}

/// How the name of an interface must be.
pub const IFNAME_RULE: &str =
    "an interface name has 1 to 15 bytes without '/', ':' and whitespace, and is not \".\" or \"..\"";

/// Checks a network's `name`.
///
/// # Errors
/// Code 7, with the rule.
pub fn network_name(name: &str) -> Result<(), CniError> {
    if name.is_empty() {
        return Err(CniError::new(Code::InvalidConfig, "the network configuration has no \"name\"")
            .with("give the network a name, which is the same on every node"));
    }
    word(name).map_err(|why| {
        CniError::new(Code::InvalidConfig, format!("the network's name {} {why}", shown(name)))
            .with(WORD_RULE)
    })
}

/// Checks a plugin's `type`: the bare name of a file in `CNI_PATH`, never a path.
///
/// # Errors
/// Code 7, with the rule.
pub fn plugin_type(kind: &str) -> Result<(), CniError> {
    let why = if kind.is_empty() {
        "is empty"
    } else if kind == "." || kind == ".." {
        "is the name of a directory"
    } else if kind.contains('/') {
        "holds a '/'"
    } else if kind.chars().any(char::is_control) {
        "holds a control character"
    } else if kind.len() > 255 {
        "is longer than a file name can be"
    } else {
        return Ok(());
    };
    Err(CniError::new(Code::InvalidConfig, format!("the plugin's \"type\" {} {why}", shown(kind)))
        .with("\"type\" is the bare file name of a plugin in CNI_PATH, as in \"macvlan\""))
}

const WORD_RULE: &str =
    "it must begin with a letter or digit and go on with letters, digits, '_', '.' and '-'";

/// Checks a text against the specification's `^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`, and says what is wrong with it.
fn word(text: &str) -> Result<(), String> {
    match text.chars().next() {
        Some(first) if first.is_ascii_alphanumeric() => {}
        Some(first) => return Err(format!("begins with {first:?}")),
        None => return Err("is empty".to_owned()),
    }
    match text.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.' | '-')) {
        Some(bad) => Err(format!("holds {bad:?}")),
        None => Ok(()),
    }
}

/// The value as an error repeats it: quoted, escaped and cut off.
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{:?}…", &text[..at]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_specifications_grammar_are_taken() {
        for good in ["a", "0", "A-b_c.d", "x--", "1..2"] {
            assert_eq!(container_id(good), Ok(()), "{good}");
            assert_eq!(network_name(good), Ok(()), "{good}");
        }
        for good in ["eth0", "a", "net1.100", "ab_-.é", "123456789012345"] {
            assert_eq!(ifname(good), Ok(()), "{good}");
        }
        for good in ["macvlan", "host-device", "my plugin.sh"] {
            assert_eq!(plugin_type(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn other_container_ids_and_interface_names_are_bad_environment() {
        for bad in ["", "-a", ".a", "_a", "a/b", "a b", "é", "a\n", "a\0"] {
            assert_eq!(container_id(bad).unwrap_err().code, Code::BadEnvironment, "{bad:?}");
        }
        for bad in
            ["", ".", "..", "a/b", "a:b", "a b", "a\u{2003}b", "a\tb", "a\0", "1234567890123456", "éééééééé"]
        {
            assert_eq!(ifname(bad).unwrap_err().code, Code::BadEnvironment, "{bad:?}");
        }
    }

    #[test]
    fn a_name_that_the_kernel_would_complete_is_bad_environment_for_an_add_alone() {
        for name in ["net%d", "%", "a%s"] {
            assert_eq!(ifname(name), Ok(()), "{name}");
            assert_eq!(ifname_of_add(name).unwrap_err().code, Code::BadEnvironment, "{name}");
        }
        assert_eq!(ifname_of_add("net1.100"), Ok(()));
    }

    #[test]
    fn other_network_names_and_plugin_types_are_invalid_configuration() {
        for bad in ["", "-a", "a/b", "..", "a b"] {
            assert_eq!(network_name(bad).unwrap_err().code, Code::InvalidConfig, "{bad:?}");
        }
        for bad in ["", ".", "..", "../x", "/bin/sh", "a\0b", "a\nb"] {
            assert_eq!(plugin_type(bad).unwrap_err().code, Code::InvalidConfig, "{bad:?}");
        }
    }

    #[test]
    fn an_error_shows_the_value_cut_and_the_rule() {
        let error = container_id(&"é".repeat(5000)).unwrap_err();
        assert!(
            error.msg.starts_with("CNI_CONTAINERID \"ééé") && error.msg.ends_with("begins with 'é'"),
            "{}",
            error.msg
        );
        assert!(error.msg.len() < 250);
        assert!(error.details.contains("letters, digits"));
    }
}
