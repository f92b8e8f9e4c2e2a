//! Node attestation.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use devserver::{
    AgentPath, AttestTwist, Code, DevServer, Entry, KeyKind, NodeCa, NodeLeaf, SvidTwist,
    X509popMode, rpc,
};

use crate::client::{Identity, attest_by_token, attest_by_x509pop, sign, uri};
use crate::{start, start_with_agent, start_with_node_ca};

/// Salt of the hash's length, as ring signs.
const SHORT_SALT: usize = 32;
/// The longest salt that fits 2048 bits, as Go signs.
const LONG_SALT: usize = 222;

#[tokio::test]
async fn every_kind_of_node_key_attests_by_x509pop() {
    let (server, ca) = start_with_node_ca();
    let kinds = [
        (KeyKind::EcP256, SHORT_SALT),
        (KeyKind::EcP384, SHORT_SALT),
        (KeyKind::EcP521, SHORT_SALT),
        (KeyKind::Rsa2048, SHORT_SALT),
        (KeyKind::Rsa2048, LONG_SALT),
    ];

    for (kind, salt) in kinds {
        let leaf = ca.leaf("node", kind);

        let agent = attest_by_x509pop(&server, &leaf, kind, salt).await.unwrap();

        assert!(
            agent
                .id
                .starts_with("spiffe://example.org/spire/agent/x509pop/"),
            "{}",
            agent.id
        );
        assert_eq!(uri(&agent.chain[0]), agent.id);
    }
    assert_eq!(server.control().agents().len(), kinds.len());
    assert_eq!(
        server.control().calls(rpc::ATTEST_AGENT)[0].details,
        ["x509pop"]
    );
}

#[tokio::test]
async fn a_node_has_the_selectors_of_its_certificate() {
    let (server, ca) = start_with_node_ca();
    server
        .control()
        .configure(|settings| settings.x509pop.agent_path = AgentPath::CommonName);
    let uris = [
        "x509pop://example.org/cluster/test",
        "x509pop://elsewhere.org/a/b",
    ];
    let leaf = ca.leaf_with("node-1", KeyKind::EcP256, &uris, 60);

    attest_by_x509pop(&server, &leaf, KeyKind::EcP256, 0)
        .await
        .unwrap();

    let agent = server.control().agents().remove(0);
    let kinds: Vec<&str> = agent
        .selectors
        .iter()
        .map(|selector| selector.rsplit_once(':').unwrap().0)
        .collect();
    assert_eq!(agent.id, "spiffe://example.org/spire/agent/x509pop/node-1");
    assert_eq!(
        kinds,
        [
            "x509pop:subject:cn",
            "x509pop:ca:fingerprint",
            "x509pop:ca:fingerprint",
            "x509pop:serialnumber",
            "x509pop:san:cluster",
        ]
    );
    assert!(agent.can_reattest);
}

#[tokio::test]
async fn a_stranger_a_liar_and_an_expired_node_are_refused() {
    let (server, ca) = start_with_node_ca();
    let honest = ca.leaf("node", KeyKind::EcP256);
    let stranger = NodeCa::new().leaf("node", KeyKind::EcP256);
    let expired = ca.leaf_with("node", KeyKind::EcP256, &[], -60);
    let mut liar = honest.clone();
    liar.key_pem = stranger.key_pem.clone();

    for leaf in [stranger, expired, liar] {
        let outcome = attest_by_x509pop(&server, &leaf, KeyKind::EcP256, 0).await;

        assert_eq!(
            outcome.err().map(|status| status.code()),
            Some(Code::PermissionDenied)
        );
    }
    assert_eq!(server.control().agents(), []);
}

