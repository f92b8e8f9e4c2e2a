//! What comes over a socket that is no call: noise, silence, crowds.

use std::io::ErrorKind;
use std::time::Duration;

use proto::workload as api;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::world::{World, identity, next, secured};
use crate::selectors::AttestationError;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

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
