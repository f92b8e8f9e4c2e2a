//! The client against a Workload API in the same process.

use proto::workload::{X509BundlesResponse, X509svid as WireSvid, X509svidResponse};

use super::fake::{Fake, Reply};
use super::*;
use crate::testing::certificates::Ca;
use crate::testing::epoch;

const HOUR: Duration = Duration::from_hours(1);

fn domain() -> TrustDomain {
    TrustDomain::parse("domain.test").unwrap()
}

async fn bundle_from(reply: Reply) -> Result<Bundle, WorkloadApiFailure> {
    let fake = Fake::start(reply);
    let fetched = fetch_x509_bundle(&fake.address, &domain()).await;
    fetched.map_err(|error| error.reason)
}

async fn svid_from(reply: Reply) -> Result<FetchedSvid, WorkloadApiFailure> {
    let fake = Fake::start(reply);
    let fetched = fetch_x509_svid(&fake.address).await;
    fetched.map_err(|error| error.reason)
}

#[test]
fn an_address_is_an_endpoint_uri() {
    let unix = |path: &str| Some(Address::Unix(path.into()));
    let table = [
        ("unix:///run/api.sock", unix("/run/api.sock")),
        ("unix:/run/api.sock", unix("/run/api.sock")),
        (
            "tcp://127.0.0.1:1",
            Some(Address::Tcp(([127, 0, 0, 1], 1).into())),
        ),
        (
            "tcp://[::1]:1",
            Some(Address::Tcp("[::1]:1".parse().unwrap())),
        ),
        ("", None),
        ("/run/api.sock", None),
        ("unix:run/api.sock", None),
        ("unix://run/api.sock", None),
        ("unix:///", None),
        ("unix:///a\0b", None),
        ("tcp://h.test:1", None),
        ("tcp://127.0.0.1", None),
        ("tcp://127.0.0.1:1/", None),
        ("https://127.0.0.1:1", None),
    ];

    for (text, expected) in table {
        assert_eq!(Address::parse(text), expected, "{text:?}");
    }
    for text in ["unix:///run/api.sock", "tcp://[::1]:1"] {
        assert_eq!(Address::parse(text).unwrap().to_string(), text);
    }
}

#[tokio::test]
async fn the_bundle_of_the_own_trust_domain_is_taken() {
    let (own, foreign) = (Ca::new(epoch()), Ca::new(epoch()));
    let reply = Reply::bundles(&[&foreign.bundle("other.test"), &own.bundle("domain.test")]);

    assert_eq!(bundle_from(reply).await, Ok(own.bundle("domain.test")));
}

#[tokio::test]
async fn a_workload_api_is_asked_over_tcp_too() {
    let ca = Ca::new(epoch());
    let fake = Fake::start_on_port(Reply::bundles(&[&ca.bundle("domain.test")])).await;

    let fetched = fetch_x509_bundle(&fake.address, &domain()).await;

    assert_eq!(fetched, Ok(ca.bundle("domain.test")));
}

#[tokio::test]
async fn one_message_is_taken_with_the_security_header_and_then_the_line_is_dropped() {
    let fake = Fake::start(Reply::bundles(&[&Ca::new(epoch()).bundle("domain.test")]));

    fetch_x509_bundle(&fake.address, &domain()).await.unwrap();
    fake.hung_up.notified().await;

    let calls = fake.calls.lock().unwrap();
    let [(path, headers)] = calls.as_slice() else {
        panic!("one call is made")
    };
    assert_eq!(path, "/SpiffeWorkloadAPI/FetchX509Bundles");
    assert_eq!(headers.get("workload.spiffe.io").unwrap(), "true");
}

#[tokio::test]
async fn an_answer_without_a_usable_bundle_is_an_error() {
    let foreign = Ca::new(epoch()).bundle("other.test");
    let damaged = X509BundlesResponse {
        crl: Vec::new(),
        bundles: [(domain().id_string(), b"no DER".as_slice().into())].into(),
    };
    let table = [
        (
            Reply::bundles(&[&foreign]),
            "it has no bundle for trust domain domain.test",
        ),
        (Reply::of(&damaged), "unusable answer: "),
        (Reply::Message(b"\xff\xff".as_slice().into()), "Internal: "),
        (
            Reply::Message(vec![0; (4 << 20) + 1].into()),
            "OutOfRange: ",
        ),
        (
            Reply::Status(7, "no%0Aidentity"),
            "PermissionDenied: no identity",
        ),
        (Reply::Nothing, "it ended the stream without an answer"),
    ];

    for (reply, expected) in table {
        let error = bundle_from(reply).await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}, not {expected}");
    }
}

#[tokio::test]
async fn nobody_at_the_address_is_an_error_that_names_it() {
    let address = Address::Unix("/nonexistent/api.sock".into());

    let error = fetch_x509_bundle(&address, &domain()).await.unwrap_err();

    let text = error.to_string();
    assert!(
        text.starts_with("workload API unix:///nonexistent/api.sock: unable to connect: "),
        "{text}"
    );
}

#[tokio::test]
async fn silence_ends_after_a_minute() {
    tokio::time::pause();
    let begun = tokio::time::Instant::now();

    let fetched = bundle_from(Reply::Silence).await;

    assert_eq!(fetched, Err(WorkloadApiFailure::TimedOut(LIMIT)));
    assert!(begun.elapsed() >= LIMIT);
}

#[tokio::test]
async fn the_first_identity_is_taken_with_its_key() {
    let ca = Ca::new(epoch());
    let one = ca.svid("spiffe://domain.test/one", epoch(), epoch() + HOUR);
    let other = ca.svid("spiffe://domain.test/other", epoch(), epoch() + HOUR);

    let svid = svid_from(Reply::svids(&[&one, &other])).await.unwrap();

    assert_eq!(svid.chain, one.chain());
    assert_eq!(svid.key[..], *one.key.expose_pkcs8());
    assert!(!format!("{svid:?}").contains("key"));
}

#[tokio::test]
async fn an_answer_without_an_identity_is_an_error() {
    let damaged = X509svidResponse {
        svids: vec![WireSvid::default()],
        ..X509svidResponse::default()
    };

    let none = svid_from(Reply::svids(&[])).await.unwrap_err();
    let damaged = svid_from(Reply::of(&damaged)).await.unwrap_err();

    assert_eq!(none, WorkloadApiFailure::NoSvid);
    assert!(
        matches!(damaged, WorkloadApiFailure::Certificate(_)),
        "{damaged}"
    );
}
