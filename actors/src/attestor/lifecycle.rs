//! What the attestor does next: at start, after a success, after a failure, when the server rejects its SVID. Pure.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::arrival::Arrival;
use crate::backoff::Backoff;
use crate::bundle::Bundle;
use crate::clock::Now;
use crate::keys::PrivateKey;
use crate::random::Random;
use crate::rotation::{RETRY_CAP, RETRY_INITIAL, retry_wait};
use crate::server::{DeniedReason, Disposition, ServerError};
use crate::spiffe_id::{SpiffeId, TrustDomain};
use crate::store::{KeySlot, StoredIdentity};
use crate::svid::{Certificate, CertificateError, X509Svid};

/// A stored SVID must live at least this long to be used (node-side 2.9).
const EXPIRY_SKEW: Duration = Duration::from_secs(1);
/// Gaps between attestations because of rejections grow to this (design 4).
const REJECTION_GAP_CAP: Duration = Duration::from_mins(5);
/// How long a join token that the server refuses is tried again (design D4).
const TOKEN_PATIENCE: Duration = Duration::from_mins(1);
/// An SVID that is not active any more this soon after its attestation was ended by another attestation.
const SOON: Duration = Duration::from_mins(5);
/// So many of those in one series are no accident.
const CLONES_BELIEVED: u32 = 3;
/// Every agent ID begins with this path (SPIRE convention).
const AGENT_PATH: &str = "/spire/agent/";

/// What a start finds on disk.
#[derive(Debug)]
pub enum Start {
    /// A valid SVID with its key: no attestation is needed.
    Warm {
        /// Certificate and key.
        svid: Arc<X509Svid>,
        /// Which slot the key is in.
        slot: KeySlot,
        /// Whether the agent renews by attesting again.
        reattestable: bool,
    },
    /// Nothing usable.
    Cold {
        /// Why, for the log.
        why: &'static str,
        /// The slot of the stored SVID's key: the clock may be wrong, so it is not overwritten.
        slot: Option<KeySlot>,
    },
}

/// How the agent SVID is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `AttestAgent`, over a connection of its own.
    Attest,
    /// `RenewAgent`, with the SVID that is to be replaced.
    Renew,
}

/// What to do after a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterFailure {
    /// Try again after this wait.
    Retry(Duration),
    /// Nothing the agent can do will help: it ends once it serves nobody any more, and tries on until then (design D4).
    Hopeless(Duration),
    /// The agent is banned: it ends (design D5).
    Banned,
}

/// What an attempt that failed was to replace.
#[derive(Debug, Clone, Copy)]
pub struct Attempted {
    /// How it was tried.
    pub way: Way,
    /// What is left of the SVID that is held; none = nothing is held.
    pub left: Option<Duration>,
    /// The server is known not to take that SVID.
    pub is_rejected: bool,
    /// The configured way in may be taken again (a join token is spent).
    pub may_attest_again: bool,
}

/// Retries of attestation and rotation.
#[derive(Debug)]
pub struct Retries {
    backoff: Backoff,
    arrival: Arrival,
    /// Boot time of the first refusal of a join token.
    token_refused: Option<Duration>,
}

/// Attestations because the server rejected the SVID: a server that grants SVIDs and rejects them at once (a lagging replica, two agents with
/// one leaf) is not asked without end.
#[derive(Debug)]
pub struct Rejections {
    gaps: Backoff,
    /// Boot time before which the next rejection is not acted upon.
    not_before: Duration,
    /// Boot time from which on an accepted SVID ends the series.
    series_until: Duration,
    /// How often in this series an SVID was ended by another attestation.
    ended_by_others: u32,
}

impl Default for Rejections {
    fn default() -> Self {
        Self {
            gaps: Backoff::new(RETRY_INITIAL, REJECTION_GAP_CAP),
            not_before: Duration::ZERO,
            series_until: Duration::ZERO,
            ended_by_others: 0,
        }
    }
}

impl Rejections {
    /// How long to wait before the SVID, which ends in `left`, is replaced because of a rejection: nothing for the first one.
    pub fn wait(&self, now: Now, left: Option<Duration>) -> Duration {
        match self.not_before.saturating_sub(now.boot) {
            Duration::ZERO => Duration::ZERO,
            gap => retry_wait(gap, left),
        }
    }

