//! Workload attestation: what is known of a caller. Owns the workload attestors, one flight and a short cache per process (design D13).
//! Takes [`AttestWorkload`]. Sends nothing.

use std::sync::Arc;

use actix::Message;

use crate::peer::Peer;
use crate::selector::SelectorSet;

/// Finds the selectors of a caller.
#[derive(Debug, Message)]
#[rtype(result = "Result<SelectorSet, AttestationError>")]
pub struct AttestWorkload {
    /// The calling process.
    pub peer: Arc<Peer>,
}

/// Why nothing is known of a caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttestationError {
    /// Every workload attestor failed.
    #[error("workload attestation failed: {0}")]
    AllFailed(String),
    /// The process has ended, or its number names another one now.
    #[error("could not verify existence of the original caller")]
    PeerGone,
    /// Too many attestations are under way.
    #[error("too many workload attestations are under way")]
    Busy,
}
