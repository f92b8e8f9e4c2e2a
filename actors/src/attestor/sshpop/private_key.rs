//! OpenSSH's own format of private keys (OpenSSH's `PROTOCOL.key`). Pure; text and numbers stay in buffers that are zeroised.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::certificate::curve_of;
use super::wire::Reader;
use crate::keys::pkcs8::Curve;

const BEGIN: &[u8] = b"-----BEGIN OPENSSH PRIVATE KEY-----";
const END: &[u8] = b"-----END OPENSSH PRIVATE KEY-----";
const MAGIC: &[u8] = b"openssh-key-v1\0";
/// Length of an ed25519 seed in bytes.
const SEED_BYTES: usize = 32;

/// Why a key cannot be read. Never says anything about the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum OpenSshError {
    #[error("private key is encrypted; only unencrypted keys can be used")]
    Encrypted,
    #[error("malformed private key block")]
    Malformed,
    #[error("unsupported kind of private key; ed25519, ECDSA on a NIST curve and RSA can be used")]
    Unsupported,
}

/// A private key, taken apart. Numbers are big-endian.
#[derive(PartialEq, Eq)]
pub(super) enum OpenSshKey<'a> {
    Ed25519 {
        seed: &'a [u8],
    },
    Ec {
        curve: Curve,
        scalar: &'a [u8],
    },
    Rsa {
        modulus: &'a [u8],
        exponent: &'a [u8],
        private_exponent: &'a [u8],
        primes: [&'a [u8]; 2],
    },
}

/// The binary key in a PEM text; none if there is no block of this format.
pub(super) fn find_block(text: &[u8]) -> Option<Result<Zeroizing<Vec<u8>>, OpenSshError>> {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.find(|line| *line == BEGIN)?;
    // Room for all of it: growing would leave copies behind.
    let mut encoded = Zeroizing::new(Vec::with_capacity(text.len()));
    for line in lines {
        if line == END {
            return Some(decode(&encoded));
        }
        encoded.extend_from_slice(line);
    }
    Some(Err(OpenSshError::Malformed))
}

fn decode(encoded: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenSshError> {
    let mut bytes = Zeroizing::new(vec![0; encoded.len()]);
    let length = STANDARD
        .decode_slice(encoded, &mut bytes)
        .map_err(|_| OpenSshError::Malformed)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Takes a binary key apart.
pub(super) fn read(block: &[u8]) -> Result<OpenSshKey<'_>, OpenSshError> {
    let mut outer = Reader::new(block.strip_prefix(MAGIC).ok_or(OpenSshError::Malformed)?);
    let (cipher, keys) = read_outer(&mut outer).ok_or(OpenSshError::Malformed)?;
    if cipher != b"none" {
        return Err(OpenSshError::Encrypted);
    }
    let mut fields = Reader::new(keys);
    let kind = read_kind(&mut fields).ok_or(OpenSshError::Malformed)?;
    let is_known = matches!(kind, b"ssh-ed25519" | b"ssh-rsa") || curve_of(kind).is_some();
    if !is_known {
        return Err(OpenSshError::Unsupported);
    }
    read_numbers(kind, &mut fields).ok_or(OpenSshError::Malformed)
}

/// The name of the cipher, and the private part, for which only one key is expected.
fn read_outer<'a>(outer: &mut Reader<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let cipher = outer.string()?;
    // Name and options of the key derivation.
    outer.string()?;
    outer.string()?;
    if outer.uint32()? != 1 {
        return None;
    }
    // The public half; that of the certificate is what counts.
    outer.string()?;
    let keys = outer.string()?;
    outer.rest().is_empty().then_some((cipher, keys))
}

fn read_kind<'a>(fields: &mut Reader<'a>) -> Option<&'a [u8]> {
    let (first, second) = (fields.uint32()?, fields.uint32()?);
    if first != second {
        return None;
    }
    fields.string()
}

fn read_numbers<'a>(kind: &[u8], fields: &mut Reader<'a>) -> Option<OpenSshKey<'a>> {
    let key = if let Some(curve) = curve_of(kind) {
        // The curve's name again, and the point.
        fields.string()?;
        fields.string()?;
        let scalar = fields.unsigned()?;
        OpenSshKey::Ec { curve, scalar }
    } else if kind == b"ssh-rsa" {
        let (modulus, exponent) = (fields.unsigned()?, fields.unsigned()?);
        let private_exponent = fields.unsigned()?;
        // The inverse of q, which follows from the rest.
        fields.unsigned()?;
        OpenSshKey::Rsa {
            modulus,
            exponent,
            private_exponent,
            primes: [fields.unsigned()?, fields.unsigned()?],
        }
    } else {
        fields.string()?;
        let seed = fields.string()?.get(..SEED_BYTES)?;
        OpenSshKey::Ed25519 { seed }
    };
    // The comment, then 1, 2, 3 and so on up to a whole block.
    fields.string()?;
    let is_padding = fields
        .rest()
        .iter()
        .zip(1u8..)
        .all(|(found, expected)| *found == expected);
    (is_padding && fields.rest().len() < usize::from(u8::MAX)).then_some(key)
}
