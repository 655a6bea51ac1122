//! Whether a token may read: what is asked of the API server, and what its answers mean.

use super::*;
use crate::{TokenReviewer, Verdict};

fn asked(rig: &Rig, token: &str) -> Result<Verdict, String> {
    let api = ApiServer::Kubeconfig(rig.api.kubeconfig(rig.dir.path()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { TokenReviewer::connect(&api).await?.may_get(token, "/metrics").await })
}

#[test]
fn a_token_may_read_metrics_only_if_it_is_somebodys_and_that_account_has_the_right() {
    let rig = Rig::new();
    rig.api.with(|state| {
        state.tokens = [("good", "prometheus"), ("other", "somebody")].into();
        state.readers = [("prometheus", "/metrics"), ("somebody", "/healthz")].into();
    });
    assert_eq!(asked(&rig, "good"), Ok(Verdict::Allowed));
    assert_eq!(asked(&rig, "other"), Ok(Verdict::Forbidden { user: "somebody".into() }));
    assert_eq!(asked(&rig, "made up"), Ok(Verdict::Unknown));
    let access = rig.api.with(|state| state.reviews[1]["spec"].clone());
    let wanted = json!({
        "user": "prometheus", "groups": ["g"], "nonResourceAttributes": { "path": "/metrics", "verb": "get" }
    });
    assert_eq!(access, wanted, "the groups of the account count too");
}

#[test]
fn a_kubeconfig_that_was_renewed_is_read_again() {
    let rig = Rig::new();
    rig.api.with(|state| {
        state.takes = Some("renewed");
        state.tokens = [("good", "prometheus")].into();
        state.readers = [("prometheus", "/metrics")].into();
    });
    let api = ApiServer::Kubeconfig(rig.api.kubeconfig(rig.dir.path()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let reviewer = TokenReviewer::connect(&api).await.unwrap();
        let refused = reviewer.may_get("good", "/metrics").await.unwrap_err();
        assert!(refused.contains("401"), "{refused}");
        rig.api.kubeconfig_with(rig.dir.path(), "renewed");
        assert_eq!(reviewer.may_get("good", "/metrics").await, Ok(Verdict::Allowed));
    });
}

#[test]
fn an_api_server_that_refuses_or_is_down_is_an_error_and_no_verdict() {
    let mut rig = Rig::new();
    rig.api.with(|state| state.refuses = Some(403));
    let refused = asked(&rig, "good").unwrap_err();
    assert!(refused.starts_with("a TokenReview was refused: ") && refused.contains("403"), "{refused}");
    rig.api.down();
    assert!(asked(&rig, "good").is_err());
}
