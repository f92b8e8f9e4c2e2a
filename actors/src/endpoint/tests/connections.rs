//! What comes over a socket that is no call: noise, silence, crowds.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use proto::workload as api;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tower_service::Service as _;

use super::world::{World, identity, next, secured};
use crate::selectors::AttestationError;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A request that never comes.
struct Silent;

impl http_body::Body for Silent {
    type Data = bytes::Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
        Poll::Pending
    }
}

/// Reads until the other end closes; false if it does not within `patience`.
async fn is_closed(stream: &mut UnixStream, patience: Duration) -> bool {
    let mut sink = Vec::new();
    match tokio::time::timeout(patience, stream.read_to_end(&mut sink)).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
        Err(_) => false,
    }
}

#[actix::test]
async fn noise_is_cut_off_and_others_are_served() {
    let world = World::new();
    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);
    let mut good = world.svids().await;
    next(&mut good).await.unwrap();

    let prefaces = PREFACE.repeat(400);
    let noise: [&[u8]; 4] = [
        &[0x5a; 4096],
        b"GET / HTTP/1.1\r\nHost: agent.example\r\nAccept: */*\r\n\r\n",
        &[0x16; 517],
        &prefaces,
    ];
    for bytes in noise {
        let mut stream = world.connect().await;
        if let Err(error) = stream.write_all(bytes).await {
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ),
                "{error}"
            );
        }

        assert!(
            is_closed(&mut stream, Duration::from_secs(5)).await,
            "{:?}",
            &bytes[..4]
        );
    }

    world.show(vec![identity("b", "", 1, &world.svid("/b"))]);
    assert_eq!(
        next(&mut good).await.unwrap().svids[0].spiffe_id,
        "spiffe://domain.test/b"
    );
}

#[actix::test]
async fn who_does_not_greet_in_time_is_cut_off_and_who_does_may_be_idle() {
    tokio::time::pause();
    let world = World::new();
    let (mut silent, mut partial, mut idle) = (
        world.connect().await,
        world.connect().await,
        world.connect().await,
    );
    partial.write_all(&PREFACE[..20]).await.unwrap();
    idle.write_all(&[PREFACE, EMPTY_SETTINGS].concat())
        .await
        .unwrap();

    let connected = tokio::time::Instant::now();
    assert!(is_closed(&mut silent, Duration::from_mins(1)).await);
    assert!(is_closed(&mut partial, Duration::from_mins(1)).await);

    assert!(
        (10_000..10_200).contains(&connected.elapsed().as_millis()),
        "{:?}",
        connected.elapsed()
    );
    assert!(!is_closed(&mut idle, Duration::from_mins(10)).await);
}

#[actix::test]
async fn a_connection_over_the_cap_is_closed_at_once_and_its_place_comes_back() {
    let world = World::with(|config| config.descriptor_limit = 8);
    let first = world.connect().await;
    let second = world.connect().await;
    let mut third = world.connect().await;

    assert!(is_closed(&mut third, Duration::from_secs(5)).await);

    drop((first, second));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let mut stream = world.connect().await;
        if !is_closed(&mut stream, Duration::from_millis(50)).await {
            break;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "the place does not come back"
        );
    }
}

/// Opens a `FetchX509SVID` with this as its request.
async fn call_with<B>(world: &World, body: B) -> tonic::Status
where
    B: http_body::Body<Data = bytes::Bytes, Error = Infallible> + Send + 'static,
{
    let mut channel = world.channel("public").await;
    let request = http::Request::post("http://localhost/SpiffeWorkloadAPI/FetchX509SVID")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("workload.spiffe.io", "true")
        .body(tonic::body::Body::new(body))
        .unwrap();
    poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let answer = channel.call(request).await.unwrap();
    tonic::Status::from_header_map(answer.headers()).expect("the call is refused at once")
}

#[actix::test]
async fn a_call_whose_request_does_not_come_ends_after_ten_seconds() {
    tokio::time::pause();
    let world = World::new();
    let begun = tokio::time::Instant::now();

    let status = call_with(&world, Silent).await;

    assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status:?}");
    assert!(
        (10_000..10_200).contains(&begun.elapsed().as_millis()),
        "{:?}",
        begun.elapsed()
    );
}

#[actix::test]
async fn a_request_of_many_audiences_is_taken_and_a_longer_one_refused() {
    let world = World::new();
    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);
    for (bytes, code) in [
        (100 << 10, tonic::Code::Unimplemented),
        (130 << 10, tonic::Code::OutOfRange),
    ] {
        let request = api::JwtsvidRequest {
            audience: vec!["a".repeat(bytes)],
            spiffe_id: String::new(),
        };

        let answer = world.workload().await.fetch_jwtsvid(secured(request)).await;

        assert_eq!(answer.unwrap_err().code(), code, "{bytes}");
    }
}

#[actix::test]
async fn a_user_with_too_many_open_calls_is_refused_until_some_have_ended() {
    let world = World::new();
    let mut held = Vec::new();
    let refusal = loop {
        let mut client = world.workload().await;
        let opened = async {
            for _ in 0..1_000 {
                let request = secured(api::X509svidRequest {});
                held.push(client.fetch_x509svid(request).await?);
            }
            Ok::<_, tonic::Status>(())
        };
        if let Err(status) = opened.await {
            break status;
        }
    };

    assert_eq!(held.len(), 8_192);
    assert_eq!(refusal.code(), tonic::Code::Unavailable);
    assert_eq!(refusal.message(), "too many calls are open");

    held.clear();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    let mut client = world.workload().await;
    while client
        .fetch_x509svid(secured(api::X509svidRequest {}))
        .await
        .is_err()
    {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the places do not come back"
        );
    }
}

/// A frame of HTTP/2 (RFC 9113 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The kinds of the frames that come, up to the answer to a ping or the end.
async fn kinds_until_pong(stream: &mut UnixStream) -> Vec<u8> {
    let mut kinds = Vec::new();
    let mut head = [0; 9];
    while !kinds.contains(&6) && stream.read_exact(&mut head).await.is_ok() {
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        kinds.push(head[3]);
    }
    kinds
}

#[actix::test]
async fn two_thousand_cancelled_calls_do_not_cost_a_client_its_connection() {
    let world = World::new();
    let mut stream = world.connect().await;
    // `:method POST`, `:scheme http`, `:path` as a literal, without an authority.
    let path = b"/SpiffeWorkloadAPI/FetchX509SVID";
    let head = [&[0x83, 0x86, 0x04, 32], &path[..]].concat();
    let mut bytes = [PREFACE, EMPTY_SETTINGS].concat();
    for stream in (1..4_000).step_by(2) {
        bytes.extend(frame(1, 4, stream, &head));
        bytes.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    bytes.extend(frame(6, 0, 0, &[0; 8]));

    stream.write_all(&bytes).await.unwrap();

    let kinds = kinds_until_pong(&mut stream).await;
    assert!(!kinds.contains(&7), "GOAWAY");
    assert_eq!(kinds.last(), Some(&6), "{} frames", kinds.len());
}

#[actix::test]
async fn d10_the_connection_of_a_vanished_caller_is_closed() {
    let world = World::new();
    *world.attestation.lock().unwrap() = Err(AttestationError::PeerGone);
    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);

    let outcome = world
        .workload()
        .await
        .fetch_x509svid(secured(api::X509svidRequest {}))
        .await;

    let status = outcome.map(|_| ()).unwrap_err();
    assert!(
        !status.message().contains("could not verify"),
        "the socket closes before anything is said: {status:?}"
    );
}
