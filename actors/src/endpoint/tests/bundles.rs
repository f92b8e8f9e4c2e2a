//! Who gets which bundles.

use std::sync::Arc;

use proto::workload as api;
use tonic::Streaming;

use super::world::{World, identity, is_silent, next, secured};
use crate::bundle::{Bundle, JwtAuthority};
use crate::cache::view::{View, WorkloadUpdate};
use crate::keys::{KeyType, PrivateKey};
use crate::testing::certificates::Ca;

const OWN: &str = "spiffe://domain.test";
const OTHER: &str = "spiffe://other.test";

/// What a caller sees that has an identity or not; either way an entry of somebody else federates.
fn update(world: &World, has_identity: bool) -> WorkloadUpdate {
    let identities = if has_identity {
        vec![identity("a", "", 1, &world.svid("/a"))]
    } else {
        Vec::new()
    };
    let mut update = world.update(identities);
    let other = Arc::new(Ca::new(world.clock.wall()).bundle("other.test"));
    update.federated.insert(other.trust_domain.clone(), other);
    update
}

fn show(world: &World, update: WorkloadUpdate) {
    world.view.send_replace(View::Ready(Arc::new(update)));
}

async fn x509_bundles(world: &World) -> Streaming<api::X509BundlesResponse> {
    world
        .workload()
        .await
        .fetch_x509_bundles(secured(api::X509BundlesRequest {}))
        .await
        .unwrap()
        .into_inner()
}

async fn jwt_bundles(world: &World) -> Streaming<api::JwtBundlesResponse> {
    world
        .workload()
        .await
        .fetch_jwt_bundles(secured(api::JwtBundlesRequest {}))
        .await
        .unwrap()
        .into_inner()
}

fn domains<V>(bundles: &std::collections::HashMap<String, V>) -> Vec<&str> {
    let mut names: Vec<_> = bundles.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn with_jwt_authority(bundle: &Bundle, key_id: &str) -> Arc<Bundle> {
    let mut bundle = bundle.clone();
    let public_key = PrivateKey::generate(KeyType::EcP256)
        .unwrap()
        .public_key_der()
        .to_vec()
        .into();
    bundle.jwt_authorities.push(JwtAuthority {
        key_id: key_id.into(),
        public_key,
        expires_at: None,
        tainted: false,
    });
    Arc::new(bundle)
}

#[actix::test]
async fn a_caller_with_an_identity_gets_its_own_and_the_federated_bundles() {
    let world = World::new();
    show(&world, update(&world, true));

    let x509 = next(&mut x509_bundles(&world).await).await.unwrap();
    let jwt = next(&mut jwt_bundles(&world).await).await.unwrap();

    assert_eq!(domains(&x509.bundles), [OWN, OTHER]);
    assert_eq!(domains(&jwt.bundles), [OWN, OTHER]);
    assert_eq!(&x509.bundles[OWN], world.ca.certificate().der());
    assert_eq!(jwt.bundles[OWN], "{\n    \"keys\": []\n}");
    assert!(x509.crl.is_empty());
}

#[actix::test]
async fn an_unauthenticated_verifier_gets_the_own_bundle_and_the_rest_with_its_identity() {
    let world = World::with(|config| config.allow_unauthenticated_verifiers = true);
    show(&world, update(&world, false));
    let (mut x509, mut jwt) = (x509_bundles(&world).await, jwt_bundles(&world).await);
    let before = (
        next(&mut x509).await.unwrap(),
        next(&mut jwt).await.unwrap(),
    );

    show(&world, update(&world, true));
    let after = (
        next(&mut x509).await.unwrap(),
        next(&mut jwt).await.unwrap(),
    );

    assert_eq!(
        (domains(&before.0.bundles), domains(&before.1.bundles)),
        (vec![OWN], vec![OWN])
    );
    assert_eq!(
        (domains(&after.0.bundles), domains(&after.1.bundles)),
        (vec![OWN, OTHER], vec![OWN, OTHER])
    );
}

#[actix::test]
async fn bundles_are_sent_again_only_when_their_own_kind_changed() {
    tokio::time::pause();
    let world = World::new();
    let bundle = world.ca.bundle("domain.test");
    let shown = |bundle: Arc<Bundle>| WorkloadUpdate {
        bundle,
        ..world.update(vec![identity("a", "", 1, &world.svid("/a"))])
    };
    show(&world, shown(Arc::new(bundle.clone())));
    let (mut x509, mut jwt) = (x509_bundles(&world).await, jwt_bundles(&world).await);
    next(&mut x509).await.unwrap();
    next(&mut jwt).await.unwrap();

    show(&world, shown(Arc::new(bundle.clone())));
    assert!(is_silent(&mut x509).await && is_silent(&mut jwt).await);
    show(&world, shown(with_jwt_authority(&bundle, "k")));
    let message = next(&mut jwt).await.unwrap();

    assert!(is_silent(&mut x509).await);
    let set: serde_json::Value = serde_json::from_slice(&message.bundles[OWN]).unwrap();
    assert_eq!(set["keys"][0]["kid"], "k");
}
