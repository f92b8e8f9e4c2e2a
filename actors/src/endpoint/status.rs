//! Every gRPC code of the local services, with its words (workload-side 1.14). The only file that names codes.

use std::sync::Arc;

use tonic::{Code, Status};

use crate::cache::view::Waiting;
use crate::spiffe_id::IdError;

/// Why a call is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// `workload.spiffe.io: true` is missing, repeated or different (Workload Endpoint 6.1).
    SecurityHeader,
    /// A token was asked for without an audience.
    NoAudience,
    /// A validation was asked for without a token.
    NoSvid,
    /// The SPIFFE ID asked for is none.
    RequestedId(IdError),
    /// Health of one service was asked for.
    PerServiceHealth,
    /// No entry matches the caller.
    NoIdentity,
    /// The agent's identities were taken back.
    Revoked(Arc<str>),
    /// Nothing is known of the caller.
    AttestationFailed,
    /// The calling process has ended; its connection is closed, so it hardly sees this.
    CallerGone,
    /// The agent cannot answer yet.
    NotReady(String),
    /// The caller's identities are not complete, or not valid.
    Waiting(Waiting),
    /// The agent is ending.
    ShuttingDown,
    /// The caller's user has too many calls open.
    TooManyCalls,
    /// The request message did not arrive in time.
    RequestLate,
    /// The agent has no SVID of its own yet.
    NotAttested,
    /// The agent's own SVID does not verify.
    AgentSvid(String),
    /// A JWT authority cannot be written as a key.
    Serialization(String),
    /// Something that the agent does not do, with the reference's words.
    Unimplemented(&'static str),
    /// Nobody serves this path.
    UnknownMethod(String),
    /// The answer could not be made because of a fault of the agent.
    Fault,
}

impl Refusal {
    fn code(&self) -> Code {
        match self {
            Self::SecurityHeader
            | Self::NoAudience
            | Self::NoSvid
            | Self::RequestedId(_)
            | Self::PerServiceHealth => Code::InvalidArgument,
            Self::NoIdentity | Self::Revoked(_) => Code::PermissionDenied,
            Self::AttestationFailed
            | Self::CallerGone
            | Self::NotReady(_)
            | Self::Waiting(_)
            | Self::ShuttingDown
            | Self::TooManyCalls
            | Self::NotAttested
            | Self::Serialization(_) => Code::Unavailable,
            Self::RequestLate => Code::DeadlineExceeded,
            Self::Unimplemented(_) | Self::UnknownMethod(_) => Code::Unimplemented,
            Self::AgentSvid(_) | Self::Fault => Code::Internal,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::SecurityHeader => "security header missing from request".into(),
            Self::NoAudience => "audience must be specified".into(),
            Self::NoSvid => "svid must be specified".into(),
            Self::RequestedId(error) => format!("invalid requested SPIFFE ID: {error}"),
            Self::PerServiceHealth => "per-service health is not supported".into(),
            Self::NoIdentity => "no identity issued".into(),
            Self::Revoked(text) => text.as_ref().into(),
            Self::AttestationFailed => "workload attestation failed".into(),
            Self::CallerGone => "could not verify existence of the original caller".into(),
            Self::NotReady(reason) => reason.clone(),
            Self::Waiting(Waiting::FirstSync) => "agent has not synced with the server yet".into(),
            Self::Waiting(Waiting::Signing) => "X.509-SVID is not signed yet".into(),
            Self::Waiting(Waiting::Expired) => {
                "X.509-SVID has expired and could not be renewed yet".into()
            }
            Self::ShuttingDown => "agent is shutting down".into(),
            Self::TooManyCalls => "too many calls are open".into(),
            Self::RequestLate => "request message did not arrive in time".into(),
            Self::NotAttested => "agent is not attested yet".into(),
            Self::AgentSvid(reason) => format!("failed to verify agent SVID: {reason}"),
            Self::Serialization(reason) => format!("could not serialize response: {reason}"),
            Self::Unimplemented(text) => (*text).into(),
            Self::UnknownMethod(path) => format!("unknown method {path}"),
            Self::Fault => "internal error".into(),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code(), refusal.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_reaches_a_bound_is_told_which() {
        let table = [
            (
                Refusal::TooManyCalls,
                Code::Unavailable,
                "too many calls are open",
            ),
            (
                Refusal::RequestLate,
                Code::DeadlineExceeded,
                "request message did not arrive in time",
            ),
        ];

        for (refusal, code, text) in table {
            let status = Status::from(refusal);

            assert_eq!((status.code(), status.message()), (code, text));
        }
    }

    #[test]
    fn every_refusal_has_the_code_and_the_words_that_clients_know() {
        let table = [
            (
                Refusal::SecurityHeader,
                Code::InvalidArgument,
                "security header missing from request",
            ),
            (
                Refusal::NoAudience,
                Code::InvalidArgument,
                "audience must be specified",
            ),
            (
                Refusal::NoSvid,
                Code::InvalidArgument,
                "svid must be specified",
            ),
            (
                Refusal::RequestedId(IdError::Scheme),
                Code::InvalidArgument,
                "invalid requested SPIFFE ID: scheme is missing or invalid",
            ),
            (
                Refusal::PerServiceHealth,
                Code::InvalidArgument,
                "per-service health is not supported",
            ),
            (
                Refusal::NoIdentity,
                Code::PermissionDenied,
                "no identity issued",
            ),
            (
                Refusal::Revoked("agent is banned".into()),
                Code::PermissionDenied,
                "agent is banned",
            ),
            (
                Refusal::AttestationFailed,
                Code::Unavailable,
                "workload attestation failed",
            ),
            (
                Refusal::CallerGone,
                Code::Unavailable,
                "could not verify existence of the original caller",
            ),
            (Refusal::NotReady("why".into()), Code::Unavailable, "why"),
            (
                Refusal::Waiting(Waiting::FirstSync),
                Code::Unavailable,
                "agent has not synced with the server yet",
            ),
            (
                Refusal::Waiting(Waiting::Signing),
                Code::Unavailable,
                "X.509-SVID is not signed yet",
            ),
            (
                Refusal::Waiting(Waiting::Expired),
                Code::Unavailable,
                "X.509-SVID has expired and could not be renewed yet",
            ),
            (
                Refusal::ShuttingDown,
                Code::Unavailable,
                "agent is shutting down",
            ),
            (
                Refusal::NotAttested,
                Code::Unavailable,
                "agent is not attested yet",
            ),
            (
                Refusal::Serialization("why".into()),
                Code::Unavailable,
                "could not serialize response: why",
            ),
            (
                Refusal::AgentSvid("why".into()),
                Code::Internal,
                "failed to verify agent SVID: why",
            ),
            (
                Refusal::Unimplemented("not done"),
                Code::Unimplemented,
                "not done",
            ),
            (
                Refusal::UnknownMethod("/a/b".into()),
                Code::Unimplemented,
                "unknown method /a/b",
            ),
            (Refusal::Fault, Code::Internal, "internal error"),
        ];

        for (refusal, code, text) in table {
            let status = Status::from(refusal);

            assert_eq!((status.code(), status.message()), (code, text));
        }
    }
}
