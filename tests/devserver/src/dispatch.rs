//! One HTTP/2 request: count it, apply a scripted fault, authorise it, hand it to its service.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use proto::spire::api::server::agent::v1::agent_server::AgentServer;
use proto::spire::api::server::bundle::v1::bundle_server::BundleServer;
use proto::spire::api::server::entry::v1::entry_server::EntryServer;
use proto::spire::api::server::svid::v1::svid_server::SvidServer;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service as _;

use crate::authorize;
use crate::clock;
use crate::script::{Action, Call, rpc};
use crate::services::{CallNumber, Caller, Services};
use crate::transport::Connection;

/// Who may call a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Everybody.
    Open,
    /// Active agents.
    Agents,
    /// Nobody, and without a reason in the details (3.5).
    Nobody,
}

/// Serves the requests of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Dispatcher {
    pub(crate) services: Services,
    pub(crate) connection: Arc<Connection>,
}

impl hyper::service::Service<Request<Incoming>> for Dispatcher {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let dispatcher = self.clone();
        Box::pin(async move {
            Ok(dispatcher
                .serve(request)
                .await
                .unwrap_or_else(Status::into_http))
        })
    }
}

impl Dispatcher {
    async fn serve(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Status> {
        let path = request.uri().path().to_owned();
        let method = path.rsplit('/').next().unwrap_or_default();
        let number = self.record(method);
        if let Some(answer) = self.apply_fault(method).await? {
            return Ok(answer);
        }
        match policy(&path) {
            Policy::Open => {}
            Policy::Agents => {
                let caller = self.authorize(&path)?;
                request.extensions_mut().insert(caller);
            }
            Policy::Nobody => {
                return Err(Status::permission_denied(format!(
                    "{path} refused: no policy allows it"
                )));
            }
        }
        request.extensions_mut().insert(CallNumber(number));
        request
            .extensions_mut()
            .insert(Arc::clone(&self.connection));
        self.route(&path, request.map(Body::new)).await
    }

    fn record(&self, method: &str) -> usize {
        self.services.shared.record(Call {
            rpc: method.to_owned(),
            at: clock::now(),
            connection: self.connection.number,
            agent: self.connection.peer.as_ref().map(|peer| peer.id.clone()),
            ids: Vec::new(),
            details: Vec::new(),
        })
    }

    /// Applies the fault that is next for `method`; an answer ends the call.
    async fn apply_fault(&self, method: &str) -> Result<Option<Response<Body>>, Status> {
        let fault = self.services.shared.state().script.take_fault(method);
        let Some(fault) = fault else { return Ok(None) };
        tokio::time::sleep(fault.delay).await;
        match fault.action {
            Action::Proceed => Ok(None),
            Action::Refuse {
                code,
                message,
                reason: Some(reason),
            } => Err(authorize::with_reason(code, message, reason)),
            Action::Refuse {
                code,
                message,
                reason: None,
            } => Err(Status::new(code, message)),
            Action::Answer(message) => Ok(Some(raw_answer(&message))),
            Action::GoAway => {
                self.connection.go_away.notify_one();
                Ok(None)
            }
            Action::CloseConnection => {
                self.connection.close.notify_one();
                std::future::pending().await
            }
            Action::Stall => std::future::pending().await,
        }
    }

    fn authorize(&self, path: &str) -> Result<Caller, Status> {
        let peer = self.connection.peer.as_ref().ok_or_else(|| {
            Status::permission_denied(format!("{path} refused: no client certificate"))
        })?;
        let mut state = self.services.shared.state();
        let now = state.now();
        authorize::authorize(state.agents.get_mut(&peer.id), peer, now)
            .map_err(|reason| authorize::refusal(path, reason))?;
        Ok(Caller(peer.clone()))
    }

    async fn route(&self, path: &str, request: Request<Body>) -> Result<Response<Body>, Status> {
        let services = self.services.clone();
        let answer = match path
            .trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or_default()
        {
            "spire.api.server.agent.v1.Agent" => AgentServer::new(services).call(request).await,
            "spire.api.server.bundle.v1.Bundle" => BundleServer::new(services).call(request).await,
            "spire.api.server.entry.v1.Entry" => EntryServer::new(services).call(request).await,
            "spire.api.server.svid.v1.SVID" => SvidServer::new(services).call(request).await,
            other => return Err(Status::unimplemented(format!("unknown service {other}"))),
        };
        answer.map_err(|never| match never {})
    }
}

/// Who may call the method at `path`.
fn policy(path: &str) -> Policy {
    match path.rsplit('/').next().unwrap_or_default() {
        rpc::ATTEST_AGENT | rpc::GET_BUNDLE | rpc::POST_STATUS | "BatchNewWITSVID" => Policy::Open,
        rpc::RENEW_AGENT
        | rpc::SYNC_AUTHORIZED_ENTRIES
        | rpc::GET_AUTHORIZED_ENTRIES
        | rpc::GET_FEDERATED_BUNDLE
        | rpc::BATCH_NEW_X509_SVID
        | rpc::NEW_JWT_SVID => Policy::Agents,
        // Not ours at all: the routing answers UNIMPLEMENTED.
        _ if !path.starts_with("/spire.api.server.") => Policy::Open,
        _ => Policy::Nobody,
    }
}

/// A response of status OK whose only message has these bytes.
fn raw_answer(message: &[u8]) -> Response<Body> {
    const NOT_COMPRESSED: u8 = 0;

    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = vec![NOT_COMPRESSED];
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(frame)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Body::new(body));
    let content_type = HeaderValue::from_static("application/grpc");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, content_type);
    response
}
