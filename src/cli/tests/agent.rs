//! Stands in for an agent: answers calls on a Unix socket as a test tells it to.

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::grpc::health::v1::health_check_response::ServingStatus;
use proto::grpc::health::v1::health_server::{Health, HealthServer};
use proto::grpc::health::v1::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use proto::workload::spiffe_workload_api_server::{SpiffeWorkloadApi, SpiffeWorkloadApiServer};
use proto::workload::{
    JwtBundlesRequest, JwtBundlesResponse, JwtsvidRequest, JwtsvidResponse, ValidateJwtsvidRequest,
    ValidateJwtsvidResponse, WitBundlesRequest, WitBundlesResponse, WitsvidRequest,
    WitsvidResponse, X509BundlesRequest, X509BundlesResponse, X509svidRequest, X509svidResponse,
};
use tokio::net::UnixListener;
use tonic::codegen::{BoxStream, tokio_stream};
use tonic::{Request, Response, Status};
use tower_service::Service as _;

type Reply<T> = Result<Response<T>, Status>;

/// What the agent answers.
#[derive(Clone)]
pub(super) struct Agent {
    pub(super) x509: Result<X509svidResponse, Status>,
    pub(super) jwt: Result<JwtsvidResponse, Status>,
    pub(super) jwt_bundles: Result<JwtBundlesResponse, Status>,
    pub(super) validated: Result<ValidateJwtsvidResponse, Status>,
    pub(super) health: Result<ServingStatus, Status>,
}

impl Agent {
    /// An agent that knows nobody.
    pub(super) fn that_denies() -> Self {
        let denied = Status::permission_denied("no identity issued");
        Self {
            x509: Err(denied.clone()),
            jwt: Err(denied.clone()),
            jwt_bundles: Err(denied.clone()),
            validated: Err(denied),
            health: Ok(ServingStatus::NotServing),
        }
    }

    /// Serves on a thread of its own, which ends with the test process; returns the directory with the socket `api.sock`.
    pub(super) fn serve(self) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let listener =
            std::os::unix::net::UnixListener::bind(directory.path().join("api.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || super::block_on(self.accept(listener)));
        directory
    }

    async fn accept(self, listener: std::os::unix::net::UnixListener) {
        let listener = UnixListener::from_std(listener).unwrap();
        while let Ok((stream, _)) = listener.accept().await {
            let agent = self.clone();
            let service = hyper::service::service_fn(move |request| agent.clone().route(request));
            let connection = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            // A client that goes away in the middle is no matter of the test.
            drop(connection.await);
        }
    }

    async fn route(
        self,
        request: tonic::codegen::http::Request<hyper::body::Incoming>,
    ) -> Result<tonic::codegen::http::Response<tonic::body::Body>, std::convert::Infallible> {
        if request.uri().path().starts_with("/grpc.health.v1.Health/") {
            HealthServer::new(self).call(request).await
        } else {
            SpiffeWorkloadApiServer::new(self).call(request).await
        }
    }
}

/// Answers once and leaves the stream open, as an agent does.
fn stream<T: Send + 'static>(answer: Result<T, Status>) -> Reply<BoxStream<T>> {
    use tokio_stream::StreamExt as _;
    let first = tokio_stream::once(Ok(answer?));
    Ok(Response::new(Box::pin(
        first.chain(tokio_stream::pending()),
    )))
}

fn check_header<T>(request: &Request<T>) -> Result<(), Status> {
    match request.metadata().get("workload.spiffe.io") {
        Some(value) if value == "true" => Ok(()),
        _ => Err(Status::invalid_argument(
            "security header missing from request",
        )),
    }
}

#[tonic::async_trait]
impl SpiffeWorkloadApi for Agent {
    type FetchX509SVIDStream = BoxStream<X509svidResponse>;
    type FetchX509BundlesStream = BoxStream<X509BundlesResponse>;
    type FetchJWTBundlesStream = BoxStream<JwtBundlesResponse>;
    type FetchWITSVIDStream = BoxStream<WitsvidResponse>;
    type FetchWITBundlesStream = BoxStream<WitBundlesResponse>;

    async fn fetch_x509svid(
        &self,
        request: Request<X509svidRequest>,
    ) -> Reply<Self::FetchX509SVIDStream> {
        check_header(&request)?;
        stream(self.x509.clone())
    }

    async fn fetch_x509_bundles(
        &self,
        _: Request<X509BundlesRequest>,
    ) -> Reply<Self::FetchX509BundlesStream> {
        Err(Status::unimplemented("no command asks for it"))
    }

    async fn fetch_jwtsvid(&self, request: Request<JwtsvidRequest>) -> Reply<JwtsvidResponse> {
        check_header(&request)?;
        let mut answer = self.jwt.clone()?;
        for svid in &mut answer.svids {
            svid.svid = request.get_ref().audience.join("+");
        }
        Ok(Response::new(answer))
    }

    async fn fetch_jwt_bundles(
        &self,
        request: Request<JwtBundlesRequest>,
    ) -> Reply<Self::FetchJWTBundlesStream> {
        check_header(&request)?;
        stream(self.jwt_bundles.clone())
    }

    async fn validate_jwtsvid(
        &self,
        request: Request<ValidateJwtsvidRequest>,
    ) -> Reply<ValidateJwtsvidResponse> {
        check_header(&request)?;
        Ok(Response::new(self.validated.clone()?))
    }

    async fn fetch_witsvid(&self, _: Request<WitsvidRequest>) -> Reply<Self::FetchWITSVIDStream> {
        Err(Status::unimplemented("no command asks for it"))
    }

    async fn fetch_wit_bundles(
        &self,
        _: Request<WitBundlesRequest>,
    ) -> Reply<Self::FetchWITBundlesStream> {
        Err(Status::unimplemented("no command asks for it"))
    }
}

#[tonic::async_trait]
impl Health for Agent {
    type WatchStream = BoxStream<HealthCheckResponse>;

    async fn check(&self, _: Request<HealthCheckRequest>) -> Reply<HealthCheckResponse> {
        let status = self.health.clone()?.into();
        Ok(Response::new(HealthCheckResponse { status }))
    }

    async fn list(&self, _: Request<HealthListRequest>) -> Reply<HealthListResponse> {
        Err(Status::unimplemented("no command asks for it"))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Reply<Self::WatchStream> {
        Err(Status::unimplemented("no command asks for it"))
    }
}
