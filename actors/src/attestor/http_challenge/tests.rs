use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::*;

/// Padded base64url of 32 bytes.
const NONCE: &str = "_-7dzLuqmYh3ZlVEMyIRAP_u3cy7qpmId2ZVRDMiEQA=";
const PATH: &str = "/.well-known/spiffe/nodeattestor/http_challenge/default/challenge";

fn config() -> HttpChallengeConfig {
    HttpChallengeConfig {
        hostname: Some("node.domain.test".to_owned()),
        agentname: "default".to_owned(),
        port: 0,
        advertised_port: None,
    }
}

async fn prepare(config: HttpChallengeConfig) -> Result<Box<dyn Proof>, EvidenceError> {
    Rc::new(HttpChallenge::new(config)).prepare().await
}

fn payload(proof: &dyn Proof) -> Value {
    serde_json::from_slice(&proof.payload()).unwrap()
}

fn port(proof: &dyn Proof) -> u16 {
    let port = payload(proof)["port"].as_u64().unwrap();
    u16::try_from(port).unwrap()
}

fn challenge() -> Vec<u8> {
    json!({ "nonce": NONCE }).to_string().into_bytes()
}

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .await
        .unwrap()
}

/// Everything that is answered to these bytes until the connection ends.
async fn ask(mut stream: TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    until_end(stream).await
}

async fn until_end(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A refused request may end in a reset once it is answered.
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8(answer).unwrap()
}

async fn request(port: u16, method: &str, path: &str) -> (String, String) {
    let text = format!("{method} {path} HTTP/1.1\r\nHost: node.domain.test\r\n\r\n");
    let answer = ask(connect(port).await, &text).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

#[actix_rt::test]
async fn the_nonce_is_served_from_the_challenge_to_the_end_of_the_attestation() {
    let mut proof = prepare(config()).await.unwrap();
    let port = port(&*proof);
    let (before, _) = request(port, "GET", PATH).await;

    let response = proof.respond(&challenge()).await.unwrap();
    let answers = [
        request(port, "GET", PATH).await,
        request(port, "GET", PATH).await,
    ];
    let open = connect(port).await;
    drop(proof);

    assert!(before.starts_with("http/1.1 404 "), "{before}");
    assert_eq!(response, b"\n");
    for (head, body) in answers {
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert!(head.contains("connection: close"), "{head}");
        assert_eq!(body, format!("{NONCE}\n"));
    }
    assert_eq!(until_end(open).await, "");
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
    assert!(refused.is_err());
}

#[actix_rt::test]
async fn nothing_else_is_served() {
    let mut proof = prepare(config()).await.unwrap();
    let port = port(&*proof);
    proof.respond(&challenge()).await.unwrap();
    let other_agent = PATH.replace("default", "other");

    for (method, path, status) in [
        ("GET", "/", "404"),
        ("GET", other_agent.as_str(), "404"),
        ("GET", &format!("{PATH}/"), "404"),
        ("POST", PATH, "405"),
        ("HEAD", PATH, "405"),
        ("POST", "/", "404"),
    ] {
        let (head, body) = request(port, method, path).await;

        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{head}");
        assert_eq!(body, "", "{method} {path}");
    }
}

#[actix_rt::test]
async fn an_oversize_request_is_cut_off() {
    let proof = prepare(config()).await.unwrap();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));

    for text in [long, many] {
        let answer = ask(connect(port(&*proof)).await, &text).await;

        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
        assert!(!answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
}

#[actix_rt::test]
async fn a_connection_that_says_nothing_ends_after_ten_seconds() {
    let proof = prepare(config()).await.unwrap();
    let silent = connect(port(&*proof)).await;
    // The silent one is accepted before this is answered.
    request(port(&*proof), "GET", PATH).await;
    tokio::time::pause();
    let start = Instant::now();

    let ended = timeout(Duration::from_mins(1), until_end(silent)).await;

    assert_eq!(ended.as_deref(), Ok(""));
    assert!(start.elapsed() <= Duration::from_secs(11));
}

#[actix_rt::test]
async fn idle_connections_do_not_keep_the_server_out() {
    let mut proof = prepare(config()).await.unwrap();
    let port = port(&*proof);
    proof.respond(&challenge()).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(connect(port).await);
    }

    let (_, body) = request(port, "GET", PATH).await;

    assert_eq!(body, format!("{NONCE}\n"));
    assert_eq!(until_end(idle.remove(0)).await, "");
}

#[actix_rt::test]
async fn it_answers_over_ipv6_where_the_host_has_it() {
    let has_ipv6 = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    let proof = prepare(config()).await.unwrap();
    let address = SocketAddr::from((Ipv6Addr::LOCALHOST, port(&*proof)));

    let connected = TcpStream::connect(address).await;

    assert_eq!(connected.is_ok(), has_ipv6);
}

#[actix_rt::test]
async fn the_payload_names_host_agent_and_the_port_that_is_advertised() {
    let bound = prepare(config()).await.unwrap();
    let advertised = HttpChallengeConfig {
        agentname: "second".to_owned(),
        advertised_port: Some(80),
        ..config()
    };
    let advertised = prepare(advertised).await.unwrap();

    assert_eq!(bound.attestor_name(), "http_challenge");
    assert_ne!(port(&*bound), 0);
    assert_eq!(
        String::from_utf8(advertised.payload()).unwrap(),
        r#"{"hostname":"node.domain.test","agentname":"second","port":80}"#
    );
}

