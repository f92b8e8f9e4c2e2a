//! Attestation, renewal, and the agent's report of itself.

use std::sync::Arc;
use std::time::Duration;

use proto::spire::api::server::agent::v1::agent_server::Agent;
use proto::spire::api::server::agent::v1::{
    AttestAgentRequest, AttestAgentResponse, BanAgentRequest, CountAgentsRequest,
    CountAgentsResponse, CreateJoinTokenRequest, DeleteAgentRequest, GetAgentRequest,
    ListAgentsRequest, ListAgentsResponse, PostStatusRequest, PostStatusResponse,
    RenewAgentRequest, RenewAgentResponse, attest_agent_request, attest_agent_response,
};
use proto::spire::api::types;
use proto::spire::api::types::permission_denied_details::Reason;
use tonic::{Request, Response, Status, Streaming};

use super::{Services, caller, csr_public_key, unimplemented_rpcs};
use crate::authorize::{self, AgentRecord};
use crate::certificate::random_bytes;
use crate::conversation::{Answers, Conversation};
use crate::script::AttestTwist;
use crate::settings::PostStatus;
use crate::state::SvidRequest;
use crate::transport::Connection;
use crate::x509pop::{self, Node};

/// What an attestor found out about a node.
struct Attested {
    /// The agent's path below `/spire/agent`.
    path: String,
    attestation_type: String,
    selectors: Vec<String>,
    can_reattest: bool,
}

/// One attestation: the client's messages, the answers to it, and what the script has in store.
struct Attestation {
    services: Services,
    connection: Option<Arc<Connection>>,
    call: tonic::Extensions,
    requests: Streaming<AttestAgentRequest>,
    answers: Answers<AttestAgentResponse>,
    twist: Option<AttestTwist>,
}

#[tonic::async_trait]
impl Agent for Services {
    type AttestAgentStream = Conversation<AttestAgentResponse>;

    async fn attest_agent(
        &self,
        request: Request<Streaming<AttestAgentRequest>>,
    ) -> Result<Response<Self::AttestAgentStream>, Status> {
        let services = self.clone();
        let deadline = grpc_timeout(request.metadata());
        let (_, extensions, requests) = request.into_parts();
        let conversation = Conversation::start(move |answers| async move {
            services.wait_for_turn(deadline).await?;
            let twist = services.shared.state().script.attest;
            let attestation = Attestation {
                connection: extensions.get().cloned(),
                services,
                call: extensions,
                requests,
                answers,
                twist,
            };
            attestation.run().await
        });
        Ok(Response::new(conversation))
    }

    async fn renew_agent(
        &self,
        request: Request<RenewAgentRequest>,
    ) -> Result<Response<RenewAgentResponse>, Status> {
        let id = caller(request.extensions())?;
        let params = request.into_inner().params.unwrap_or_default();
        let mut state = self.shared.state();
        let agent = state
            .agents
            .get(&id)
            .ok_or_else(|| Status::not_found("agent not found"))?;
        if agent.can_reattest {
            return Err(authorize::refusal("RenewAgent", Reason::AgentMustReattest));
        }
        let request = SvidRequest {
            public_key: csr_public_key(&params.csr, false)?,
            path: crate::entries::path_of(&id, &state.settings.trust_domain).to_owned(),
            dns_names: Vec::new(),
            ttl: state.settings.agent_ttl,
            age: state.settings.agent_svid_age,
            hint: String::new(),
        };
        let signed = state.sign_svid(request, state.script.renew);
        if let Some(agent) = state.agents.get_mut(&id) {
            agent.pending_serial = Some(signed.serial.hex());
            agent.expires_at = signed.not_after;
        }
        Ok(Response::new(RenewAgentResponse { svid: signed.svid }))
    }

    async fn post_status(
        &self,
        request: Request<PostStatusRequest>,
    ) -> Result<Response<PostStatusResponse>, Status> {
        const LONGEST_VERSION: usize = 255;

        let behaviour = self.shared.state().settings.post_status;
        match behaviour {
            PostStatus::Denied => Err(Status::permission_denied("PostStatus is in no policy")),
            PostStatus::Unimplemented => Err(Status::unimplemented("PostStatus is unknown")),
            PostStatus::Accepted if request.get_ref().agent_version.len() > LONGEST_VERSION => {
                Err(Status::invalid_argument("agent version is too long"))
            }
            PostStatus::Accepted => Ok(Response::new(PostStatusResponse {})),
        }
    }

    unimplemented_rpcs! {
        count_agents: CountAgentsRequest => CountAgentsResponse;
        list_agents: ListAgentsRequest => ListAgentsResponse;
        get_agent: GetAgentRequest => types::Agent;
        delete_agent: DeleteAgentRequest => ();
        ban_agent: BanAgentRequest => ();
        create_join_token: CreateJoinTokenRequest => types::JoinToken;
    }
}

impl Services {
    /// Waits as the limiter of a real server does; a caller whose deadline would pass first is refused at once (2.8).
    async fn wait_for_turn(&self, deadline: Option<Duration>) -> Result<(), Status> {
        let now = tokio::time::Instant::now();
        let turn = {
            let mut state = self.shared.state();
            let Some(gap) = state.settings.attestation_gap else {
                return Ok(());
            };
            let turn = state.next_attestation.unwrap_or(now).max(now);
            if deadline.is_some_and(|deadline| now + deadline < turn) {
                return Err(Status::resource_exhausted(
                    "attestation rate limit exceeds the deadline",
                ));
            }
            state.next_attestation = Some(turn + gap);
            turn
        };
        tokio::time::sleep_until(turn).await;
        Ok(())
    }
}

