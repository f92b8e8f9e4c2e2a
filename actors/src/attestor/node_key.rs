//! A node's private key from a file, checked against the public key that vouches for it. What it signs, and how, is each attestor's own. Pure
//! apart from ring's random numbers.
//!
//! ring signs with RSA up to 4096 bits and P-256. The `rsa` crate takes what ring refuses, `p384` and `p521` the curves for
//! which ring cannot sign every digest.

use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RsaKeyPair};
use rsa::BoxedUint;
use rustls_pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

use super::node::EvidenceError;
use crate::keys::der::{self, Reader, without_leading_zeros};
use crate::keys::pkcs8::{Curve, Pkcs8Kind, curve_of, read_pkcs8, read_public_key};

/// Smallest and largest RSA modulus in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A key that belongs to the node certificate.
pub(super) enum NodeKey {
    Rsa(RsaKeyPair),
    /// What ring does not take: more than 4096 bits, small exponents, primes in an unusual order.
    OtherRsa(Box<rsa::PrivateKey>),
    P256(EcdsaKeyPair),
    P384(p384::ecdsa::SigningKey),
    P521(p521::ecdsa::SigningKey),
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
        Self::load_as(key, kind, public)
    }

    /// The same for a public key of this kind, given as a point or an `RSAPublicKey`.
    pub(super) fn load_as(
        key: &PrivateKeyDer<'_>,
        kind: Pkcs8Kind,
        public: &[u8],
    ) -> Result<Self, NodeKeyError> {
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

/// Refuses a modulus, big-endian, that is too short to be safe or too long to be reckoned with.
pub(super) fn check_rsa_size(modulus: &[u8]) -> Result<(), NodeKeyError> {
    let bits = bit_length(without_leading_zeros(modulus));
    if RSA_BITS.contains(&bits) {
        Ok(())
    } else {
        Err(NodeKeyError::RsaBits(bits))
    }
}

fn load_rsa(der: &[u8], public: &[u8]) -> Result<NodeKey, NodeKeyError> {
    let (modulus, exponent) = read_rsa_numbers(public, false).ok_or(NodeKeyError::Unsupported)?;
    check_rsa_size(modulus)?;
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
    let numbers = || {
        let mut fields = Reader::new(Reader::new(der).read(der::SEQUENCE)?);
        fields.read_unsigned()?;
        let mut number = || fields.read_unsigned();
        Some([number()?, number()?, number()?, number()?, number()?])
    };
    let [modulus, public_exponent, private_exponent, p, q] =
        numbers().ok_or(NodeKeyError::Malformed)?;
    rsa_of_numbers(modulus, public_exponent, private_exponent, [p, q])
}

/// A key of its numbers, big-endian, if they belong together. The size of the modulus is the caller's to check.
pub(super) fn rsa_of_numbers(
    modulus: &[u8],
    public_exponent: &[u8],
    private_exponent: &[u8],
    primes: [&[u8]; 2],
) -> Result<rsa::PrivateKey, NodeKeyError> {
    let number = BoxedUint::from_be_slice_vartime;
    rsa::PrivateKey::from_components(
        number(modulus),
        number(public_exponent),
        number(private_exponent),
        primes.map(number).to_vec(),
    )
    .map_err(|_| NodeKeyError::Malformed)
}

fn bit_length(number: &[u8]) -> usize {
    number
        .first()
        .map_or(0, |first| number.len() * 8 - first.leading_zeros() as usize)
}
/// Bytes of a nonce, the server's as well as ours (node-side 2.3, 2.5).
pub(super) const NONCE_BYTES: usize = 32;

/// Our half of what is signed, so that no server can have a text of its choice signed.
pub(super) fn fresh_nonce(random: &SystemRandom) -> Result<[u8; NONCE_BYTES], EvidenceError> {
    let mut nonce = [0; NONCE_BYTES];
    random
        .fill(&mut nonce)
        .map_err(|_| EvidenceError::Signing("no random numbers".to_owned()))?;
    Ok(nonce)
}
