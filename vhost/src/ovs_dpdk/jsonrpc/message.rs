//! What a JSON-RPC 1.0 message is (RFC 7047, section 4): a request, a notification, or the reply to a request.

use serde_json::{Value, json};

/// A message as it came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Message {
    /// To be answered with the same id.
    Request {
        /// Chosen by whoever asks; of any type.
        id: Value,
        /// What is asked for.
        method: String,
        /// Its arguments.
        params: Value,
    },
    /// Told, and not to be answered.
    Notification {
        /// What it is about.
        method: String,
        /// What is told.
        params: Value,
    },
    /// The answer to a request.
    Reply {
        /// The request's id.
        id: Value,
        /// The result, or the error that is not `null`.
        outcome: Result<Value, Value>,
    },
}

/// A JSON object that is no JSON-RPC message.
#[derive(Debug, thiserror::Error)]
#[error("an object with neither a method nor an id is no JSON-RPC message")]
pub(crate) struct NoMessage;

impl Message {
    /// Reads an object.
    ///
    /// # Errors
    /// Where it has neither a method nor an id.
    pub(crate) fn read(mut object: Value) -> Result<Message, NoMessage> {
        let mut field = |name: &str| object.get_mut(name).map(Value::take).unwrap_or_default();
        match (field("method"), field("id")) {
            (Value::String(method), Value::Null) => {
                Ok(Message::Notification { method, params: field("params") })
            }
            (Value::String(method), id) => Ok(Message::Request { id, method, params: field("params") }),
            (_, Value::Null) => Err(NoMessage),
            (_, id) => {
                let error = field("error");
                let outcome = if error.is_null() { Ok(field("result")) } else { Err(error) };
                Ok(Message::Reply { id, outcome })
            }
        }
    }
}

/// The text of a request.
pub(crate) fn request(id: u64, method: &str, params: &Value) -> String {
    json!({ "id": id, "method": method, "params": params }).to_string()
}

/// The text of a good reply.
pub(crate) fn reply(id: &Value, result: &Value) -> String {
    json!({ "id": id, "result": result, "error": null }).to_string()
}

/// The text of a reply that refuses.
pub(crate) fn refusal(id: &Value, error: &str) -> String {
    json!({ "id": id, "result": null, "error": error }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_told_by_its_method_and_id() {
        let read = |value| Message::read(value).unwrap();
        let text = |text: &str| text.to_owned();
        assert_eq!(
            read(json!({"method": "echo", "params": [], "id": "echo"})),
            Message::Request { id: json!("echo"), method: text("echo"), params: json!([]) }
        );
        assert_eq!(
            read(json!({"method": "update2", "params": [1], "id": null})),
            Message::Notification { method: text("update2"), params: json!([1]) }
        );
        assert_eq!(
            read(json!({"id": 3, "result": {}, "error": null})),
            Message::Reply { id: json!(3), outcome: Ok(json!({})) }
        );
        assert_eq!(
            read(json!({"id": 3, "result": null, "error": "unknown method"})),
            Message::Reply { id: json!(3), outcome: Err(json!("unknown method")) }
        );
        assert!(Message::read(json!({"params": 3})).is_err());
    }
}
