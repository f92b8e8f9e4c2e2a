//! Scripted faults, counters, and the server's own comings and goings.

use std::time::Duration;

use devserver::{Code, ConnectionFault, DevServer, Fault, Reason, ServerName, rpc};
use proto::spire::api::server::bundle::v1::GetBundleRequest;
use proto::spire::api::server::bundle::v1::bundle_client::BundleClient;
use tonic::Status;
use tonic::transport::Channel;

use crate::client::{connect, plain_sync, reason};
use crate::{start, start_with, start_with_agent};

const SOON: Duration = Duration::from_millis(200);

async fn get_bundle(channel: &Channel) -> Result<(), Status> {
    let mut client = BundleClient::new(channel.clone());
    client
        .get_bundle(GetBundleRequest::default())
        .await
        .map(drop)
}

async fn bundle_over_new_connection(server: &DevServer) -> Result<(), String> {
    let channel = connect(server, None)
        .await
        .map_err(|error| error.to_string())?;
    get_bundle(&channel)
        .await
        .map_err(|status| status.to_string())
}

#[tokio::test]
async fn faults_apply_in_turn_and_then_calls_succeed() {
    let server = start();
    let control = server.control();
    control.add_fault(Fault::code(rpc::GET_BUNDLE, Code::Unavailable).times(2));
    control.add_fault(Fault::garbage(rpc::GET_BUNDLE).times(1));
    control.add_fault(Fault::oversized(rpc::GET_BUNDLE, 5 << 20).times(1));
    control.add_fault(Fault::oversized(rpc::GET_BUNDLE, 1000).times(1));
    let channel = connect(&server, None).await.unwrap();

    let mut codes = Vec::new();
    for _ in 0..6 {
        codes.push(
            get_bundle(&channel)
                .await
                .map_or_else(|status| status.code(), |()| Code::Ok),
        );
    }

    assert_eq!(
        codes,
        [
            Code::Unavailable,
            Code::Unavailable,
            Code::Internal,
            Code::OutOfRange,
            Code::Ok,
            Code::Ok,
        ]
    );
    assert_eq!(control.count(rpc::GET_BUNDLE), 6);
}

#[tokio::test]
async fn a_refusal_carries_any_reason() {
    let (server, agent) = start_with_agent().await;
    let control = server.control();
    control.add_fault(
        Fault::reason(rpc::SYNC_AUTHORIZED_ENTRIES, Reason::AgentBanned).message("go away"),
    );
    let channel = connect(&server, Some(&agent)).await.unwrap();

    let refused = plain_sync(channel).await.err().unwrap();

    assert_eq!(
        (refused.code(), refused.message()),
        (Code::PermissionDenied, "go away")
    );
    assert_eq!(reason(&refused), Some(Reason::AgentBanned));
}

#[tokio::test]
async fn a_late_answer_comes_and_a_stalled_one_does_not() {
    let server = start();
    let control = server.control();
    control.add_fault(Fault::delay(rpc::GET_BUNDLE, SOON).times(1));
    control.add_fault(Fault::stall(rpc::GET_BUNDLE).times(1));
    let channel = connect(&server, None).await.unwrap();

    let asked_at = tokio::time::Instant::now();
    get_bundle(&channel).await.unwrap();
    let took = asked_at.elapsed();
    let stalled = tokio::time::timeout(SOON, get_bundle(&channel)).await;

    assert!(took >= SOON, "{took:?}");
    assert!(stalled.is_err());
}

#[tokio::test]
async fn a_closed_connection_and_a_goaway_lead_to_new_connections() {
    let server = start();
    let control = server.control();
    control.add_fault(Fault::close_connection(rpc::GET_BUNDLE).times(1));
    control.add_fault(Fault::go_away(rpc::GET_BUNDLE).times(1));
    let channel = connect(&server, None).await.unwrap();

    let closed = get_bundle(&channel).await;
    let during_goaway = get_bundle(&channel).await;
    let connections = call_until_connections(&server, &channel, 3).await;

    assert!(closed.is_err());
    assert!(during_goaway.is_ok());
    assert_eq!(connections, 3);
}

