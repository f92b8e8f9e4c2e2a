//! The client against a server in the same process, over TLS on the loopback.

mod answers;
mod connections;
mod pki;
mod server;

use std::sync::atomic::Ordering;

use prost::Message;
use proto::spire::api::server::agent::v1::{
    AttestAgentRequest, AttestAgentResponse, attest_agent_request, attest_agent_response,
};
use proto::spire::api::server::agent::v1::{RenewAgentRequest, RenewAgentResponse};
use proto::spire::api::server::entry::v1::SyncAuthorizedEntriesRequest;
use proto::spire::api::server::entry::v1::{
    EntryRevision, GetAuthorizedEntriesResponse, SyncAuthorizedEntriesResponse,
};
use proto::spire::api::types::{self, PermissionDeniedDetails, Spiffeid, X509svid};
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::pki::{Authority, Identity};
use self::server::{Call as ServerCall, Ending, Server, Setup, encoded, ok, status};
use super::*;
use crate::attestor::node::{Answer, EvidenceError};
use crate::bundle::X509Authority;
use crate::credentials::{Credentials, CredentialsWriter};
use crate::server::entries;
use crate::server::{DeniedReason, Disposition};

const SERVER_ID: &str = "spiffe://domain.test/spire/server";
const AGENT_ID: &str = "spiffe://domain.test/spire/agent/test";

/// A proof whose answers are its challenges, turned around.
#[derive(Debug)]
struct Mirror;

impl Proof for Mirror {
    fn attestor_name(&self) -> &'static str {
        "mirror"
    }

    fn payload(&self) -> Vec<u8> {
        b"payload".to_vec()
    }

    fn respond<'a>(&'a mut self, challenge: &'a [u8]) -> Answer<'a> {
        Box::pin(async move {
            match challenge {
                b"odd" => Err(EvidenceError::Challenge("it is odd".into())),
                b"endless" => std::future::pending().await,
                _ => {
                    tokio::task::yield_now().await;
                    Ok(challenge.iter().rev().copied().collect())
                }
            }
        })
    }
}

/// A client with its credentials' writing end.
struct Agent {
    client: Rc<ServerClient>,
    credentials: CredentialsWriter,
}

fn short() -> Limits {
    let ms = Duration::from_millis;
    Limits {
        connect: ConnectLimits {
            resolve: ms(1000),
            connect: ms(500),
            head_start: ms(50),
            tunnel: ms(500),
            handshake: ms(300),
        },
        link: LinkLimits {
            idle: ms(300),
            farewell: ms(100),
            call: PingLimits {
                after: ms(100),
                answer: ms(200),
            },
            queue: PingLimits {
                after: ms(100),
                answer: ms(300),
            },
        },
        attest: AttestLimits {
            queue: ms(1500),
            challenge: ms(400),
            first_byte: ms(400),
        },
        sync: SyncLimits::default(),
        call: ms(1500),
    }
}

fn trust_domain() -> TrustDomain {
    TrustDomain::parse("domain.test").unwrap()
}

fn agent(port: u16, credentials: Option<Credentials>) -> Agent {
    agent_with(port, credentials, short(), true)
}

fn agent_with(
    port: u16,
    credentials: Option<Credentials>,
    limits: Limits,
    use_sync_authorized_entries: bool,
) -> Agent {
    agent_from(credentials, limits, |config| ClientConfig {
        port,
        use_sync_authorized_entries,
        ..config
    })
}

fn agent_from(
    credentials: Option<Credentials>,
    limits: Limits,
    changed: impl FnOnce(ClientConfig) -> ClientConfig,
) -> Agent {
    let (writer, reader) = watch::channel(credentials.map(Arc::new));
    let config = changed(ClientConfig {
        address: "localhost".into(),
        port: 1,
        trust_domain: trust_domain(),
        credentials: reader,
        clock: Clock::system(),
        random: Random::from_seed(1),
        use_sync_authorized_entries: true,
        proxies: Proxies::default(),
        require_pq_kem: false,
    });
    Agent {
        client: Rc::new(ServerClient::with_limits(config, limits).unwrap()),
        credentials: writer,
    }
}

