//! Possession of a node's key: the challenge and the check of its response (2.3, steps 7 and 8). Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::signature::Verifier as _;
use rsa::signature::hazmat::PrehashVerifier as _;
use serde::{Deserialize, Serialize};
use tonic::Status;
use x509_parser::certificate::X509Certificate;
use x509_parser::public_key::PublicKey;

/// Bytes in each of the two nonces.
const NONCE_LEN: usize = 32;
/// Bytes in a coordinate of the largest curve; longer numbers in a signature are nonsense.
const P384_LEN: usize = 48;
const P521_LEN: usize = 66;
/// `p521` wants a digest of at least half the field; left-padded with zeros the number stays the same.
const P521_DIGEST_LEN: usize = 64;

#[derive(Serialize)]
struct Challenge {
    rsa_signature: Option<Nonce>,
    ecdsa_signature: Option<Nonce>,
}

#[derive(Serialize)]
struct Nonce {
    nonce: String,
}

#[derive(Deserialize)]
struct Response {
    #[serde(default)]
    rsa_signature: Option<RsaProof>,
    #[serde(default)]
    ecdsa_signature: Option<EcdsaProof>,
}

#[derive(Deserialize)]
struct RsaProof {
    nonce: String,
    signature: String,
}

#[derive(Deserialize)]
struct EcdsaProof {
    nonce: String,
    r: String,
    s: String,
}

/// The key of a node certificate, as far as a proof needs it.
#[derive(Clone, Debug)]
pub(crate) enum NodeKey {
    Rsa(Box<rsa::PublicKey>),
    P256(Vec<u8>),
    P384(Box<p384::ecdsa::VerifyingKey>),
    P521(Box<p521::ecdsa::VerifyingKey>),
}

impl NodeKey {
    /// The key of a leaf; INTERNAL for kinds that x509pop does not know.
    pub(crate) fn of(leaf: &X509Certificate<'_>) -> Result<Self, Status> {
        let unsupported = || Status::internal("x509pop leaf has a key of an unsupported kind");
        let info = leaf.public_key();
        match info.parsed().map_err(|_| unsupported())? {
            PublicKey::RSA(_) => rsa::PublicKey::from_public_key_der(info.raw)
                .map(|key| NodeKey::Rsa(Box::new(key)))
                .map_err(|_| unsupported()),
            PublicKey::EC(point) => {
                let point = point.data();
                match point.len() {
                    65 => Ok(NodeKey::P256(point.to_vec())),
                    97 => p384::ecdsa::VerifyingKey::from_sec1_bytes(point)
                        .map(|key| NodeKey::P384(Box::new(key)))
                        .map_err(|_| unsupported()),
                    133 => p521::ecdsa::VerifyingKey::from_sec1_bytes(point)
                        .map(|key| NodeKey::P521(Box::new(key)))
                        .map_err(|_| unsupported()),
                    _ => Err(unsupported()),
                }
            }
            PublicKey::DSA(_)
            | PublicKey::GostR3410(_)
            | PublicKey::GostR3410_2012(_)
            | PublicKey::Unknown(_) => Err(unsupported()),
        }
    }

    /// Step 7: the challenge with `nonce`, as JSON.
    pub(crate) fn challenge(&self, nonce: &[u8; NONCE_LEN]) -> Vec<u8> {
        let nonce = Some(Nonce {
            nonce: STANDARD.encode(nonce),
        });
        let challenge = match self {
            NodeKey::Rsa(_) => Challenge {
                rsa_signature: nonce,
                ecdsa_signature: None,
            },
            NodeKey::P256(_) | NodeKey::P384(_) | NodeKey::P521(_) => Challenge {
                rsa_signature: None,
                ecdsa_signature: nonce,
            },
        };
        serde_json::to_vec(&challenge).expect("strings always become JSON")
    }

