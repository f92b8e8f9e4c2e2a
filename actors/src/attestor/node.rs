//! How a node proves what it is: the trait that every way in implements.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A way in, such as `x509pop`. Holds its configuration only: evidence is read anew at each attestation.
pub trait NodeAttestor: fmt::Debug {
    /// The type string that the server knows it by.
    fn name(&self) -> &'static str;

    /// Whether an agent that came in this way may come in again (a join token is spent).
    fn may_attest_again(&self) -> bool;

    /// Gathers the evidence for one attestation.
    fn prepare(self: Rc<Self>) -> Evidence;
}

/// Evidence on its way.
pub type Evidence = Pin<Box<dyn Future<Output = Result<Box<dyn Proof>, EvidenceError>>>>;

/// The evidence of one attestation.
pub trait Proof: fmt::Debug {
    /// The type string that the server knows the attestor by.
    fn attestor_name(&self) -> &'static str;

    /// The first payload; never empty.
    fn payload(&self) -> Vec<u8>;

    /// Answers one challenge; never empty. The caller gives up on an answer that takes longer than the server waits.
    fn respond<'a>(&'a mut self, challenge: &'a [u8]) -> Answer<'a>;
}

/// An answer on its way: a TPM needs several rounds of its own.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, EvidenceError>> + 'a>>;

/// Why evidence cannot be given. Names the file; never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvidenceError {
    /// A file cannot be read or used.
    #[error("{path}: {reason}")]
    File {
        /// The file as configured.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What the attestation needs is not configured, or not to be had.
    #[error("{0}")]
    Unprepared(String),
    /// The server asks for something that this evidence cannot answer.
    #[error("unusable challenge: {0}")]
    Challenge(String),
    /// Signing failed.
    #[error("unable to sign the challenge: {0}")]
    Signing(String),
    /// Another agent has no certificate and key for this one: that may change.
    #[error("{address}: {reason}")]
    WorkloadApi {
        /// Where its Workload API is.
        address: String,
        /// What went wrong.
        reason: String,
    },
}
