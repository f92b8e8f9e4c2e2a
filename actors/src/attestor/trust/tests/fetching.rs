//! One document over https, over a Unix socket, over a pipe.

use std::path::PathBuf;
use std::time::Duration;

use ::http::StatusCode;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::super::http::{Answer, FetchError, STEP_LIMIT, get};
use super::super::web::{get_over_socket, limited};
use super::site::{Identity, Site, document, head_of, redirect, spawn};
use super::*;

const HOUR: Duration = Duration::from_hours(1);

/// A machine that trusts one authority of the Web PKI.
struct Machine {
    ca: Ca,
    web: Web,
    directory: TempDir,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(epoch());
        let roots = directory.path().join("roots.pem");
        std::fs::write(&roots, ca.certificate().to_pem()).unwrap();
        let variable =
            |name: &str| (name == "SSL_CERT_FILE").then(|| roots.to_str().unwrap().to_owned());
        let web = Web::from_environment(&variable, Clock::virtual_from(epoch()));
        Self { ca, web, directory }
    }

    fn identity(&self) -> Identity {
        Identity::new(&self.ca, "127.0.0.1", epoch() + HOUR)
    }

    async fn get(&self, site: &Site, path: &str) -> Result<Vec<u8>, FetchError> {
        let url = format!("https://127.0.0.1:{}{path}", site.port);
        self.web.get(&BundleUrl::parse(&url).unwrap()).await
    }

    /// What comes for one answer of a server.
    async fn outcome(&self, answer: Vec<u8>) -> Result<Vec<u8>, FetchError> {
        let site = Site::start(self.identity(), move |_| answer.clone()).await;
        self.get(&site, "/").await
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("bundle.sock")
    }
}

