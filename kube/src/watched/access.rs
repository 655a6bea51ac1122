//! What the API server lets this node do, asked once: for a person who looks why something does not work.
//!
//! Nothing is changed: the rights are asked for by SelfSubjectAccessReview, which every account may make.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::DATE;
use http::{Request, Response};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::ApiServer;
use super::client::{connect, reason};

/// Something that an account may or may not do with a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// The group of the API; empty for the core's.
    pub group: &'static str,
    /// The resource, with its subresource: `pods/status`.
    pub resource: &'static str,
    /// What is done with it: `list`.
    pub verb: &'static str,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Right { group, resource, verb } = self;
        match group.is_empty() {
            true => write!(f, "{verb} {resource}"),
            false => write!(f, "{verb} {resource}.{group}"),
        }
    }
}

/// What an API server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Rights of those that were asked about that the account does not have.
    pub lacking: Vec<Right>,
    /// Whether it serves NetworkAttachmentDefinitions.
    pub serves_definitions: bool,
    /// By how many seconds our clock is ahead of its; negative where ours is behind. `None`: it tells no time.
    pub ahead: Option<i64>,
}

/// Asks an API server about all of it.
///
/// # Errors
/// There is no way to it, it refuses the account, or it has not answered after `limit`; the text says which.
pub fn examine_access(api: &ApiServer, rights: &[Right], limit: Duration) -> Result<Access, String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let examined = timeout(limit, examine(api, rights)).await;
        examined.unwrap_or_else(|_| Err(format!("it has not answered after {} s", limit.as_secs())))
    })
}

async fn examine(api: &ApiServer, rights: &[Right]) -> Result<Access, String> {
    let client = connect(api, &Arc::default()).await?;
    let answer = get(&client, "/version").await?;
    let ahead = ahead_of(&answer);
    // Told apart from the rights: an account that is nobody's has none, and that is not what is wrong.
    if !answer.status().is_success() {
        return Err(format!("it answers {} to the question for its version", answer.status()));
    }
    let served = get(&client, "/apis/k8s.cni.cncf.io/v1").await?;
    let mut lacking = Vec::new();
    for right in rights {
        if !may(&client, right).await? {
            lacking.push(*right);
        }
    }
    Ok(Access { lacking, serves_definitions: served.status().is_success(), ahead })
}

async fn get(client: &Client, path: &str) -> Result<Response<Body>, String> {
    let request = Request::get(path).body(Body::empty()).map_err(|e| e.to_string())?;
    client.send(request).await.map_err(|e| reason(&e))
}

/// The header has whole seconds.
fn ahead_of(answer: &Response<Body>) -> Option<i64> {
    let date = answer.headers().get(DATE)?.to_str().ok()?;
    let theirs = DateTimeParser::new().parse_timestamp(date).ok()?;
    Some(Timestamp::now().as_second() - theirs.as_second())
}

async fn may(client: &Client, right: &Right) -> Result<bool, String> {
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((right.resource, ""));
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let attributes = ResourceAttributes {
        group: text(right.group),
        resource: text(resource),
        subresource: text(subresource),
        verb: text(right.verb),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let asked = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &asked).await.map_err(|e| reason(&e))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
