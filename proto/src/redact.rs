//! `Debug` for the messages that hold a private key or a bearer token: the secret shows as its length only.
//!
//! The list is the one of `tests/bootstrap.rs`, which keeps the generator from deriving `Debug` for them. A JWT-SVID
//! is a bearer token; so are a join token and the payload of a join token's attestation.

use std::fmt;

use crate::spiffe::broker;
use crate::spire::api::agent::delegatedidentity::v1 as delegated;
use crate::spire::api::server::agent::v1 as server_agent;
use crate::spire::api::types;
use crate::workload;

/// Stands for a secret of some length in bytes.
struct Hidden(usize);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} secret bytes>", self.0)
    }
}

/// Implements `Debug` for a message: `shown` fields as they are, `hidden` fields as their length.
macro_rules! redacted_debug {
    ($message:ty, $name:literal, shown: [$($shown:ident),*], hidden: [$($hidden:ident),+]) => {
        impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct($name)
                    $(.field(stringify!($shown), &self.$shown))*
                    $(.field(stringify!($hidden), &Hidden(self.$hidden.len())))+
                    .finish()
            }
        }
    };
}

redacted_debug!(workload::X509svid, "X509svid", shown: [spiffe_id, x509_svid, bundle, hint], hidden: [x509_svid_key]);
redacted_debug!(workload::Jwtsvid, "Jwtsvid", shown: [spiffe_id, hint], hidden: [svid]);
redacted_debug!(workload::ValidateJwtsvidRequest, "ValidateJwtsvidRequest", shown: [audience], hidden: [svid]);
redacted_debug!(workload::Witsvid, "Witsvid", shown: [spiffe_id, hint], hidden: [wit_svid, wit_svid_key]);
redacted_debug!(broker::X509svid, "X509svid", shown: [spiffe_id, x509_svid, bundle, hint], hidden: [x509_svid_key]);
redacted_debug!(broker::Jwtsvid, "Jwtsvid", shown: [spiffe_id, hint], hidden: [svid]);
redacted_debug!(delegated::X509svidWithKey, "X509svidWithKey", shown: [x509_svid], hidden: [x509_svid_key]);
redacted_debug!(server_agent::CreateJoinTokenRequest, "CreateJoinTokenRequest", shown: [ttl, agent_id], hidden: [token]);
redacted_debug!(types::AttestationData, "AttestationData", shown: [r#type], hidden: [payload]);
redacted_debug!(types::Jwtsvid, "Jwtsvid", shown: [id, expires_at, issued_at, hint], hidden: [token]);
redacted_debug!(types::Witsvid, "Witsvid", shown: [id, expires_at, issued_at, hint], hidden: [token]);
redacted_debug!(types::JoinToken, "JoinToken", shown: [expires_at], hidden: [value]);

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "open-sesame";

    /// Every redacted message, with `SECRET` in each of its secret fields.
    fn messages_with_secrets() -> Vec<Box<dyn fmt::Debug>> {
        let text = SECRET.to_owned();
        let bytes = SECRET.as_bytes().to_vec();

        vec![
            Box::new(workload::X509svid {
                x509_svid_key: bytes.clone().into(),
                ..Default::default()
            }),
            Box::new(workload::Jwtsvid {
                svid: text.clone(),
                ..Default::default()
            }),
            Box::new(workload::ValidateJwtsvidRequest {
                svid: text.clone(),
                ..Default::default()
            }),
            Box::new(workload::Witsvid {
                wit_svid: text.clone(),
                wit_svid_key: text.clone(),
                ..Default::default()
            }),
            Box::new(broker::X509svid {
                x509_svid_key: bytes.clone(),
                ..Default::default()
            }),
            Box::new(broker::Jwtsvid {
                svid: text.clone(),
                ..Default::default()
            }),
            Box::new(delegated::X509svidWithKey {
                x509_svid_key: bytes.clone(),
                ..Default::default()
            }),
            Box::new(server_agent::CreateJoinTokenRequest {
                token: text.clone(),
                ..Default::default()
            }),
            Box::new(types::AttestationData {
                payload: bytes,
                ..Default::default()
            }),
            Box::new(types::Jwtsvid {
                token: text.clone(),
                ..Default::default()
            }),
            Box::new(types::Witsvid {
                token: text.clone(),
                ..Default::default()
            }),
            Box::new(types::JoinToken {
                value: text,
                ..Default::default()
            }),
        ]
    }

    /// Whether `shown` has the secret as text, as a byte string or as a list of numbers.
    fn shows_secret(shown: &str) -> bool {
        let dense: String = shown.split_whitespace().collect();
        let numbers: Vec<String> = SECRET.bytes().map(|byte| byte.to_string()).collect();

        dense.contains(SECRET) || dense.contains(&numbers.join(","))
    }

    #[test]
    fn debug_of_a_secret_message_shows_the_length_of_the_secret_only() {
        for message in messages_with_secrets() {
            for shown in [format!("{message:?}"), format!("{message:#?}")] {
                assert!(!shows_secret(&shown), "{shown}");
                assert!(shown.contains("<11 secret bytes>"), "{shown}");
            }
        }
    }

    #[test]
    fn debug_of_an_outer_message_shows_no_secret_of_an_inner_one() {
        let response = workload::X509svidResponse {
            svids: vec![workload::X509svid {
                spiffe_id: "spiffe://example.org/web".to_owned(),
                x509_svid_key: SECRET.as_bytes().to_vec().into(),
                ..Default::default()
            }],
            ..Default::default()
        };

        let shown = format!("{response:?}");

        assert!(!shows_secret(&shown), "{shown}");
        assert!(shown.contains("spiffe://example.org/web"), "{shown}");
    }

    #[test]
    fn a_secret_in_a_derived_debug_would_be_noticed() {
        assert!(shows_secret(&format!("{SECRET:?}")));
        assert!(shows_secret(&format!("{:#?}", SECRET.as_bytes())));
    }
}