fn credentials(identity: &Identity, authority: &Authority) -> Credentials {
    Credentials {
        svid: identity.svid(),
        reattestable: true,
        bundle: authority.bundle(),
    }
}

/// A server of `authority`, and an agent with credentials from it.
async fn pair<F>(
    authority: &Authority,
    script: impl Fn(ServerCall) -> F + Send + Sync + 'static,
) -> (Server, Agent)
where
    F: Future<Output = Ending> + Send + 'static,
{
    let server = Server::start(setup(authority), script).await;
    let agent = agent(
        server.port,
        Some(credentials(&authority.issue(AGENT_ID), authority)),
    );
    (server, agent)
}

fn setup(authority: &Authority) -> Setup {
    Setup {
        identity: authority.issue(SERVER_ID),
        clients: authority.clone(),
        alpn: true,
        versions: rustls::DEFAULT_VERSIONS,
        algorithms: rustls::crypto::ring::default_provider(),
    }
}

fn bundle_message(authority: &Authority) -> types::Bundle {
    let certificate = types::X509Certificate {
        asn1: authority.certificate.to_vec(),
        tainted: false,
    };
    types::Bundle {
        trust_domain: "domain.test".into(),
        x509_authorities: vec![certificate],
        ..Default::default()
    }
}

/// Answers every call with a bundle.
async fn a_bundle(call: ServerCall, message: types::Bundle) -> Ending {
    call.answer(&message).await;
    ok()
}

