//! Looks into PKCS#8 far enough to say what kind of key it holds (RFC 5208 5, RFC 5480 2.1.1, RFC 8017 A.1). Pure.

use super::der::{self, Reader};

/// 1.2.840.113549.1.1.1
pub(crate) const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// 1.2.840.10045.2.1
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// 1.2.840.10045.3.1.7
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
/// 1.3.132.0.34
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
/// 1.3.132.0.35
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];

/// The NIST curves that keys may lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Curve {
    P256,
    P384,
    P521,
}

/// What PKCS#8 says of the key in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pkcs8Kind {
    Ec(Curve),
    Rsa,
    Other,
}

/// PKCS#8, taken apart.
pub(crate) struct Pkcs8<'a> {
    pub(crate) kind: Pkcs8Kind,
    /// `ECPrivateKey` (RFC 5915 3) or `RSAPrivateKey` (RFC 8017 A.1.2), DER.
    pub(crate) private_key: &'a [u8],
}

/// Takes PKCS#8 apart; none when it is malformed.
pub(crate) fn read_pkcs8(der: &[u8]) -> Option<Pkcs8<'_>> {
    let mut outer = Reader::new(der);
    let mut fields = Reader::new(outer.read(der::SEQUENCE)?);
    if !outer.is_empty() {
        return None;
    }
    fields.read(der::INTEGER)?;
    let kind = read_algorithm(fields.read(der::SEQUENCE)?)?;
    Some(Pkcs8 {
        kind,
        private_key: fields.read(der::OCTET_STRING)?,
    })
}

/// The kind of key that a `SubjectPublicKeyInfo` holds, and its bit string without the count of unused bits.
pub(crate) fn read_public_key(der: &[u8]) -> Option<(Pkcs8Kind, &[u8])> {
    let mut fields = Reader::new(Reader::new(der).read(der::SEQUENCE)?);
    let kind = read_algorithm(fields.read(der::SEQUENCE)?)?;
    Some((kind, fields.read(der::BIT_STRING)?.strip_prefix(&[0])?))
}

/// The curve that the content of an `OBJECT IDENTIFIER` names.
pub(crate) fn curve_of(identifier: &[u8]) -> Option<Curve> {
    match identifier {
        P256 => Some(Curve::P256),
        P384 => Some(Curve::P384),
        P521 => Some(Curve::P521),
        _ => None,
    }
}

fn read_algorithm(content: &[u8]) -> Option<Pkcs8Kind> {
    let mut algorithm = Reader::new(content);
    Some(match algorithm.read(der::OBJECT_IDENTIFIER)? {
        RSA_ENCRYPTION => Pkcs8Kind::Rsa,
        EC_PUBLIC_KEY => algorithm
            .read(der::OBJECT_IDENTIFIER)
            .and_then(curve_of)
            .map_or(Pkcs8Kind::Other, Pkcs8Kind::Ec),
        _ => Pkcs8Kind::Other,
    })
}