#[tokio::test]
async fn a_document_is_fetched_over_https() {
    let machine = Machine::new();
    let site = Site::start(machine.identity(), |_| document("hello")).await;
    let url = format!("https://user:pass@127.0.0.1:{}/a?b=c", site.port);

    let fetched = machine.web.get(&BundleUrl::parse(&url).unwrap()).await;

    assert_eq!(fetched, Ok(b"hello".to_vec()));
    let requests = site.requests();
    let [request] = requests.as_slice() else {
        panic!("one request is made: {requests:?}")
    };
    assert!(request.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{request}");
    let header = format!("host: 127.0.0.1:{}\r\n", site.port);
    assert!(request.contains(&header), "{request}");
    assert!(
        request.contains("authorization: Basic dXNlcjpwYXNz\r\n"),
        "{request}"
    );
}

#[tokio::test]
async fn a_document_may_end_with_its_connection_or_come_in_chunks() {
    let machine = Machine::new();
    let bare = b"HTTP/1.1 200 OK\r\n\r\nhello".to_vec();
    let chunked =
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
            .to_vec();

    assert_eq!(machine.outcome(bare).await, Ok(b"hello".to_vec()));
    assert_eq!(machine.outcome(chunked).await, Ok(b"hello".to_vec()));
}

#[tokio::test]
async fn redirects_are_followed() {
    let machine = Machine::new();
    for status in [301, 302, 303, 307, 308] {
        let site = Site::start(machine.identity(), move |request| {
            if request.starts_with("GET /a/b?c ") {
                redirect(status, "../d?e")
            } else {
                document("hello")
            }
        })
        .await;

        assert_eq!(
            machine.get(&site, "/a/b?c").await,
            Ok(b"hello".to_vec()),
            "{status}"
        );
        assert!(site.requests()[1].starts_with("GET /d?e "), "{status}");
    }
}

#[tokio::test]
async fn redirects_in_a_circle_end_after_ten_requests() {
    let machine = Machine::new();
    let site = Site::start(machine.identity(), |_| redirect(302, "/")).await;

    assert_eq!(
        machine.get(&site, "/").await,
        Err(FetchError::TooManyRedirects(10))
    );
    assert_eq!(site.requests().len(), 10);
}

#[tokio::test]
async fn a_redirect_to_http_is_refused_without_asking_there() {
    let machine = Machine::new();
    let error = machine
        .outcome(redirect(302, "http://user:hush@h.test/?hush"))
        .await
        .unwrap_err();

    assert!(matches!(error, FetchError::Scheme { .. }), "{error}");
    assert!(
        error.to_string().ends_with("to http://h.test is refused"),
        "{error}"
    );
}

#[tokio::test]
async fn only_a_200_counts() {
    let machine = Machine::new();
    for status in [201, 204, 206, 302, 304, 404, 500] {
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");

        let expected = StatusCode::from_u16(status).unwrap();
        assert_eq!(
            machine.outcome(answer.into()).await,
            Err(FetchError::Status(expected))
        );
    }
    let nowhere = machine.outcome(redirect(302, "gopher://h.test/")).await;
    assert!(
        matches!(nowhere, Err(FetchError::Redirect(_))),
        "{nowhere:?}"
    );
}

#[tokio::test]
async fn a_document_of_5_mib_is_refused() {
    let machine = Machine::new();
    let body = "x".repeat(5 << 20);
    let bare = format!("HTTP/1.1 200 OK\r\n\r\n{body}");

    assert_eq!(
        machine.outcome(document(&body)).await,
        Err(FetchError::TooLarge)
    );
    assert_eq!(
        machine.outcome(bare.into()).await,
        Err(FetchError::TooLarge)
    );
    assert_eq!(
        machine
            .outcome(document(&body[..4 << 20]))
            .await
            .map(|body| body.len()),
        Ok(4 << 20)
    );
}

#[tokio::test]
async fn what_is_not_http_is_an_error() {
    let machine = Machine::new();
    let endless_head = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(1 << 20));
    let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello".to_vec();

    for answer in [
        Vec::new(),
        b"hello\r\n\r\n".to_vec(),
        endless_head.into(),
        cut,
    ] {
        let outcome = machine.outcome(answer).await;
        assert!(
            matches!(outcome, Err(FetchError::Failed { .. })),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_the_web_pki_does_not_vouch_for_is_refused() {
    let machine = Machine::new();
    let foreign = Ca::new(epoch());
    let until = epoch() + HOUR;
    let table = [
        (
            Identity::new(&machine.ca, "h.test", until),
            "not valid for name",
        ),
        (
            Identity::new(&machine.ca, "127.0.0.2", until),
            "not valid for name",
        ),
        (
            Identity::new(&foreign, "127.0.0.1", until),
            "invalid peer certificate",
        ),
        (
            Identity::new(&machine.ca, "127.0.0.1", epoch() - HOUR),
            "expired",
        ),
    ];

    for (identity, reason) in table {
        let site = Site::start(identity, |_| document("hello")).await;

        let error = machine.get(&site, "/").await.unwrap_err().to_string();
        assert!(
            error.starts_with("TLS handshake: ") && error.contains(reason),
            "{error}"
        );
        assert_eq!(site.requests(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn without_root_certificates_nobody_is_asked() {
    let variable =
        |name: &str| (name == "SSL_CERT_FILE").then(|| "/nonexistent/roots.pem".to_owned());
    let web = Web::from_environment(&variable, Clock::virtual_from(epoch()));

    let fetched = web
        .get(&BundleUrl::parse("https://127.0.0.1:1/").unwrap())
        .await;

    assert_eq!(
        fetched,
        Err(FetchError::NoRoots("/nonexistent/roots.pem".to_owned()))
    );
}

#[tokio::test]
async fn behind_a_unix_socket_redirects_stay_on_the_socket() {
    let machine = Machine::new();
    let site = Site::behind(&machine.socket(), |request| {
        if request.starts_with("GET /a") {
            redirect(302, "http://other.test:1/b")
        } else {
            document("hello")
        }
    });
    let url = BundleUrl::parse("http://h.test/a?x=1").unwrap();

    let fetched = get_over_socket(&machine.socket(), &url).await;

    assert_eq!(fetched, Ok(b"hello".to_vec()));
    let requests = site.requests();
    assert!(requests[0].contains("host: h.test\r\n"), "{requests:?}");
    assert!(
        requests[1].contains("host: other.test:1\r\n"),
        "{requests:?}"
    );
}

/// A GET over a pipe, and the pipe's other end.
fn piped() -> (
    impl Future<Output = Result<Answer, FetchError>>,
    tokio::io::DuplexStream,
) {
    let (near, far) = tokio::io::duplex(1024);
    let url = BundleUrl::parse("http://h.test/").unwrap();
    (async move { get(Box::new(near), &url).await }, far)
}

#[tokio::test]
async fn a_silent_server_is_given_up_after_10_s() {
    tokio::time::pause();
    let (get, _far) = piped();
    let begun = Instant::now();

    let outcome = get.await;

    let step = "waiting for the answer";
    assert_eq!(
        outcome,
        Err(FetchError::TimedOut {
            step,
            limit: STEP_LIMIT
        })
    );
    assert!(begun.elapsed() < STEP_LIMIT + Duration::from_secs(1));
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up_after_10_s() {
    tokio::time::pause();
    let (get, mut far) = piped();
    spawn(async move {
        head_of(&mut far).await.unwrap();
        far.write_all(b"HTTP/1.1 200 OK\r\n\r\nhel").await.unwrap();
        std::future::pending::<()>().await;
    });

    let step = "reading the answer";
    assert_eq!(
        get.await,
        Err(FetchError::TimedOut {
            step,
            limit: STEP_LIMIT
        })
    );
}

#[tokio::test]
async fn a_body_that_never_ends_is_given_up_after_30_s() {
    tokio::time::pause();
    let (get, mut far) = piped();
    spawn(async move {
        head_of(&mut far).await.unwrap();
        far.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        while far.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let begun = Instant::now();

    let outcome = limited(get).await;

    assert!(
        matches!(
            outcome,
            Err(FetchError::TimedOut {
                step: "fetching",
                ..
            })
        ),
        "{outcome:?}"
    );
    assert!((29..32).contains(&begun.elapsed().as_secs()));
}
