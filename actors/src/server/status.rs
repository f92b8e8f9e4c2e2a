//! From what went wrong on the wire to [`ServerError`]: the codes, the details of a refusal, and words from outside. Pure.

use std::error::Error;
use std::time::Duration;

use prost::Message;
use proto::spire::api::types::PermissionDeniedDetails;
use rustls::AlertDescription;

use super::{DeniedReason, ServerError};

/// Longest text of the server that is kept, in characters.
const MAX_WORDS: usize = 300;
const DENIED_TYPE: &str = "type.googleapis.com/spire.api.types.PermissionDeniedDetails";

/// Why one try of a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// What tonic says: an answer of the server, or a broken connection.
    Status(Box<tonic::Status>),
    /// The answer breaks the contract.
    Malformed(String),
    /// No byte came for this long.
    Silent(Duration),
    /// The call's time was over.
    Late(Duration),
    /// The node's proof could not be made.
    Proof(String),
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl Failure {
    /// Whether the connection is to blame, so that it is not used any more.
    pub(super) fn is_of_the_connection(&self) -> bool {
        match self {
            Self::Status(status) => status.source().is_some(),
            Self::Silent(_) | Self::Late(_) => true,
            Self::Malformed(_) | Self::Proof(_) => false,
        }
    }

    /// Whether the connection broke under the call, so that another one may serve it.
    pub(super) fn is_break(&self) -> bool {
        matches!(self, Self::Status(status) if status.source().is_some())
    }

    /// Whether the server surely did nothing about the request: it never left, or the server said that it would not look at it
    /// (RFC 9113 6.8, 8.7).
    pub(super) fn was_not_processed(&self) -> bool {
        let Self::Status(status) = self else {
            return false;
        };
        causes(status).any(|cause| {
            let never_left = cause
                .downcast_ref::<hyper::Error>()
                .is_some_and(hyper::Error::is_canceled);
            let turned_down = cause.downcast_ref::<h2::Error>().is_some_and(|error| {
                error.is_remote()
                    && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
            });
            never_left || turned_down
        })
    }

    /// The error that the caller gets. `alert` is the TLS alert that ended the connection, if one did.
    pub(super) fn into_error(
        self,
        call: &'static str,
        peer: &str,
        alert: Option<AlertDescription>,
    ) -> ServerError {
        match self {
            Self::Malformed(problem) => ServerError::Malformed { call, problem },
            Self::Silent(limit) | Self::Late(limit) => ServerError::TimedOut { call, limit },
            Self::Proof(reason) => ServerError::Proof(reason),
            Self::Status(status) if status.source().is_some() => match alert {
                Some(alert) if is_about_certificates(alert) => rejected(peer, alert),
                Some(alert) => unreachable(peer, format!("TLS alert {alert:?}")),
                None => unreachable(peer, words_of(&status)),
            },
            Self::Status(status) => ServerError::Status {
                call,
                code: status.code(),
                message: clean(status.message()),
                reason: denied_reason(status.code(), status.details()),
            },
        }
    }
}

/// The server could not be reached.
pub(super) fn unreachable(peer: &str, reason: impl Into<String>) -> ServerError {
    ServerError::Unreachable {
        peer: peer.to_owned(),
        reason: reason.into(),
    }
}

/// The server did not take the agent's certificate.
pub(super) fn rejected(peer: &str, alert: AlertDescription) -> ServerError {
    ServerError::CertificateRejected {
        peer: peer.to_owned(),
        reason: format!("TLS alert {alert:?}"),
    }
}

/// Whether an alert speaks of the certificate that was presented (RFC 8446 6.2).
pub(super) fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
            | AlertDescription::DecryptError
    )
}

/// Words from outside, fit for a log: cut, and without characters that move a cursor or turn text around.
pub(super) fn clean(text: &str) -> String {
    let mut cleaned = String::new();
    let mut characters = text.chars();
    for character in characters.by_ref().take(MAX_WORDS) {
        if is_harmful(character) {
            cleaned.extend(character.escape_default());
        } else {
            cleaned.push(character);
        }
    }
    if characters.next().is_some() {
        cleaned.push('…');
    }
    cleaned
}

