//! Who may call, by certificate.

use devserver::{Code, KeyKind, PostStatus, Reason};
use proto::spire::api::server::agent::v1::PostStatusRequest;
use proto::spire::api::server::agent::v1::agent_client::AgentClient;

use crate::client::{Identity, attest_by_x509pop, connect, plain_sync, reason, renew};
use crate::{start, start_with_agent, start_with_node_ca};

async fn outcome(server: &devserver::DevServer, agent: &Identity) -> Result<(), Option<Reason>> {
    let channel = connect(server, Some(agent)).await.unwrap();
    plain_sync(channel)
        .await
        .map(drop)
        .map_err(|status| reason(&status))
}

#[tokio::test]
async fn a_renewed_svid_takes_over_with_its_first_use() {
    let (server, old) = start_with_agent().await;
    let channel = connect(&server, Some(&old)).await.unwrap();

    let new = renew(channel).await.unwrap();
    let old_before = outcome(&server, &old).await;
    let new_first = outcome(&server, &new).await;
    let old_after = outcome(&server, &old).await;

    assert_eq!(old_before, Ok(()));
    assert_eq!(new_first, Ok(()));
    assert_eq!(old_after, Err(Some(Reason::AgentNotActive)));
}

#[tokio::test]
async fn an_evicted_agent_is_not_attested_and_a_banned_one_is_banned() {
    let (server, agent) = start_with_agent().await;

    let is_banned = server.control().ban_agent(&agent.id);
    let banned = outcome(&server, &agent).await;
    let is_evicted = server.control().evict_agent(&agent.id);
    let evicted = outcome(&server, &agent).await;

    assert!(is_banned && is_evicted);
    assert_eq!(banned, Err(Some(Reason::AgentBanned)));
    assert_eq!(evicted, Err(Some(Reason::AgentNotAttested)));
}

#[tokio::test]
async fn an_svid_that_ends_on_an_open_connection_is_expired() {
    let (server, agent) = start_with_agent().await;
    let channel = connect(&server, Some(&agent)).await.unwrap();
    let before = plain_sync(channel.clone()).await;

    server
        .control()
        .configure(|settings| settings.clock_offset = 7200);
    let after = plain_sync(channel).await;

    assert!(before.is_ok());
    assert_eq!(
        after.err().and_then(|status| reason(&status)),
        Some(Reason::AgentExpired)
    );
}

#[tokio::test]
async fn an_agent_that_can_attest_again_must_not_renew() {
    let (server, ca) = start_with_node_ca();
    let leaf = ca.leaf("node", KeyKind::EcP256);
    let agent = attest_by_x509pop(&server, &leaf, KeyKind::EcP256, 0)
        .await
        .unwrap();
    let channel = connect(&server, Some(&agent)).await.unwrap();

    let refused = renew(channel.clone()).await.err().unwrap();
    let again = attest_by_x509pop(&server, &leaf, KeyKind::EcP256, 0)
        .await
        .unwrap();
    let first_after = plain_sync(channel).await.err().unwrap();

    assert_eq!(reason(&refused), Some(Reason::AgentMustReattest));
    assert_eq!(again.id, agent.id);
    assert_eq!(reason(&first_after), Some(Reason::AgentNotActive));
}

#[tokio::test]
async fn a_banned_agent_cannot_attest_and_gets_no_reason() {
    let (server, ca) = start_with_node_ca();
    let leaf = ca.leaf("node", KeyKind::EcP256);
    let agent = attest_by_x509pop(&server, &leaf, KeyKind::EcP256, 0)
        .await
        .unwrap();
    server.control().ban_agent(&agent.id);

    let refused = attest_by_x509pop(&server, &leaf, KeyKind::EcP256, 0)
        .await
        .err()
        .unwrap();

    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(reason(&refused), None);
}

#[tokio::test]
async fn a_call_without_a_certificate_is_refused_without_a_reason() {
    let server = start();
    let channel = connect(&server, None).await.unwrap();

    let refused = plain_sync(channel).await.err().unwrap();

    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(reason(&refused), None);
}

#[tokio::test]
async fn a_certificate_of_a_revoked_authority_fails_the_handshake() {
    let (server, agent) = start_with_agent().await;
    let control = server.control();
    let next = control.prepare_x509_authority();
    control.activate_x509_authority(next);
    let before = outcome(&server, &agent).await;

    control.revoke_x509_authority(0);
    let after = match connect(&server, Some(&agent)).await {
        Ok(channel) => plain_sync(channel)
            .await
            .map(drop)
            .map_err(|status| status.to_string()),
        Err(error) => Err(error.to_string()),
    };

    assert_eq!(before, Ok(()));
    assert!(after.is_err());
    // The client may try once more by itself, hence at least one.
    let failures = control.handshake_failures();
    let all_unknown = failures
        .iter()
        .all(|failure| failure.contains("UnknownIssuer"));
    assert!(!failures.is_empty() && all_unknown, "{failures:?}");
}

#[tokio::test]
async fn post_status_is_answered_as_set() {
    let server = start();
    let channel = connect(&server, None).await.unwrap();

    for (behaviour, code) in [
        (PostStatus::Denied, Code::PermissionDenied),
        (PostStatus::Unimplemented, Code::Unimplemented),
        (PostStatus::Accepted, Code::Ok),
    ] {
        server
            .control()
            .configure(|settings| settings.post_status = behaviour);
        let answer = AgentClient::new(channel.clone())
            .post_status(PostStatusRequest::default())
            .await;

        assert_eq!(
            answer.map_or_else(|status| status.code(), |_| Code::Ok),
            code
        );
    }
}
