//! Who gets which answer.

use std::time::Duration;

use proto::workload as api;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use super::world::{HOUR, World, identity, is_silent, next, secured};
use crate::cache::view::{View, Waiting};
use crate::readiness::Phase;
use crate::selectors::AttestationError;

pub(super) fn said(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

/// The outcome of each of the seven methods, with these values of the security header.
pub(super) async fn every_method(world: &World, headers: &[&'static str]) -> Vec<Status> {
    fn with<T>(message: T, headers: &[&'static str]) -> Request<T> {
        let mut request = Request::new(message);
        for value in headers {
            request
                .metadata_mut()
                .append("workload.spiffe.io", MetadataValue::from_static(value));
        }
        request
    }
    let mut client = world.workload().await;
    let token = api::JwtsvidRequest {
        audience: vec!["a".into()],
        spiffe_id: String::new(),
    };
    let check = api::ValidateJwtsvidRequest {
        audience: "a".into(),
        svid: "x".into(),
    };
    vec![
        client
            .fetch_x509svid(with(api::X509svidRequest {}, headers))
            .await
            .unwrap_err(),
        client
            .fetch_x509_bundles(with(api::X509BundlesRequest {}, headers))
            .await
            .unwrap_err(),
        client
            .fetch_jwtsvid(with(token, headers))
            .await
            .unwrap_err(),
        client
            .fetch_jwt_bundles(with(api::JwtBundlesRequest {}, headers))
            .await
            .unwrap_err(),
        client
            .validate_jwtsvid(with(check, headers))
            .await
            .unwrap_err(),
        client
            .fetch_witsvid(with(api::WitsvidRequest::default(), headers))
            .await
            .unwrap_err(),
        client
            .fetch_wit_bundles(with(api::WitBundlesRequest {}, headers))
            .await
            .unwrap_err(),
    ]
}

#[actix::test]
async fn every_method_wants_the_security_header_once_and_true() {
    let world = World::new();

    for headers in [
        &[][..],
        &["false"],
        &[""],
        &["True"],
        &["true", "true"],
        &["true", "false"],
    ] {
        for status in every_method(&world, headers).await {
            assert_eq!(
                said(&status),
                (
                    Code::InvalidArgument,
                    "security header missing from request"
                ),
                "{headers:?}"
            );
        }
    }
}

#[actix::test]
async fn an_unattested_caller_is_told_so_by_every_method_but_wit() {
    let world = World::new();
    for error in [
        AttestationError::AllFailed("unix: no".into()),
        AttestationError::Busy,
    ] {
        *world.attestation.lock().unwrap() = Err(error);

        let statuses = every_method(&world, &["true"]).await;

        for status in &statuses[..5] {
            assert_eq!(
                said(status),
                (Code::Unavailable, "workload attestation failed")
            );
        }
        assert_eq!(
            said(&statuses[5]),
            (Code::Unimplemented, "fetching WIT-SVIDs is not implemented")
        );
        assert_eq!(
            said(&statuses[6]),
            (
                Code::Unimplemented,
                "fetching WIT bundles is not implemented"
            )
        );
    }
}

#[actix::test]
async fn a_message_holds_identities_in_order_with_key_bundle_and_hint() {
    let world = World::new();
    let (one, two) = (world.svid("/one"), world.svid("/two"));
    world.show(vec![
        identity("a", "internal", 5, &one),
        identity("b", "", 1, &two),
    ]);

    let mut stream = world.svids().await;
    let message = next(&mut stream).await.unwrap();

    let ids: Vec<_> = message
        .svids
        .iter()
        .map(|svid| (svid.spiffe_id.as_str(), svid.hint.as_str()))
        .collect();
    assert_eq!(
        ids,
        [
            ("spiffe://domain.test/one", "internal"),
            ("spiffe://domain.test/two", "")
        ]
    );
    for (sent, svid) in message.svids.iter().zip([&one, &two]) {
        assert_eq!(sent.x509_svid, svid.chain_der());
        assert_eq!(sent.x509_svid_key, svid.key.expose_pkcs8());
        assert_eq!(sent.bundle, world.ca.certificate().der());
    }
    assert!(message.crl.is_empty() && message.federated_bundles.is_empty());
}

#[actix::test]
async fn of_a_repeated_hint_the_oldest_entry_stays() {
    let world = World::new();
    world.show(vec![
        identity("a", "x", 5, &world.svid("/a")),
        identity("b", "x", 3, &world.svid("/b")),
        identity("c", "x", 3, &world.svid("/c")),
        identity("d", "", 9, &world.svid("/d")),
        identity("e", "", 9, &world.svid("/e")),
    ]);

    let mut stream = world.svids().await;
    let message = next(&mut stream).await.unwrap();

    let ids: Vec<_> = message
        .svids
        .iter()
        .map(|svid| &svid.spiffe_id["spiffe://domain.test".len()..])
        .collect();
    assert_eq!(ids, ["/b", "/d", "/e"]);
}

#[actix::test]
async fn a_caller_without_identity_is_denied_at_once_and_in_the_middle_of_a_stream() {
    let world = World::new();
    world.show(vec![]);
    let statuses = every_streaming_end(&world).await;
    for status in statuses {
        assert_eq!(
            said(&status),
            (Code::PermissionDenied, "no identity issued")
        );
    }

    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);
    let mut stream = world.svids().await;
    next(&mut stream).await.unwrap();
    world.show(vec![]);

    assert_eq!(
        said(&next(&mut stream).await.unwrap_err()),
        (Code::PermissionDenied, "no identity issued")
    );
}

/// How the identity streams and the token call end.
async fn every_streaming_end(world: &World) -> Vec<Status> {
    let mut client = world.workload().await;
    let mut svids = client
        .fetch_x509svid(secured(api::X509svidRequest {}))
        .await
        .unwrap()
        .into_inner();
    let mut x509 = client
        .fetch_x509_bundles(secured(api::X509BundlesRequest {}))
        .await
        .unwrap()
        .into_inner();
    let mut jwt = client
        .fetch_jwt_bundles(secured(api::JwtBundlesRequest {}))
        .await
        .unwrap()
        .into_inner();
    let token = api::JwtsvidRequest {
        audience: vec!["a".into()],
        spiffe_id: String::new(),
    };
    vec![
        next(&mut svids).await.unwrap_err(),
        next(&mut x509).await.unwrap_err(),
        next(&mut jwt).await.unwrap_err(),
        client.fetch_jwtsvid(secured(token)).await.unwrap_err(),
    ]
}

#[actix::test]
async fn d01_a_stream_that_opens_before_readiness_waits_and_is_then_served() {
    tokio::time::pause();
    let world = World::new();
    let mut stream = world.svids().await;
    assert!(is_silent(&mut stream).await);

    world.view.send_replace(View::Waiting(Waiting::Signing));
    assert!(is_silent(&mut stream).await);
    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);

    assert_eq!(next(&mut stream).await.unwrap().svids.len(), 1);
}

#[actix::test]
async fn d01_a_unary_call_before_readiness_names_the_reason_after_two_seconds() {
    tokio::time::pause();
    let world = World::new();
    let mut client = world.workload().await;
    let token = || {
        secured(api::JwtsvidRequest {
            audience: vec!["a".into()],
            spiffe_id: String::new(),
        })
    };
    let table = [
        (
            Phase::Attesting(None),
            Waiting::FirstSync,
            "agent is not attested yet",
        ),
        (
            Phase::Attesting(Some("no route".into())),
            Waiting::FirstSync,
            "agent is not attested yet: no route",
        ),
        (
            Phase::Syncing(None),
            Waiting::FirstSync,
            "agent has not synced with the server yet",
        ),
        (
            Phase::Ready,
            Waiting::Signing,
            "X.509-SVID is not signed yet",
        ),
    ];

    for (phase, waiting, text) in table {
        world
            .readiness
            .send_modify(|readiness| readiness.phase = phase);
        world.view.send_replace(View::Waiting(waiting));
        let asked = tokio::time::Instant::now();

        let status = client.fetch_jwtsvid(token()).await.unwrap_err();

        assert_eq!(said(&status), (Code::Unavailable, text));
        assert!(
            (2_000..2_100).contains(&asked.elapsed().as_millis()),
            "{:?}",
            asked.elapsed()
        );
    }
}

#[actix::test]
async fn d06_an_expired_svid_is_never_served() {
    tokio::time::pause();
    let world = World::new();
    let now = world.clock.wall();
    let (old, new) = (
        world.svid_valid("/old", now - HOUR, now - Duration::from_secs(1)),
        world.svid("/new"),
    );

    world.show(vec![identity("a", "", 1, &old), identity("b", "", 1, &new)]);
    let mut stream = world.svids().await;
    let message = next(&mut stream).await.unwrap();
    world.show(vec![identity("a", "", 1, &old)]);
    let stays_open = is_silent(&mut stream).await;
    let mut later = world.svids().await;
    let status = next(&mut later).await.unwrap_err();

    assert_eq!(
        message
            .svids
            .iter()
            .map(|svid| svid.spiffe_id.as_str())
            .collect::<Vec<_>>(),
        ["spiffe://domain.test/new"]
    );
    assert!(stays_open);
    assert_eq!(
        said(&status),
        (
            Code::Unavailable,
            "X.509-SVID has expired and could not be renewed yet"
        )
    );
}

#[actix::test]
async fn an_svid_from_the_future_is_served_when_its_time_has_come() {
    tokio::time::pause();
    let world = World::new();
    let now = world.clock.wall();
    let early = world.svid_valid("/early", now + Duration::from_secs(90), now + HOUR);
    world.show(vec![identity("a", "", 1, &early)]);

    let mut stream = world.svids().await;
    assert!(is_silent(&mut stream).await);
    let message = tokio::time::timeout(Duration::from_mins(2), stream.message())
        .await
        .unwrap()
        .unwrap()
        .unwrap();

    assert_eq!(message.svids.len(), 1);
    assert!(world.clock.wall() >= now + Duration::from_secs(90));
}

#[actix::test]
async fn d09_the_same_set_is_not_sent_twice_and_the_newest_wins() {
    tokio::time::pause();
    let world = World::new();
    let (svid, newer) = (world.svid("/a"), world.svid("/a"));
    world.show(vec![identity("a", "", 1, &svid)]);
    let mut stream = world.svids().await;
    next(&mut stream).await.unwrap();

    world.show(vec![identity("a", "", 1, &svid)]);
    assert!(is_silent(&mut stream).await);
    world.show(vec![identity("a", "new hint", 1, &svid)]);
    world.show(vec![identity("a", "new hint", 1, &newer)]);
    let message = next(&mut stream).await.unwrap();

    assert_eq!(message.svids[0].x509_svid, newer.chain_der());
    assert!(is_silent(&mut stream).await);
}

#[actix::test]
async fn arguments_of_token_calls_are_checked_before_the_caller() {
    let world = World::new();
    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);
    let mut client = world.workload().await;
    let fetches = [
        (
            vec![],
            "",
            Code::InvalidArgument,
            "audience must be specified",
        ),
        (
            vec!["a"],
            "domain.test",
            Code::InvalidArgument,
            "invalid requested SPIFFE ID: scheme is missing or invalid",
        ),
        (
            vec!["a"],
            "spiffe://domain.test/b",
            Code::PermissionDenied,
            "no identity issued",
        ),
        (
            vec!["a"],
            "spiffe://domain.test/a",
            Code::Unimplemented,
            "JWT-SVIDs are not served by this build",
        ),
        (
            vec![""],
            "",
            Code::Unimplemented,
            "JWT-SVIDs are not served by this build",
        ),
    ];
    let checks = [
        ("", "x", Code::InvalidArgument, "audience must be specified"),
        ("a", "", Code::InvalidArgument, "svid must be specified"),
        (
            "a",
            "x",
            Code::Unimplemented,
            "JWT-SVIDs are not served by this build",
        ),
    ];

    for (audience, id, code, text) in fetches {
        let request = api::JwtsvidRequest {
            audience: audience.into_iter().map(Into::into).collect(),
            spiffe_id: id.into(),
        };
        let status = client.fetch_jwtsvid(secured(request)).await.unwrap_err();
        assert_eq!(said(&status), (code, text));
    }
    for (audience, svid, code, text) in checks {
        let request = api::ValidateJwtsvidRequest {
            audience: audience.into(),
            svid: svid.into(),
        };
        let status = client.validate_jwtsvid(secured(request)).await.unwrap_err();
        assert_eq!(said(&status), (code, text));
    }
}