    /// The SVID is being replaced because of a rejection.
    pub fn acted(&mut self, now: Now, random: &mut Random) {
        self.not_before = now.boot + self.gaps.next(random);
        self.series_until = now.boot + 2 * REJECTION_GAP_CAP;
    }

    /// The server does not take an SVID that was attested `age` ago. Tells, once in a series, that another agent must be coming in with the same
    /// evidence: each attestation of one ends the SVID of the other.
    pub fn reveals_clone(&mut self, reason: Option<DeniedReason>, age: Duration) -> bool {
        if reason != Some(DeniedReason::AgentNotActive) || age > SOON {
            return false;
        }
        self.ended_by_others += 1;
        self.ended_by_others == CLONES_BELIEVED
    }

    /// The server has accepted the SVID. That ends a series only when it has lasted: two agents with one leaf are accepted in turn.
    /// Tells whether it has.
    pub fn accepted(&mut self, now: Now) -> bool {
        let has_lasted = now.boot >= self.series_until;
        if has_lasted {
            *self = Self::default();
        }
        has_lasted
    }
}

/// Why a granted SVID is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedAgentSvid {
    /// It is no SVID, or its key is not the one asked for.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// It names something that is no agent of this trust domain.
    #[error("certificate is for {0}, which is not an agent of the trust domain")]
    ForeignId(SpiffeId),
    /// It has ended already.
    #[error("certificate has expired already")]
    Expired,
}

/// Looks for a usable identity in what was stored (node-side 3.3).
pub fn at_start(stored: &StoredIdentity, trust_domain: &TrustDomain, now: SystemTime) -> Start {
    let Some(leaf) = stored.chain.first() else {
        return Start::Cold {
            why: "no SVID is stored",
            slot: None,
        };
    };
    let key = stored
        .keys
        .iter()
        .find(|(_, key)| key.public_key_der() == leaf.public_key_der());
    let Some((slot, key)) = key else {
        return Start::Cold {
            why: "no stored key belongs to the stored SVID",
            slot: None,
        };
    };
    let cold = |why| Start::Cold {
        why,
        slot: Some(*slot),
    };
    if leaf.not_after() <= now + EXPIRY_SKEW {
        return cold("the stored SVID has expired");
    }
    match X509Svid::new(stored.chain.clone(), Arc::clone(key)) {
        Ok(svid) if is_agent_of(&svid.id, trust_domain) => Start::Warm {
            svid: Arc::new(svid),
            slot: *slot,
            reattestable: stored.reattestable,
        },
        Ok(_) => cold("the stored SVID belongs to another trust domain"),
        Err(_) => cold("the stored SVID is damaged"),
    }
}

/// The slot for a new key: never the one in use (node-side 3.2).
pub fn free_slot(in_use: Option<KeySlot>) -> KeySlot {
    match in_use {
        Some(KeySlot::A) => KeySlot::B,
        Some(KeySlot::B) | None => KeySlot::A,
    }
}

/// Whether a new SVID changes nothing for anybody but the attestor: it follows one of the same ID that was good to the end. Any other is news,
/// and what the server held against the old one is moot.
pub fn is_planned(
    held: Option<&X509Svid>,
    is_rejected: bool,
    new: &SpiffeId,
    now: SystemTime,
) -> bool {
    held.is_some_and(|held| !is_rejected && held.id == *new && now <= held.not_after())
}

/// What is known when an SVID is to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replacing {
    /// The server said that the agent renews by attesting again.
    pub reattestable: bool,
    /// The SVID has ended, or the server does not take it any more: nothing can be asked with it.
    pub is_spent: bool,
    /// The configured way in may be taken again (a join token is spent).
    pub may_attest_again: bool,
}

/// How an agent replaces its SVID. One that renews attests where renewal has no chance and its way in is still open.
pub fn way(replacing: Option<Replacing>) -> Way {
    match replacing {
        None => Way::Attest,
        Some(svid) if svid.reattestable || (svid.is_spent && svid.may_attest_again) => Way::Attest,
        Some(_) => Way::Renew,
    }
}

