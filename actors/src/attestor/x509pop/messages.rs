//! The JSON of `x509pop`: byte strings are standard base64 with padding, the alternative that is not meant is null. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::signing::{KeyKind, Signature};
use crate::attestor::node_key::NONCE_BYTES;
use crate::svid::Certificate;

/// A nonce of either side.
pub(super) type Nonce = [u8; NONCE_BYTES];
/// Largest challenge in bytes; an honest one has about 100.
const MAX_CHALLENGE_BYTES: usize = 4096;

#[derive(Serialize)]
struct Payload {
    certificates: Vec<String>,
}

#[derive(Deserialize)]
struct Challenge {
    rsa_signature: Option<Asked>,
    ecdsa_signature: Option<Asked>,
}

#[derive(Deserialize)]
struct Asked {
    nonce: Option<String>,
}

#[derive(Serialize)]
struct Response {
    rsa_signature: Option<RsaAnswer>,
    ecdsa_signature: Option<EcdsaAnswer>,
}

#[derive(Serialize)]
struct RsaAnswer {
    nonce: String,
    signature: String,
}

#[derive(Serialize)]
struct EcdsaAnswer {
    nonce: String,
    r: String,
    s: String,
}

/// The first message: the certificates, leaf first.
pub(super) fn payload(certificates: &[Certificate]) -> Vec<u8> {
    let certificates = certificates
        .iter()
        .map(|certificate| STANDARD.encode(certificate.der()))
        .collect();
    to_json(&Payload { certificates })
}

/// The server's nonce, if the challenge is one for this kind of key.
pub(super) fn challenge(json: &[u8], kind: KeyKind) -> Result<Nonce, String> {
    if json.len() > MAX_CHALLENGE_BYTES {
        return Err(format!("larger than {MAX_CHALLENGE_BYTES} bytes"));
    }
    let challenge: Challenge =
        serde_json::from_slice(json).map_err(|error| format!("malformed: {error}"))?;
    let (asked, name) = match kind {
        KeyKind::Rsa => (challenge.rsa_signature, "RSA"),
        KeyKind::Ecdsa => (challenge.ecdsa_signature, "ECDSA"),
    };
    let asked = asked
        .ok_or_else(|| format!("it asks for no {name} signature, but the key makes no other"))?;
    let nonce = STANDARD
        .decode(asked.nonce.unwrap_or_default())
        .map_err(|_| "the nonce is not base64".to_owned())?;
    nonce.try_into().map_err(|nonce: Vec<u8>| {
        format!(
            "the nonce has {} bytes instead of {NONCE_BYTES}",
            nonce.len()
        )
    })
}

/// The answer to a challenge.
pub(super) fn response(nonce: &Nonce, signature: &Signature) -> Vec<u8> {
    let nonce = STANDARD.encode(nonce);
    to_json(&match signature {
        Signature::Rsa(signature) => Response {
            rsa_signature: Some(RsaAnswer {
                nonce,
                signature: STANDARD.encode(signature),
            }),
            ecdsa_signature: None,
        },
        Signature::Ecdsa { r, s } => Response {
            rsa_signature: None,
            ecdsa_signature: Some(EcdsaAnswer {
                nonce,
                r: STANDARD.encode(r),
                s: STANDARD.encode(s),
            }),
        },
    })
}

fn to_json(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("the messages consist of strings")
}
