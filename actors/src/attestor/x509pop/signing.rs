//! The node's key: checked against the certificate, then good for signatures over two nonces. Pure apart from ring's random
//! numbers.
//!
//! ring signs with RSA up to 4096 bits and P-256. The `rsa` crate takes what ring refuses, `p384` and `p521` the curves for
//! which ring cannot sign a SHA-256 digest.

use p384::ecdsa::signature::hazmat::PrehashSigner as _;
use ring::digest::{Digest, SHA256, SHA256_OUTPUT_LEN, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PSS_SHA256, RsaKeyPair};
use rsa::BoxedUint;
use rustls_pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

use super::messages::Nonce;
use crate::keys::der::{self, Reader, without_leading_zeros};
use crate::keys::generate::Source;
use crate::keys::pkcs8::{Curve, Pkcs8Kind, curve_of, read_pkcs8, read_public_key};

/// Smallest and largest RSA modulus in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;
/// `p521` refuses digests under half the length of the field. Zeros in front leave the number as it is.
const P521_DIGEST_BYTES: usize = 64;

/// A key that belongs to the node certificate.
pub(super) enum NodeKey {
    Rsa(RsaKeyPair),
    /// What ring does not take: more than 4096 bits, small exponents, primes in an unusual order.
    OtherRsa(Box<rsa::PrivateKey>),
    P256(EcdsaKeyPair),
    P384(p384::ecdsa::SigningKey),
    P521(p521::ecdsa::SigningKey),
}

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

/// Why a key cannot be used. Never says anything about its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NodeKeyError {
    #[error("malformed private key")]
    Malformed,
    #[error("private key does not match the public key of the certificate")]
    Mismatch,
    #[error("unsupported kind of private key; RSA and EC on P-256, P-384 or P-521 can be used")]
    Unsupported,
    #[error("unsupported RSA private key of {0} bits; 2048 to 8192 bits can be used")]
    RsaBits(usize),
    #[error("the private key signs nothing")]
    Signing,
}

impl NodeKey {
    /// Takes a key in any of the three encodings, if it is that of the certificate's `SubjectPublicKeyInfo`.
    pub(super) fn load(
        key: &PrivateKeyDer<'_>,
        certificate_key: &[u8],
    ) -> Result<Self, NodeKeyError> {
        let (kind, public) = read_public_key(certificate_key).ok_or(NodeKeyError::Unsupported)?;
        if kind == Pkcs8Kind::Other {
            return Err(NodeKeyError::Unsupported);
        }
        match read_private_key(key)? {
            (Some(Pkcs8Kind::Other), _) => Err(NodeKeyError::Unsupported),
            (Some(found), _) if found != kind => Err(NodeKeyError::Mismatch),
            (_, private) => match kind {
                Pkcs8Kind::Rsa => load_rsa(private, public),
                Pkcs8Kind::Ec(curve) => load_ec(curve, private, public),
                Pkcs8Kind::Other => Err(NodeKeyError::Unsupported),
            },
        }
    }

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

/// The kind of key, where the encoding tells it, and its `RSAPrivateKey` or `ECPrivateKey`.
fn read_private_key<'a>(
    key: &'a PrivateKeyDer<'_>,
) -> Result<(Option<Pkcs8Kind>, &'a [u8]), NodeKeyError> {
    match key {
        PrivateKeyDer::Pkcs8(key) => {
            let key = read_pkcs8(key.secret_pkcs8_der()).ok_or(NodeKeyError::Malformed)?;
            Ok((Some(key.kind), key.private_key))
        }
        PrivateKeyDer::Pkcs1(key) => Ok((Some(Pkcs8Kind::Rsa), key.secret_pkcs1_der())),
        PrivateKeyDer::Sec1(key) => {
            let der = key.secret_sec1_der();
            let key = EcPrivateKey::read(der).ok_or(NodeKeyError::Malformed)?;
            let named = key
                .curve
                .map(|oid| curve_of(oid).map_or(Pkcs8Kind::Other, Pkcs8Kind::Ec));
            Ok((named, der))
        }
        _ => Err(NodeKeyError::Unsupported),
    }
}

/// `ECPrivateKey` (RFC 5915 3). Its public half is optional, and that of the certificate is what counts.
struct EcPrivateKey<'a> {
    scalar: &'a [u8],
    /// Content of the curve's `OBJECT IDENTIFIER`.
    curve: Option<&'a [u8]>,
}

