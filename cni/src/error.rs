//! CNI error objects and the one table of their codes.

use serde::{Deserialize, Serialize};

use crate::containerd_phrases::avoid_containerd_phrases;
use crate::version::CniVersion;

/// The specification's error codes (CNI SPEC.md, "Error"), libcni's own, and ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// 1: the configuration's version is not supported.
    IncompatibleVersion,
    /// 2: a field of the configuration is not supported; the message names key and value.
    UnsupportedField,
    /// 3: the container is unknown or gone.
    UnknownContainer,
    /// 4: an environment variable is missing or invalid.
    BadEnvironment,
    /// 5: an input or output operation failed.
    Io,
    /// 6: content that can't be decoded.
    Decode,
    /// 7: the network configuration is invalid.
    InvalidConfig,
    /// 8: the network namespace is invalid (libcni).
    InvalidNetns,
    /// 11: the caller should try again later.
    TryAgain,
    /// 50: the plugin is not available (STATUS).
    NotAvailable,
    /// 51: not available, and existing containers may have limited connectivity (STATUS).
    LimitedConnectivity,
    /// 100, ours: the container has this attachment, or the pod this interface, already.
    AlreadyThere,
    /// 101, ours: CHECK found that something is not as ADD left it.
    Changed,
    /// 102, ours: an executed plugin failed without a code of the specification.
    PluginFailed,
    /// 999: anything else (libcni's internal error).
    Internal,
    /// A code of another plugin, which is passed on.
    Other(u32),
}

impl Code {
    /// The number that stands in the error object.
    pub fn number(self) -> u32 {
        match self {
            Code::IncompatibleVersion => 1,
            Code::UnsupportedField => 2,
            Code::UnknownContainer => 3,
            Code::BadEnvironment => 4,
            Code::Io => 5,
            Code::Decode => 6,
            Code::InvalidConfig => 7,
            Code::InvalidNetns => 8,
            Code::TryAgain => 11,
            Code::NotAvailable => 50,
            Code::LimitedConnectivity => 51,
            Code::AlreadyThere => 100,
            Code::Changed => 101,
            Code::PluginFailed => 102,
            Code::Internal => 999,
            Code::Other(n) => n,
        }
    }

    /// The code with this number.
    pub fn from_number(number: u32) -> Code {
        match number {
            1 => Code::IncompatibleVersion,
            2 => Code::UnsupportedField,
            3 => Code::UnknownContainer,
            4 => Code::BadEnvironment,
            5 => Code::Io,
            6 => Code::Decode,
            7 => Code::InvalidConfig,
            8 => Code::InvalidNetns,
            11 => Code::TryAgain,
            50 => Code::NotAvailable,
            51 => Code::LimitedConnectivity,
            100 => Code::AlreadyThere,
            101 => Code::Changed,
            102 => Code::PluginFailed,
            999 => Code::Internal,
            n => Code::Other(n),
        }
    }
}

/// A CNI error, as the caller reads it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}{}", if details.is_empty() { String::new() } else { format!(": {details}") })]
pub struct CniError {
    /// The code of the error.
    pub code: Code,
    /// What failed and why, in one sentence.
    pub msg: String,
    /// The remedy, or the chain of causes.
    pub details: String,
}

#[derive(Serialize, Deserialize)]
struct Body<'a> {
    #[serde(rename = "cniVersion", default)]
    version: std::borrow::Cow<'a, str>,
    code: u32,
    msg: std::borrow::Cow<'a, str>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    details: std::borrow::Cow<'a, str>,
}

impl CniError {
    /// An error without details.
    pub fn new(code: Code, msg: impl Into<String>) -> CniError {
        CniError { code, msg: msg.into(), details: String::new() }
    }

    /// Sets the details.
    #[must_use]
    pub fn with(mut self, details: impl Into<String>) -> CniError {
        self.details = details.into();
        self
    }