impl Attestation {
    async fn run(mut self) -> Result<(), Status> {
        let first = self
            .requests
            .message()
            .await?
            .and_then(|request| request.step);
        let Some(attest_agent_request::Step::Params(params)) = first else {
            return Err(Status::invalid_argument(
                "the first message must have params",
            ));
        };
        let data = params
            .data
            .ok_or_else(|| Status::invalid_argument("missing attestation data"))?;
        let csr = params
            .params
            .map(|params| params.csr)
            .filter(|csr| !csr.is_empty())
            .ok_or_else(|| Status::invalid_argument("missing CSR"))?;
        if data.r#type.is_empty() || data.payload.is_empty() {
            return Err(Status::invalid_argument(
                "missing attestation type or payload",
            ));
        }
        self.services
            .note(&self.call, |call| call.details.push(data.r#type.clone()));
        if self.twist == Some(AttestTwist::Close) {
            return Ok(());
        }
        let attested = match data.r#type.as_str() {
            "join_token" => self.join_token(&data.payload)?,
            "x509pop" => self.x509pop(&data.payload).await?,
            other => {
                return Err(Status::failed_precondition(format!(
                    "no node attestor of type {other:?}"
                )));
            }
        };
        let result = self.admit(attested, &csr)?;
        self.answers
            .send(AttestAgentResponse {
                step: Some(attest_agent_response::Step::Result(result)),
            })
            .await
    }

    /// A token is spent by any try, before its end is looked at (2.4).
    fn join_token(&self, payload: &[u8]) -> Result<Attested, Status> {
        let mut state = self.services.shared.state();
        let now = state.now();
        let token = String::from_utf8_lossy(payload).into_owned();
        let ends_at = state.join_tokens.remove(&token);
        if ends_at.is_none_or(|ends_at| ends_at <= now) {
            return Err(Status::invalid_argument(
                "join token does not exist, has expired or was used",
            ));
        }
        Ok(Attested {
            path: format!("/join_token/{token}"),
            attestation_type: "join_token".to_owned(),
            selectors: Vec::new(),
            can_reattest: false,
        })
    }

    async fn x509pop(&mut self, payload: &[u8]) -> Result<Attested, Status> {
        let (node, can_reattest) = {
            let state = self.services.shared.state();
            let settings = &state.settings;
            let own = state.authorities.client_roots(state.now());
            let node = x509pop::verify_node(
                payload,
                &settings.x509pop,
                &settings.trust_domain,
                own,
                state.now(),
            )?;
            (node, settings.can_reattest)
        };
        let rounds = if self.twist == Some(AttestTwist::ExtraChallenge) {
            2
        } else {
            1
        };
        for _ in 0..rounds {
            self.challenge(&node).await?;
        }
        Ok(Attested {
            path: node.agent_path,
            attestation_type: "x509pop".to_owned(),
            selectors: node.selectors,
            can_reattest,
        })
    }

    async fn challenge(&mut self, node: &Node) -> Result<(), Status> {
        let nonce = random_bytes();
        let challenge = match self.twist {
            Some(AttestTwist::GarbageChallenge) => b"{not json".to_vec(),
            _ => node.key.challenge(&nonce),
        };
        self.answers
            .send(AttestAgentResponse {
                step: Some(attest_agent_response::Step::Challenge(challenge)),
            })
            .await?;
        let response = self
            .requests
            .message()
            .await?
            .and_then(|request| request.step);
        match self.twist {
            Some(AttestTwist::StallAfterChallenge) => std::future::pending::<()>().await,
            Some(AttestTwist::CloseAfterChallenge) => {
                if let Some(connection) = &self.connection {
                    connection.close.notify_one();
                }
                std::future::pending::<()>().await;
            }
            _ => {}
        }
        let Some(attest_agent_request::Step::ChallengeResponse(response)) = response else {
            return Err(Status::invalid_argument("a challenge response is missing"));
        };
        node.key.verify_response(&nonce, &response)
    }

    /// Signs the SVID and makes it the active one; the one before is dead from here on.
    fn admit(
        &self,
        attested: Attested,
        csr: &[u8],
    ) -> Result<attest_agent_response::Result, Status> {
        let mut state = self.services.shared.state();
        let path = format!("/spire/agent{}", attested.path);
        let id = state.id_text(&path);
        if state.agents.get(&id).is_some_and(|agent| agent.is_banned) {
            return Err(Status::permission_denied(
                "failed to attest: agent is banned",
            ));
        }
        let twist = match self.twist {
            Some(AttestTwist::Svid(twist)) => Some(twist),
            _ => None,
        };
        let request = SvidRequest {
            public_key: csr_public_key(csr, false)?,
            path,
            dns_names: Vec::new(),
            ttl: state.settings.agent_ttl,
            age: state.settings.agent_svid_age,
            hint: String::new(),
        };
        let signed = state.sign_svid(request, twist);
        let record = AgentRecord {
            id: id.clone(),
            attestation_type: attested.attestation_type,
            serial: signed.serial.hex(),
            pending_serial: None,
            expires_at: signed.not_after,
            is_banned: false,
            can_reattest: attested.can_reattest,
            selectors: attested.selectors,
        };
        state.agents.insert(id, record);
        Ok(attest_agent_response::Result {
            svid: signed.svid,
            reattestable: attested.can_reattest,
        })
    }
}

/// The deadline that a client sent along (gRPC over HTTP/2, `grpc-timeout`).
fn grpc_timeout(metadata: &tonic::metadata::MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    match unit {
        "H" => number.checked_mul(3600).map(Duration::from_secs),
        "M" => number.checked_mul(60).map(Duration::from_secs),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}