#[tokio::test]
async fn a_connection_of_age_gets_a_goaway() {
    let server = start_with(|settings| settings.connection_age = Some(SOON));
    let channel = connect(&server, None).await.unwrap();

    let connections = call_until_connections(&server, &channel, 2).await;

    assert_eq!(connections, 2);
}

/// Calls until the server has seen `at_least` connections, or for ten seconds. A call that meets the end of a connection
/// may fail.
async fn call_until_connections(server: &DevServer, channel: &Channel, at_least: u64) -> u64 {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while server.control().connections() < at_least && tokio::time::Instant::now() < deadline {
        drop(get_bundle(channel).await);
    }
    server.control().connections()
}

#[tokio::test]
async fn a_server_comes_back_on_the_same_port_with_all_it_knew() {
    let (server, agent) = start_with_agent().await;
    let control = server.control();

    let stopped = control.stop();
    let away = bundle_over_new_connection(&server).await;
    let started = control.start();
    let channel = connect(&server, Some(&agent)).await.unwrap();
    let back = plain_sync(channel).await;

    assert!(stopped && started);
    assert!(away.is_err());
    assert!(back.is_ok());
}

#[tokio::test]
async fn a_dropped_server_frees_its_port() {
    let server = start();
    let address = server.addr();

    drop(server);
    let successor = start_with(|settings| settings.bind = address);

    assert_eq!(successor.addr(), address);
    assert_eq!(bundle_over_new_connection(&successor).await, Ok(()));
}

#[tokio::test]
async fn connections_fail_as_told() {
    let (server, agent) = start_with_agent().await;
    let control = server.control();

    control.set_connection_fault(ConnectionFault::Reset);
    let reset = bundle_over_new_connection(&server).await;
    control.set_connection_fault(ConnectionFault::Silent);
    let silent = tokio::time::timeout(SOON, bundle_over_new_connection(&server)).await;
    control.set_connection_fault(ConnectionFault::RefuseCertificates);
    let refused = match connect(&server, Some(&agent)).await {
        Ok(channel) => plain_sync(channel).await.is_err(),
        Err(_) => true,
    };
    let without_certificate = bundle_over_new_connection(&server).await;
    control.set_connection_fault(ConnectionFault::SlowHandshake(SOON));
    let slow = bundle_over_new_connection(&server).await;

    assert!(reset.is_err());
    assert!(silent.is_err());
    assert!(refused);
    assert_eq!((without_certificate, slow), (Ok(()), Ok(())));
}

#[tokio::test]
async fn a_frozen_connection_is_silent_until_it_thaws() {
    let server = start();
    let control = server.control();
    let channel = connect(&server, None).await.unwrap();
    get_bundle(&channel).await.unwrap();

    control.freeze_connections(true);
    let mut call = Box::pin(get_bundle(&channel));
    let frozen = tokio::time::timeout(SOON, &mut call).await;
    control.freeze_connections(false);
    let thawed = call.await;

    assert!(frozen.is_err());
    assert!(thawed.is_ok());
}

#[tokio::test]
async fn a_server_with_another_name_authority_or_an_expired_certificate_is_not_trusted() {
    let server = start();
    let control = server.control();

    control.configure(|settings| {
        settings.server_name = ServerName::Uri("spiffe://example.org/other".to_owned());
    });
    let wrong_name = bundle_over_new_connection(&server).await;
    control.configure(|settings| settings.server_name = ServerName::Dns("spire.test".to_owned()));
    let no_uri = bundle_over_new_connection(&server).await;
    control.configure(|settings| {
        settings.server_name = ServerName::Server;
        settings.server_ttl = -60;
    });
    let expired = bundle_over_new_connection(&server).await;
    control.configure(|settings| settings.server_ttl = 60);
    let good = bundle_over_new_connection(&server).await;

    assert!(wrong_name.is_err() && no_uri.is_err() && expired.is_err());
    assert_eq!(good, Ok(()));
}
