//! Whether whoever shows a token may read something of ours: TokenReview says whose the token is, SubjectAccessReview what that
//! account may do. This is what kube-rbac-proxy asks, and every metrics endpoint of Kubernetes' own.
//!
//! Nothing is remembered here, and an API server that does not answer is an error, never a no.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};

use super::ApiServer;
use super::client::{Connection, reason};

/// What the API server says of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Its account may.
    Allowed,
    /// Its account may not.
    Forbidden {
        /// The name of the account.
        user: String,
    },
    /// It is nobody's token, or has expired.
    Unknown,
}

/// Asks the API server about tokens.
#[derive(Clone)]
pub struct TokenReviewer(Arc<Connection>);

impl fmt::Debug for TokenReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenReviewer")
    }
}

impl TokenReviewer {
    /// A reviewer by way of an API server, which is not asked yet.
    ///
    /// # Errors
    /// The service account's files or the kubeconfig cannot be read or used; the text says which.
    pub async fn connect(api: &ApiServer) -> Result<TokenReviewer, String> {
        let connection = Connection::open(api, &Arc::default()).await?;
        Ok(TokenReviewer(Arc::new(connection)))
    }

    /// Whether the account of this token may GET this path (`nonResourceURLs` of a ClusterRole).
    ///
    /// # Errors
    /// The API server did not answer, or refuses to tell; the text says why.
    pub async fn may_get(&self, token: &str, path: &str) -> Result<Verdict, String> {
        let Some(user) = self.account(token).await? else { return Ok(Verdict::Unknown) };
        let name = user.username.clone().unwrap_or_default();
        let asked = SubjectAccessReview { spec: access(user, path), ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(self.0.current().await);
        let answer = reviews.create(&PostParams::default(), &asked).await;
        let answer = answer.map_err(|e| format!("a SubjectAccessReview was refused: {}", reason(&e)))?;
        match answer.status.is_some_and(|status| status.allowed && status.denied != Some(true)) {
            true => Ok(Verdict::Allowed),
            false => Ok(Verdict::Forbidden { user: name }),
        }
    }

    async fn account(&self, token: &str) -> Result<Option<UserInfo>, String> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let reviews: Api<TokenReview> = Api::all(self.0.current().await);
        let asked = TokenReview { spec, ..TokenReview::default() };
        let answer = reviews.create(&PostParams::default(), &asked).await;
        let answer = answer.map_err(|e| format!("a TokenReview was refused: {}", reason(&e)))?;
        let status = answer.status.unwrap_or_default();
        Ok(status.user.filter(|_| status.authenticated == Some(true)))
    }
}

fn access(user: UserInfo, path: &str) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra.map(|extra| extra.into_iter().collect::<BTreeMap<_, _>>()),
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some("get".to_owned()),
        }),
        ..SubjectAccessReviewSpec::default()
    }
}
