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
