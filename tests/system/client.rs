//! A workload: calls over the public socket, and streams that are watched from a thread.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use actors::bundle::Bundle;
use actors::clock::Clock;
use actors::keys::PrivateKey;
use actors::spiffe_id::SpiffeId;
use actors::svid::Certificate;
use hyper_util::rt::TokioIo;
use proto::workload::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use proto::workload::{JwtsvidRequest, X509svid, X509svidRequest, X509svidResponse};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tonic::codegen::http::Uri;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tower_service::Service;

/// How long a call may take before it counts as waiting.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// How old a message may be when a busy machine comes to read it.
const READING_DELAY: Duration = Duration::from_secs(1);

/// One message of `FetchX509SVID`, found to be sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Update {
    /// In the order of the message.
    pub(crate) identities: Vec<Identity>,
    /// Foreign bundles by trust domain ID.
    pub(crate) federated: BTreeMap<String, Vec<u8>>,
}

/// One identity of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The path of the SPIFFE ID.
    pub(crate) path: String,
    pub(crate) serial: String,
    /// The public key, which is that of the private key in the message.
    pub(crate) key: Vec<u8>,
    /// The authorities that vouch for it, DER.
    pub(crate) bundle: Vec<u8>,
    pub(crate) not_after: SystemTime,
}

/// What a stream has brought.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Update(Update),
    End(Status),
}

/// A `FetchX509SVID` stream that stays open until it is dropped.
#[derive(Debug)]
pub(crate) struct Stream {
    events: Arc<Mutex<Vec<Event>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Hands out connections to one socket.
struct Connector(PathBuf);

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}

impl Update {
    /// The paths of the identities, in order.
    pub(crate) fn paths(&self) -> Vec<&str> {
        let paths = self.identities.iter();
        paths.map(|identity| identity.path.as_str()).collect()
    }

    /// The identity with this path.
    pub(crate) fn identity(&self, path: &str) -> Option<&Identity> {
        let mut identities = self.identities.iter();
        identities.find(|identity| identity.path == path)
    }

    /// Reads a message that was made at `made` or later; panics if anything in it is not as it must be.
    fn read(message: X509svidResponse, made: SystemTime) -> Self {
        let identities = message.svids.iter();
        Self {
            identities: identities.map(|svid| Identity::read(svid, made)).collect(),
            federated: message
                .federated_bundles
                .into_iter()
                .map(|(domain, bundle)| (domain, bundle.to_vec()))
                .collect(),
        }
    }
}

impl Identity {
    fn read(svid: &X509svid, made: SystemTime) -> Self {
        let id = SpiffeId::parse(&svid.spiffe_id).expect("a SPIFFE ID");
        let chain = Certificate::list_from_der(&svid.x509_svid).expect("certificates");
        let leaf = chain.first().expect("a leaf");
        let key = PrivateKey::from_pkcs8(&svid.x509_svid_key).expect("a key");
        let authorities = Certificate::list_from_der(&svid.bundle).expect("authorities");
        let bundle = Bundle::of_certificates(id.trust_domain(), authorities);

        assert_eq!(leaf.leaf_id().as_ref(), Ok(&id), "another ID is certified");
        assert_eq!(
            leaf.public_key_der(),
            key.public_key_der(),
            "{id}: the key is another's"
        );
        assert!(leaf.not_after() >= made, "{id}: an expired SVID was served");
        bundle
            .verify(&chain, made.min(leaf.not_after()))
            .unwrap_or_else(|error| {
                panic!("{id}: the bundle does not vouch for the SVID: {error}")
            });
        Self {
            path: id.path().to_owned(),
            serial: leaf.serial_hex(),
            key: leaf.public_key_der().to_vec(),
            bundle: svid.bundle.to_vec(),
            not_after: leaf.not_after(),
        }
    }
}

impl Stream {
    /// Opens a stream on a socket that exists.
    pub(crate) fn open(socket: &Path) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = oneshot::channel();
        let (socket, sink) = (socket.to_owned(), Arc::clone(&events));
        let thread = std::thread::spawn(move || {
            block_on(async {
                tokio::select! {
                    ended = watch(&socket, &sink) => note(&sink, Event::End(ended)),
                    _ = stopped => {}
                }
            });
        });
        Self {
            events,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Everything so far. Panics if a message was not sound.
    pub(crate) fn events(&self) -> Vec<Event> {
        let is_over = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        let events = lock(&self.events).clone();
        let has_ended = matches!(events.last(), Some(Event::End(_)));
        assert!(!is_over || has_ended, "the stream carried a bad message");
        events
    }

    /// The updates so far.
    pub(crate) fn updates(&self) -> Vec<Update> {
        let events = self.events().into_iter();
        let update = |event| match event {
            Event::Update(update) => Some(update),
            Event::End(_) => None,
        };
        events.filter_map(update).collect()
    }

    /// How the stream ended, if it has.
    pub(crate) fn ended(&self) -> Option<Status> {
        match self.events().pop() {
            Some(Event::End(status)) => Some(status),
            Some(Event::Update(_)) | None => None,
        }
    }

    /// Whether an identity with this path has come.
    pub(crate) fn has_seen(&self, path: &str) -> bool {
        let updates = self.updates();
        updates.iter().any(|update| update.identity(path).is_some())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook already.
            drop(thread.join());
        }
    }
}

/// The first message of `FetchX509SVID`.
pub(crate) fn fetch(socket: &Path) -> Result<Update, Status> {
    let asked = Clock::system().wall();
    let message = within(async {
        let mut client = connect(socket).await?;
        let mut messages = client.fetch_x509svid(request(X509svidRequest {})).await?;
        messages.get_mut().message().await?.ok_or_else(ended)
    })?;
    Ok(Update::read(message, asked))
}

/// The refusal of `FetchJWTSVID`, the unary call: no token is asked of an agent that would give one.
pub(crate) fn fetch_jwt(socket: &Path) -> Status {
    let message = JwtsvidRequest {
        audience: vec!["audience".to_owned()],
        spiffe_id: String::new(),
    };
    within(async {
        let mut client = connect(socket).await?;
        client.fetch_jwtsvid(request(message)).await
    })
    .expect_err("no token")
}

async fn watch(socket: &Path, sink: &Mutex<Vec<Event>>) -> Status {
    let opened = async {
        let mut client = connect(socket).await?;
        client.fetch_x509svid(request(X509svidRequest {})).await
    };
    let mut messages = match opened.await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return status,
    };
    loop {
        match messages.message().await {
            Ok(Some(message)) => {
                let made = Clock::system().wall() - READING_DELAY;
                note(sink, Event::Update(Update::read(message, made)));
            }
            Ok(None) => return ended(),
            Err(status) => return status,
        }
    }
}

async fn connect(socket: &Path) -> Result<SpiffeWorkloadApiClient<Channel>, Status> {
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint
        .connect_with_connector(Connector(socket.to_owned()))
        .await;
    channel
        .map(SpiffeWorkloadApiClient::new)
        .map_err(|error| Status::aborted(format!("not connected: {error}")))
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let header = MetadataValue::from_static("true");
    request.metadata_mut().insert("workload.spiffe.io", header);
    request
}

fn ended() -> Status {
    Status::aborted("the stream ended without a status")
}

/// A call on a runtime of its own; `DEADLINE_EXCEEDED` if it takes too long.
fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    block_on(async {
        let limited = tokio::time::timeout(CALL_LIMIT, call).await;
        limited.unwrap_or_else(|_| Err(Status::deadline_exceeded("the call waits")))
    })
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work)
}

fn note(sink: &Mutex<Vec<Event>>, event: Event) {
    lock(sink).push(event);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
