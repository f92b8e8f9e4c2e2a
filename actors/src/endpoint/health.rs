//! gRPC health on the public socket (workload-side 6.2): one answer for the whole agent.

use proto::grpc::health::v1 as api;
use proto::grpc::health::v1::health_check_response::ServingStatus;
use proto::grpc::health::v1::health_server::Health;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use crate::readiness::{Phase, ReadinessReader};

use super::status::Refusal;

/// Metadata of the answer, once for each [`Trouble`](crate::readiness::Trouble): callers are served, but an operator should look.
const TROUBLE: &str = "edge-agent-trouble";

/// The service; reads what attestor and synchronizer say.
#[derive(Debug)]
pub(super) struct HealthApi {
    readiness: ReadinessReader,
}

impl HealthApi {
    /// Health as `readiness` tells it.
    pub(super) fn new(readiness: ReadinessReader) -> Self {
        Self { readiness }
    }
}

#[tonic::async_trait]
impl Health for HealthApi {
    type WatchStream = tokio_stream::Empty<Result<api::HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<api::HealthCheckRequest>,
    ) -> Result<Response<api::HealthCheckResponse>, Status> {
        if !request.get_ref().service.is_empty() {
            return Err(Refusal::PerServiceHealth.into());
        }
        let readiness = self.readiness.borrow();
        let status = match readiness.phase {
            Phase::Ready => ServingStatus::Serving,
            Phase::Attesting(_) | Phase::Syncing(_) => ServingStatus::NotServing,
        };
        let mut answer = Response::new(api::HealthCheckResponse {
            status: status.into(),
        });
        for trouble in readiness.troubles.keys() {
            let name = MetadataValue::from_static(trouble.name());
            answer.metadata_mut().append(TROUBLE, name);
        }
        Ok(answer)
    }

    async fn watch(
        &self,
        _: Request<api::HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Refusal::Unimplemented("watching health is not implemented").into())
    }

    async fn list(
        &self,
        _: Request<api::HealthListRequest>,
    ) -> Result<Response<api::HealthListResponse>, Status> {
        Err(Refusal::Unimplemented("listing health is not implemented").into())
    }
}
