//! Everything about one pod or one container: what it asks for, what is attached, with its answer and its timing, which calls
//! failed, and what the runtime's GC has removed.

use fairlead_kube::PodRef;
use serde_json::{Value, json};

use super::{Engine, operator_views};
use crate::store::Attachment;

/// So many characters of a container's id name it, as other tools print them.
const SHORTEST_ID: usize = 8;

/// Whom the operator means: `namespace/name`, the name alone, or a container's id or its beginning.
struct Meant<'a> {
    named: &'a str,
}

impl Meant<'_> {
    fn is(&self, pod: Option<&PodRef>, container: &str) -> bool {
        let is_pod = pod.is_some_and(|pod| match self.named.split_once('/') {
            Some((namespace, name)) => pod.namespace == namespace && pod.name == name,
            None => pod.name == self.named || pod.uid.as_deref() == Some(self.named),
        });
        is_pod
            || container == self.named
            || (self.named.len() >= SHORTEST_ID && container.starts_with(self.named))
    }
}

/// What is known of a pod or container. Where nothing is attached, no call has failed and no GC has removed anything, `why` says why.
pub(super) fn describe(engine: &Engine, named: &str) -> Value {
    let meant = Meant { named };
    let (attachments, rows): (Vec<_>, Vec<_>) =
        operator_views::attachments(engine, |a| meant.is(a.pod.as_ref(), &a.key.container))
            .into_iter()
            .unzip();
    let failures = engine.recent.failures(|pod, container| meant.is(pod, container));
    let asked = engine.asked_and_got(&|pod| meant.is(Some(pod), ""), &attachments, &failures);
    let collected = engine.core.collected.rows(|pod, container| meant.is(pod, container));
    let nothing = attachments.is_empty() && failures.is_empty() && collected.is_empty();
    let why = nothing.then(|| engine.why_nothing(named, !asked.is_empty()));
    let rows = attachments.iter().zip(rows).map(|(attachment, row)| described(engine, attachment, row));
    json!({
        "described": named,
        "why": why,
        "asked": asked,
        "attachments": rows.collect::<Vec<_>>(),
        "failures": failures,
        "collected": collected,
    })
}

fn described(engine: &Engine, attachment: &Attachment, mut row: Value) -> Value {
    if let Value::Object(fields) = &mut row {
        let result = attachment.answer.as_deref().and_then(|answer| serde_json::from_str(answer).ok());
        fields.insert("result".to_owned(), result.unwrap_or(Value::Null));
        fields.insert("phases".to_owned(), engine.recent.timing(attachment.id));
        fields.insert("answered".to_owned(), attachment.answered.into());
    }
    row
}
