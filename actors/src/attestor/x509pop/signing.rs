//! What `x509pop` signs: two nonces. Pure apart from ring's random numbers.

use p384::ecdsa::signature::hazmat::PrehashSigner as _;
use ring::digest::{Digest, SHA256, SHA256_OUTPUT_LEN, digest};
use ring::rand::SystemRandom;
use ring::signature::RSA_PSS_SHA256;

use super::messages::Nonce;
use crate::attestor::node_key::{NodeKey, NodeKeyError};
use crate::keys::der::without_leading_zeros;
use crate::keys::generate::Source;

/// `p521` refuses digests under half the length of the field. Zeros in front leave the number as it is.
const P521_DIGEST_BYTES: usize = 64;

/// What kind of challenge a key answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyKind {
    Rsa,
    Ecdsa,
}

/// An answer to a challenge.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Signature {
    /// RSASSA-PSS with SHA-256 and a salt of 32 bytes.
    Rsa(Vec<u8>),
    /// Both numbers big-endian without leading zeros.
    Ecdsa { r: Vec<u8>, s: Vec<u8> },
}

impl NodeKey {
    /// What kind of challenge it answers.
    pub(super) fn kind(&self) -> KeyKind {
        match self {
            Self::Rsa(_) | Self::OtherRsa(_) => KeyKind::Rsa,
            Self::P256(_) | Self::P384(_) | Self::P521(_) => KeyKind::Ecdsa,
        }
    }

    /// Signs SHA-256 over both nonces; the digest is not hashed again.
    pub(super) fn sign(
        &self,
        asked: &Nonce,
        own: &Nonce,
        random: &SystemRandom,
    ) -> Result<Signature, NodeKeyError> {
        // ring hashes by itself and gets the message, the other crates get the digest.
        let message = message(asked, own);
        let digest = signed_digest(asked, own);
        match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PSS_SHA256, random, &message, &mut signature)
                    .map_err(|_| NodeKeyError::Signing)?;
                Ok(Signature::Rsa(signature))
            }
            Self::OtherRsa(key) => key
                .sign_with_rng(
                    &mut Source(random),
                    rsa::Pss::<rsa::sha2::Sha256>::new(),
                    digest.as_ref(),
                )
                .map(Signature::Rsa)
                .map_err(|_| NodeKeyError::Signing),
            Self::P256(key) => {
                let signature = key
                    .sign(random, &message)
                    .map_err(|_| NodeKeyError::Signing)?;
                Ok(Signature::from_halves(signature.as_ref()))
            }
            Self::P384(key) => {
                let signature: p384::ecdsa::Signature = key
                    .sign_prehash(digest.as_ref())
                    .map_err(|_| NodeKeyError::Signing)?;
                Ok(Signature::from_halves(&signature.to_bytes()))
            }
            Self::P521(key) => {
                let mut padded = [0; P521_DIGEST_BYTES];
                let (_, low) = padded.split_at_mut(P521_DIGEST_BYTES - SHA256_OUTPUT_LEN);
                low.copy_from_slice(digest.as_ref());
                let signature: p521::ecdsa::Signature = key
                    .sign_prehash(&padded)
                    .map_err(|_| NodeKeyError::Signing)?;
                Ok(Signature::from_halves(&signature.to_bytes()))
            }
        }
    }
}

impl Signature {
    /// From r and s in the same length, one after the other.
    fn from_halves(signature: &[u8]) -> Self {
        let (r, s) = signature.split_at(signature.len() / 2);
        Self::Ecdsa {
            r: without_leading_zeros(r).to_vec(),
            s: without_leading_zeros(s).to_vec(),
        }
    }
}

/// What both sides sign: SHA-256 over the server's nonce and then the agent's.
pub(super) fn signed_digest(asked: &Nonce, own: &Nonce) -> Digest {
    digest(&SHA256, &message(asked, own))
}

fn message(asked: &Nonce, own: &Nonce) -> Vec<u8> {
    [asked.as_slice(), own].concat()
}
