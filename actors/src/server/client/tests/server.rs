//! A gRPC server for these tests: TLS as a SPIRE server does it, answers by script.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, SupportedProtocolVersion};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;

use super::pki::{Authority, Identity};

/// How a call ends: a gRPC code, a message, and what stands in `grpc-status-details-bin`.
pub(super) type Ending = (i32, String, Option<String>);
type Running = Pin<Box<dyn Future<Output = Ending> + Send>>;
type Script = Arc<dyn Fn(Call) -> Running + Send + Sync>;

type Frames = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;

/// One call from the server's side.
pub(super) struct Call {
    /// The method's name.
    pub(super) method: String,
    /// What the caller sent as metadata.
    pub(super) headers: HeaderMap,
    /// How many calls there were before on all connections.
    pub(super) number: usize,
    requests: Incoming,
    unread: BytesMut,
    connection: Arc<Notify>,
    answers: mpsc::Sender<Result<Frame<Bytes>, Infallible>>,
}

/// How the server is set up.
pub(super) struct Setup {
    pub(super) identity: Identity,
    /// What client certificates have to lead to.
    pub(super) clients: Authority,
    pub(super) alpn: bool,
    pub(super) versions: &'static [&'static SupportedProtocolVersion],
    pub(super) algorithms: CryptoProvider,
}

/// A running server; ends with the runtime of its test.
pub(super) struct Server {
    pub(super) port: u16,
    pub(super) connections: Arc<AtomicUsize>,
    pub(super) open: Arc<AtomicUsize>,
    pub(super) methods: Arc<Mutex<Vec<String>>>,
    /// How many of the next calls are refused before anybody looks at them.
    pub(super) refusals: Arc<AtomicUsize>,
    goaway: watch::Sender<usize>,
}

impl Call {
    /// The next message of the caller; none when it has half-closed.
    pub(super) async fn next<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if let Some((&[_, a, b, c, d], rest)) = self.unread.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([a, b, c, d]) as usize;
                if rest.len() >= length {
                    let message = self.unread.split_to(5 + length).split_off(5);
                    return Some(M::decode(message).unwrap());
                }
            }
            let frame = self.requests.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.unread.extend_from_slice(&data);
            }
        }
    }

    /// Breaks the connection and with it the call.
    pub(super) async fn break_connection(self) -> Ending {
        self.connection.notify_one();
        std::future::pending().await
    }

    /// Begins a message of `length` bytes that never comes.
    pub(super) async fn announce(&self, length: u32) {
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(length);
        bytes.put_slice(&[10; 100]);
        drop(self.answers.send(Ok(Frame::data(bytes.freeze()))).await);
    }

    /// Sends one message.
    pub(super) async fn answer(&self, message: &impl Message) {
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(u32::try_from(message.encoded_len()).unwrap());
        message.encode(&mut bytes).unwrap();
        drop(self.answers.send(Ok(Frame::data(bytes.freeze()))).await);
    }
}

