//! A Workload API for tests: it answers every call alike, then keeps the stream open.

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use proto::workload::{X509BundlesResponse, X509svid, X509svidResponse};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::Address;
use crate::bundle::Bundle;
use crate::svid::X509Svid;
use crate::wire::Transport;

type Frames = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;

/// How every call is answered.
#[derive(Clone)]
pub(crate) enum Reply {
    /// A message; the stream stays open.
    Message(Bytes),
    /// A gRPC code and its message.
    Status(i32, &'static str),
    /// The end of the stream without a message.
    Nothing,
    /// Not at all.
    Silence,
}

/// A running Workload API; ends with the runtime of its test.
pub(crate) struct Fake {
    pub(crate) address: Address,
    /// Paths and headers of all calls.
    pub(crate) calls: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    /// Told when a connection has ended.
    pub(crate) hung_up: Arc<Notify>,
    _directory: Option<TempDir>,
}

impl Reply {
    /// Bundles by trust domain, each with one of these.
    pub(crate) fn bundles(bundles: &[&Bundle]) -> Self {
        let bundles = bundles.iter().map(|bundle| {
            let der = bundle.x509_der().clone();
            (bundle.trust_domain.id_string(), der)
        });
        Self::of(&X509BundlesResponse {
            crl: Vec::new(),
            bundles: bundles.collect(),
        })
    }

    /// These identities.
    pub(crate) fn svids(svids: &[&X509Svid]) -> Self {
        let svids = svids.iter().map(|svid| X509svid {
            spiffe_id: svid.id.to_string(),
            x509_svid: svid.chain_der().clone(),
            x509_svid_key: svid.key.expose_pkcs8_shared(),
            bundle: Bytes::new(),
            hint: String::new(),
        });
        Self::of(&X509svidResponse {
            svids: svids.collect(),
            ..X509svidResponse::default()
        })
    }

    /// Any message.
    pub(crate) fn of(message: &impl Message) -> Self {
        Self::Message(message.encode_to_vec().into())
    }
}

impl Fake {
    /// Starts on a Unix socket in a directory of its own.
    pub(crate) fn start(reply: Reply) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let fake = Self::at(Address::Unix(path), Some(directory));
        let (calls, hung_up) = (Arc::clone(&fake.calls), Arc::clone(&fake.hung_up));
        spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn(serve(
                    stream,
                    reply.clone(),
                    Arc::clone(&calls),
                    Arc::clone(&hung_up),
                ));
            }
        });
        fake
    }

    /// Starts on a free port.
    pub(crate) async fn start_on_port(reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self::at(Address::Tcp(listener.local_addr().unwrap()), None);
        let (calls, hung_up) = (Arc::clone(&fake.calls), Arc::clone(&fake.hung_up));
        spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn(serve(
                    stream,
                    reply.clone(),
                    Arc::clone(&calls),
                    Arc::clone(&hung_up),
                ));
            }
        });
        fake
    }

    fn at(address: Address, directory: Option<TempDir>) -> Self {
        Self {
            address,
            calls: Arc::default(),
            hung_up: Arc::default(),
            _directory: directory,
        }
    }
}

async fn serve(
    stream: impl Transport + 'static,
    reply: Reply,
    calls: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    hung_up: Arc<Notify>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (head, _) = request.into_parts();
        calls
            .lock()
            .unwrap()
            .push((head.uri.path().to_owned(), head.headers));
        respond(reply.clone())
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service);
    drop(connection.await);
    hung_up.notify_one();
}

async fn respond(reply: Reply) -> Result<Response<Frames>, Infallible> {
    let (answers, frames) = mpsc::channel(1);
    let head = Response::builder().header("content-type", "application/grpc");
    let head = match reply {
        Reply::Silence => std::future::pending().await,
        Reply::Nothing => head.header("grpc-status", "0"),
        Reply::Status(code, message) => head
            .header("grpc-status", code.to_string())
            .header("grpc-message", message),
        Reply::Message(message) => {
            let mut bytes = BytesMut::new();
            bytes.put_u8(0);
            bytes.put_u32(u32::try_from(message.len()).unwrap());
            bytes.put(message);
            answers.try_send(Ok(Frame::data(bytes.freeze()))).unwrap();
            spawn(async move { answers.closed().await });
            head
        }
    };
    Ok(head
        .body(StreamBody::new(ReceiverStream::new(frames)))
        .unwrap())
}

#[expect(clippy::disallowed_methods, reason = "the runtime of the test ends it")]
fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(future));
}
