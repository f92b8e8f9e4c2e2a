//! Which service answers which path, on which socket.

use std::rc::Rc;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use proto::grpc::health::v1::health_server::HealthServer;
use proto::spire::agent::debug::v1::debug_server::DebugServer;
use proto::workload::spiffe_workload_api_server::SpiffeWorkloadApiServer;
use tonic::Status;
use tonic::codegen::Service as _;

use super::caller::{Caller, Gate};
use super::census::Census;
use super::debug_api::DebugApi;
use super::guard::{Answer, GuardedBody, GuardedCall};
use super::health::HealthApi;
use super::request_body::RequestBody;
use super::status::Refusal;
use super::workload_api::WorkloadApi;

/// The longest request message in bytes: far above any audience list or token. Times the open calls of a user, it bounds what they pile up.
const REQUEST_BYTES_MAX: usize = 128 << 10;

/// The services of one socket.
#[derive(Debug)]
pub(super) enum Routes {
    /// The public socket.
    Public {
        /// `None` where `disable_workload_api` is set.
        workload_api: Option<Arc<WorkloadApi>>,
        /// gRPC health.
        health: Arc<HealthApi>,
    },
    /// The admin socket.
    Admin {
        /// State of the agent.
        debug: Arc<DebugApi>,
    },
}

/// What answers the requests of one connection.
#[derive(Debug)]
pub(super) struct Front {
    /// The process at the other end; every request carries it.
    pub(super) caller: Arc<Caller>,
    /// Knows whether calls are still taken.
    pub(super) gate: Arc<Gate>,
    /// The socket's services.
    pub(super) routes: Arc<Routes>,
    /// Counts the open calls.
    pub(super) census: Rc<Census>,
}

impl Routes {
    /// The services' names, for the log.
    pub(super) fn apis(&self) -> &'static str {
        match self {
            Self::Public {
                workload_api: Some(_),
                ..
            } => "workload,health",
            Self::Public { .. } => "health",
            Self::Admin { .. } => "debug",
        }
    }

    fn answer(&self, request: Request<RequestBody>) -> Answer {
        let path = request.uri().path();
        let service = path
            .strip_prefix('/')
            .and_then(|path| path.split_once('/'))
            .map_or("", |(service, _)| service);
        match (self, service) {
            (
                Self::Public {
                    workload_api: Some(api),
                    ..
                },
                "SpiffeWorkloadAPI",
            ) => SpiffeWorkloadApiServer::from_arc(Arc::clone(api))
                .max_decoding_message_size(REQUEST_BYTES_MAX)
                .call(request),
            (Self::Public { health, .. }, "grpc.health.v1.Health") => {
                HealthServer::from_arc(Arc::clone(health))
                    .max_decoding_message_size(REQUEST_BYTES_MAX)
                    .call(request)
            }
            (Self::Admin { debug }, "spire.agent.debug.v1.Debug") => {
                DebugServer::from_arc(Arc::clone(debug))
                    .max_decoding_message_size(REQUEST_BYTES_MAX)
                    .call(request)
            }
            _ => refuse(Refusal::UnknownMethod(path.chars().take(200).collect())),
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Front {
    type Response = http::Response<GuardedBody>;
    type Error = std::convert::Infallible;
    type Future = GuardedCall;

    fn call(&self, mut request: Request<Incoming>) -> GuardedCall {
        if self.gate.is_draining() {
            return GuardedCall::new(refuse(Refusal::ShuttingDown), None);
        }
        let uid = self.caller.peer.uid;
        let Some(place) = self.census.begin_call(uid) else {
            self.gate.log_too_many_calls(uid);
            return GuardedCall::new(refuse(Refusal::TooManyCalls), None);
        };
        request.extensions_mut().insert(Arc::clone(&self.caller));
        let answer = self.routes.answer(request.map(RequestBody::new));
        GuardedCall::new(answer, Some(place))
    }
}

fn refuse(refusal: Refusal) -> Answer {
    Box::pin(std::future::ready(Ok(Status::from(refusal).into_http())))
}