#[actix_rt::test]
async fn a_fixed_port_serves_one_attestation_after_another_and_no_two_at_once() {
    let mut first = prepare(config()).await.unwrap();
    let number = port(&*first);
    let fixed = HttpChallengeConfig {
        port: number,
        ..config()
    };
    first.respond(&challenge()).await.unwrap();
    request(number, "GET", PATH).await;

    let taken = prepare(fixed.clone()).await.unwrap_err().to_string();
    drop(first);
    // The task gives the port back when its turn comes.
    tokio::task::yield_now().await;
    let second = prepare(fixed).await.unwrap();

    let expected = format!("could not listen on port {number}: ");
    assert!(taken.starts_with(&expected), "{taken}");
    assert_eq!(port(&*second), number);
}

#[actix_rt::test]
async fn a_challenge_that_is_no_nonce_of_32_bytes_is_refused_and_not_served() {
    let mut proof = prepare(config()).await.unwrap();
    let unpadded = NONCE.trim_end_matches('=');
    let standard = NONCE.replace('_', "/").replace('-', "+");
    let long = format!(
        "{{\"nonce\":\"{NONCE}\",\"more\":\"{}\"}}",
        "x".repeat(5000)
    );

    for challenge in [
        "",
        "{}",
        "[]",
        r#"{"nonce":null}"#,
        r#"{"nonce":""}"#,
        r#"{"nonce":"AAAA"}"#,
        &format!(r#"{{"nonce":"{unpadded}"}}"#),
        &format!(r#"{{"nonce":"{standard}"}}"#),
        &long,
    ] {
        let error = proof.respond(challenge.as_bytes()).await.unwrap_err();

        assert!(matches!(error, EvidenceError::Challenge(_)), "{challenge}");
    }
    let (head, _) = request(port(&*proof), "GET", PATH).await;
    assert!(head.starts_with("http/1.1 404 "), "{head}");
}

#[actix_rt::test]
async fn a_second_challenge_is_refused_and_the_first_stays() {
    let mut proof = prepare(config()).await.unwrap();
    proof.respond(&challenge()).await.unwrap();
    let other = json!({ "nonce": NONCE.replace('_', "A") }).to_string();

    let error = proof.respond(other.as_bytes()).await.unwrap_err();

    assert!(matches!(error, EvidenceError::Challenge(_)), "{error}");
    let (_, body) = request(port(&*proof), "GET", PATH).await;
    assert_eq!(body, format!("{NONCE}\n"));
}

#[test]
fn names_that_no_server_takes_are_refused_at_start() {
    let long_host = "h".repeat(254);
    let long_agent = "a".repeat(33);
    for (hostname, agentname, reason) in [
        ("", "default", "hostname \"\""),
        ("localhost", "default", "every host has that name"),
        ("a/b", "default", "slash or colon"),
        ("a:80", "default", "slash or colon"),
        ("::1", "default", "slash or colon"),
        ("a b", "default", "space"),
        ("a\n", "default", "hostname \"a\\n\""),
        (&long_host, "default", "longer than 253"),
        ("host", "", "agentname \"\""),
        ("host", "a.b", "agentname \"a.b\""),
        ("host", "1a", "a letter"),
        ("host", "a/b", "a letter"),
        ("host", "a?", "a letter"),
        ("host", "ä", "a letter"),
        ("host", &long_agent, "longer than 32"),
    ] {
        let attestor = HttpChallenge::new(HttpChallengeConfig {
            hostname: Some(hostname.to_owned()),
            agentname: agentname.to_owned(),
            ..config()
        });

        let error = attestor.check().unwrap_err().to_string();

        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn names_that_some_server_takes_are_not_refused() {
    for (hostname, agentname) in [
        ("node", "default"),
        ("192.0.2.1", "agent-7-b"),
        ("node_1.domain.test", "my_agent"),
        ("h", "a"),
        ("h", &"a".repeat(32)),
    ] {
        let attestor = HttpChallenge::new(HttpChallengeConfig {
            hostname: Some(hostname.to_owned()),
            agentname: agentname.to_owned(),
            ..config()
        });

        assert_eq!(attestor.check(), Ok(()), "{hostname} {agentname}");
    }
}

#[actix_rt::test]
async fn without_a_hostname_it_is_that_of_the_host() {
    let attestor = HttpChallenge::new(HttpChallengeConfig {
        hostname: None,
        ..config()
    });
    let own = rustix::system::uname()
        .nodename()
        .to_str()
        .unwrap()
        .to_owned();
    let is_usable = messages::check_hostname(&own).is_ok();

    let prepared = Rc::new(attestor).prepare().await;

    assert_eq!(prepared.is_ok(), is_usable);
    if let Ok(proof) = prepared {
        assert_eq!(payload(&*proof)["hostname"], own);
    }
}

proptest! {
    #[test]
    fn no_challenge_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(messages::challenge(&bytes));
    }
}
