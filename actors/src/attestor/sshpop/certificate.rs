//! An OpenSSH host certificate as it stands in a file (OpenSSH's `PROTOCOL.certkeys`). Pure; whether the authority that signed it is trusted, and
//! whether it is valid now, is for the server to say.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::wire::Reader;
use crate::keys::pkcs8::Curve;

/// `SSH_CERT_TYPE_HOST`
const HOST: u32 = 2;
/// What the names of all certificates end with.
const SUFFIX: &[u8] = b"-cert-v01@openssh.com";

/// A host certificate.
#[derive(Debug)]
pub(super) struct HostCertificate {
    /// As it is on the wire.
    pub(super) wire: Vec<u8>,
    /// Whose key it vouches for.
    pub(super) key: PublicKey,
}

/// The public half of a host key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PublicKey {
    Ed25519(Vec<u8>),
    Ec {
        curve: Curve,
        /// Uncompressed.
        point: Vec<u8>,
    },
    /// Both numbers big-endian without leading zeros.
    Rsa {
        exponent: Vec<u8>,
        modulus: Vec<u8>,
    },
}

/// Why a certificate cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum CertificateError {
    #[error(
        "no certificate; the file is to hold a line such as \"ssh-…-cert-v01@openssh.com AAAA…\""
    )]
    Missing,
    #[error("a public key without a certificate")]
    BareKey,
    #[error("malformed certificate")]
    Malformed,
    #[error(
        "unsupported kind of key in the certificate; ed25519, ECDSA on a NIST curve and RSA can be used"
    )]
    Unsupported,
    #[error("a certificate of a user, not of a host")]
    User,
    #[error("the certificate names no principal")]
    NoPrincipal,
}

impl HostCertificate {
    /// Reads the first line that is neither blank nor a comment: type, base64, and whatever follows.
    pub(super) fn read(text: &[u8]) -> Result<Self, CertificateError> {
        let mut lines = text
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii)
            .filter(|line| !line.is_empty() && !line.starts_with(b"#"));
        let mut words = lines
            .next()
            .ok_or(CertificateError::Missing)?
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        let (Some(_), Some(encoded)) = (words.next(), words.next()) else {
            return Err(CertificateError::Missing);
        };
        let wire = STANDARD
            .decode(encoded)
            .map_err(|_| CertificateError::Malformed)?;
        let key = read_key(&wire)?;
        Ok(Self { wire, key })
    }
}

fn read_key(wire: &[u8]) -> Result<PublicKey, CertificateError> {
    let mut fields = Reader::new(wire);
    let name = fields.string().ok_or(CertificateError::Malformed)?;
    let Some(kind) = name.strip_suffix(SUFFIX) else {
        return Err(if is_key(name) {
            CertificateError::BareKey
        } else {
            CertificateError::Missing
        });
    };
    if !is_key(kind) {
        return Err(CertificateError::Unsupported);
    }
    fields.string().ok_or(CertificateError::Malformed)?;
    let key = public_key(kind, &mut fields).ok_or(CertificateError::Malformed)?;
    let (role, principals) = read_rest(&mut fields).ok_or(CertificateError::Malformed)?;
    if role != HOST {
        return Err(CertificateError::User);
    }
    match Reader::new(principals).string() {
        Some(principal) if !principal.is_empty() => Ok(key),
        _ => Err(CertificateError::NoPrincipal),
    }
}

/// Whose certificate it is, and for which principals.
fn read_rest<'a>(fields: &mut Reader<'a>) -> Option<(u32, &'a [u8])> {
    fields.uint64()?;
    let role = fields.uint32()?;
    fields.string()?;
    let principals = fields.string()?;
    // From when, until when.
    fields.uint64()?;
    fields.uint64()?;
    // Critical options, extensions, reserved, the authority's key, its signature.
    for _ in 0..5 {
        fields.string()?;
    }
    fields.rest().is_empty().then_some((role, principals))
}

fn is_key(kind: &[u8]) -> bool {
    kind == b"ssh-ed25519" || kind == b"ssh-rsa" || curve_of(kind).is_some()
}

/// The curve of an ECDSA key type (RFC 5656 6.2).
pub(super) fn curve_of(kind: &[u8]) -> Option<Curve> {
    match kind {
        b"ecdsa-sha2-nistp256" => Some(Curve::P256),
        b"ecdsa-sha2-nistp384" => Some(Curve::P384),
        b"ecdsa-sha2-nistp521" => Some(Curve::P521),
        _ => None,
    }
}

/// The fields of a public key of this kind.
fn public_key(kind: &[u8], fields: &mut Reader<'_>) -> Option<PublicKey> {
    if let Some(curve) = curve_of(kind) {
        fields.string()?;
        let point = fields.string()?.to_vec();
        return Some(PublicKey::Ec { curve, point });
    }
    Some(match kind {
        b"ssh-rsa" => PublicKey::Rsa {
            exponent: fields.unsigned()?.to_vec(),
            modulus: fields.unsigned()?.to_vec(),
        },
        _ => PublicKey::Ed25519(fields.string()?.to_vec()),
    })
}