    /// The same, as the error of a DEL: [without the phrases](avoid_containerd_phrases) that containerd takes for success, whoever wrote
    /// them: they may stand in the name of a network.
    pub fn of_del(&self) -> CniError {
        let (msg, details) = (avoid_containerd_phrases(&self.msg), avoid_containerd_phrases(&self.details));
        CniError { code: self.code, msg, details }
    }

    /// The same, told of this network: its name comes first, once.
    #[must_use]
    pub fn of_network(self, network: &str) -> CniError {
        if self.said_of_network(network).is_some() {
            return self;
        }
        CniError { msg: format!("network {network:?}: {}", self.msg), ..self }
    }

    /// The same, told of this interface in this network: both names come first, unless it says both by itself.
    #[must_use]
    pub fn of_interface(self, network: &str, ifname: &str) -> CniError {
        let both = format!("network {network:?}, interface {ifname:?}: ");
        let said = self.said_of_network(network);
        if self.msg.starts_with(&both) || said.is_some_and(|said| said.contains(&format!("{ifname:?}"))) {
            return self;
        }
        CniError { msg: both + said.unwrap_or(&self.msg), ..self }
    }

    /// What the message says of this network, behind its name. `None`: it does not begin with that name.
    fn said_of_network(&self, network: &str) -> Option<&str> {
        self.msg.strip_prefix(&format!("network {network:?}: "))
    }

    /// What went wrong while one thing was done after the other, past errors: one error with the code of the first, as an error object
    /// has one code only. All messages come one after the other, as the specification wants it of GC, and so do all details.
    ///
    /// # Errors
    /// That error; none where there was none.
    pub fn all(errors: impl IntoIterator<Item = CniError>) -> Result<(), CniError> {
        let joined = errors.into_iter().reduce(|mut all, next| {
            for (text, more) in [(&mut all.msg, next.msg), (&mut all.details, next.details)] {
                if !text.is_empty() && !more.is_empty() {
                    text.push_str("; ");
                }
                text.push_str(&more);
            }
            all
        });
        joined.map_or(Ok(()), Err)
    }

    /// The error object of the specification, in the configuration's own version.
    pub fn to_json(&self, version: CniVersion) -> String {
        let body = Body {
            version: version.as_str().into(),
            code: self.code.number(),
            msg: self.msg.as_str().into(),
            details: self.details.as_str().into(),
        };
        // Three strings and a number always serialise.
        serde_json::to_string(&body).unwrap_or_default()
    }

    /// Reads an error object of the daemon or of another plugin; `None` when the text is no such object.
    pub fn from_json(text: &str) -> Option<CniError> {
        let body: Body<'_> = serde_json::from_str(text).ok()?;
        Some(CniError {
            code: Code::from_number(body.code),
            msg: body.msg.into_owned(),
            details: body.details.into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(msg: &str) -> CniError {
        CniError::new(Code::Io, msg).with("a remedy")
    }

    #[test]
    fn the_name_of_the_network_comes_first_and_once() {
        let told = error("it is full").of_network("net").of_network("net");
        assert_eq!(told, error("network \"net\": it is full"));
        assert_eq!(told.of_network("other").msg, "network \"other\": network \"net\": it is full");
    }

    #[test]
    fn the_name_of_the_interface_follows_that_of_the_network_where_the_error_does_not_say_it() {
        let told = "network \"net\", interface \"net1\": it is full";
        for msg in ["it is full", "network \"net\": it is full"] {
            assert_eq!(error(msg).of_interface("net", "net1"), error(told), "{msg}");
        }
        let own = error("network \"net\": \"net1\" is gone");
        assert_eq!(own.clone().of_interface("net", "net1"), own);
    }

    #[test]
    fn several_errors_are_one_with_the_code_of_the_first_and_the_words_of_all() {
        assert_eq!(CniError::all([]), Ok(()));
        assert_eq!(CniError::all([error("a")]), Err(error("a")));
        let bare = CniError::new(Code::Decode, "b");
        let joined = CniError::all([bare, error("c"), error("d")]).unwrap_err();
        assert_eq!((joined.code, joined.msg.as_str()), (Code::Decode, "b; c; d"));
        assert_eq!(joined.details, "a remedy; a remedy");
    }
}
