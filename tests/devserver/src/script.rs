//! What a test tells the server to do wrong, and what it may ask afterwards: faults, twists and calls. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use proto::spire::api::server::entry::v1::EntryRevision;
use proto::spire::api::types;
use proto::spire::api::types::permission_denied_details::Reason;
use tonic::Code;

use crate::clock::Seconds;

/// Names of the RPCs that an agent calls, as faults and counters use them.
pub mod rpc {
    /// First attestation and re-attestation.
    pub const ATTEST_AGENT: &str = "AttestAgent";
    /// Renewal of an agent SVID.
    pub const RENEW_AGENT: &str = "RenewAgent";
    /// The agent's report of itself.
    pub const POST_STATUS: &str = "PostStatus";
    /// The own bundle.
    pub const GET_BUNDLE: &str = "GetBundle";
    /// A foreign bundle.
    pub const GET_FEDERATED_BUNDLE: &str = "GetFederatedBundle";
    /// Entries, with revisions.
    pub const SYNC_AUTHORIZED_ENTRIES: &str = "SyncAuthorizedEntries";
    /// A request for full entries within `SyncAuthorizedEntries`: a counter only, no fault applies.
    pub const SYNC_AUTHORIZED_ENTRIES_IDS: &str = "SyncAuthorizedEntries.ids";
    /// Entries, without revisions.
    pub const GET_AUTHORIZED_ENTRIES: &str = "GetAuthorizedEntries";
    /// Signing of X.509-SVIDs.
    pub const BATCH_NEW_X509_SVID: &str = "BatchNewX509SVID";
    /// Signing of a JWT-SVID.
    pub const NEW_JWT_SVID: &str = "NewJWTSVID";
}

/// One thing that goes wrong with calls of one RPC. Faults of an RPC apply in the order in which they were added: the
/// next one takes over when the one before has been used up.
#[derive(Clone, Debug)]
pub struct Fault {
    pub(crate) rpc: String,
    pub(crate) action: Action,
    pub(crate) delay: Duration,
    pub(crate) times: Option<u32>,
}

/// What happens to a call.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Proceed,
    Refuse {
        code: Code,
        message: String,
        reason: Option<i32>,
    },
    Answer(Vec<u8>),
    CloseConnection,
    GoAway,
    Stall,
}

impl Fault {
    fn new(rpc: &str, action: Action) -> Self {
        Self {
            rpc: rpc.to_owned(),
            action,
            delay: Duration::ZERO,
            times: None,
        }
    }

    /// Calls end with `code`.
    pub fn code(rpc: &str, code: Code) -> Self {
        Self::new(
            rpc,
            Action::Refuse {
                code,
                message: "told to fail".to_owned(),
                reason: None,
            },
        )
    }

    /// Calls end with `PERMISSION_DENIED` and a reason in the details.
    pub fn reason(rpc: &str, reason: Reason) -> Self {
        Self::reason_number(rpc, reason.into())
    }

    /// Like [`Fault::reason`], for numbers that no version defines.
    pub fn reason_number(rpc: &str, reason: i32) -> Self {
        Self::new(
            rpc,
            Action::Refuse {
                code: Code::PermissionDenied,
                message: "told to refuse".to_owned(),
                reason: Some(reason),
            },
        )
    }

    /// Calls succeed, but late.
    pub fn delay(rpc: &str, delay: Duration) -> Self {
        Self::new(rpc, Action::Proceed).after(delay)
    }

    /// Calls are answered with bytes that are no message.
    pub fn garbage(rpc: &str) -> Self {
        Self::new(rpc, Action::Answer(vec![0xff; 32]))
    }

    /// Calls are answered with a valid message of `bytes` bytes whose content is one unknown field.
    pub fn oversized(rpc: &str, bytes: usize) -> Self {
        Self::new(rpc, Action::Answer(unknown_field(bytes)))
    }

    /// The connection ends without an answer.
    pub fn close_connection(rpc: &str) -> Self {
        Self::new(rpc, Action::CloseConnection)
    }

    /// The connection gets a GOAWAY; the call itself is answered.
    pub fn go_away(rpc: &str) -> Self {
        Self::new(rpc, Action::GoAway)
    }

    /// Calls are never answered.
    pub fn stall(rpc: &str) -> Self {
        Self::new(rpc, Action::Stall)
    }

    /// The same fault with another message in the status.
    #[must_use]
    pub fn message(mut self, text: &str) -> Self {
        if let Action::Refuse { message, .. } = &mut self.action {
            text.clone_into(message);
        }
        self
    }

    /// The same fault after a pause.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The same fault for the next `times` calls only.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }
}

/// Something wrong with a signed X.509-SVID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SvidTwist {
    /// There is no SVID in the answer.
    Missing,
    /// The chain has no certificate.
    EmptyChain,
    /// The chain is not DER.
    GarbageChain,
    /// The certificate is for another key.
    WrongKey,
    /// The certificate and the message name another SPIFFE ID.
    WrongId,
    /// The certificate has a DNS name in place of the URI.
    NoUri,
    /// The authority that signs is in no bundle.
    ForeignAuthority,
    /// The certificate lives this long; negative for one that is over.
    Lifetime(Seconds),
    /// The generation of the CA that signs.
    Generation(usize),
}

/// Something wrong with an attestation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttestTwist {
    /// The stream ends with OK and without a result.
    Close,
    /// The first challenge is not JSON.
    GarbageChallenge,
    /// A challenge, then silence.
    StallAfterChallenge,
    /// A challenge, then a broken connection.
    CloseAfterChallenge,
    /// Two rounds of challenge and response.
    ExtraChallenge,
    /// A result with a faulty SVID.
    Svid(SvidTwist),
}