#[tokio::test]
async fn an_svid_of_the_trust_domain_attests_in_spiffe_mode_only_below_the_prefix() {
    let (server, agent) = start_with_agent().await;
    let control = server.control();
    control.configure(|settings| {
        settings.x509pop.mode = X509popMode::Spiffe {
            prefix: "/spire-exchange".to_owned(),
        };
    });
    let inside = workload_leaf(&server, &agent, "/spire-exchange/host/1").await;
    let outside = workload_leaf(&server, &agent, "/web").await;
    let foreign = NodeCa::new().leaf_with(
        "node",
        KeyKind::EcP256,
        &["spiffe://example.org/spire-exchange/a"],
        60,
    );

    let attested = attest_by_x509pop(&server, &inside, KeyKind::EcP256, 0)
        .await
        .unwrap();
    let refused = [
        attest_by_x509pop(&server, &outside, KeyKind::EcP256, 0).await,
        attest_by_x509pop(&server, &foreign, KeyKind::EcP256, 0).await,
    ];

    assert_eq!(
        attested.id,
        "spiffe://example.org/spire/agent/x509pop/host/1"
    );
    for outcome in refused {
        assert_eq!(
            outcome.err().map(|status| status.code()),
            Some(Code::PermissionDenied)
        );
    }
}

/// A workload SVID in the form of a node certificate.
async fn workload_leaf(server: &DevServer, agent: &Identity, path: &str) -> NodeLeaf {
    server
        .control()
        .add_entry(Entry::new("exchange", path, &["unix:uid:1"]));
    let key = rcgen::KeyPair::generate().unwrap();
    let svid = sign(server, agent, "exchange", &key).await;
    let pem = |label: &str, der: &[u8]| {
        format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
            STANDARD.encode(der)
        )
    };
    let leaf_pem = pem("CERTIFICATE", &svid.cert_chain[0]);
    NodeLeaf {
        cert_pem: leaf_pem.clone(),
        leaf_pem,
        key_pem: pem("PRIVATE KEY", &key.serialize_der()),
    }
}

#[tokio::test]
async fn a_join_token_works_once() {
    let server = start();
    let token = server.control().create_join_token(60);

    let first = attest_by_token(&server, &token).await.unwrap();
    let second = attest_by_token(&server, &token).await;

    assert_eq!(
        first.id,
        format!("spiffe://example.org/spire/agent/join_token/{token}")
    );
    assert_eq!(
        second.err().map(|status| status.code()),
        Some(Code::InvalidArgument)
    );
}

#[tokio::test]
async fn an_expired_join_token_is_spent_by_the_try() {
    let server = start();
    let token = server.control().create_join_token(-1);

    let expired = attest_by_token(&server, &token).await;
    server
        .control()
        .configure(|settings| settings.clock_offset = -3600);
    let spent = attest_by_token(&server, &token).await;

    for outcome in [expired, spent] {
        assert_eq!(
            outcome.err().map(|status| status.code()),
            Some(Code::InvalidArgument)
        );
    }
}

#[tokio::test]
async fn an_unknown_attestor_is_not_configured() {
    let server = start();

    let outcome =
        crate::client::attest(&server, "tpm_devid", vec![1], |_| serde_json::Value::Null).await;

    assert_eq!(
        outcome.err().map(|status| status.code()),
        Some(Code::FailedPrecondition)
    );
}

#[tokio::test]
async fn twisted_attestations_go_wrong_in_their_own_way() {
    let (server, ca) = start_with_node_ca();
    let control = server.control();
    let leaf = ca.leaf("node", KeyKind::EcP256);
    let attest = || attest_by_x509pop(&server, &leaf, KeyKind::EcP256, 0);

    for twist in [
        AttestTwist::Close,
        AttestTwist::GarbageChallenge,
        AttestTwist::Svid(SvidTwist::Missing),
    ] {
        control.twist_attestation(Some(twist));
        assert_eq!(
            attest().await.err().map(|status| status.code()),
            Some(Code::DataLoss),
            "{twist:?}"
        );
    }
    control.twist_attestation(Some(AttestTwist::CloseAfterChallenge));
    assert!(attest().await.is_err());
    control.twist_attestation(Some(AttestTwist::Svid(SvidTwist::EmptyChain)));
    assert_eq!(attest().await.unwrap().chain.len(), 0);
    control.twist_attestation(Some(AttestTwist::Svid(SvidTwist::WrongId)));
    assert_eq!(
        uri(&attest().await.unwrap().chain[0]),
        "spiffe://example.org/not-yours"
    );
    control.twist_attestation(Some(AttestTwist::ExtraChallenge));
    assert!(attest().await.is_ok());
    control.twist_attestation(None);
    assert!(attest().await.is_ok());
}
