//! An endpoint in a directory of its own, the actors it asks, and clients.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use actix::{Actor, Addr, Handler, MessageResult};
use hyper_util::rt::TokioIo;
use proto::grpc::health::v1::health_client::HealthClient;
use proto::spire::agent::debug::v1::debug_client::DebugClient;
use proto::workload::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use proto::workload::{X509svidRequest, X509svidResponse};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use crate::cache::view::{Identity, View, Waiting, WorkloadUpdate};
use crate::cache::{CacheFacts, DescribeCache, Subscribe};
use crate::clock::Clock;
use crate::credentials::{Credentials, CredentialsWriter};
use crate::endpoint::{Endpoint, EndpointConfig, Services, Sockets, sockets};
use crate::entry::{Entry, EntryId, EntryVersion};
use crate::readiness::{Phase, ReadinessWriter, readiness};
use crate::selector::{Selector, SelectorSet};
use crate::selectors::{AttestWorkload, AttestationError};
use crate::spiffe_id::SpiffeId;
use crate::svid::X509Svid;
use crate::testing::certificates::Ca;

pub(super) const HOUR: Duration = Duration::from_hours(1);

pub(super) struct World {
    pub(super) endpoint: Addr<Endpoint>,
    pub(super) attestation: Arc<Mutex<Result<SelectorSet, AttestationError>>>,
    pub(super) view: watch::Sender<View>,
    pub(super) readiness: ReadinessWriter,
    pub(super) credentials: CredentialsWriter,
    pub(super) clock: Clock,
    pub(super) ca: Ca,
    directory: TempDir,
}

struct FakeSelectors(Arc<Mutex<Result<SelectorSet, AttestationError>>>);

struct FakeCache(watch::Sender<View>);

/// How a channel reaches the socket.
#[derive(Clone)]
struct Connector(PathBuf);

impl World {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut EndpointConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock =
            Clock::virtual_from(SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000));
        let attestation = Arc::new(Mutex::new(Ok(selectors())));
        let view = watch::Sender::new(View::Waiting(Waiting::FirstSync));
        let (readiness, readiness_reader) = readiness();
        let (credentials, credentials_reader) = watch::channel(None);
        let cache = FakeCache(view.clone()).start();
        let services = Services {
            selectors: FakeSelectors(Arc::clone(&attestation)).start().recipient(),
            cache: cache.clone().recipient(),
            facts: cache.recipient(),
            readiness: readiness_reader,
            credentials: credentials_reader,
            clock: clock.clone(),
        };
        let mut config = EndpointConfig {
            serve_workload_api: true,
            allow_unauthenticated_verifiers: false,
            descriptor_limit: 1_024,
        };
        change(&mut config);
        let sockets = Sockets {
            public: Some(sockets::bind_public(&directory.path().join("public")).unwrap()),
            admin: Some(sockets::bind_admin(&directory.path().join("admin")).unwrap()),
        };
        let ca = Ca::new(clock.wall());
        let endpoint = Endpoint::new(&config, sockets, services).start();
        Self {
            endpoint,
            attestation,
            view,
            readiness,
            credentials,
            clock,
            ca,
            directory,
        }
    }

    pub(super) fn path(&self, socket: &str) -> PathBuf {
        self.directory.path().join(socket)
    }

    pub(super) async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path("public")).await.unwrap()
    }

    pub(super) async fn channel(&self, socket: &str) -> Channel {
        tonic::transport::Endpoint::from_static("http://localhost")
            .connect_with_connector(Connector(self.path(socket)))
            .await
            .unwrap()
    }

    pub(super) async fn workload(&self) -> SpiffeWorkloadApiClient<Channel> {
        SpiffeWorkloadApiClient::new(self.channel("public").await)
    }

    /// A new connection with an open `FetchX509SVID`.
    pub(super) async fn svids(&self) -> Streaming<X509svidResponse> {
        let request = secured(X509svidRequest {});
        let opened = self.workload().await.fetch_x509svid(request).await;
        opened.unwrap().into_inner()
    }

    pub(super) async fn health(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel("public").await)
    }

    pub(super) async fn debug(&self) -> DebugClient<Channel> {
        DebugClient::new(self.channel("admin").await)
    }

    /// An hour's SVID.
    pub(super) fn svid(&self, path: &str) -> Arc<X509Svid> {
        let now = self.clock.wall();
        self.svid_valid(path, now - Duration::from_secs(10), now + HOUR)
    }

    pub(super) fn svid_valid(
        &self,
        path: &str,
        from: SystemTime,
        until: SystemTime,
    ) -> Arc<X509Svid> {
        Arc::new(
            self.ca
                .svid(&format!("spiffe://domain.test{path}"), from, until),
        )
    }

    pub(super) fn update(&self, identities: Vec<Identity>) -> WorkloadUpdate {
        WorkloadUpdate {
            identities,
            bundle: Arc::new(self.ca.bundle("domain.test")),
            federated: BTreeMap::new(),
        }
    }

    /// Shows these identities to every caller.
    pub(super) fn show(&self, identities: Vec<Identity>) {
        self.view
            .send_replace(View::Ready(Arc::new(self.update(identities))));
    }

    pub(super) fn ready(&self) {
        let now = self.clock.wall();
        self.readiness.send_modify(|readiness| {
            readiness.phase = Phase::Ready;
            readiness.last_sync = Some(now);
        });
    }

    pub(super) fn attest_agent(&self, lifetime: Duration) {
        let now = self.clock.wall();
        let svid = self.svid_valid("/spire/agent/x", now, now + lifetime);
        let bundle = Arc::new(self.ca.bundle("domain.test"));
        self.credentials.send_replace(Some(Arc::new(Credentials {
            svid,
            reattestable: true,
            bundle,
        })));
    }
}

