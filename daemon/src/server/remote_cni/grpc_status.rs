//! How a CNI error becomes a status of gRPC: a code that says what the caller can do, the sentence, and the whole error object in
//! the details (`google.rpc.Status`, as every tool of gRPC reads them).

use fairlead_cni::{CniError, Code as CniCode};
use fairlead_proto::v1;
use prost::Message;
use tonic::{Code, Status};

/// The name of [`v1::CniError`] in the details of a status.
pub(crate) const CNI_ERROR: &str = "type.googleapis.com/fairlead.v1.CniError";

/// The longest sentence, in bytes: a status goes in headers, and callers take no more than 16 KiB of them.
const LONGEST: usize = 1 << 10;

/// The status for an error of the engine.
pub(crate) fn of_error(error: &CniError) -> Status {
    with_code(code_of(error.code), error)
}

/// The status for an error that the server itself has found.
pub(crate) fn with_code(code: Code, error: &CniError) -> Status {
    let message = cut(&error.to_string());
    let object =
        v1::CniError { code: error.code.number(), msg: cut(&error.msg), details: cut(&error.details) };
    let object = prost_types::Any { type_url: CNI_ERROR.to_owned(), value: object.encode_to_vec() };
    let details =
        tonic_types::pb::Status { code: code.into(), message: message.clone(), details: vec![object] };
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// What the caller can do about it: repeat the call (unavailable), mend the call (invalid argument), mend the node or the cluster
/// (failed precondition).
fn code_of(code: CniCode) -> Code {
    match code {
        CniCode::BadEnvironment | CniCode::Decode | CniCode::InvalidNetns => Code::InvalidArgument,
        CniCode::IncompatibleVersion
        | CniCode::UnsupportedField
        | CniCode::InvalidConfig
        | CniCode::Changed => Code::FailedPrecondition,
        CniCode::UnknownContainer => Code::NotFound,
        CniCode::TryAgain | CniCode::NotAvailable | CniCode::LimitedConnectivity => Code::Unavailable,
        CniCode::AlreadyThere => Code::AlreadyExists,
        CniCode::Io | CniCode::Internal => Code::Internal,
        CniCode::PluginFailed | CniCode::Other(_) => Code::Unknown,
    }
}

/// The beginning of a text that is too long.
fn cut(text: &str) -> String {
    match text.len() <= LONGEST {
        true => text.to_owned(),
        false => format!("{}…", text.get(..text.floor_char_boundary(LONGEST)).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k04_every_code_of_cni_has_one_of_grpc_and_the_whole_error_is_in_the_details() {
        let table = [
            (1, Code::FailedPrecondition),
            (2, Code::FailedPrecondition),
            (3, Code::NotFound),
            (4, Code::InvalidArgument),
            (5, Code::Internal),
            (6, Code::InvalidArgument),
            (7, Code::FailedPrecondition),
            (8, Code::InvalidArgument),
            (11, Code::Unavailable),
            (50, Code::Unavailable),
            (51, Code::Unavailable),
            (100, Code::AlreadyExists),
            (101, Code::FailedPrecondition),
            (102, Code::Unknown),
            (123, Code::Unknown),
            (999, Code::Internal),
        ];
        for (number, code) in table {
            let error = CniError::new(CniCode::from_number(number), "what failed").with("the remedy");
            let status = of_error(&error);
            assert_eq!((status.code(), status.message()), (code, "what failed: the remedy"));
            let details = tonic_types::pb::Status::decode(status.details()).unwrap();
            assert_eq!((details.code, &*details.message), (code.into(), status.message()));
            assert_eq!(details.details[0].type_url, CNI_ERROR);
            let object = v1::CniError::decode(&*details.details[0].value).unwrap();
            assert_eq!((object.code, &*object.msg, &*object.details), (number, "what failed", "the remedy"));
        }
    }

    #[test]
    fn x14_a_sentence_without_end_leaves_room_for_the_rest_of_the_headers() {
        let endless = "ä".repeat(1 << 20);
        let status = of_error(&CniError::new(CniCode::PluginFailed, format!("x{endless}")).with(endless));
        assert!(status.message().ends_with("ä…"), "{}", status.message().len());
        // Percent-encoding takes three times as much, base64 a third more.
        assert!(status.message().len() * 3 + status.details().len() * 4 / 3 < 12 << 10);
    }
}
