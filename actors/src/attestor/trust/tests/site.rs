//! A web site for tests, over TLS or behind a Unix socket. It answers each request as told and then closes the connection.

use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rcgen::SanType;
use rcgen::SubjectPublicKeyInfo;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

use crate::keys::{KeyType, PrivateKey};
use crate::testing::certificates::{Ca, leaf_params};
use crate::testing::epoch;
use crate::wire::Transport;

/// From the head of a request to all bytes of the answer.
type Answer = Arc<dyn Fn(&str) -> Vec<u8> + Send + Sync>;

/// A running site; ends with the runtime of its test.
pub(super) struct Site {
    /// Zero behind a socket.
    pub(super) port: u16,
    /// Heads of all requests.
    requests: Arc<Mutex<Vec<String>>>,
}

/// A certificate of the Web PKI for a site.
pub(super) struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Valid for a name or an address, up to a date.
    pub(super) fn new(ca: &Ca, name: &str, until: SystemTime) -> Self {
        let key = PrivateKey::generate(KeyType::EcP256).unwrap();
        let mut params = leaf_params(&[], epoch() - Duration::from_hours(24), until);
        params.subject_alt_names = vec![match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.try_into().unwrap()),
        }];
        let public_key = SubjectPublicKeyInfo::from_der(key.public_key_der()).unwrap();
        let chain = ca.chain(&params, &public_key).into_iter();
        Self {
            chain: chain
                .map(|certificate| certificate.der().to_vec().into())
                .collect(),
            key: PrivatePkcs8KeyDer::from(key.expose_pkcs8().to_vec()).into(),
        }
    }
}

impl Site {
    /// Starts on a free port of 127.0.0.1.
    pub(super) async fn start(
        identity: Identity,
        answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(identity.chain, identity.key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (requests, answer): (Arc<Mutex<_>>, Answer) = (Arc::default(), Arc::new(answer));
        let site = Self {
            port: listener.local_addr().unwrap().port(),
            requests: Arc::clone(&requests),
        };
        spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream, &requests, &answer).await;
                }
            }
        });
        site
    }

    /// Starts behind a Unix socket.
    pub(super) fn behind(
        socket: &Path,
        answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let (requests, answer): (Arc<Mutex<_>>, Answer) = (Arc::default(), Arc::new(answer));
        let site = Self {
            port: 0,
            requests: Arc::clone(&requests),
        };
        spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, &requests, &answer).await;
            }
        });
        site
    }

    /// Heads of all requests so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Serves one request. Whoever hangs up early has had enough.
async fn serve(mut stream: impl Transport, requests: &Mutex<Vec<String>>, answer: &Answer) {
    let Some(head) = head_of(&mut stream).await else {
        return;
    };
    requests.lock().unwrap().push(head.clone());
    if stream.write_all(&answer(&head)).await.is_ok() {
        drop(stream.shutdown().await);
    }
}

/// Reads the head of a request.
pub(super) async fn head_of(stream: &mut (impl Transport + ?Sized)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// A 200 with a body of known length.
pub(super) fn document(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into()
}

/// A redirect.
pub(super) fn redirect(status: u16, location: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} Elsewhere\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
        .into()
}

#[expect(clippy::disallowed_methods, reason = "the runtime of the test ends it")]
pub(super) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(future));
}
