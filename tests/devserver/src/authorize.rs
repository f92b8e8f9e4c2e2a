//! Who may call: the record of an attested agent and the decision per call (SPIRE server middleware). Pure.

use prost::Message as _;
use proto::spire::api::types::PermissionDeniedDetails;
use proto::spire::api::types::permission_denied_details::Reason;
use tonic::{Code, Status};

use crate::clock::Seconds;

/// The protobuf name of the detail that carries a [`Reason`].
const DETAIL_TYPE: &str = "type.googleapis.com/spire.api.types.PermissionDeniedDetails";

/// What the server knows of an attested agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRecord {
    /// The agent's SPIFFE ID.
    pub id: String,
    /// The attestor's name, such as `x509pop`.
    pub attestation_type: String,
    /// Serial number of the SVID in use, lower-case hexadecimal.
    pub serial: String,
    /// Serial number of a renewed SVID that has not been used yet.
    pub pending_serial: Option<String>,
    /// End of the newest SVID in Unix seconds.
    pub expires_at: Seconds,
    /// Whether the agent is banned.
    pub is_banned: bool,
    /// Whether the agent may attest again.
    pub can_reattest: bool,
    /// The selectors of the node, as `type:value`.
    pub selectors: Vec<String>,
}

impl AgentRecord {
    /// Decides on a call with the certificate `peer` and takes note of the first use of a renewed SVID.
    pub(crate) fn admit(&mut self, peer: &PeerCertificate) -> Result<(), Reason> {
        if self.is_banned {
            return Err(Reason::AgentBanned);
        }
        if self.pending_serial.as_ref() == Some(&peer.serial) {
            self.serial.clone_from(&peer.serial);
            self.pending_serial = None;
        }
        if self.serial == peer.serial {
            Ok(())
        } else {
            Err(Reason::AgentNotActive)
        }
    }
}

/// What matters of a client's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    pub(crate) id: String,
    pub(crate) serial: String,
    pub(crate) not_after: Seconds,
}

/// Decides on a call: `agent` is the record of the certificate's SPIFFE ID.
pub(crate) fn authorize(
    agent: Option<&mut AgentRecord>,
    peer: &PeerCertificate,
    now: Seconds,
) -> Result<(), Reason> {
    if peer.not_after < now {
        return Err(Reason::AgentExpired);
    }
    agent.ok_or(Reason::AgentNotAttested)?.admit(peer)
}

/// The status of a refusal with its detail (3.5). `method` is the path of the call.
pub(crate) fn refusal(method: &str, reason: Reason) -> Status {
    let why = match reason {
        Reason::Unknown => "for no stated reason",
        Reason::AgentExpired => "the agent SVID has expired",
        Reason::AgentNotAttested => "the agent is not attested",
        Reason::AgentNotActive => "the agent SVID is not the active one",
        Reason::AgentBanned => "the agent is banned",
        Reason::AgentMustReattest => "the agent must attest again",
    };
    let message = format!("{method} refused: {why}");
    with_reason(Code::PermissionDenied, message, reason.into())
}

/// A status that carries a `PermissionDeniedDetails` with the number `reason`.
pub(crate) fn with_reason(code: Code, message: String, reason: i32) -> Status {
    let detail = prost_types::Any {
        type_url: DETAIL_TYPE.to_owned(),
        value: PermissionDeniedDetails { reason }.encode_to_vec(),
    };
    let details = proto::google::rpc::Status {
        code: code.into(),
        message: message.clone(),
        details: vec![detail],
    };
    Status::with_details(code, message, details.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Seconds = 1000;

    fn record() -> AgentRecord {
        AgentRecord {
            id: "spiffe://example.org/spire/agent/a".to_owned(),
            attestation_type: "x509pop".to_owned(),
            serial: "current".to_owned(),
            pending_serial: Some("pending".to_owned()),
            expires_at: NOW + 60,
            is_banned: false,
            can_reattest: true,
            selectors: Vec::new(),
        }
    }

    fn peer(serial: &str, not_after: Seconds) -> PeerCertificate {
        PeerCertificate {
            id: record().id,
            serial: serial.to_owned(),
            not_after,
        }
    }

    #[test]
    fn a_call_is_judged_by_the_serial_of_its_certificate() {
        let banned = AgentRecord {
            is_banned: true,
            ..record()
        };
        let table = [
            ("current", Some(record()), NOW + 1, Ok(())),
            ("pending", Some(record()), NOW + 1, Ok(())),
            ("old", Some(record()), NOW + 1, Err(Reason::AgentNotActive)),
            ("current", Some(banned), NOW + 1, Err(Reason::AgentBanned)),
            ("current", None, NOW + 1, Err(Reason::AgentNotAttested)),
            (
                "current",
                Some(record()),
                NOW - 1,
                Err(Reason::AgentExpired),
            ),
        ];

        for (serial, mut agent, not_after, expected) in table {
            let decision = authorize(agent.as_mut(), &peer(serial, not_after), NOW);

            assert_eq!(decision, expected, "{serial} until {not_after}");
        }
    }

    #[test]
    fn the_first_use_of_a_renewed_svid_ends_the_old_one() {
        let mut agent = record();
        agent
            .admit(&peer("current", NOW))
            .expect("the old SVID still works");

        agent
            .admit(&peer("pending", NOW))
            .expect("the new SVID works");

        assert_eq!(
            agent.admit(&peer("current", NOW)),
            Err(Reason::AgentNotActive)
        );
        assert_eq!(agent.pending_serial, None);
    }
}
