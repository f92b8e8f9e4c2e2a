//! The agent's state for operators, on the admin socket (workload-side 4.2). Always fresh.

use std::time::Duration;

use proto::spire::agent::debug::v1 as api;
use proto::spire::agent::debug::v1::debug_server::Debug as DebugService;
use proto::spire::agent::debug::v1::get_info_response::Cert;
use proto::spire::api::types::Spiffeid;
use tonic::{Request, Response, Status};

use crate::cache::DescribeCache;
use crate::clock::unix_seconds;
use crate::spiffe_id::SpiffeId;
use crate::svid::Certificate;

use super::Services;
use super::status::Refusal;

/// The service.
#[derive(Debug)]
pub(super) struct DebugApi {
    services: Services,
    /// Boot time when the endpoint was made.
    started: Duration,
}

impl DebugApi {
    /// The service of an agent that starts now.
    pub(super) fn new(services: Services) -> Self {
        let started = services.clock.now().boot;
        Self { services, started }
    }

    /// The agent's chain up to its authority.
    fn chain(&self) -> Result<Vec<Cert>, Refusal> {
        let credentials = self
            .services
            .credentials
            .borrow()
            .clone()
            .ok_or(Refusal::NotAttested)?;
        let now = self.services.clock.wall();
        let path = credentials
            .bundle
            .verified_path(credentials.svid.chain(), now);
        let path = path.map_err(|error| Refusal::AgentSvid(error.to_string()))?;
        Ok(path.iter().map(describe).collect())
    }
}

#[tonic::async_trait]
impl DebugService for DebugApi {
    async fn get_info(
        &self,
        _: Request<api::GetInfoRequest>,
    ) -> Result<Response<api::GetInfoResponse>, Status> {
        let svid_chain = self.chain()?;
        let facts = self
            .services
            .facts
            .send(DescribeCache)
            .await
            .map_err(|_| Refusal::ShuttingDown)?;
        let uptime = self
            .services
            .clock
            .now()
            .boot
            .saturating_sub(self.started)
            .as_secs();
        let last_sync = self.services.readiness.borrow().last_sync;
        #[expect(deprecated, reason = "`svids_count` is what older clients read")]
        let info = api::GetInfoResponse {
            svid_chain,
            uptime: i32::try_from(uptime).unwrap_or(i32::MAX),
            svids_count: count(facts.x509_svids),
            last_sync_success: last_sync.map_or(0, unix_seconds),
            cached_x509_svids_count: count(facts.x509_svids),
            cached_jwt_svids_count: count(facts.jwt_svids),
            cached_svidstore_x509_svids_count: count(facts.store_records),
        };
        Ok(Response::new(info))
    }
}

fn describe(certificate: &Certificate) -> Cert {
    let id = match certificate.uri_names() {
        [name] => SpiffeId::parse(name).ok(),
        _ => None,
    };
    Cert {
        id: id.map(|id| Spiffeid {
            trust_domain: id.trust_domain_name().into(),
            path: id.path().into(),
        }),
        expires_at: unix_seconds(certificate.not_after()),
        subject: certificate.subject().into(),
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