impl Server {
    /// Starts on a free port.
    pub(super) async fn start<F>(
        setup: Setup,
        script: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Ending> + Send + 'static,
    {
        let script: Script = Arc::new(move |call| Box::pin(script(call)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(Arc::new(tls(setup)));
        let (goaway, told) = watch::channel(0);
        let server = Self {
            port,
            connections: Arc::default(),
            open: Arc::default(),
            methods: Arc::default(),
            refusals: Arc::default(),
            goaway,
        };
        let refusals = Arc::clone(&server.refusals);
        let (connections, open, methods) = (
            Arc::clone(&server.connections),
            Arc::clone(&server.open),
            Arc::clone(&server.methods),
        );
        let calls = Arc::new(AtomicUsize::new(0));
        spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, script, mut told) =
                    (acceptor.clone(), Arc::clone(&script), told.clone());
                let (open, methods, calls) =
                    (Arc::clone(&open), Arc::clone(&methods), Arc::clone(&calls));
                let refusals = Arc::clone(&refusals);
                spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else {
                        return;
                    };
                    open.fetch_add(1, Ordering::SeqCst);
                    let cut = Arc::new(Notify::new());
                    let cut_by_call = Arc::clone(&cut);
                    let service = hyper::service::service_fn(move |request| {
                        let refused =
                            refusals.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                                left.checked_sub(1)
                            });
                        if refused.is_ok() {
                            let reason = h2::Error::from(h2::Reason::REFUSED_STREAM);
                            return std::future::ready(Err(reason));
                        }
                        let number = calls.fetch_add(1, Ordering::SeqCst);
                        methods.lock().unwrap().push(method_of(&request));
                        let response = respond(request, number, Arc::clone(&cut_by_call), &script);
                        std::future::ready(Ok(response))
                    });
                    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(tls), service);
                    let mut connection = std::pin::pin!(connection);
                    told.mark_unchanged();
                    tokio::select! {
                        _ = connection.as_mut() => {}
                        () = cut.notified() => {}
                        _ = told.changed() => {
                            connection.as_mut().graceful_shutdown();
                            drop(connection.await);
                        }
                    }
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        server
    }

    /// Ends all connections in peace, as a server does with old ones.
    pub(super) fn send_goaway(&self) {
        self.goaway.send_modify(|count| *count += 1);
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn tls(setup: Setup) -> rustls::ServerConfig {
    let provider = Arc::new(setup.algorithms);
    let mut roots = RootCertStore::empty();
    roots.add(setup.clients.certificate).unwrap();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(setup.versions)
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![setup.identity.certificate], setup.identity.key.into())
        .unwrap();
    // As a server that would like to resume sessions.
    config.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
    if setup.alpn {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    config
}

fn method_of(request: &Request<Incoming>) -> String {
    request.uri().path().rsplit('/').next().unwrap().to_owned()
}

fn respond(
    request: Request<Incoming>,
    number: usize,
    connection: Arc<Notify>,
    script: &Script,
) -> Response<Frames> {
    let (answers, frames) = mpsc::channel(4);
    let method = method_of(&request);
    let (head, requests) = request.into_parts();
    let call = Call {
        method,
        headers: head.headers,
        number,
        requests,
        unread: BytesMut::new(),
        connection,
        answers: answers.clone(),
    };
    let running = script(call);
    spawn(async move {
        let (code, message, details) = running.await;
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.to_string().parse().unwrap());
        trailers.insert("grpc-message", message.parse().unwrap());
        if let Some(details) = details {
            trailers.insert("grpc-status-details-bin", details.parse().unwrap());
        }
        drop(answers.send(Ok(Frame::trailers(trailers))).await);
    });
    Response::builder()
        .header("content-type", "application/grpc")
        .body(StreamBody::new(ReceiverStream::new(frames)))
        .unwrap()
}

/// Ends a call well.
pub(super) fn ok() -> Ending {
    (0, String::new(), None)
}

/// Ends a call with a code.
pub(super) fn status(code: tonic::Code, message: &str) -> Ending {
    (code.into(), message.into(), None)
}

/// Encodes status details as servers do.
pub(super) fn encoded(details: &[u8]) -> String {
    STANDARD_NO_PAD.encode(details)
}

#[expect(clippy::disallowed_methods, reason = "the runtime of the test ends it")]
pub(super) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(future));
}

/// What stands between agent and server and can swallow everything.
pub(super) struct Relay {
    pub(super) port: u16,
    stale: watch::Sender<usize>,
}

impl Relay {
    /// Passes connections on to `port`.
    pub(super) async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = Self {
            port: listener.local_addr().unwrap().port(),
            stale: watch::channel(0).0,
        };
        let stale = relay.stale.subscribe();
        spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut stale = stale.clone();
                stale.mark_unchanged();
                spawn(async move {
                    let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = stale.changed() => std::future::pending().await,
                    }
                });
            }
        });
        relay
    }

    /// From now on the connections that there are pass nothing on, and stay open.
    pub(super) fn swallow(&self) {
        self.stale.send_modify(|count| *count += 1);
    }
}
