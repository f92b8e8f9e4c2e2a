//! The JSON of `sshpop`: keys are capitalised, byte strings are standard base64 with padding. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{Digest, SHA256, digest};
use serde::{Deserialize, Serialize};

use super::signing;
use crate::attestor::node_key::NONCE_BYTES;

/// A nonce of either side.
pub(super) type Nonce = [u8; NONCE_BYTES];
/// Largest challenge in bytes; an honest one has about 60.
const MAX_CHALLENGE_BYTES: usize = 4096;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Payload {
    certificate: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Challenge {
    nonce: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Response {
    nonce: String,
    signature: Signature,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Signature {
    format: &'static str,
    blob: String,
    /// Of security keys only.
    rest: Option<String>,
}

/// The first message: the certificate as it is on SSH's wire.
pub(super) fn payload(certificate: &[u8]) -> Vec<u8> {
    to_json(&Payload {
        certificate: STANDARD.encode(certificate),
    })
}

/// The server's nonce.
pub(super) fn challenge(json: &[u8]) -> Result<Nonce, String> {
    if json.len() > MAX_CHALLENGE_BYTES {
        return Err(format!("larger than {MAX_CHALLENGE_BYTES} bytes"));
    }
    let challenge: Challenge =
        serde_json::from_slice(json).map_err(|error| format!("malformed: {error}"))?;
    let nonce = STANDARD
        .decode(challenge.nonce)
        .map_err(|_| "the nonce is not base64".to_owned())?;
    nonce.try_into().map_err(|nonce: Vec<u8>| {
        format!(
            "the nonce has {} bytes instead of {NONCE_BYTES}",
            nonce.len()
        )
    })
}

/// What is signed, as a message: SHA-256 over the server's nonce and then the agent's.
pub(super) fn message(asked: &Nonce, own: &Nonce) -> Digest {
    digest(&SHA256, &[asked.as_slice(), own].concat())
}

/// The answer to a challenge.
pub(super) fn response(nonce: &Nonce, signature: &signing::Signature) -> Vec<u8> {
    to_json(&Response {
        nonce: STANDARD.encode(nonce),
        signature: Signature {
            format: signature.format,
            blob: STANDARD.encode(&signature.blob),
            rest: None,
        },
    })
}

fn to_json(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("the messages consist of strings")
}
