//! Health, the admin socket, and what is served where.

use std::time::Duration;

use proto::grpc::health::v1::health_check_response::ServingStatus;
use proto::grpc::health::v1::health_client::HealthClient;
use proto::grpc::health::v1::{HealthCheckRequest, HealthListRequest};
use proto::spire::agent::debug::v1::GetInfoRequest;
use proto::spire::agent::debug::v1::debug_client::DebugClient;
use proto::workload as api;
use proto::workload::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use tonic::{Code, Request};

use super::calls::{every_method, said};
use super::world::{HOUR, World, identity, next, secured};
use crate::clock::unix_seconds;

#[actix::test]
async fn health_follows_readiness() {
    let world = World::new();
    let mut client = world.health().await;
    let ask = |service: &str| {
        Request::new(HealthCheckRequest {
            service: service.into(),
        })
    };

    let before = client.check(ask("")).await.unwrap().into_inner();
    world.ready();
    let after = client.check(ask("")).await.unwrap().into_inner();

    assert_eq!(
        (before.status(), after.status()),
        (ServingStatus::NotServing, ServingStatus::Serving)
    );
    let status = client.check(ask("SpiffeWorkloadAPI")).await.unwrap_err();
    assert_eq!(
        said(&status),
        (Code::InvalidArgument, "per-service health is not supported")
    );
    assert_eq!(
        client.watch(ask("")).await.unwrap_err().code(),
        Code::Unimplemented
    );
    assert_eq!(
        client
            .list(Request::new(HealthListRequest::default()))
            .await
            .unwrap_err()
            .code(),
        Code::Unimplemented
    );
}

#[actix::test]
async fn get_info_tells_chain_counts_and_last_sync() {
    tokio::time::pause();
    let world = World::new();
    let mut client = world.debug().await;
    let status = client.get_info(GetInfoRequest {}).await.unwrap_err();
    assert_eq!(
        said(&status),
        (Code::Unavailable, "agent is not attested yet")
    );

    world.attest_agent(HOUR);
    world.ready();
    tokio::time::sleep(Duration::from_secs(7)).await;
    let info = client
        .get_info(GetInfoRequest {})
        .await
        .unwrap()
        .into_inner();

    let leaf = info.svid_chain[0].id.clone().unwrap();
    assert_eq!(
        (leaf.trust_domain.as_str(), leaf.path.as_str()),
        ("domain.test", "/spire/agent/x")
    );
    assert_eq!(info.svid_chain.len(), 2);
    assert_eq!(info.svid_chain[1].id, None);
    assert_eq!(
        info.svid_chain[1].expires_at,
        unix_seconds(world.ca.certificate().not_after())
    );
    assert_eq!(info.svid_chain[1].subject, world.ca.certificate().subject());
    assert_eq!(info.uptime, 7);
    assert_eq!(
        (
            info.cached_x509_svids_count,
            info.cached_jwt_svids_count,
            info.cached_svidstore_x509_svids_count
        ),
        (4, 3, 2)
    );
    assert_eq!(
        info.last_sync_success,
        world
            .readiness
            .borrow()
            .last_sync
            .map(unix_seconds)
            .unwrap()
    );
}

#[actix::test]
async fn get_info_of_an_expired_agent_says_why_it_fails() {
    tokio::time::pause();
    let world = World::new();
    world.attest_agent(Duration::from_mins(1));
    let mut client = world.debug().await;

    tokio::time::sleep(Duration::from_secs(62)).await;
    let status = client.get_info(GetInfoRequest {}).await.unwrap_err();

    assert_eq!(
        said(&status),
        (
            Code::Internal,
            "failed to verify agent SVID: certificate has expired"
        )
    );
}

#[actix::test]
async fn services_are_on_their_own_socket_only_and_an_unknown_one_does_no_harm() {
    let world = World::new();
    world.show(vec![identity("a", "", 1, &world.svid("/a"))]);
    let (public, admin) = (world.channel("public").await, world.channel("admin").await);
    let mut debug = DebugClient::new(public.clone());
    let mut health = HealthClient::new(admin.clone());
    let mut workload = SpiffeWorkloadApiClient::new(admin);

    assert_eq!(
        debug.get_info(GetInfoRequest {}).await.unwrap_err().code(),
        Code::Unimplemented
    );
    assert_eq!(
        health
            .check(HealthCheckRequest::default())
            .await
            .unwrap_err()
            .code(),
        Code::Unimplemented
    );
    assert_eq!(
        workload
            .fetch_x509svid(secured(api::X509svidRequest {}))
            .await
            .unwrap_err()
            .code(),
        Code::Unimplemented
    );

    let mut same_connection = SpiffeWorkloadApiClient::new(public);
    let mut stream = same_connection
        .fetch_x509svid(secured(api::X509svidRequest {}))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(next(&mut stream).await.unwrap().svids.len(), 1);
}

#[actix::test]
async fn a_disabled_workload_api_is_unimplemented_and_health_stays() {
    let world = World::with(|config| config.serve_workload_api = false);
    world.ready();

    for status in every_method(&world, &["true"]).await {
        assert_eq!(status.code(), Code::Unimplemented);
    }
    let answer = world
        .health()
        .await
        .check(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
}