/// Whether a character moves a cursor, ends a line, turns text around or hides.
pub(super) fn is_harmful(character: char) -> bool {
    character.is_control() || turns_text(character)
}

/// Line separators, directional marks and other invisible characters.
fn turns_text(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{61c}')
}

/// Why the agent was denied, from `google.rpc.Status` (node-side 3.5).
fn denied_reason(code: tonic::Code, details: &[u8]) -> Option<DeniedReason> {
    if code != tonic::Code::PermissionDenied {
        return None;
    }
    let status = proto::google::rpc::Status::decode(details).ok()?;
    let detail = status
        .details
        .iter()
        .find(|detail| detail.type_url == DENIED_TYPE)?;
    DeniedReason::from_wire(
        PermissionDeniedDetails::decode(detail.value.as_slice())
            .ok()?
            .reason,
    )
}

/// The innermost cause says most.
fn words_of(status: &tonic::Status) -> String {
    clean(
        &causes(status)
            .last()
            .map_or_else(|| status.message().to_owned(), ToString::to_string),
    )
}

fn causes<'a>(status: &'a tonic::Status) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(status.source(), |error: &&'a (dyn Error + 'static)| {
        (*error).source()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(type_url: &str, reason: i32) -> Vec<u8> {
        let value = PermissionDeniedDetails { reason }.encode_to_vec();
        let detail = prost_types::Any {
            type_url: type_url.into(),
            value,
        };
        proto::google::rpc::Status {
            code: 7,
            message: "no".into(),
            details: vec![detail],
        }
        .encode_to_vec()
    }

    #[test]
    fn the_reason_of_a_denial_comes_from_its_details_alone() {
        let denied = tonic::Code::PermissionDenied;
        let table = [
            (
                denied,
                details(DENIED_TYPE, 1),
                Some(DeniedReason::AgentExpired),
            ),
            (
                denied,
                details(DENIED_TYPE, 2),
                Some(DeniedReason::AgentNotAttested),
            ),
            (
                denied,
                details(DENIED_TYPE, 3),
                Some(DeniedReason::AgentNotActive),
            ),
            (
                denied,
                details(DENIED_TYPE, 4),
                Some(DeniedReason::AgentBanned),
            ),
            (
                denied,
                details(DENIED_TYPE, 5),
                Some(DeniedReason::AgentMustReattest),
            ),
            (denied, details(DENIED_TYPE, 0), None),
            (denied, details(DENIED_TYPE, 99), None),
            (denied, details("type.googleapis.com/other", 4), None),
            (denied, b"\xff\xff".to_vec(), None),
            (denied, Vec::new(), None),
            (tonic::Code::Unavailable, details(DENIED_TYPE, 4), None),
        ];

        for (code, details, expected) in table {
            let failure = Failure::from(tonic::Status::with_details(
                code,
                "agent is banned",
                details.into(),
            ));

            let error = failure.into_error("GetBundle", "server:8081", None);

            assert_eq!(error.denied_reason(), expected, "{error:?}");
            assert_eq!(error.code(), Some(code));
        }
    }

    #[test]
    fn a_broken_connection_is_never_an_answer() {
        let broken = || {
            Failure::from(tonic::Status::from_error(
                std::io::Error::other("reset by peer").into(),
            ))
        };
        let alert = |alert| broken().into_error("GetBundle", "server:8081", alert);

        assert!(broken().is_of_the_connection());
        assert_eq!(alert(None), unreachable("server:8081", "reset by peer"));
        assert!(matches!(
            alert(Some(AlertDescription::HandshakeFailure)),
            ServerError::Unreachable { .. }
        ));
        assert!(matches!(
            alert(Some(AlertDescription::BadCertificate)),
            ServerError::CertificateRejected { .. }
        ));
    }

    #[test]
    fn words_from_outside_are_cut_and_harmless() {
        assert_eq!(
            clean("no\nlevel=error\u{1b}[31m\u{202e}"),
            "no\\nlevel=error\\u{1b}[31m\\u{202e}"
        );
        assert_eq!(clean("grün"), "grün");
        assert_eq!(clean(&"x".repeat(5000)).chars().count(), MAX_WORDS + 1);
    }
}
