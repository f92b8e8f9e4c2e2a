//! Entries in both shapes, and bundles.

use devserver::{Code, Entry, FederatedBundle, SyncShape, rpc};
use proto::spire::api::server::bundle::v1::bundle_client::BundleClient;
use proto::spire::api::server::bundle::v1::{GetBundleRequest, GetFederatedBundleRequest};
use proto::spire::api::server::entry::v1::entry_client::EntryClient;
use proto::spire::api::server::entry::v1::{
    GetAuthorizedEntriesRequest, SyncAuthorizedEntriesRequest,
};
use proto::spire::api::types;

use crate::client::{connect, plain_sync, sync};
use crate::{start, start_with_agent};

#[tokio::test]
async fn a_page_of_entries_is_answered_in_full() {
    let (server, agent) = start_with_agent().await;
    server
        .control()
        .add_entry(Entry::new("web", "/web", &["unix:uid:1000"]).with_ttl(60));
    let channel = connect(&server, Some(&agent)).await.unwrap();

    let answers = plain_sync(channel).await.unwrap();

    let [answer] = answers.as_slice() else {
        panic!("one answer, not {answers:?}")
    };
    let [entry] = answer.entries.as_slice() else {
        panic!("one entry, not {answer:?}")
    };
    assert_eq!(answer.entry_revisions, []);
    assert_eq!(entry.id, "web");
    assert_eq!(entry.x509_svid_ttl, 60);
    assert_eq!(entry.spiffe_id.as_ref().unwrap().path, "/web");
    assert_eq!(entry.selectors[0].value, "uid:1000");
}

#[tokio::test]
async fn more_than_a_page_is_answered_with_revisions_and_then_what_is_asked_for() {
    let (server, agent) = start_with_agent().await;
    let control = server.control();
    control.configure(|settings| settings.page_size = 2);
    for id in ["a", "b", "c"] {
        control.add_entry(Entry::new(id, &format!("/{id}"), &["unix:uid:1"]));
    }
    control.update_entry("b", |entry| entry.hint = "inside".to_owned());
    control.set_vanished_entries(&["c"]);
    let channel = connect(&server, Some(&agent)).await.unwrap();
    let mask = types::EntryMask {
        spiffe_id: true,
        revision_number: true,
        ..types::EntryMask::default()
    };
    let first = SyncAuthorizedEntriesRequest {
        output_mask: Some(mask),
        ids: Vec::new(),
    };
    let second = SyncAuthorizedEntriesRequest {
        output_mask: None,
        ids: ["c", "b", "unknown"].map(str::to_owned).to_vec(),
    };

    let answers = sync(channel, vec![first, second]).await.unwrap();

    let revisions: Vec<_> = answers
        .iter()
        .map(|answer| {
            let listed = answer.entry_revisions.iter();
            (
                listed
                    .map(|item| (item.id.as_str(), item.revision_number))
                    .collect::<Vec<_>>(),
                answer.more,
            )
        })
        .collect();
    assert_eq!(
        revisions,
        [
            (vec![("a", 0), ("b", 1)], true),
            (vec![("c", 0)], false),
            (vec![], false)
        ]
    );
    let full = &answers[2].entries;
    assert_eq!(
        full.iter()
            .map(|entry| entry.id.as_str())
            .collect::<Vec<_>>(),
        ["b"]
    );
    assert_eq!((full[0].hint.as_str(), full[0].revision_number), ("", 1));
    assert_eq!(
        control.calls(rpc::SYNC_AUTHORIZED_ENTRIES_IDS)[0].ids,
        ["c", "b", "unknown"]
    );
    assert_eq!(control.count(rpc::SYNC_AUTHORIZED_ENTRIES), 1);
}

