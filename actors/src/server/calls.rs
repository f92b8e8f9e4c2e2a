//! The calls of the agent, one function each: request, answer, and what is wrong with it. Connections and time limits are
//! the client's.

use std::time::Duration;

use proto::spire::api::server::agent::v1::{RenewAgentRequest, RenewAgentResponse};
use proto::spire::api::server::bundle::v1::{GetBundleRequest, GetFederatedBundleRequest};
use proto::spire::api::server::entry::v1::{
    GetAuthorizedEntriesRequest, GetAuthorizedEntriesResponse, SyncAuthorizedEntriesRequest,
    SyncAuthorizedEntriesResponse,
};
use proto::spire::api::server::svid::v1::{
    BatchNewX509svidRequest, BatchNewX509svidResponse, batch_new_x509svid_response,
};
use tokio::time::{Instant, timeout};

use super::SigningRefusal;
use super::attest::{chain_of, parse_chain};
use super::entries::{self, Exchange, Next, SyncLimits};
use super::status::{Failure, clean};
use crate::bundle::Bundle;
use crate::entry::{EntrySync, KnownEntries};
use crate::spiffe_id::TrustDomain;
use crate::svid::Certificate;
use crate::wire::{Inbox, Outbox, Wire};

/// How long the server may take to end a stream after its last message.
const FAREWELL: Duration = Duration::from_secs(2);

const GET_BUNDLE: &str = "/spire.api.server.bundle.v1.Bundle/GetBundle";
const GET_FEDERATED_BUNDLE: &str = "/spire.api.server.bundle.v1.Bundle/GetFederatedBundle";
const SYNC_AUTHORIZED_ENTRIES: &str = "/spire.api.server.entry.v1.Entry/SyncAuthorizedEntries";
const GET_AUTHORIZED_ENTRIES: &str = "/spire.api.server.entry.v1.Entry/GetAuthorizedEntries";
const BATCH_NEW_X509_SVID: &str = "/spire.api.server.svid.v1.SVID/BatchNewX509SVID";
const RENEW_AGENT: &str = "/spire.api.server.agent.v1.Agent/RenewAgent";

/// What a call works with.
#[derive(Debug)]
pub(super) struct Call {
    /// The connection's sending end.
    pub(super) wire: Wire,
    /// When the call's time is over.
    pub(super) deadline: Instant,
}

impl Call {
    /// A request that tells the server how much time is left.
    pub(super) fn request<M>(&self, message: M) -> tonic::Request<M> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.deadline.saturating_duration_since(Instant::now()));
        request
    }
}

/// `GetBundle` of the agent's own trust domain.
pub(super) async fn get_bundle(call: Call, own: &TrustDomain) -> Result<Bundle, Failure> {
    let request = call.request(GetBundleRequest { output_mask: None });
    let answer = call.wire.unary(GET_BUNDLE, request).await?;
    let message = answer.into_inner();
    let bundle = Bundle::from_proto(message, own)
        .map_err(|error| Failure::Malformed(format!("an unusable bundle: {error}")))?;
    // Without authorities nothing could be verified any more, the server least of all.
    if bundle.x509_authorities().is_empty() {
        return Err(Failure::Malformed(
            "a bundle without X.509 authorities".to_owned(),
        ));
    }
    Ok(bundle)
}

/// `GetFederatedBundle`; none where the server has none.
pub(super) async fn get_federated_bundle(
    call: Call,
    trust_domain: &TrustDomain,
) -> Result<Option<Bundle>, Failure> {
    let request = call.request(GetFederatedBundleRequest {
        trust_domain: trust_domain.name().to_owned(),
        output_mask: None,
    });
    let message = match call.wire.unary(GET_FEDERATED_BUNDLE, request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == tonic::Code::NotFound => return Ok(None),
        Err(status) => return Err(status.into()),
    };
    match Bundle::from_proto(message, trust_domain) {
        Ok(bundle) => Ok(Some(bundle)),
        Err(error) => Err(Failure::Malformed(format!(
            "an unusable bundle of {trust_domain}: {error}"
        ))),
    }
}

