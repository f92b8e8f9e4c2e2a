//! The host's key: checked against the certificate, then good for SSH signatures. Pure apart from ring's random numbers.

use p384::ecdsa::signature::hazmat::PrehashSigner as _;
use ring::digest::{SHA256, SHA384, SHA512, digest};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivateSec1KeyDer};

use super::certificate::PublicKey;
use super::private_key::{self, OpenSshError, OpenSshKey};
use super::wire::put_unsigned;
use crate::attestor::node_key::{NodeKey, NodeKeyError, check_rsa_size, rsa_of_numbers};
use crate::keys::der::{self, element, unsigned};
use crate::keys::generate::{Source, pkcs1};
use crate::keys::pkcs8::Pkcs8Kind;
use crate::svid::pem::{self, KeyPemError};

/// A key that belongs to the host certificate.
pub(super) enum HostKey {
    Ed25519(Ed25519KeyPair),
    Other(NodeKey),
}

/// A signature as SSH has it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signature {
    /// The name of the algorithm.
    pub(super) format: &'static str,
    /// What the algorithm makes of it.
    pub(super) blob: Vec<u8>,
}

/// Why a key cannot be used. Never says anything about its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HostKeyError {
    #[error("no private key block (OpenSSH, PKCS#8, PKCS#1 or SEC1)")]
    Missing,
    #[error(transparent)]
    Pem(KeyPemError),
    #[error(transparent)]
    OpenSsh(#[from] OpenSshError),
    #[error(transparent)]
    Key(NodeKeyError),
}

/// The public half is of a kind that can be used, so a private half of any other kind is not its own.
impl From<NodeKeyError> for HostKeyError {
    fn from(error: NodeKeyError) -> Self {
        match error {
            NodeKeyError::Unsupported => MISMATCH,
            NodeKeyError::Malformed
            | NodeKeyError::Mismatch
            | NodeKeyError::RsaBits(_)
            | NodeKeyError::Signing => Self::Key(error),
        }
    }
}

const MISMATCH: HostKeyError = HostKeyError::Key(NodeKeyError::Mismatch);
const MALFORMED: HostKeyError = HostKeyError::Key(NodeKeyError::Malformed);

impl HostKey {
    /// Takes the first key of a file, if it is that of the certificate.
    pub(super) fn load(text: &[u8], certified: &PublicKey) -> Result<Self, HostKeyError> {
        if let Some(block) = private_key::find_block(text) {
            return from_openssh(&private_key::read(&block?)?, certified);
        }
        let key = pem::private_key(text)
            .map(zeroize::Zeroizing::new)
            .map_err(|error| match error {
                KeyPemError::Missing => HostKeyError::Missing,
                KeyPemError::Encrypted | KeyPemError::Malformed => HostKeyError::Pem(error),
            })?;
        from_der(&key, certified)
    }

    /// Signs a message; each algorithm hashes it by itself.
    pub(super) fn sign(
        &self,
        message: &[u8],
        random: &SystemRandom,
    ) -> Result<Signature, NodeKeyError> {
        let failed = NodeKeyError::Signing;
        let (format, blob) = match self {
            Self::Ed25519(key) => ("ssh-ed25519", key.sign(message).as_ref().to_vec()),
            Self::Other(NodeKey::Rsa(key)) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, random, message, &mut signature)
                    .map_err(|_| failed)?;
                (RSA_FORMAT, signature)
            }
            Self::Other(NodeKey::OtherRsa(key)) => {
                let padding = rsa::Pkcs1v15Sign::new::<rsa::sha2::Sha256>();
                let hash = digest(&SHA256, message);
                let signature = key
                    .sign_with_rng(&mut Source(random), padding, hash.as_ref())
                    .map_err(|_| failed)?;
                (RSA_FORMAT, signature)
            }
            Self::Other(NodeKey::P256(key)) => {
                let signature = key.sign(random, message).map_err(|_| failed)?;
                ("ecdsa-sha2-nistp256", halves(signature.as_ref()))
            }
            Self::Other(NodeKey::P384(key)) => {
                let signature: p384::ecdsa::Signature = key
                    .sign_prehash(digest(&SHA384, message).as_ref())
                    .map_err(|_| failed)?;
                ("ecdsa-sha2-nistp384", halves(&signature.to_bytes()))
            }
            Self::Other(NodeKey::P521(key)) => {
                let signature: p521::ecdsa::Signature = key
                    .sign_prehash(digest(&SHA512, message).as_ref())
                    .map_err(|_| failed)?;
                ("ecdsa-sha2-nistp521", halves(&signature.to_bytes()))
            }
        };
        Ok(Signature { format, blob })
    }
}

