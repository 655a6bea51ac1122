//! Who may read: whoever shows a token whose account may GET `/metrics` in the cluster.
//!
//! The API server's word counts for a while ([`ALLOWED_FOR`], [`REFUSED_FOR`]). It is asked for one token after the other, at most ten
//! times a second, so that made-up tokens cost it nothing that matters. One that does not answer is no yes.

use std::collections::HashMap;
use std::time::Duration;

use fairlead_kube::{ApiServer, TokenReviewer, Verdict};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use super::PATH;

/// So long a yes counts; a right that is taken away ends then.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
/// So long a no counts; a right that is given counts from then.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// The number of tokens of which the answer is remembered.
const REMEMBERED: usize = 64;
/// The time between two questions.
const BETWEEN: Duration = Duration::from_millis(100);
/// The time that one question may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Whoever knows what a token's account may do.
pub(super) trait Reviewer: Send + Sync {
    /// Whether the account of this token may read the metrics; an error says why that is not known.
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Verdict, String>>;
}

/// The API server, to which there is a way from the first question on.
pub(super) struct ByApiServer {
    api: Option<ApiServer>,
    client: tokio::sync::Mutex<Option<TokenReviewer>>,
}

impl ByApiServer {
    /// `api`: none where the node is in no cluster.
    pub(super) fn new(api: Option<ApiServer>) -> ByApiServer {
        ByApiServer { api, client: tokio::sync::Mutex::default() }
    }
}

impl Reviewer for ByApiServer {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Verdict, String>> {
        Box::pin(async move {
            let Some(api) = &self.api else {
                return Err(
                    "there is no cluster to ask: set `kubeconfig`, or take `tokenReview` away".to_owned()
                );
            };
            let mut client = self.client.lock().await;
            let reviewer = match &*client {
                Some(reviewer) => reviewer.clone(),
                None => client.insert(TokenReviewer::connect(api).await?).clone(),
            };
            drop(client);
            reviewer.may_get(token, PATH).await
        })
    }
}

/// The answers that count, and the one question that may be under way.
pub(super) struct Authorization {
    reviewer: Box<dyn Reviewer>,
    known: Mutex<HashMap<String, (Verdict, Instant)>>,
    /// When the next question may be asked.
    turn: tokio::sync::Mutex<Instant>,
}

impl Authorization {
    pub(super) fn new(reviewer: Box<dyn Reviewer>) -> Authorization {
        let turn = tokio::sync::Mutex::new(Instant::now());
        Authorization { reviewer, known: Mutex::default(), turn }
    }

    /// Whether whoever shows this token may read.
    ///
    /// # Errors
    /// Why that is not known.
    pub(super) async fn verdict(&self, token: &str) -> Result<Verdict, String> {
        if let Some(verdict) = self.known(token) {
            return Ok(verdict);
        }
        let mut next = self.turn.lock().await;
        // Somebody else may have asked the same meanwhile.
        if let Some(verdict) = self.known(token) {
            return Ok(verdict);
        }
        sleep_until(*next).await;
        let answer = timeout(ANSWERED_WITHIN, self.reviewer.review(token)).await;
        *next = Instant::now() + BETWEEN;
        let verdict = answer.map_err(|_| "the API server does not answer".to_owned())??;
        self.remember(token, verdict.clone());
        Ok(verdict)
    }

    fn known(&self, token: &str) -> Option<Verdict> {
        let known = self.known.lock();
        let (verdict, until) = known.get(token)?;
        (Instant::now() < *until).then(|| verdict.clone())
    }

    fn remember(&self, token: &str, verdict: Verdict) {
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED {
            let now = Instant::now();
            known.retain(|_, (_, until)| now < *until);
        }
        if known.len() >= REMEMBERED {
            // Refusals end sooner, so a flood of made-up tokens drives out its own.
            let ends_first =
                known.iter().min_by_key(|(_, (_, until))| *until).map(|(token, _)| token.clone());
            ends_first.map(|token| known.remove(&token));
        }
        let lasts = if verdict == Verdict::Allowed { ALLOWED_FOR } else { REFUSED_FOR };
        known.insert(token.to_owned(), (verdict, Instant::now() + lasts));
    }
}