/// `RenewAgent`; the new chain, leaf first.
pub(super) async fn renew(
    call: Call,
    message: &RenewAgentRequest,
) -> Result<Vec<Certificate>, Failure> {
    let request = call.request(message.clone());
    let answer = call.wire.unary(RENEW_AGENT, request).await?;
    let RenewAgentResponse { svid } = answer.into_inner();
    chain_of(svid)
}

/// `SyncAuthorizedEntries`, from the first message to the stream's end.
pub(super) async fn sync_entries(
    call: Call,
    known: &KnownEntries,
    own: &TrustDomain,
    limits: SyncLimits,
) -> Result<EntrySync, Failure> {
    let (requests, outgoing) = Outbox::new();
    let request = call.request(outgoing);
    let first = SyncAuthorizedEntriesRequest {
        output_mask: Some(entries::MASK),
        ids: Vec::new(),
    };
    requests.send(&first).await;
    let opening = call.wire.streaming(SYNC_AUTHORIZED_ENTRIES, request);
    let mut stream: Inbox<SyncAuthorizedEntriesResponse> = opening.await?;
    let mut exchange = Exchange::new(known, own, limits);
    loop {
        let message = stream
            .message()
            .await?
            .ok_or_else(|| Failure::Malformed("too few entries".to_owned()))?;
        match exchange.receive(message).map_err(Failure::Malformed)? {
            Next::Receive => {}
            Next::Request(ids) => {
                let next = SyncAuthorizedEntriesRequest {
                    output_mask: None,
                    ids,
                };
                requests.send(&next).await;
            }
            Next::Done => break,
        }
    }
    drop(requests);
    match timeout(FAREWELL, stream.message()).await {
        Ok(Err(status)) => Err(status.into()),
        Ok(Ok(Some(_))) => Err(Failure::Malformed("more than it was asked for".to_owned())),
        Ok(Ok(None)) | Err(_) => Ok(exchange.finish()),
    }
}

/// `GetAuthorizedEntries`: everything in one message.
pub(super) async fn all_entries(call: Call, own: &TrustDomain) -> Result<EntrySync, Failure> {
    let request = call.request(GetAuthorizedEntriesRequest {
        output_mask: Some(entries::MASK),
    });
    let answer = call.wire.unary(GET_AUTHORIZED_ENTRIES, request).await?;
    let message: GetAuthorizedEntriesResponse = answer.into_inner();
    Ok(entries::complete_list(message.entries, own))
}

/// `BatchNewX509SVID`; `message` has at least one request. One outcome per request, whatever the server answers.
pub(super) async fn sign(
    call: Call,
    message: &BatchNewX509svidRequest,
) -> Result<Vec<Result<Vec<Certificate>, SigningRefusal>>, Failure> {
    let request = call.request(message.clone());
    let answer = call.wire.unary(BATCH_NEW_X509_SVID, request).await?;
    let BatchNewX509svidResponse { results } = answer.into_inner();
    let (asked, answered) = (message.params.len(), results.len());
    if answered > asked {
        tracing::warn!(
            asked,
            answered,
            "the server signed more than it was asked for"
        );
    }
    // Key and ID of each are checked before it is used, so that answers in the wrong places do no harm.
    let mut outcomes: Vec<_> = results.into_iter().take(asked).map(outcome).collect();
    outcomes.resize_with(asked, || Err(unusable("there is no result")));
    Ok(outcomes)
}

fn unusable(problem: &str) -> SigningRefusal {
    SigningRefusal {
        code: tonic::Code::DataLoss,
        message: format!("unusable SVID: {problem}"),
    }
}

fn outcome(
    result: batch_new_x509svid_response::Result,
) -> Result<Vec<Certificate>, SigningRefusal> {
    let status = result.status.unwrap_or_default();
    let code = tonic::Code::from_i32(status.code);
    if code != tonic::Code::Ok {
        return Err(SigningRefusal {
            code,
            message: clean(&status.message),
        });
    }
    let svid = result.svid.ok_or_else(|| unusable("there is none"))?;
    parse_chain(&svid).map_err(|problem| unusable(&problem))
}