/// What servers take for RSA keys beside the SHA-1 of the reference (RFC 8332 3).
const RSA_FORMAT: &str = "rsa-sha2-256";

/// r and s (RFC 5656 3.1.2), from both in the same length, one after the other.
fn halves(signature: &[u8]) -> Vec<u8> {
    let (r, s) = signature.split_at(signature.len() / 2);
    let mut blob = Vec::new();
    put_unsigned(&mut blob, r);
    put_unsigned(&mut blob, s);
    blob
}

fn from_der(key: &PrivateKeyDer<'_>, certified: &PublicKey) -> Result<HostKey, HostKeyError> {
    match (certified, key) {
        (PublicKey::Ed25519(public), PrivateKeyDer::Pkcs8(key)) => {
            let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der())
                .map_err(|_| MISMATCH)?;
            ed25519(key, public)
        }
        (PublicKey::Ed25519(_), _) => Err(MISMATCH),
        (PublicKey::Ec { curve, point }, key) => {
            let key = NodeKey::load_as(key, Pkcs8Kind::Ec(*curve), point)?;
            Ok(HostKey::Other(key))
        }
        (PublicKey::Rsa { exponent, modulus }, key) => {
            let public = element(der::SEQUENCE, &[&unsigned(modulus), &unsigned(exponent)]);
            let key = NodeKey::load_as(key, Pkcs8Kind::Rsa, &public)?;
            Ok(HostKey::Other(key))
        }
    }
}

fn from_openssh(key: &OpenSshKey<'_>, certified: &PublicKey) -> Result<HostKey, HostKeyError> {
    match (key, certified) {
        (OpenSshKey::Ed25519 { seed }, PublicKey::Ed25519(public)) => {
            let key = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| MALFORMED)?;
            ed25519(key, public)
        }
        (OpenSshKey::Ec { curve, scalar }, PublicKey::Ec { curve: wanted, .. })
            if curve == wanted =>
        {
            let scalar = element(der::OCTET_STRING, &[scalar]);
            let sec1 = element(der::SEQUENCE, &[&unsigned(&[1]), &scalar]);
            from_der(
                &PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(sec1.as_slice())),
                certified,
            )
        }
        (
            OpenSshKey::Rsa {
                modulus,
                exponent,
                private_exponent,
                primes,
            },
            PublicKey::Rsa {
                exponent: wanted_exponent,
                modulus: wanted_modulus,
            },
        ) => {
            if modulus != wanted_modulus || exponent != wanted_exponent {
                return Err(MISMATCH);
            }
            check_rsa_size(modulus)?;
            let key = rsa_of_numbers(modulus, exponent, private_exponent, *primes)?;
            let pkcs1 = pkcs1(&key).ok_or(MALFORMED)?;
            from_der(
                &PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(pkcs1.as_slice())),
                certified,
            )
        }
        _ => Err(MISMATCH),
    }
}

fn ed25519(key: Ed25519KeyPair, certified: &[u8]) -> Result<HostKey, HostKeyError> {
    if key.public_key().as_ref() == certified {
        Ok(HostKey::Ed25519(key))
    } else {
        Err(MISMATCH)
    }
}