    /// Step 8: checks that the response to `nonce` proves possession of the node's key.
    pub(crate) fn verify_response(
        &self,
        nonce: &[u8; NONCE_LEN],
        response: &[u8],
    ) -> Result<(), Status> {
        let malformed =
            |what: &str| Status::invalid_argument(format!("x509pop challenge response: {what}"));
        let response: Response =
            serde_json::from_slice(response).map_err(|error| malformed(&error.to_string()))?;
        let decode = |text: &str| {
            STANDARD
                .decode(text)
                .map_err(|error| malformed(&error.to_string()))
        };
        let signed = |text: &str| -> Result<Vec<u8>, Status> {
            let own: [u8; NONCE_LEN] = decode(text)?
                .try_into()
                .map_err(|_| malformed("nonce is not 32 bytes long"))?;
            Ok([*nonce, own].concat())
        };
        let is_valid = match (self, response.rsa_signature, response.ecdsa_signature) {
            (NodeKey::Rsa(key), Some(proof), _) => {
                verify_rsa(key, &signed(&proof.nonce)?, &decode(&proof.signature)?)
            }
            (NodeKey::P256(_) | NodeKey::P384(_) | NodeKey::P521(_), _, Some(proof)) => {
                let (r, s) = (decode(&proof.r)?, decode(&proof.s)?);
                self.verify_ecdsa(&signed(&proof.nonce)?, &r, &s)
            }
            _ => return Err(malformed("it does not fit the key")),
        };
        is_valid
            .then_some(())
            .ok_or_else(|| Status::permission_denied("x509pop signature does not verify"))
    }

    /// `signed` is hashed once with SHA-256, whatever the curve; `r` and `s` may have any number of leading zeros.
    fn verify_ecdsa(&self, signed: &[u8], r: &[u8], s: &[u8]) -> bool {
        let digest = ring::digest::digest(&ring::digest::SHA256, signed);
        match self {
            NodeKey::Rsa(_) => false,
            NodeKey::P256(point) => fixed_signature(r, s, 32).is_some_and(|bytes| {
                signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                    .verify(signed, &bytes)
                    .is_ok()
            }),
            NodeKey::P384(key) => fixed_signature(r, s, P384_LEN)
                .and_then(|bytes| p384::ecdsa::Signature::from_slice(&bytes).ok())
                .is_some_and(|signature| key.verify_prehash(digest.as_ref(), &signature).is_ok()),
            NodeKey::P521(key) => fixed_signature(r, s, P521_LEN)
                .and_then(|bytes| p521::ecdsa::Signature::from_slice(&bytes).ok())
                .zip(left_pad(digest.as_ref(), P521_DIGEST_LEN))
                .is_some_and(|(signature, digest)| key.verify_prehash(&digest, &signature).is_ok()),
        }
    }
}

/// RSASSA-PSS with SHA-256 and a salt of any length: Go signs with the longest that fits.
fn verify_rsa(key: &rsa::PublicKey, signed: &[u8], signature: &[u8]) -> bool {
    let verifier = rsa::pss::VerifyingKey::<rsa::sha2::Sha256>::new_with_auto_salt_len(key.clone());
    rsa::pss::Signature::try_from(signature)
        .is_ok_and(|signature| verifier.verify(signed, &signature).is_ok())
}

/// `r` and `s` one after the other, each `length` bytes long.
fn fixed_signature(r: &[u8], s: &[u8], length: usize) -> Option<Vec<u8>> {
    Some([left_pad(r, length)?, left_pad(s, length)?].concat())
}

/// A big-endian number as exactly `length` bytes, if it fits.
fn left_pad(number: &[u8], length: usize) -> Option<Vec<u8>> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let significant = number.get(zeros..)?;
    let padding = length.checked_sub(significant.len())?;
    Some([vec![0; padding], significant.to_vec()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_padded_to_the_length_of_the_curve() {
        for (number, padded) in [
            (vec![1, 2], Some(vec![0, 1, 2])),
            (vec![0, 0, 0, 1], Some(vec![0, 0, 1])),
            (vec![], Some(vec![0, 0, 0])),
            (vec![1, 2, 3, 4], None),
        ] {
            assert_eq!(left_pad(&number, 3), padded, "{number:?}");
        }
    }
}
