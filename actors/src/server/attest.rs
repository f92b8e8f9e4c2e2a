//! The `AttestAgent` conversation (node-side 2.1): evidence, challenges, result.

use std::time::Duration;

use proto::spire::api::server::agent::v1::{
    AgentX509svidParams, AttestAgentRequest, AttestAgentResponse,
};
use proto::spire::api::server::agent::v1::{attest_agent_request, attest_agent_response};
use proto::spire::api::types::{AttestationData, X509svid};
use tokio::time::{Instant, timeout, timeout_at};

use super::Attestation;
use super::connect::Connection;
use super::link::Patience;
use super::status::Failure;
use crate::attestor::node::Proof;
use crate::svid::Certificate;
use crate::wire::{Inbox, Outbox};

const ATTEST_AGENT: &str = "/spire.api.server.agent.v1.Agent/AttestAgent";
/// Challenges in one attestation; known attestors have at most one.
const MAX_ROUNDS: usize = 10;
/// Largest challenge in bytes.
const MAX_CHALLENGE: usize = 64 << 10;
/// How long the server may take to end the stream after its result, which is not on disk before that.
const FAREWELL: Duration = Duration::from_millis(100);

/// How long the parts of an attestation may take (design D8).
#[derive(Debug, Clone, Copy)]
pub(super) struct AttestLimits {
    /// Until the first challenge or the result: the call may wait in the server's queue.
    pub(super) queue: Duration,
    /// From the first challenge to the result.
    pub(super) challenge: Duration,
    /// Until the first byte from the server.
    pub(super) first_byte: Duration,
}

/// Attests over `connection`.
pub(super) async fn attest(
    connection: &Connection,
    limits: AttestLimits,
    mut proof: Box<dyn Proof>,
    csr: Vec<u8>,
) -> Result<Attestation, Failure> {
    let queue_end = Instant::now() + limits.queue;
    let (requests, outgoing) = Outbox::new();
    send(&requests, first_step(&*proof, csr)).await;
    let mut request = tonic::Request::new(outgoing);
    request.set_timeout(limits.queue);

    let mut stream = {
        let _need = connection.needed(Patience::Queue);
        let opening = connection.wire().streaming(ATTEST_AGENT, request);
        tokio::select! {
            answer = opening => answer?,
            () = connection.stillbirth(limits.first_byte) => return Err(Failure::Silent(limits.first_byte)),
            () = tokio::time::sleep_until(queue_end) => return Err(Failure::Late(limits.queue)),
        }
    };
    // A server may send its headers at once and its first message later: the queue's time goes on.
    let mut step = {
        let _need = connection.needed(Patience::Queue);
        receive(&mut stream, queue_end, limits.queue).await?
    };
    let _need = connection.needed(Patience::Call);
    let end = Instant::now() + limits.challenge;
    for _ in 0..=MAX_ROUNDS {
        match step {
            attest_agent_response::Step::Result(result) => {
                let attestation = granted(result)?;
                drop(requests);
                // What the server says after its result changes nothing.
                drop(timeout(FAREWELL, stream.message()).await);
                return Ok(attestation);
            }
            attest_agent_response::Step::Challenge(challenge) => {
                if challenge.len() > MAX_CHALLENGE {
                    return Err(Failure::Malformed(format!(
                        "a challenge of {} bytes",
                        challenge.len()
                    )));
                }
                let response = timeout_at(end, proof.respond(&challenge))
                    .await
                    .map_err(|_| Failure::Proof("no answer to the challenge in time".to_owned()))?
                    .map_err(|error| Failure::Proof(error.to_string()))?;
                send(
                    &requests,
                    attest_agent_request::Step::ChallengeResponse(response),
                )
                .await;
                step = receive(&mut stream, end, limits.challenge).await?;
            }
        }
    }
    Err(Failure::Malformed(format!(
        "more than {MAX_ROUNDS} challenges"
    )))
}

/// Parses the chain of a granted agent SVID.
pub(super) fn chain_of(svid: Option<X509svid>) -> Result<Vec<Certificate>, Failure> {
    let svid = svid.ok_or_else(|| Failure::Malformed("no SVID".to_owned()))?;
    parse_chain(&svid).map_err(|problem| Failure::Malformed(format!("an unusable SVID: {problem}")))
}

/// Parses a chain as the server sends it: each element one certificate or several, leaf first.
pub(super) fn parse_chain(svid: &X509svid) -> Result<Vec<Certificate>, String> {
    if svid.cert_chain.is_empty() {
        return Err("the chain is empty".to_owned());
    }
    Certificate::list_from_der(&svid.cert_chain.concat()).map_err(|error| error.to_string())
}

fn first_step(proof: &dyn Proof, csr: Vec<u8>) -> attest_agent_request::Step {
    attest_agent_request::Step::Params(attest_agent_request::Params {
        data: Some(AttestationData {
            r#type: proof.attestor_name().to_owned(),
            payload: proof.payload(),
        }),
        params: Some(AgentX509svidParams { csr }),
    })
}

async fn send(requests: &Outbox, step: attest_agent_request::Step) {
    requests
        .send(&AttestAgentRequest { step: Some(step) })
        .await;
}

async fn receive(
    stream: &mut Inbox<AttestAgentResponse>,
    end: Instant,
    limit: Duration,
) -> Result<attest_agent_response::Step, Failure> {
    let message = timeout_at(end, stream.message())
        .await
        .map_err(|_| Failure::Late(limit))??;
    let message = message.ok_or_else(|| Failure::Malformed("no result".to_owned()))?;
    message
        .step
        .ok_or_else(|| Failure::Malformed("neither challenge nor result".to_owned()))
}

fn granted(result: attest_agent_response::Result) -> Result<Attestation, Failure> {
    Ok(Attestation {
        reattestable: result.reattestable,
        chain: chain_of(result.svid)?,
    })
}