#[tokio::test]
async fn a_sync_that_starts_with_ids_or_masks_the_revision_is_invalid() {
    let (server, agent) = start_with_agent().await;
    let channel = connect(&server, Some(&agent)).await.unwrap();
    let with_ids = SyncAuthorizedEntriesRequest {
        output_mask: None,
        ids: vec!["a".to_owned()],
    };
    let masked = SyncAuthorizedEntriesRequest {
        output_mask: Some(types::EntryMask::default()),
        ids: Vec::new(),
    };

    for request in [with_ids, masked] {
        let outcome = sync(channel.clone(), vec![request]).await;

        assert_eq!(
            outcome.err().map(|status| status.code()),
            Some(Code::InvalidArgument)
        );
    }
}

#[tokio::test]
async fn revisions_can_be_forced_and_malformed_items_injected() {
    let (server, agent) = start_with_agent().await;
    let control = server.control();
    control.configure(|settings| settings.sync_shape = SyncShape::Revisions);
    control.set_raw_entries(vec![types::Entry::default()]);
    let channel = connect(&server, Some(&agent)).await.unwrap();

    let answers = plain_sync(channel.clone()).await.unwrap();
    let all = EntryClient::new(channel)
        .get_authorized_entries(GetAuthorizedEntriesRequest::default())
        .await
        .unwrap()
        .into_inner();

    assert_eq!(answers[0].entry_revisions[0].id, "");
    assert_eq!(all.entries, [types::Entry::default()]);
}

#[tokio::test]
async fn the_bundle_follows_the_authorities() {
    let server = start();
    let control = server.control();
    let mut client = BundleClient::new(connect(&server, None).await.unwrap());

    let first = client
        .get_bundle(GetBundleRequest::default())
        .await
        .unwrap()
        .into_inner();
    control.prepare_x509_authority();
    control.taint_x509_authority(0);
    control.prepare_jwt_authority();
    let second = client
        .get_bundle(GetBundleRequest::default())
        .await
        .unwrap()
        .into_inner();
    control.revoke_x509_authority(0);
    control.add_bundle_authority(b"garbage".to_vec());
    let third = client
        .get_bundle(GetBundleRequest::default())
        .await
        .unwrap()
        .into_inner();

    let tainted = |bundle: &types::Bundle| {
        bundle
            .x509_authorities
            .iter()
            .map(|authority| authority.tainted)
            .collect::<Vec<_>>()
    };
    assert_eq!(tainted(&first), [false]);
    assert_eq!(tainted(&second), [true, false]);
    assert_eq!(
        (first.jwt_authorities.len(), second.jwt_authorities.len()),
        (1, 2)
    );
    assert_eq!(third.x509_authorities[0], second.x509_authorities[1]);
    assert_eq!(third.x509_authorities[1].asn1, b"garbage");
    assert!(
        first.sequence_number < second.sequence_number
            && second.sequence_number < third.sequence_number
    );
}

#[tokio::test]
async fn a_federated_bundle_is_answered_as_set() {
    let (server, agent) = start_with_agent().await;
    let control = server.control();
    let foreign = start().control().bundle();
    control.set_federated_bundle("good.org", Some(FederatedBundle::Bundle(foreign.clone())));
    control.set_federated_bundle(
        "bad.org",
        Some(FederatedBundle::Fail(Code::Internal, "broken".to_owned())),
    );
    let mut client = BundleClient::new(connect(&server, Some(&agent)).await.unwrap());

    for (trust_domain, expected) in [
        ("good.org", Ok(foreign)),
        ("bad.org", Err(Code::Internal)),
        ("none.org", Err(Code::NotFound)),
        ("example.org", Err(Code::InvalidArgument)),
    ] {
        let request = GetFederatedBundleRequest {
            trust_domain: trust_domain.to_owned(),
            output_mask: None,
        };
        let answer = client.get_federated_bundle(request).await;

        assert_eq!(
            answer
                .map(tonic::Response::into_inner)
                .map_err(|status| status.code()),
            expected,
            "{trust_domain}"
        );
    }
}
