//! The sources, one after the other, against files and servers of the test.

mod fetching;
mod site;

use super::pins::pin;
use super::*;
use crate::clock::Clock;
use crate::svid::CertificateError;
use crate::testing::certificates::Ca;
use crate::testing::epoch;
use crate::workload_api::fake::{Fake, Reply};
use site::{Site, document};
use std::time::Duration;

fn domain() -> TrustDomain {
    TrustDomain::parse("domain.test").unwrap()
}

fn asking() -> Asking {
    Asking {
        purpose: Purpose::Bootstrap,
        attempts: 2,
        started: epoch(),
        server_address: "server.test".to_owned(),
        server_port: 8081,
        trust_domain: domain(),
    }
}

fn web() -> Web {
    Web::from_environment(&|_| None, Clock::virtual_from(epoch()))
}

fn sources(list: Vec<BundleSource>) -> BundleSources {
    let list = list.into_iter().map(PinnedSource::unpinned);
    BundleSources::new(list.collect(), web())
}

/// The certificates that come, or the error.
async fn authorities(sources: &BundleSources) -> Result<Vec<Vec<u8>>, BundleSourceError> {
    match sources.fetch(asking()).await? {
        ServerTrust::Insecure => panic!("no source is insecure"),
        ServerTrust::Bundle(bundle) => {
            let certificates = bundle.certificates().into_iter();
            Ok(certificates
                .map(|certificate| certificate.der().to_vec())
                .collect())
        }
    }
}

fn der(ca: &Ca) -> Vec<u8> {
    ca.certificate().der().to_vec()
}

fn jwks(ca: &Ca, purpose: &str) -> String {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(ca.certificate().der());
    format!(
        "\n {{\"keys\": [{{\"kty\": \"EC\", \"use\": \"{purpose}\", \"x5c\": [\"{encoded}\"]}}]}}"
    )
}

/// Files of one test.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn source(&self, name: &str, text: &str, format: Option<BundleFormat>) -> BundleSource {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        BundleSource::File { path, format }
    }

    fn missing(&self, name: &str) -> BundleSource {
        BundleSource::File {
            path: self.0.path().join(name),
            format: None,
        }
    }
}