impl<'a> EcPrivateKey<'a> {
    fn read(der: &'a [u8]) -> Option<Self> {
        let mut fields = Reader::new(Reader::new(der).read(der::SEQUENCE)?);
        fields.read_unsigned()?;
        let scalar = fields.read(der::OCTET_STRING)?;
        let curve = match fields.read(der::CONTEXT_0) {
            Some(parameters) => Some(Reader::new(parameters).read(der::OBJECT_IDENTIFIER)?),
            None => None,
        };
        Some(Self { scalar, curve })
    }
}

fn load_ec(curve: Curve, der: &[u8], public: &[u8]) -> Result<NodeKey, NodeKeyError> {
    let key = EcPrivateKey::read(der).ok_or(NodeKeyError::Malformed)?;
    if key
        .curve
        .is_some_and(|found| curve_of(found) != Some(curve))
    {
        return Err(NodeKeyError::Mismatch);
    }
    let scalar = |length| left_padded(key.scalar, length).ok_or(NodeKeyError::Malformed);
    match curve {
        Curve::P256 => {
            let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
            EcdsaKeyPair::from_private_key_and_public_key(
                algorithm,
                &scalar(32)?,
                public,
                &SystemRandom::new(),
            )
            .map(NodeKey::P256)
            .map_err(|_| NodeKeyError::Mismatch)
        }
        Curve::P384 => {
            let key = p384::ecdsa::SigningKey::from_slice(&scalar(48)?)
                .map_err(|_| NodeKeyError::Malformed)?;
            check_match(key.verifying_key().to_sec1_point(false).as_bytes(), public)?;
            Ok(NodeKey::P384(key))
        }
        Curve::P521 => {
            let key = p521::ecdsa::SigningKey::from_slice(&scalar(66)?)
                .map_err(|_| NodeKeyError::Malformed)?;
            check_match(key.verifying_key().to_sec1_point(false).as_bytes(), public)?;
            Ok(NodeKey::P521(key))
        }
    }
}

fn check_match(found: &[u8], certificate_key: &[u8]) -> Result<(), NodeKeyError> {
    if found == certificate_key {
        Ok(())
    } else {
        Err(NodeKeyError::Mismatch)
    }
}

/// A number with zeros in front, `length` bytes in all; none when it is larger.
fn left_padded(number: &[u8], length: usize) -> Option<Zeroizing<Vec<u8>>> {
    let number = without_leading_zeros(number);
    let mut padded = Zeroizing::new(vec![0; length]);
    let start = length.checked_sub(number.len())?;
    padded.get_mut(start..)?.copy_from_slice(number);
    Some(padded)
}

fn load_rsa(der: &[u8], public: &[u8]) -> Result<NodeKey, NodeKeyError> {
    let (modulus, exponent) = read_rsa_numbers(public, false).ok_or(NodeKeyError::Unsupported)?;
    let bits = bit_length(modulus);
    if !RSA_BITS.contains(&bits) {
        return Err(NodeKeyError::RsaBits(bits));
    }
    let own = read_rsa_numbers(der, true).ok_or(NodeKeyError::Malformed)?;
    if own != (modulus, exponent) {
        return Err(NodeKeyError::Mismatch);
    }
    if let Ok(key) = RsaKeyPair::from_der(der) {
        return Ok(NodeKey::Rsa(key));
    }
    other_rsa(der).map(|key| NodeKey::OtherRsa(Box::new(key)))
}

/// Modulus and public exponent of an `RSAPublicKey`, or of an `RSAPrivateKey`, which begins with its version.
fn read_rsa_numbers(der: &[u8], is_private: bool) -> Option<(&[u8], &[u8])> {
    let mut fields = Reader::new(Reader::new(der).read(der::SEQUENCE)?);
    if is_private {
        fields.read_unsigned()?;
    }
    Some((fields.read_unsigned()?, fields.read_unsigned()?))
}

fn other_rsa(der: &[u8]) -> Result<rsa::PrivateKey, NodeKeyError> {
    let mut fields = Reader::new(
        Reader::new(der)
            .read(der::SEQUENCE)
            .ok_or(NodeKeyError::Malformed)?,
    );
    fields.read_unsigned().ok_or(NodeKeyError::Malformed)?;
    let mut number = || {
        fields
            .read_unsigned()
            .map(BoxedUint::from_be_slice_vartime)
            .ok_or(NodeKeyError::Malformed)
    };
    let (modulus, public_exponent, private_exponent) = (number()?, number()?, number()?);
    let primes = vec![number()?, number()?];
    rsa::PrivateKey::from_components(modulus, public_exponent, private_exponent, primes)
        .map_err(|_| NodeKeyError::Malformed)
}

fn bit_length(number: &[u8]) -> usize {
    number
        .first()
        .map_or(0, |first| number.len() * 8 - first.leading_zeros() as usize)
}
