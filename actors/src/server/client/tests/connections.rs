//! How many connections there are, what replaces them, and what TLS they take.

use std::cell::Cell;

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::server::Relay;
use super::*;
use crate::server::post_quantum::tests::serving_provider;

const ONLY_TLS_12: &[&SupportedProtocolVersion] = &[&TLS12];
const ONLY_TLS_13: &[&SupportedProtocolVersion] = &[&TLS13];

/// Answers `GetBundle`, but the calls of these numbers only once told.
fn held_back(
    message: types::Bundle,
    held: &'static [usize],
    release: Arc<Notify>,
) -> impl Fn(ServerCall) -> Pin<Box<dyn Future<Output = Ending> + Send>> {
    move |call| {
        let (message, release) = (message.clone(), Arc::clone(&release));
        Box::pin(async move {
            if held.contains(&call.number) {
                release.notified().await;
            }
            a_bundle(call, message).await
        })
    }
}

#[test]
fn a_dead_connection_is_noticed_within_15_s_and_one_call_fits_two() {
    let limits = Limits::default();

    let noticed = limits.link.call.after + limits.link.call.answer;

    assert_eq!(noticed, Duration::from_secs(15));
    assert!(noticed < limits.call);
    assert_eq!(limits.call, Duration::from_secs(30));
    assert_eq!(limits.link.idle, Duration::from_secs(30));
}

