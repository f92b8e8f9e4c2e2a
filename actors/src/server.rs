//! The port to the server: one trait, the real client ([`client`]), and a scripted one for tests. Connections are its business alone.

pub mod address;
mod attest;
mod calls;
pub mod client;
mod connect;
mod entries;
mod frames;
mod link;
mod post_quantum;
mod route;
mod status;
mod verify;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use crate::attestor::node::Proof;
use crate::bundle::Bundle;
use crate::credentials::ServerTrust;
use crate::entry::{EntryId, EntrySync, KnownEntries};
use crate::spiffe_id::TrustDomain;
use crate::svid::Certificate;

/// Largest number of signing requests in one call (server limit, node-side 4.10).
pub const MAX_SIGNING_BATCH: usize = 500;

/// An answer of the server, on the actors' thread.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T, ServerError>>>>;

/// Everything the agent asks of a server. Every call has a time limit of its own and ends by itself (design D8).
pub trait ServerApi: fmt::Debug {
    /// Runs `AttestAgent` over a new connection without client certificate. The connection is kept for one
    /// [`ServerApi::bootstrap_bundle`].
    fn attest(
        self: Rc<Self>,
        trust: ServerTrust,
        proof: Box<dyn Proof>,
        csr: Vec<u8>,
    ) -> Reply<Attestation>;

    /// `GetBundle` without client certificate: right after an attestation, before there are credentials.
    fn bootstrap_bundle(self: Rc<Self>, trust: ServerTrust) -> Reply<Bundle>;

    /// `RenewAgent` with the current credentials; the new chain, leaf first.
    fn renew(self: Rc<Self>, csr: Vec<u8>) -> Reply<Vec<Certificate>>;

    /// The entries this agent is authorised for, in either response shape (node-side 4.7).
    fn sync_entries(self: Rc<Self>, known: KnownEntries) -> Reply<EntrySync>;

    /// `GetBundle` of the agent's own trust domain.
    fn bundle(self: Rc<Self>) -> Reply<Bundle>;

    /// `GetFederatedBundle`; `NOT_FOUND` is `Ok(None)`.
    fn federated_bundle(self: Rc<Self>, trust_domain: TrustDomain) -> Reply<Option<Bundle>>;

    /// `BatchNewX509SVID` for at most [`MAX_SIGNING_BATCH`] entries: one outcome per request, in order.
    fn sign_x509(
        self: Rc<Self>,
        requests: Vec<SigningRequest>,
    ) -> Reply<Vec<Result<Vec<Certificate>, SigningRefusal>>>;

    /// Drops open connections: the next call dials anew, with the newest credentials.
    fn disconnect(&self);
}

/// What the server granted to an attesting agent.
#[derive(Debug)]
pub struct Attestation {
    /// The agent SVID's chain, leaf first; parsed but not yet checked against key or bundle.
    pub chain: Vec<Certificate>,
    /// Whether this agent renews by attesting again.
    pub reattestable: bool,
}

/// One certificate to sign.
#[derive(Debug)]
pub struct SigningRequest {
    /// Under which entry.
    pub entry_id: EntryId,
    /// PKCS#10, DER.
    pub csr: Vec<u8>,
}

/// Why one certificate of a batch was not signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct SigningRefusal {
    /// The item's gRPC code; `NOT_FOUND` = entry deleted or not ours any more.
    pub code: tonic::Code,
    /// The server's words, cut and stripped of control characters.
    pub message: String,
}

/// Reason in the details of `PERMISSION_DENIED` (node-side 3.5). Numbers that are not known are no reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeniedReason {
    /// The agent SVID has expired.
    AgentExpired,
    /// The server does not know the agent (evicted).
    AgentNotAttested,
    /// The agent SVID is not the current one.
    AgentNotActive,
    /// The agent is banned.
    AgentBanned,
    /// The agent may not renew; it is to attest again.
    AgentMustReattest,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// The server cannot be reached, or the connection broke.
    #[error("server {peer} is unreachable: {reason}")]
    Unreachable {
        /// Address and port as configured.
        peer: String,
        /// What went wrong, in words.
        reason: String,
    },
    /// The server's certificate leads to no authority in the bundle.
    #[error("server {peer} is not trusted: x509: certificate signed by unknown authority")]
    UnknownAuthority {
        /// Address and port as configured.
        peer: String,
    },
    /// The server's certificate is not that of `spiffe://TD/spire/server`, expired, or damaged.
    #[error("server {peer} failed verification: {reason}")]
    Untrusted {
        /// Address and port as configured.
        peer: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server rejected the agent's certificate in the TLS handshake.
    #[error("server {peer} rejected the agent certificate: {reason}")]
    CertificateRejected {
        /// Address and port as configured.
        peer: String,
        /// The TLS alert.
        reason: String,
    },
    /// No answer came within the call's time.
    #[error("{call} was not answered within {limit:?}")]
    TimedOut {
        /// The RPC.
        call: &'static str,
        /// Its time limit.
        limit: Duration,
    },
    /// The server answered with an error.
    #[error("{call} failed: {code:?}: {message}")]
    Status {
        /// The RPC.
        call: &'static str,
        /// gRPC code.
        code: tonic::Code,
        /// The server's words, cut and stripped of control characters.
        message: String,
        /// Why the agent was denied, where the server says.
        reason: Option<DeniedReason>,
    },
    /// The answer breaks the contract.
    #[error("{call} was answered with {problem}")]
    Malformed {
        /// The RPC.
        call: &'static str,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The node's proof could not be made.
    #[error("{0}")]
    Proof(String),
    /// There are no credentials to call with yet.
    #[error("the agent is not attested")]
    NotAttested,
}

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Try again later.
    Retry,
    /// Attest again: the server does not take this SVID any more.
    Reattest,
    /// The agent is banned: forget everything and end.
    Banned,
}

impl ServerError {
    /// What to do about it: details decide, never words (node-side 3.5, 4.11).
    pub fn disposition(&self) -> Disposition {
        match self.denied_reason() {
            Some(DeniedReason::AgentBanned) => Disposition::Banned,
            Some(_) => Disposition::Reattest,
            None => Disposition::Retry,
        }
    }

    /// The reason in the status details, if any.
    pub fn denied_reason(&self) -> Option<DeniedReason> {
        if let Self::Status { reason, .. } = self {
            *reason
        } else {
            None
        }
    }

    /// The gRPC code that the server answered with, if it answered.
    pub fn code(&self) -> Option<tonic::Code> {
        if let Self::Status { code, .. } = self {
            Some(*code)
        } else {
            None
        }
    }
}

impl DeniedReason {
    /// Reads the wire number; numbers from the future are no reason.
    pub fn from_wire(number: i32) -> Option<Self> {
        match number {
            1 => Some(Self::AgentExpired),
            2 => Some(Self::AgentNotAttested),
            3 => Some(Self::AgentNotActive),
            4 => Some(Self::AgentBanned),
            5 => Some(Self::AgentMustReattest),
            _ => None,
        }
    }
}