#[tokio::test]
async fn a_format_that_is_not_given_is_told_by_the_content() {
    let (files, ca) = (Files::new(), Ca::new(epoch()));
    let pem = ca.certificate().to_pem();
    let table = [
        (pem.clone(), None, true),
        (jwks(&ca, "x509-svid"), None, true),
        (pem.clone(), Some(BundleFormat::Pem), true),
        (jwks(&ca, "x509-svid"), Some(BundleFormat::Spiffe), true),
        (pem, Some(BundleFormat::Spiffe), false),
        (jwks(&ca, "x509-svid"), Some(BundleFormat::Pem), false),
    ];

    for (text, format, is_good) in table {
        let sources = sources(vec![files.source("a", &text, format)]);

        let outcome = authorities(&sources).await;
        assert_eq!(
            outcome == Ok(vec![der(&ca)]),
            is_good,
            "{text} {format:?}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_damaged_file_is_final_and_a_missing_one_is_not() {
    let (files, ca) = (Files::new(), Ca::new(epoch()));
    let with_key = ca.certificate().to_pem()
        + "-----BEGIN PRIVATE KEY-----\naHVzaA==\n-----END PRIVATE KEY-----\n";
    let damaged = [
        String::new(),
        "{".to_owned(),
        jwks(&ca, "x509"),
        jwks(&ca, ""),
        with_key,
        "-----BEGIN CERTIFICATE-----\naHVzaA==\n-----END CERTIFICATE-----\n".to_owned(),
    ];

    for text in damaged {
        let error = authorities(&sources(vec![files.source("a", &text, None)]))
            .await
            .unwrap_err();
        assert!(
            error.is_final() && error.to_string().contains("unusable trust bundle /"),
            "{error}"
        );
        assert!(!error.to_string().contains("aHVz"), "{error}");
    }
    let error = authorities(&sources(vec![files.missing("none")]))
        .await
        .unwrap_err();
    assert!(
        !error.is_final() && error.to_string().contains("none: No such file"),
        "{error}"
    );
}

#[tokio::test]
async fn the_first_source_that_answers_is_taken() {
    let (files, one, other) = (Files::new(), Ca::new(epoch()), Ca::new(epoch()));
    let api = Fake::start(Reply::bundles(&[&one.bundle("domain.test")]));
    let workload_api = BundleSource::WorkloadApi {
        address: api.address.clone(),
    };
    let file = files.source("other", &other.certificate().to_pem(), None);
    let damaged = files.source("damaged", "x", None);

    let table = [
        (vec![workload_api.clone(), file.clone()], &one),
        (vec![file.clone(), workload_api.clone()], &other),
        (
            vec![files.missing("none"), workload_api.clone(), file.clone()],
            &one,
        ),
        (vec![damaged, files.missing("none"), file.clone()], &other),
    ];
    for (list, expected) in table {
        assert_eq!(authorities(&sources(list)).await, Ok(vec![der(expected)]));
    }
}

#[tokio::test]
async fn insecure_bootstrap_asks_nobody() {
    let trust = BundleSources::from(BundleSource::Insecure)
        .fetch(asking())
        .await;

    assert!(matches!(trust, Ok(ServerTrust::Insecure)), "{trust:?}");
}

#[tokio::test]
async fn when_all_fail_every_source_and_its_reason_is_named() {
    let files = Files::new();
    let api = Fake::start(Reply::bundles(&[&Ca::new(epoch()).bundle("other.test")]));
    let api = BundleSource::WorkloadApi {
        address: api.address.clone(),
    };
    let damaged = |name| files.source(name, "x", None);
    let url = BundleSource::Url {
        url: BundleUrl::parse("http://h.test/hush?hush").unwrap(),
        unix_socket: Some(files.0.path().join("none.sock")),
        format: None,
    };

    let mixed = sources(vec![damaged("a"), files.missing("b"), api, url]);
    let hopeless = sources(vec![damaged("c"), damaged("d")]);
    let mixed = authorities(&mixed).await.unwrap_err();
    let hopeless = authorities(&hopeless).await.unwrap_err();

    let text = mixed.to_string();
    for part in [
        "/a: no PEM blocks",
        "/b: No such file",
        "it has no bundle for trust domain domain.test",
        "from http://h.test over /",
        "connecting: No such file",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!mixed.is_final() && !text.contains("hush"), "{text}");
    assert!(hopeless.is_final(), "{hopeless}");
    assert_eq!(
        authorities(&sources(Vec::new())).await,
        Err(BundleSourceError::NoBundle)
    );
}

#[tokio::test]
async fn of_a_pinned_source_only_pinned_authorities_are_taken() {
    let files = Files::new();
    let (one, other, foreign) = (Ca::new(epoch()), Ca::new(epoch()), Ca::new(epoch()));
    let both = one.certificate().to_pem() + &other.certificate().to_pem();
    let pinned = |pins: &str| PinnedSource {
        source: files.source("both", &both, None),
        pins: Pins::parse(pins).unwrap(),
    };
    let last = PinnedSource::unpinned(files.source("last", &foreign.certificate().to_pem(), None));

    let matching = BundleSources::new(vec![pinned(&pin(&other)), last.clone()], web());
    let passed_over = BundleSources::new(vec![pinned(&pin(&foreign)), last], web());
    let alone = BundleSources::new(vec![pinned(&pin(&foreign))], web());

    assert_eq!(authorities(&matching).await, Ok(vec![der(&other)]));
    assert_eq!(authorities(&passed_over).await, Ok(vec![der(&foreign)]));
    let error = authorities(&alone).await.unwrap_err();
    assert!(matches!(error, BundleSourceError::NotPinned { .. }) && !error.is_final());
    assert!(error.to_string().ends_with("/both is pinned"), "{error}");
}

#[tokio::test]
async fn a_server_behind_a_socket_is_told_who_asks_and_its_rubbish_is_not_final() {
    let (files, ca) = (Files::new(), Ca::new(epoch()));
    let socket = files.0.path().join("bundle.sock");
    let (good, bad) = (
        document(&ca.certificate().to_pem()),
        document(&jwks(&ca, "tls")),
    );
    let site = Site::behind(&socket, move |request| {
        let is_good = request.starts_with("GET /good");
        if is_good { good.clone() } else { bad.clone() }
    });
    let source = |path: &str| BundleSource::Url {
        url: BundleUrl::parse(&format!("http://h.test{path}")).unwrap(),
        unix_socket: Some(socket.clone()),
        format: None,
    };

    let bad = authorities(&sources(vec![source("/bad")]))
        .await
        .unwrap_err();
    let good = authorities(&sources(vec![source("/good?z=1")])).await;

    assert_eq!(good, Ok(vec![der(&ca)]));
    assert!(
        !bad.is_final() && bad.to_string().contains("unrecognized use \"tls\""),
        "{bad}"
    );
    let request = &site.requests()[1];
    assert!(request.starts_with("GET /good?spiffe-trust-domain=domain.test&spire-attest-mode=bootstrap&spire-attest-start-time="), "{request}");
    assert!(request.contains("&spire-connection-attempts=2&spire-server-address=server.test&spire-server-port=8081&z=1 HTTP"), "{request}");
}

#[test]
fn a_failure_is_said_once_until_it_changes() {
    let sources = sources(vec![BundleSource::Insecure, BundleSource::Insecure]).0;
    let one = BundleSourceError::NoBundle;
    let other = BundleSourceError::Unusable {
        path: "/a".to_owned(),
        reason: BundleError::Certificate(CertificateError::Missing),
    };

    let table = [
        (0, Some(&one), true),
        (0, Some(&one), false),
        (1, Some(&one), true),
        (0, Some(&other), true),
        (0, Some(&one), true),
        (0, None, true),
        (0, Some(&one), true),
        (1, Some(&one), false),
    ];
    for (index, failure, is_news) in table {
        assert_eq!(
            sources.is_news(index, failure),
            is_news,
            "{index} {failure:?}"
        );
    }
}

#[tokio::test]
async fn a_file_that_never_answers_takes_one_thread_and_no_second() {
    let busy = Arc::new(AtomicBool::new(true));
    let trust_domain = TrustDomain::parse("domain.test").unwrap();

    let read = file::read(
        std::path::Path::new("/dead/bundle.pem"),
        None,
        &trust_domain,
        &busy,
    )
    .await;

    let error = read.unwrap_err().to_string();
    assert!(
        error.contains("an earlier try") && error.contains("/dead/bundle.pem"),
        "{error}"
    );
}

fn pipe_in(files: &Files) -> PathBuf {
    let path = files.0.path().join("pipe");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0).unwrap();
    path
}

#[test]
fn a_pipe_that_nobody_writes_into_costs_no_thread() {
    let files = Files::new();
    let ca = Ca::new(epoch());
    let good = files.source("good", &ca.certificate().to_pem(), None);
    let pipe = pipe_in(&files);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();

    let outcome = runtime.block_on(async {
        let path = pipe.clone();
        let silent = sources(vec![BundleSource::File { path, format: None }]);
        let reading = authorities(&silent);
        let given_up = tokio::time::timeout(Duration::from_millis(50), reading).await;
        assert!(given_up.is_err());
        let good = sources(vec![good]);
        tokio::time::timeout(Duration::from_secs(5), authorities(&good)).await
    });
    // Lets a thread go that waits for a writer after all.
    let mut writer = std::fs::OpenOptions::new();
    drop(writer.read(true).write(true).open(&pipe));

    assert!(matches!(outcome, Ok(Ok(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_bundle_is_read_from_a_pipe() {
    let (files, ca) = (Files::new(), Ca::new(epoch()));
    let pem = ca.certificate().to_pem();
    let path = pipe_in(&files);
    let writing = std::thread::spawn({
        let path = path.clone();
        move || std::fs::write(path, pem)
    });

    let read = authorities(&sources(vec![BundleSource::File { path, format: None }])).await;

    writing.join().unwrap().unwrap();
    assert_eq!(read, Ok(vec![der(&ca)]));
}