pub(super) fn selectors() -> SelectorSet {
    [Selector::new("unix", "uid:1").unwrap()]
        .into_iter()
        .collect()
}

pub(super) fn identity(id: &str, hint: &str, created_at: i64, svid: &Arc<X509Svid>) -> Identity {
    let entry = Entry {
        id: EntryId::new(id).unwrap(),
        spiffe_id: SpiffeId::parse(svid.id.as_str()).unwrap(),
        selectors: selectors(),
        federates_with: Vec::new(),
        version: EntryVersion {
            revision: 0,
            created_at,
        },
        hint: hint.into(),
        admin: false,
        downstream: false,
        store_svid: false,
        disable_x509_svid_prefetch: false,
        jwt_svid_include_jti: false,
    };
    Identity {
        entry: Arc::new(entry),
        svid: Arc::clone(svid),
    }
}

/// A request with the security header.
pub(super) fn secured<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("workload.spiffe.io", "true".parse().unwrap());
    request
}

/// The next message; a silent stream is an error.
pub(super) async fn next<T>(stream: &mut Streaming<T>) -> Result<T, tonic::Status> {
    let message = tokio::time::timeout(Duration::from_secs(30), stream.message()).await;
    message
        .expect("the stream is silent")
        .map(|message| message.expect("the stream has ended with OK"))
}

/// Whether nothing comes for a moment. To be used under paused time, where a moment is exact.
pub(super) async fn is_silent<T>(stream: &mut Streaming<T>) -> bool {
    tokio::time::timeout(Duration::from_secs(5), stream.message())
        .await
        .is_err()
}

impl Actor for FakeSelectors {
    type Context = actix::Context<Self>;
}

impl Handler<AttestWorkload> for FakeSelectors {
    type Result = Result<SelectorSet, AttestationError>;

    fn handle(&mut self, _: AttestWorkload, _: &mut Self::Context) -> Self::Result {
        self.0.lock().unwrap().clone()
    }
}

impl Actor for FakeCache {
    type Context = actix::Context<Self>;
}

impl Handler<Subscribe> for FakeCache {
    type Result = MessageResult<Subscribe>;

    fn handle(&mut self, message: Subscribe, _: &mut Self::Context) -> Self::Result {
        assert_eq!(message.selectors, selectors());
        MessageResult(self.0.subscribe())
    }
}

impl Handler<DescribeCache> for FakeCache {
    type Result = MessageResult<DescribeCache>;

    fn handle(&mut self, _: DescribeCache, _: &mut Self::Context) -> Self::Result {
        MessageResult(CacheFacts {
            entries: 5,
            x509_svids: 4,
            jwt_svids: 3,
            store_records: 2,
            subscribers: 1,
        })
    }
}

impl tower_service::Service<http::Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}