/// Checks what the server granted: the key asked for, an agent of the trust domain, still valid. The path is checked by the caller, who
/// knows whether there is a bundle.
pub fn accept(
    chain: Vec<Certificate>,
    key: Arc<PrivateKey>,
    trust_domain: &TrustDomain,
    now: SystemTime,
) -> Result<X509Svid, RefusedAgentSvid> {
    let svid = X509Svid::new(chain, key)?;
    if !is_agent_of(&svid.id, trust_domain) {
        return Err(RefusedAgentSvid::ForeignId(svid.id));
    }
    if svid.not_after() <= now {
        return Err(RefusedAgentSvid::Expired);
    }
    Ok(svid)
}

fn is_agent_of(id: &SpiffeId, trust_domain: &TrustDomain) -> bool {
    id.trust_domain_name() == trust_domain.name()
        && id
            .path()
            .strip_prefix(AGENT_PATH)
            .is_some_and(|rest| !rest.is_empty())
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(RETRY_INITIAL, RETRY_CAP),
            arrival: Arrival::default(),
            token_refused: None,
        }
    }
}

impl Retries {
    /// An SVID is in use: the next failure waits the first step again.
    pub fn reset(&mut self) {
        self.backoff.reset();
        self.token_refused = None;
    }

    /// An attestation was admitted `queued` after it was asked for.
    pub fn admitted(&mut self, queued: Duration, now: Now) {
        self.arrival.admitted(queued, now.boot);
    }

    /// When an SVID is replaced for which `at` was drawn: the queue that was seen last must fit in before. Renewals do not queue.
    pub fn rotation(&self, at: SystemTime, leaf: &Certificate, reattestable: bool) -> SystemTime {
        let lifetime = leaf.not_after().duration_since(leaf.not_before());
        if reattestable {
            self.arrival
                .ahead_of_queue(at, lifetime.unwrap_or_default())
        } else {
            at
        }
    }

    /// What follows a failed attempt. An agent without a valid SVID whose attestation is denied, or whose token stays refused for a minute, has
    /// nothing to wait for, nor has one whose SVID has ended and that cannot attest again (design D4); in every other case it tries for ever
    /// (design D2).
    pub fn after(
        &mut self,
        error: &ServerError,
        attempted: Attempted,
        now: Now,
        random: &mut Random,
    ) -> AfterFailure {
        if error.disposition() == Disposition::Banned {
            return AfterFailure::Banned;
        }
        if Arrival::is_crowded(error) {
            let left = attempted.left;
            let wait = self.arrival.wait(now.boot, random);
            return AfterFailure::Retry(retry_wait(wait, left.filter(|left| !left.is_zero())));
        }
        let wait = retry_wait(self.backoff.next(random), attempted.left);
        let holds_valid =
            attempted.left.is_some_and(|left| !left.is_zero()) && !attempted.is_rejected;
        let is_hopeless = !holds_valid
            && match attempted.way {
                Way::Attest => match attest_code(error) {
                    Some(tonic::Code::PermissionDenied) => true,
                    Some(tonic::Code::InvalidArgument) if !attempted.may_attest_again => {
                        let since = *self.token_refused.get_or_insert(now.boot);
                        now.boot.saturating_sub(since) + wait > TOKEN_PATIENCE
                    }
                    _ => false,
                },
                Way::Renew => !attempted.may_attest_again,
            };
        if is_hopeless {
            AfterFailure::Hopeless(wait)
        } else {
            AfterFailure::Retry(wait)
        }
    }
}

/// What `AttestAgent` itself was answered with.
fn attest_code(error: &ServerError) -> Option<tonic::Code> {
    if let ServerError::Status {
        call: "AttestAgent",
        code,
        ..
    } = error
    {
        Some(*code)
    } else {
        None
    }
}

/// Whether a bundle from the server differs from the one held in what the agent verifies by.
pub fn is_news(held: &Bundle, newer: &Bundle) -> bool {
    held.x509_authorities() != newer.x509_authorities()
}

#[cfg(test)]
mod tests;