fn entry(id: &str) -> types::Entry {
    types::Entry {
        id: id.into(),
        spiffe_id: Some(Spiffeid {
            trust_domain: "domain.test".into(),
            path: format!("/{id}"),
        }),
        selectors: vec![types::Selector {
            r#type: "unix".into(),
            value: "uid:1".into(),
        }],
        revision_number: 1,
        ..Default::default()
    }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn calls_share_one_connection() {
    let authority = Authority::new();
    let message = bundle_message(&authority);
    let (server, agent) = pair(&authority, move |call| a_bundle(call, message.clone())).await;

    let (first, second) = tokio::join!(
        Rc::clone(&agent.client).bundle(),
        Rc::clone(&agent.client).bundle()
    );

    assert_eq!(first.unwrap(), *authority.bundle());
    assert!(second.is_ok());
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn d17_an_unused_connection_is_closed() {
    let authority = Authority::new();
    let message = bundle_message(&authority);
    let (server, agent) = pair(&authority, move |call| a_bundle(call, message.clone())).await;

    Rc::clone(&agent.client).bundle().await.unwrap();

    eventually("the connection is closed", || {
        server.open.load(Ordering::SeqCst) == 0
    })
    .await;
    Rc::clone(&agent.client).bundle().await.unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn new_credentials_and_a_disconnect_bring_a_new_connection() {
    let authority = Authority::new();
    let message = bundle_message(&authority);
    let (server, agent) = pair(&authority, move |call| a_bundle(call, message.clone())).await;
    Rc::clone(&agent.client).bundle().await.unwrap();

    agent.credentials.send_replace(Some(Arc::new(credentials(
        &authority.issue(AGENT_ID),
        &authority,
    ))));
    Rc::clone(&agent.client).bundle().await.unwrap();
    assert_eq!(server.connections(), 2);
    eventually("the old connection is closed", || {
        server.open.load(Ordering::SeqCst) == 1
    })
    .await;

    agent.client.disconnect();
    Rc::clone(&agent.client).bundle().await.unwrap();
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn without_credentials_nothing_is_dialled() {
    let agent = agent(1, None);

    assert_eq!(
        Rc::clone(&agent.client).bundle().await,
        Err(ServerError::NotAttested)
    );
}

#[tokio::test]
async fn a_goaway_between_calls_goes_unnoticed() {
    let authority = Authority::new();
    let message = bundle_message(&authority);
    let (server, agent) = pair(&authority, move |call| a_bundle(call, message.clone())).await;

    for _ in 0..5 {
        Rc::clone(&agent.client).bundle().await.unwrap();
        server.send_goaway();
    }
    Rc::clone(&agent.client).bundle().await.unwrap();

    assert!(server.connections() >= 2);
}

#[tokio::test]
async fn what_is_wrong_with_a_server_is_told_apart() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server_of = |identity| Setup {
        identity,
        ..setup(&authority)
    };
    let table = [
        (server_of(other.issue(SERVER_ID)), "unknown authority"),
        (
            server_of(authority.issue("spiffe://domain.test/web")),
            "wrong ID",
        ),
        (
            server_of(authority.issue("spiffe://other.test/spire/server")),
            "wrong trust domain",
        ),
        (server_of(authority.issue_until(SERVER_ID, 2001)), "expired"),
        (
            Setup {
                alpn: false,
                ..setup(&authority)
            },
            "no ALPN",
        ),
    ];

    for (setup, case) in table {
        let server = Server::start(setup, |_| async { ok() }).await;
        let agent = agent(
            server.port,
            Some(credentials(&authority.issue(AGENT_ID), &authority)),
        );

        let error = Rc::clone(&agent.client).bundle().await.unwrap_err();

        let fits = match case {
            "unknown authority" => matches!(error, ServerError::UnknownAuthority { .. }),
            "no ALPN" => matches!(error, ServerError::Unreachable { .. }),
            _ => matches!(error, ServerError::Untrusted { .. }),
        };
        assert!(fits, "{case}: {error:?}");
    }
}

#[tokio::test]
async fn an_insecure_bootstrap_compares_the_id_alone() {
    let (authority, other) = (Authority::new(), Authority::new());
    let message = bundle_message(&authority);

    for (identity, accepted) in [
        (other.issue_until(SERVER_ID, 2001), true),
        (other.issue("spiffe://domain.test/web"), false),
    ] {
        let message = message.clone();
        let server = Server::start(
            Setup {
                identity,
                ..setup(&authority)
            },
            move |call| a_bundle(call, message.clone()),
        )
        .await;
        let agent = agent(server.port, None);

        let outcome = Rc::clone(&agent.client)
            .bootstrap_bundle(ServerTrust::Insecure)
            .await;

        assert_eq!(outcome.is_ok(), accepted, "{outcome:?}");
        assert!(accepted || matches!(outcome, Err(ServerError::Untrusted { .. })));
    }
}

#[tokio::test]
async fn a_rejected_agent_certificate_is_told_apart() {
    let (authority, other) = (Authority::new(), Authority::new());
    for identity in [other.issue(AGENT_ID), authority.issue_until(AGENT_ID, 2001)] {
        let server = Server::start(setup(&authority), |_| async { ok() }).await;
        let agent = agent(server.port, Some(credentials(&identity, &authority)));

        let error = Rc::clone(&agent.client).bundle().await.unwrap_err();

        assert!(
            matches!(error, ServerError::CertificateRejected { .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let port = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let authority = Authority::new();
    let agent = agent(
        port,
        Some(credentials(&authority.issue(AGENT_ID), &authority)),
    );

    let error = Rc::clone(&agent.client).bundle().await.unwrap_err();

    assert!(
        matches!(&error, ServerError::Unreachable { peer, .. } if *peer == format!("localhost:{port}")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_silent_handshake_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = Authority::new();
    let agent = agent(
        listener.local_addr().unwrap().port(),
        Some(credentials(&authority.issue(AGENT_ID), &authority)),
    );

    let error = Rc::clone(&agent.client).bundle().await.unwrap_err();

    assert!(
        matches!(error, ServerError::Unreachable { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_call_without_an_answer_is_given_up_and_its_connection_dropped() {
    let authority = Authority::new();
    let message = bundle_message(&authority);
    let script = move |call: ServerCall| {
        let message = message.clone();
        async move {
            if call.number == 0 {
                std::future::pending::<()>().await;
            }
            a_bundle(call, message).await
        }
    };
    let (server, agent) = pair(&authority, script).await;

    let error = Rc::clone(&agent.client).bundle().await.unwrap_err();

    assert_eq!(
        error,
        ServerError::TimedOut {
            call: "GetBundle",
            limit: short().call
        }
    );
    eventually("the connection is closed", || {
        server.open.load(Ordering::SeqCst) == 0
    })
    .await;
    Rc::clone(&agent.client).bundle().await.unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_trickle_is_given_up_when_the_time_is_over() {
    let authority = Authority::new();
    let script = |call: ServerCall| async move {
        loop {
            call.answer(&SyncAuthorizedEntriesResponse {
                entry_revisions: vec![EntryRevision::default()],
                more: true,
                ..Default::default()
            })
            .await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (_server, agent) = pair(&authority, script).await;

    let error = Rc::clone(&agent.client)
        .sync_entries(KnownEntries::new())
        .await
        .unwrap_err();

    assert_eq!(
        error,
        ServerError::TimedOut {
            call: "SyncAuthorizedEntries",
            limit: short().call
        }
    );
}

#[tokio::test]
async fn every_call_tells_how_much_time_is_left() {
    let authority = Authority::new();
    let (_server, agent) = pair(&authority, |call: ServerCall| async move {
        status(
            tonic::Code::Internal,
            call.headers["grpc-timeout"].to_str().unwrap(),
        )
    })
    .await;

    let error = Rc::clone(&agent.client).bundle().await.unwrap_err();

    let ServerError::Status { message, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(
        message.ends_with('u') || message.ends_with('n') || message.ends_with('m'),
        "{message}"
    );
}

#[tokio::test]
async fn the_reason_of_a_denial_is_read_from_its_details() {
    let detail = prost_types::Any {
        type_url: "type.googleapis.com/spire.api.types.PermissionDeniedDetails".into(),
        value: PermissionDeniedDetails { reason: 4 }.encode_to_vec(),
    };
    let details = proto::google::rpc::Status {
        code: 7,
        message: "x".into(),
        details: vec![detail],
    }
    .encode_to_vec();
    let table = [
        (Some(encoded(&details)), Some(DeniedReason::AgentBanned)),
        (Some("%%% not base64 %%%".into()), None),
        (None, None),
    ];

    for (trailer, reason) in table {
        let authority = Authority::new();
        let told = trailer.clone();
        let (_server, agent) = pair(&authority, move |_| {
            let told = told.clone();
            async move { (7, "agent is banned".to_owned(), told) }
        })
        .await;

        for outcome in [
            Rc::clone(&agent.client).bundle().await.map(drop),
            Rc::clone(&agent.client)
                .sync_entries(KnownEntries::new())
                .await
                .map(drop),
        ] {
            let error = outcome.unwrap_err();
            assert_eq!(
                (error.code(), error.denied_reason()),
                (Some(tonic::Code::PermissionDenied), reason),
                "{trailer:?}"
            );
            assert_eq!(error.disposition() == Disposition::Banned, reason.is_some());
        }
    }
}

#[tokio::test]
async fn a_connection_that_breaks_under_a_call_is_replaced_once() {
    let authority = Authority::new();
    let message = bundle_message(&authority);
    let script = move |call: ServerCall| {
        let message = message.clone();
        async move {
            if call.number == 1 {
                return call.break_connection().await;
            }
            a_bundle(call, message).await
        }
    };
    let (server, agent) = pair(&authority, script).await;

    Rc::clone(&agent.client).bundle().await.unwrap();
    let outcome = Rc::clone(&agent.client).bundle().await;

    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(server.connections(), 2);
    assert_eq!(server.methods.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn entries_come_in_both_shapes() {
    let authority = Authority::new();
    let script = |mut call: ServerCall| async move {
        let first: SyncAuthorizedEntriesRequest = call.next().await.unwrap();
        assert_eq!(
            (first.output_mask, first.ids),
            (Some(entries::MASK), vec![])
        );
        if call.number == 0 {
            call.answer(&SyncAuthorizedEntriesResponse {
                entries: vec![entry("a"), entry("b")],
                ..Default::default()
            })
            .await;
            return ok();
        }
        let revision = |id: &str| EntryRevision {
            id: id.into(),
            revision_number: 1,
            created_at: 0,
        };
        for (ids, more) in [(["a", "b"], true), (["c", "d"], false)] {
            call.answer(&SyncAuthorizedEntriesResponse {
                entry_revisions: ids.map(revision).to_vec(),
                more,
                ..Default::default()
            })
            .await;
        }
        while let Some(request) = call.next::<SyncAuthorizedEntriesRequest>().await {
            call.answer(&SyncAuthorizedEntriesResponse {
                entries: request.ids.iter().map(|id| entry(id)).collect(),
                ..Default::default()
            })
            .await;
        }
        ok()
    };
    let (_server, agent) = pair(&authority, script).await;

    let complete = Rc::clone(&agent.client)
        .sync_entries(KnownEntries::new())
        .await
        .unwrap();
    let known = complete
        .changed
        .iter()
        .filter(|entry| entry.id.as_str() == "a")
        .map(|entry| (entry.id.clone(), entry.version))
        .collect();
    let paged = Rc::clone(&agent.client).sync_entries(known).await.unwrap();

    assert_eq!(complete.changed.len(), 2);
    assert_eq!(
        paged
            .changed
            .iter()
            .map(|entry| entry.id.as_str())
            .collect::<Vec<_>>(),
        ["b", "c", "d"]
    );
    assert_eq!(paged.present.len(), 4);
}

#[tokio::test]
async fn a_sync_that_ends_early_or_with_a_status_is_an_error() {
    let authority = Authority::new();
    let script = |call: ServerCall| async move {
        call.answer(&SyncAuthorizedEntriesResponse {
            entry_revisions: vec![EntryRevision {
                id: "a".into(),
                ..Default::default()
            }],
            more: true,
            ..Default::default()
        })
        .await;
        if call.number == 0 {
            ok()
        } else {
            status(tonic::Code::Internal, "told to fail")
        }
    };
    let (_server, agent) = pair(&authority, script).await;

    let early = Rc::clone(&agent.client)
        .sync_entries(KnownEntries::new())
        .await
        .unwrap_err();
    let failed = Rc::clone(&agent.client)
        .sync_entries(KnownEntries::new())
        .await
        .unwrap_err();

    assert!(matches!(early, ServerError::Malformed { .. }), "{early:?}");
    assert_eq!(failed.code(), Some(tonic::Code::Internal), "{failed:?}");
}

#[tokio::test]
async fn the_older_call_for_entries_is_used_when_told() {
    let authority = Authority::new();
    let script = |call: ServerCall| async move {
        assert_eq!(call.method, "GetAuthorizedEntries");
        call.answer(&GetAuthorizedEntriesResponse {
            entries: vec![entry("a")],
        })
        .await;
        ok()
    };
    let server = Server::start(setup(&authority), script).await;
    let agent = agent_with(
        server.port,
        Some(credentials(&authority.issue(AGENT_ID), &authority)),
        short(),
        false,
    );

    let sync = Rc::clone(&agent.client)
        .sync_entries(KnownEntries::new())
        .await
        .unwrap();

    assert_eq!((sync.changed.len(), sync.present.len()), (1, 1));
}

#[tokio::test]
async fn a_missing_federated_bundle_is_no_error() {
    let authority = Authority::new();
    let message = types::Bundle {
        trust_domain: "td2".into(),
        ..bundle_message(&authority)
    };
    let script = move |call: ServerCall| {
        let message = message.clone();
        async move {
            if call.number == 0 {
                status(tonic::Code::NotFound, "bundle not found")
            } else {
                a_bundle(call, message).await
            }
        }
    };
    let (_server, agent) = pair(&authority, script).await;
    let domain = |name| TrustDomain::parse(name).unwrap();

    let missing = Rc::clone(&agent.client)
        .federated_bundle(domain("td2"))
        .await;
    let found = Rc::clone(&agent.client)
        .federated_bundle(domain("td2"))
        .await
        .unwrap()
        .unwrap();
    let foreign = Rc::clone(&agent.client)
        .federated_bundle(domain("td3"))
        .await;

    assert_eq!(missing, Ok(None));
    assert_eq!(
        found
            .x509_authorities()
            .iter()
            .map(|authority: &X509Authority| authority.tainted)
            .collect::<Vec<_>>(),
        [false]
    );
    assert!(
        matches!(foreign, Err(ServerError::Malformed { .. })),
        "{foreign:?}"
    );
}

#[tokio::test]
async fn a_renewal_brings_the_chain() {
    let authority = Authority::new();
    let chain = vec![authority.issue(AGENT_ID).certificate.to_vec()];
    let script = move |mut call: ServerCall| {
        let svid = X509svid {
            cert_chain: chain.clone(),
            ..Default::default()
        };
        async move {
            let request: RenewAgentRequest = call.next().await.unwrap();
            assert_eq!(request.params.unwrap().csr, b"csr");
            call.answer(&RenewAgentResponse {
                svid: (call.number == 0).then_some(svid),
            })
            .await;
            ok()
        }
    };
    let (_server, agent) = pair(&authority, script).await;

    let chain = Rc::clone(&agent.client)
        .renew(b"csr".to_vec())
        .await
        .unwrap();
    let missing = Rc::clone(&agent.client).renew(b"csr".to_vec()).await;

    assert_eq!(chain[0].leaf_id().unwrap().as_str(), AGENT_ID);
    assert!(
        matches!(missing, Err(ServerError::Malformed { .. })),
        "{missing:?}"
    );
}

/// A step of the server in an attestation.
fn step(step: attest_agent_response::Step) -> AttestAgentResponse {
    AttestAgentResponse { step: Some(step) }
}

fn result(chain: Option<Vec<Vec<u8>>>) -> AttestAgentResponse {
    let svid = chain.map(|cert_chain| X509svid {
        cert_chain,
        ..Default::default()
    });
    step(attest_agent_response::Step::Result(
        attest_agent_response::Result {
            svid,
            reattestable: true,
        },
    ))
}

#[tokio::test]
async fn an_attestation_answers_challenges_and_keeps_its_connection_for_the_bundle() {
    let authority = Authority::new();
    let (chain, message) = (
        vec![authority.issue(AGENT_ID).certificate.to_vec()],
        bundle_message(&authority),
    );
    let script = move |mut call: ServerCall| {
        let (chain, message) = (chain.clone(), message.clone());
        async move {
            if call.method == "GetBundle" {
                return a_bundle(call, message).await;
            }
            let first: AttestAgentRequest = call.next().await.unwrap();
            let Some(attest_agent_request::Step::Params(params)) = first.step else {
                return status(tonic::Code::InvalidArgument, "no params");
            };
            let data = params.data.unwrap();
            assert_eq!(
                (
                    data.r#type.as_str(),
                    data.payload.as_slice(),
                    params.params.unwrap().csr
                ),
                ("mirror", &b"payload"[..], b"csr".to_vec())
            );
            for challenge in [&b"abc"[..], b"def"] {
                call.answer(&step(attest_agent_response::Step::Challenge(
                    challenge.to_vec(),
                )))
                .await;
                let response: AttestAgentRequest = call.next().await.unwrap();
                let expected = challenge.iter().rev().copied().collect();
                assert_eq!(
                    response.step,
                    Some(attest_agent_request::Step::ChallengeResponse(expected))
                );
            }
            call.answer(&result(Some(chain))).await;
            assert_eq!(call.next::<AttestAgentRequest>().await, None);
            ok()
        }
    };
    let server = Server::start(setup(&authority), script).await;
    let agent = agent(server.port, None);
    let trust = || ServerTrust::Bundle(authority.bundle());

    let attestation = Rc::clone(&agent.client)
        .attest(trust(), Box::new(Mirror), b"csr".to_vec())
        .await
        .unwrap();
    let bundle = Rc::clone(&agent.client)
        .bootstrap_bundle(trust())
        .await
        .unwrap();

    assert_eq!(attestation.chain[0].leaf_id().unwrap().as_str(), AGENT_ID);
    assert!(attestation.reattestable);
    assert_eq!(bundle, *authority.bundle());
    assert_eq!(server.connections(), 1);
    eventually("the connection is closed", || {
        server.open.load(Ordering::SeqCst) == 0
    })
    .await;
    Rc::clone(&agent.client)
        .bootstrap_bundle(trust())
        .await
        .unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn an_attestation_that_goes_wrong_says_why() {
    let authority = Authority::new();
    let trust = ServerTrust::Bundle(authority.bundle());
    let challenge = |bytes: &[u8]| step(attest_agent_response::Step::Challenge(bytes.to_vec()));
    let table: Vec<(Vec<AttestAgentResponse>, tonic::Code, &str)> = vec![
        (vec![], tonic::Code::PermissionDenied, "status"),
        (
            vec![challenge(b"a")],
            tonic::Code::PermissionDenied,
            "status",
        ),
        (vec![], tonic::Code::Ok, "malformed"),
        (
            vec![AttestAgentResponse { step: None }],
            tonic::Code::Ok,
            "malformed",
        ),
        (vec![result(None)], tonic::Code::Ok, "malformed"),
        (vec![result(Some(vec![]))], tonic::Code::Ok, "malformed"),
        (
            vec![result(Some(vec![b"garbage".to_vec()]))],
            tonic::Code::Ok,
            "malformed",
        ),
        (
            vec![challenge(&vec![0; 100 << 10])],
            tonic::Code::Ok,
            "malformed",
        ),
        (vec![challenge(b"a"); 12], tonic::Code::Ok, "malformed"),
        (vec![challenge(b"odd")], tonic::Code::Ok, "proof"),
        (vec![challenge(b"endless")], tonic::Code::Ok, "proof"),
    ];

    for (answers, code, kind) in table {
        let script = answers.clone();
        let server = Server::start(setup(&authority), move |mut call: ServerCall| {
            let answers = script.clone();
            async move {
                let mut request: Option<AttestAgentRequest> = call.next().await;
                for answer in answers {
                    assert!(request.is_some());
                    call.answer(&answer).await;
                    request = call.next().await;
                }
                status(code, "told to fail")
            }
        })
        .await;
        let agent = agent(server.port, None);

        let error = Rc::clone(&agent.client)
            .attest(trust.clone(), Box::new(Mirror), vec![1])
            .await
            .unwrap_err();

        let fits = match kind {
            "status" => error.code() == Some(code),
            "malformed" => matches!(error, ServerError::Malformed { .. }),
            _ => matches!(error, ServerError::Proof(_)),
        };
        assert!(fits, "{kind} {answers:?}: {error:?}");
    }
}

#[tokio::test]
async fn d08_an_attestation_may_wait_in_the_queue_but_not_after_its_challenge() {
    let authority = Authority::new();
    let trust = || ServerTrust::Bundle(authority.bundle());
    let chain = vec![authority.issue(AGENT_ID).certificate.to_vec()];
    let script = move |mut call: ServerCall| {
        let chain = chain.clone();
        async move {
            call.next::<AttestAgentRequest>().await;
            match call.number {
                0 => tokio::time::sleep(Duration::from_millis(900)).await,
                1 => {
                    call.answer(&step(attest_agent_response::Step::Challenge(b"a".to_vec())))
                        .await;
                    std::future::pending::<()>().await;
                }
                _ => std::future::pending::<()>().await,
            }
            call.answer(&result(Some(chain))).await;
            ok()
        }
    };
    let server = Server::start(setup(&authority), script).await;
    let agent = agent(server.port, None);

    let patient = Rc::clone(&agent.client)
        .attest(trust(), Box::new(Mirror), vec![1])
        .await;
    let challenged = Rc::clone(&agent.client)
        .attest(trust(), Box::new(Mirror), vec![1])
        .await;
    let never = Rc::clone(&agent.client)
        .attest(trust(), Box::new(Mirror), vec![1])
        .await;

    assert!(patient.is_ok(), "{patient:?}");
    assert_eq!(
        challenged.unwrap_err(),
        ServerError::TimedOut {
            call: "AttestAgent",
            limit: short().attest.challenge
        }
    );
    assert_eq!(
        never.unwrap_err(),
        ServerError::TimedOut {
            call: "AttestAgent",
            limit: short().attest.queue
        }
    );
}