#[tokio::test]
async fn a_goaway_in_the_middle_of_calls_costs_none_of_them() {
    let authority = Authority::new();
    let release = Arc::new(Notify::new());
    let script = held_back(bundle_message(&authority), &[0], Arc::clone(&release));
    let (server, agent) = pair(&authority, script).await;
    let running = Rc::clone(&agent.client).bundle();
    let others = async {
        eventually("the first call runs", || {
            server.methods.lock().unwrap().len() == 1
        })
        .await;
        server.send_goaway();
        for _ in 0..3 {
            Rc::clone(&agent.client).bundle().await.unwrap();
        }
        release.notify_one();
    };

    let (running, ()) = tokio::join!(running, others);

    assert!(running.is_ok(), "{running:?}");
    assert_eq!(server.connections(), 2);
    assert_eq!(server.methods.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn a_call_that_the_server_did_not_look_at_is_made_again_whatever_it_is() {
    let authority = Authority::new();
    let chain = vec![authority.issue(AGENT_ID).certificate.to_vec()];
    let script = move |call: ServerCall| {
        let svid = X509svid {
            cert_chain: chain.clone(),
            ..Default::default()
        };
        async move {
            call.answer(&RenewAgentResponse { svid: Some(svid) }).await;
            ok()
        }
    };
    let (server, agent) = pair(&authority, script).await;

    server.refusals.store(1, Ordering::SeqCst);
    let refused_once = Rc::clone(&agent.client).renew(vec![1]).await;
    server.refusals.store(2, Ordering::SeqCst);
    let refused_twice = Rc::clone(&agent.client).renew(vec![1]).await;

    assert!(refused_once.is_ok(), "{refused_once:?}");
    assert!(
        matches!(refused_twice, Err(ServerError::Unreachable { .. })),
        "{refused_twice:?}"
    );
}

#[tokio::test]
async fn a_renewal_that_broke_off_is_not_made_twice() {
    let authority = Authority::new();
    let message = bundle_message(&authority);
    let script = move |call: ServerCall| {
        let message = message.clone();
        async move {
            if call.method == "RenewAgent" {
                return call.break_connection().await;
            }
            a_bundle(call, message).await
        }
    };
    let (server, agent) = pair(&authority, script).await;
    Rc::clone(&agent.client).bundle().await.unwrap();

    let outcome = Rc::clone(&agent.client).renew(vec![1]).await;

    assert!(
        matches!(outcome, Err(ServerError::Unreachable { .. })),
        "{outcome:?}"
    );
    assert_eq!(server.methods.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_connection_that_swallows_everything_is_replaced_under_the_call() {
    let authority = Authority::new();
    let message = bundle_message(&authority);
    let server = Server::start(setup(&authority), move |call| {
        a_bundle(call, message.clone())
    })
    .await;
    let relay = Relay::start(server.port).await;
    let agent = agent(
        relay.port,
        Some(credentials(&authority.issue(AGENT_ID), &authority)),
    );
    Rc::clone(&agent.client).bundle().await.unwrap();

    relay.swallow();
    let repeated = Rc::clone(&agent.client).bundle().await;
    relay.swallow();
    let renewal = Rc::clone(&agent.client).renew(vec![1]).await;

    assert!(repeated.is_ok(), "{repeated:?}");
    assert_eq!(server.connections(), 2);
    let Err(ServerError::Unreachable { reason, .. }) = renewal else {
        panic!("{renewal:?}")
    };
    assert!(reason.contains("no answer to a ping"), "{reason}");
}

#[tokio::test]
async fn a_server_that_is_slow_to_sign_and_answers_pings_is_waited_for() {
    let authority = Authority::new();
    let chain = vec![authority.issue(AGENT_ID).certificate.to_vec()];
    let script = move |call: ServerCall| {
        let svid = X509svid {
            cert_chain: chain.clone(),
            ..Default::default()
        };
        async move {
            tokio::time::sleep(Duration::from_millis(900)).await;
            call.answer(&RenewAgentResponse { svid: Some(svid) }).await;
            ok()
        }
    };
    let (server, agent) = pair(&authority, script).await;

    let outcome = Rc::clone(&agent.client).renew(vec![1]).await;

    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn there_are_never_more_than_two_connections() {
    let authority = Authority::new();
    let (queue, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let bundles = held_back(bundle_message(&authority), &[1], Arc::clone(&release));
    let chain = vec![authority.issue(AGENT_ID).certificate.to_vec()];
    let told = Arc::clone(&queue);
    let script = move |call: ServerCall| {
        if call.method == "GetBundle" {
            return bundles(call);
        }
        let (chain, told) = (chain.clone(), Arc::clone(&told));
        Box::pin(async move {
            told.notified().await;
            call.answer(&result(Some(chain))).await;
            ok()
        })
    };
    let (server, agent) = pair(&authority, script).await;
    let client = || Rc::clone(&agent.client);
    let trust = ServerTrust::Bundle(authority.bundle());
    let attestation = client().attest(trust, Box::new(Mirror), vec![1]);
    let (running, running_ended) = (client().bundle(), Cell::new(false));
    let running = async {
        seen_before(&server, 1).await;
        let outcome = running.await;
        running_ended.set(true);
        outcome
    };
    let next = async {
        seen_before(&server, 2).await;
        agent.credentials.send_replace(Some(Arc::new(credentials(
            &authority.issue(AGENT_ID),
            &authority,
        ))));
        let mut waiting = client().bundle();
        let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
        assert!(early.is_err(), "{early:?}");
        assert_eq!(server.connections(), 2);
        release.notify_one();
        let outcome = waiting.await;
        assert!(running_ended.get());
        queue.notify_one();
        outcome
    };

    let (attestation, running, next) = tokio::join!(attestation, running, next);

    assert!(attestation.is_ok(), "{attestation:?}");
    assert!(running.is_ok(), "{running:?}");
    assert!(next.is_ok(), "{next:?}");
    assert_eq!(server.connections(), 3);
}

async fn seen_before(server: &Server, count: usize) {
    eventually("the calls before run", || {
        server.methods.lock().unwrap().len() == count
    })
    .await;
}

#[tokio::test]
async fn the_connection_of_an_attestation_makes_room_for_calls() {
    let authority = Authority::new();
    let release = Arc::new(Notify::new());
    let bundles = held_back(bundle_message(&authority), &[1], Arc::clone(&release));
    let chain = vec![authority.issue(AGENT_ID).certificate.to_vec()];
    let script = move |call: ServerCall| {
        if call.method == "GetBundle" {
            return bundles(call);
        }
        let chain = chain.clone();
        Box::pin(async move {
            call.answer(&result(Some(chain))).await;
            ok()
        })
    };
    let server = Server::start(setup(&authority), script).await;
    let agent = agent_with(
        server.port,
        Some(credentials(&authority.issue(AGENT_ID), &authority)),
        Limits {
            link: LinkLimits {
                idle: Duration::from_mins(10),
                ..short().link
            },
            ..short()
        },
        true,
    );
    let trust = || ServerTrust::Bundle(authority.bundle());
    Rc::clone(&agent.client)
        .attest(trust(), Box::new(Mirror), vec![1])
        .await
        .unwrap();
    let running = Rc::clone(&agent.client).bundle();
    let next = async {
        seen_before(&server, 2).await;
        server.send_goaway();
        let outcome = Rc::clone(&agent.client).bundle().await;
        release.notify_one();
        outcome
    };

    let (running, next) = tokio::join!(running, next);

    assert!(running.is_ok() && next.is_ok(), "{running:?} {next:?}");
    Rc::clone(&agent.client)
        .bootstrap_bundle(trust())
        .await
        .unwrap();
}

#[tokio::test]
async fn either_version_of_tls_is_taken_and_each_handshake_verifies_the_server_anew() {
    let (authority, other) = (Authority::new(), Authority::new());
    for versions in [ONLY_TLS_12, ONLY_TLS_13] {
        let message = bundle_message(&authority);
        let setup = Setup {
            versions,
            ..setup(&authority)
        };
        let server = Server::start(setup, move |call| a_bundle(call, message.clone())).await;
        let identity = authority.issue(AGENT_ID);
        let good = credentials(&identity, &authority);
        let agent = agent(server.port, Some(good.clone()));
        Rc::clone(&agent.client).bundle().await.unwrap();

        agent.client.disconnect();
        agent.credentials.send_replace(Some(Arc::new(Credentials {
            bundle: other.bundle(),
            ..good.clone()
        })));
        let untrusted = Rc::clone(&agent.client).bundle().await;
        agent.credentials.send_replace(Some(Arc::new(good)));
        let trusted = Rc::clone(&agent.client).bundle().await;

        assert!(
            matches!(untrusted, Err(ServerError::UnknownAuthority { .. })),
            "{untrusted:?}"
        );
        assert!(trusted.is_ok(), "{trusted:?}");
    }
}

#[tokio::test]
async fn a_post_quantum_key_exchange_is_had_where_it_is_required_or_there_is_an_error_that_says_so()
{
    let authority = Authority::new();
    let table = [
        (serving_provider(true), rustls::DEFAULT_VERSIONS, true, true),
        (
            serving_provider(false),
            rustls::DEFAULT_VERSIONS,
            true,
            true,
        ),
        (
            serving_provider(true),
            rustls::DEFAULT_VERSIONS,
            false,
            true,
        ),
        (default_algorithms(), rustls::DEFAULT_VERSIONS, true, false),
        (serving_provider(false), ONLY_TLS_12, true, false),
        (default_algorithms(), rustls::DEFAULT_VERSIONS, false, true),
    ];

    for (algorithms, versions, require_pq_kem, works) in table {
        let message = bundle_message(&authority);
        let setup = Setup {
            versions,
            algorithms,
            ..setup(&authority)
        };
        let server = Server::start(setup, move |call| a_bundle(call, message.clone())).await;
        let agent = agent_from(
            Some(credentials(&authority.issue(AGENT_ID), &authority)),
            short(),
            |config| ClientConfig {
                port: server.port,
                require_pq_kem,
                ..config
            },
        );

        let with_credentials = Rc::clone(&agent.client).bundle().await;
        let insecure = Rc::clone(&agent.client)
            .bootstrap_bundle(ServerTrust::Insecure)
            .await;

        for outcome in [with_credentials, insecure] {
            assert_eq!(outcome.is_ok(), works, "{outcome:?}");
            let text = outcome.err().map(|error| error.to_string());
            assert!(text.is_none_or(|text| text.contains("post-quantum")));
        }
    }
}

fn default_algorithms() -> rustls::crypto::CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// A proxy on the loopback that answers `CONNECT` with `answer` and leads to the server of that port whatever it is asked for; what it was asked.
async fn proxy_to(port: u16, answer: &'static str) -> (u16, watch::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy_port = listener.local_addr().unwrap().port();
    let (asked, reader) = watch::channel(String::new());
    server::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(near.read_u8().await.unwrap());
            }
            asked.send_replace(String::from_utf8(head).unwrap());
            near.write_all(answer.as_bytes()).await.unwrap();
            let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
        }
    });
    (proxy_port, reader)
}

#[tokio::test]
async fn a_proxy_is_asked_for_the_name_of_the_server_and_seen_through() {
    let authority = Authority::new();
    for (answer, works) in [
        ("HTTP/1.1 200 OK\r\n\r\n", true),
        ("HTTP/1.1 403 Forbidden\r\n\r\n", false),
    ] {
        let message = bundle_message(&authority);
        let server = Server::start(setup(&authority), move |call| {
            a_bundle(call, message.clone())
        })
        .await;
        let (proxy_port, asked) = proxy_to(server.port, answer).await;
        let variable = |name: &str| {
            (name == "HTTPS_PROXY").then(|| format!("http://user:secret@127.0.0.1:{proxy_port}"))
        };
        let agent = agent_from(
            Some(credentials(&authority.issue(AGENT_ID), &authority)),
            short(),
            |config| ClientConfig {
                // Resolved by nobody but the proxy.
                address: "server.invalid".into(),
                port: 8081,
                proxies: Proxies::from_environment(&variable),
                ..config
            },
        );

        let outcome = Rc::clone(&agent.client).bundle().await;

        assert!(
            asked
                .borrow()
                .starts_with("CONNECT server.invalid:8081 HTTP/1.1\r\n")
        );
        assert_eq!(outcome.is_ok(), works, "{outcome:?}");
        if let Err(error) = outcome {
            let text = error.to_string();
            assert!(
                text.contains(&format!("by proxy 127.0.0.1:{proxy_port}")) && text.contains("403"),
                "{text}"
            );
            assert!(!text.contains("secret"), "{text}");
        }
    }
}

#[test]
fn an_address_that_leads_nowhere_is_refused_at_the_start() {
    let (_writer, reader) = watch::channel(None);

    let error = ServerClient::new(ClientConfig {
        address: "fe80::1%eth0".into(),
        port: 8081,
        trust_domain: trust_domain(),
        credentials: reader,
        clock: Clock::system(),
        random: Random::from_seed(1),
        use_sync_authorized_entries: true,
        proxies: Proxies::default(),
        require_pq_kem: false,
    })
    .unwrap_err();

    assert!(error.to_string().contains("fe80::1%eth0"), "{error}");
}

#[tokio::test]
async fn a_server_is_reached_by_ipv6_with_and_without_brackets() {
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for address in ["::1", "[::1]"] {
        let authority = Authority::new();
        let agent = agent_from(
            Some(credentials(&authority.issue(AGENT_ID), &authority)),
            short(),
            |config| ClientConfig {
                address: address.into(),
                port,
                ..config
            },
        );

        let call = Rc::clone(&agent.client).bundle();
        let (outcome, accepted) = tokio::join!(call, async {
            let (stream, _) = listener.accept().await.unwrap();
            drop(stream);
        });

        let ((), error) = (accepted, outcome.unwrap_err());
        assert!(
            error.to_string().contains(&format!("[::1]:{port}")),
            "{error}"
        );
    }
}
