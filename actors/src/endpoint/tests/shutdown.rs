//! The end: of the agent, and of everything that a banned agent has served.

use std::time::Duration;

use proto::workload as api;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tonic::Code;

use super::world::{World, identity, next, secured};
use crate::endpoint::{Drain, Drained, EndStreams};

#[actix::test]
async fn at_shutdown_every_call_ends_with_unavailable_and_the_sockets_go() {
    tokio::time::pause();
    let world = World::new();
    let mut waiting = world.svids().await;
    let mut client = world.workload().await;
    let request = secured(api::X509BundlesRequest {});
    let bundles = client.fetch_x509_bundles(request).await;
    let mut bundles = bundles.unwrap().into_inner();
    let token = secured(api::JwtsvidRequest {
        audience: vec!["a".into()],
        spiffe_id: String::new(),
    });
    let began = tokio::time::Instant::now();
    let shutdown = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.endpoint.send(Drain).await.unwrap()
    };

    let (unary, stream, other_stream, drained) = tokio::join!(
        client.fetch_jwtsvid(token),
        next(&mut waiting),
        next(&mut bundles),
        shutdown
    );

    for end in [
        unary.unwrap_err(),
        stream.unwrap_err(),
        other_stream.unwrap_err(),
    ] {
        assert_eq!(
            (end.code(), end.message()),
            (Code::Unavailable, "agent is shutting down")
        );
    }
    assert_eq!(drained, Drained { cut: 0 });
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    assert!(!world.path("public").exists() && !world.path("admin").exists());
}

#[actix::test]
async fn a_stream_that_has_messages_ends_with_unavailable_too() {
    let world = World::new();
    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);
    let mut stream = world.svids().await;
    next(&mut stream).await.unwrap();

    let (drained, end) = tokio::join!(world.endpoint.send(Drain), next(&mut stream));

    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    assert_eq!(drained.unwrap(), Drained { cut: 0 });
}

#[actix::test]
async fn who_does_not_leave_is_cut_off_after_two_seconds() {
    tokio::time::pause();
    let world = World::new();
    let mut deaf = world.connect().await;
    deaf.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let began = tokio::time::Instant::now();

    let drained = world.endpoint.send(Drain).await.unwrap();

    assert!(
        began.elapsed() < Duration::from_millis(2_100),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(drained, Drained { cut: 1 });
    assert!(UnixStream::connect(world.path("public")).await.is_err());
}

#[actix::test]
async fn a_second_drain_is_harmless() {
    let world = World::new();

    let (first, second) = tokio::join!(world.endpoint.send(Drain), world.endpoint.send(Drain));

    assert_eq!(
        (first.unwrap(), second.unwrap()),
        (Drained { cut: 0 }, Drained { cut: 0 })
    );
}

#[actix::test]
async fn d05_a_ban_ends_open_streams_with_its_reason_and_connections_stay() {
    let world = World::new();
    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);
    let mut client = world.workload().await;
    let mut stream = client
        .fetch_x509svid(secured(api::X509svidRequest {}))
        .await
        .unwrap()
        .into_inner();
    next(&mut stream).await.unwrap();

    world
        .endpoint
        .send(EndStreams {
            text: "agent is banned".into(),
        })
        .await
        .unwrap();
    let end = next(&mut stream).await.unwrap_err();
    let mut later = client
        .fetch_x509svid(secured(api::X509svidRequest {}))
        .await
        .unwrap()
        .into_inner();

    assert_eq!(
        (end.code(), end.message()),
        (Code::PermissionDenied, "agent is banned")
    );
    assert_eq!(next(&mut later).await.unwrap().svids.len(), 1);
}
