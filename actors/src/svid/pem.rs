//! PEM text (RFC 7468): certificates and private keys. Pure; everything that comes in may be hostile.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pemfile::{Error, Item, read_one_from_slice};
use rustls_pki_types::PrivateKeyDer;

use super::{CertificateError, PemPolicy};

/// Largest PEM text in bytes.
const MAX_TEXT_BYTES: usize = 2 * 1024 * 1024;
/// Longest block type that an error repeats, in characters.
const MAX_SHOWN_TYPE: usize = 64;
const CERTIFICATE: &str = "CERTIFICATE";

/// Why a private key cannot be read. Never says anything about the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyPemError {
    #[error("private key is encrypted; only unencrypted keys can be used")]
    Encrypted,
    #[error("no private key block (PKCS#8, PKCS#1 or SEC1)")]
    Missing,
    #[error("malformed private key block")]
    Malformed,
}

/// The DER of every certificate block; at least one.
pub(super) fn certificates(
    text: &[u8],
    policy: PemPolicy,
) -> Result<Vec<Vec<u8>>, CertificateError> {
    check_size(text)?;
    let mut types = block_types(text).peekable();
    if types.peek().is_none() {
        return Err(match policy {
            PemPolicy::CertificatesOnly => CertificateError::NoPemBlock,
            PemPolicy::SkipOthers => CertificateError::Missing,
        });
    }
    if policy == PemPolicy::CertificatesOnly
        && let Some(foreign) = types.find(|found| found != CERTIFICATE)
    {
        return Err(CertificateError::ForeignBlock(foreign));
    }
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((item, after)) = read_one_from_slice(rest).map_err(|error| describe(&error))? {
        if let Item::X509Certificate(der) = item {
            found.push(der.to_vec());
        }
        rest = after;
    }
    if found.is_empty() {
        Err(CertificateError::Missing)
    } else {
        Ok(found)
    }
}

/// The first private key in a PEM text. The caller zeroises it ([`zeroize::Zeroize`] is implemented for it).
pub(crate) fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, KeyPemError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(KeyPemError::Malformed);
    }
    if is_encrypted(text) {
        return Err(KeyPemError::Encrypted);
    }
    let mut rest = text;
    while let Some((item, after)) = read_one_from_slice(rest).map_err(|_| KeyPemError::Malformed)? {
        if let Item::Pkcs8Key(key) = item {
            return Ok(PrivateKeyDer::Pkcs8(key));
        } else if let Item::Pkcs1Key(key) = item {
            return Ok(PrivateKeyDer::Pkcs1(key));
        } else if let Item::Sec1Key(key) = item {
            return Ok(PrivateKeyDer::Sec1(key));
        }
        rest = after;
    }
    Err(KeyPemError::Missing)
}

/// One certificate as PEM.
pub(super) fn certificate_block(der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {CERTIFICATE}-----\n");
    let encoded = STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

/// Types of all blocks that begin in the text. rustls-pemfile passes over the types it does not know.
fn block_types(text: &[u8]) -> impl Iterator<Item = String> {
    lines(text).filter_map(|line| {
        let block_type = line.strip_prefix(b"-----BEGIN ")?.strip_suffix(b"-----")?;
        Some(
            String::from_utf8_lossy(block_type)
                .chars()
                .take(MAX_SHOWN_TYPE)
                .collect(),
        )
    })
}

fn is_encrypted(text: &[u8]) -> bool {
    let is_mark = |line: &[u8]| {
        line == b"-----BEGIN ENCRYPTED PRIVATE KEY-----" || line == b"Proc-Type: 4,ENCRYPTED"
    };
    lines(text).any(is_mark)
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| matches!(byte, b'\n' | b'\r'))
        .map(<[u8]>::trim_ascii_end)
}

fn check_size(text: &[u8]) -> Result<(), CertificateError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(CertificateError::MalformedPem(format!(
            "larger than {MAX_TEXT_BYTES} bytes"
        )));
    }
    Ok(())
}

/// What is wrong, without the line: it may be part of a key.
fn describe(error: &Error) -> CertificateError {
    let text = match error {
        Error::MissingSectionEnd { .. } => "block without an end",
        Error::IllegalSectionStart { .. } => "damaged BEGIN line",
        Error::Base64Decode(_) => "damaged base64",
    };
    CertificateError::MalformedPem(text.to_owned())
}