/// Something wrong with the signing of one entry's X.509-SVID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignTwist {
    /// The item has this status and no SVID.
    Fail(Code, String),
    /// The answer has one item less.
    Dropped,
    /// A faulty SVID.
    Svid(SvidTwist),
}

/// Something wrong with JWT-SVIDs of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwtTwist {
    /// The call fails.
    Fail(Code, String),
    /// There is no SVID in the answer.
    Missing,
    /// The message (not the token) says it was issued and ends at these Unix seconds.
    Times(Seconds, Seconds),
}

/// How a foreign trust domain's bundle is answered.
#[derive(Clone, Debug)]
pub enum FederatedBundle {
    /// With this bundle.
    Bundle(types::Bundle),
    /// With an error.
    Fail(Code, String),
}

/// One call that reached the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The RPC's name without package and service; see [`rpc`].
    pub rpc: String,
    /// When it arrived.
    pub at: SystemTime,
    /// Which connection it came on, counted from 1.
    pub connection: u64,
    /// The SPIFFE ID of the client's certificate.
    pub agent: Option<String>,
    /// Entry IDs in the request: a signing batch, or full entries asked for in a sync.
    pub ids: Vec<String>,
    /// Other text of the request: the attestation type, the trust domain, or the audiences.
    pub details: Vec<String>,
}

/// All that is scripted and counted.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) faults: Vec<Fault>,
    pub(crate) attest: Option<AttestTwist>,
    pub(crate) renew: Option<SvidTwist>,
    pub(crate) sign: BTreeMap<String, SignTwist>,
    pub(crate) jwt: BTreeMap<String, JwtTwist>,
    pub(crate) federated: BTreeMap<String, FederatedBundle>,
    pub(crate) extra_authorities: Vec<types::X509Certificate>,
    pub(crate) bundle_cycle: Vec<Vec<usize>>,
    pub(crate) bundle_cycle_position: usize,
    pub(crate) raw_entries: Vec<types::Entry>,
    pub(crate) raw_revisions: Vec<EntryRevision>,
    pub(crate) vanished: BTreeSet<String>,
    pub(crate) calls: Vec<Call>,
    pub(crate) handshake_failures: Vec<String>,
}

impl Script {
    /// The fault for a call of `rpc`, counted as used.
    pub(crate) fn take_fault(&mut self, rpc: &str) -> Option<Fault> {
        let position = self.faults.iter().position(|fault| fault.rpc == rpc)?;
        let fault = self.faults.get_mut(position)?;
        let taken = fault.clone();
        if let Some(left) = &mut fault.times {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.faults.remove(position);
            }
        }
        Some(taken)
    }

    /// The generations that the next bundle shows, if that is scripted.
    pub(crate) fn next_bundle_generations(&mut self) -> Option<Vec<usize>> {
        let count = self.bundle_cycle.len();
        let position = self.bundle_cycle_position.checked_rem(count)?;
        self.bundle_cycle_position += 1;
        self.bundle_cycle.get(position).cloned()
    }
}

/// A protobuf message of about `bytes` bytes: one length-delimited field of a number that no message uses.
fn unknown_field(bytes: usize) -> Vec<u8> {
    const FIELD_NUMBER: u64 = 15_000;
    const LENGTH_DELIMITED: u64 = 2;

    let mut message = Vec::with_capacity(bytes + 8);
    prost::encoding::encode_varint(FIELD_NUMBER << 3 | LENGTH_DELIMITED, &mut message);
    prost::encoding::encode_varint(bytes.try_into().unwrap_or(u64::MAX), &mut message);
    message.resize(message.len() + bytes, 0);
    message
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn codes(script: &mut Script, calls: usize) -> Vec<Option<Code>> {
        let code = |fault: Option<Fault>| match fault?.action {
            Action::Refuse { code, .. } => Some(code),
            Action::Proceed
            | Action::Answer(_)
            | Action::CloseConnection
            | Action::GoAway
            | Action::Stall => None,
        };
        (0..calls)
            .map(|_| code(script.take_fault(rpc::GET_BUNDLE)))
            .collect()
    }

    #[test]
    fn faults_of_an_rpc_follow_one_another() {
        let mut script = Script {
            faults: vec![
                Fault::code(rpc::GET_BUNDLE, Code::Unavailable).times(2),
                Fault::code(rpc::POST_STATUS, Code::Aborted),
                Fault::code(rpc::GET_BUNDLE, Code::Internal).times(1),
            ],
            ..Script::default()
        };

        let seen = codes(&mut script, 4);

        assert_eq!(
            seen,
            [
                Some(Code::Unavailable),
                Some(Code::Unavailable),
                Some(Code::Internal),
                None
            ]
        );
        assert_eq!(script.faults.len(), 1);
    }

    #[test]
    fn an_oversized_answer_is_a_valid_message() {
        let message = unknown_field(5000);

        assert!(message.len() > 5000);
        assert_eq!(
            types::Bundle::decode(&*message),
            Ok(types::Bundle::default())
        );
    }

    #[test]
    fn bundles_follow_the_cycle_for_ever() {
        let mut script = Script {
            bundle_cycle: vec![vec![0], vec![0, 1]],
            ..Script::default()
        };

        let seen: Vec<_> = (0..3).map(|_| script.next_bundle_generations()).collect();

        assert_eq!(seen, [Some(vec![0]), Some(vec![0, 1]), Some(vec![0])]);
        assert_eq!(Script::default().next_bundle_generations(), None);
    }
}
