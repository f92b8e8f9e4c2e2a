//! X.509 certificates and SVIDs. Only the files under `svid/` call the X.509 and PEM parsers: inside the agent a certificate is
//! parsed.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::keys::PrivateKey;
use crate::spiffe_id::SpiffeId;

pub(crate) mod parse;
pub(crate) mod pem;
mod subject;
#[cfg(test)]
mod tests;

/// One parsed certificate. Cheap to clone.
#[derive(Clone)]
pub struct Certificate {
    der: Bytes,
    facts: Arc<Facts>,
}

/// What the agent wants to know of a certificate.
#[derive(Debug)]
struct Facts {
    not_before: SystemTime,
    not_after: SystemTime,
    serial: Vec<u8>,
    subject: String,
    public_key: Vec<u8>,
    uri_names: Vec<String>,
    is_ca: bool,
    may_sign_certificates: bool,
    subject_key_id: Option<Vec<u8>>,
    authority_key_id: Option<Vec<u8>>,
}

/// Why bytes are not taken as certificates. Never repeats the bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The DER cannot be parsed.
    #[error("malformed certificate: {0}")]
    Malformed(String),
    /// No certificate was found.
    #[error("no certificate")]
    Missing,
    /// A PEM block has another type than `CERTIFICATE` where only certificates belong.
    #[error("expected block type \"CERTIFICATE\"; got {0:?}")]
    ForeignBlock(String),
    /// There is no PEM block at all.
    #[error("no PEM blocks")]
    NoPemBlock,
    /// The PEM armour is damaged.
    #[error("malformed PEM: {0}")]
    MalformedPem(String),
    /// The leaf has no URI SAN, or several (X509-SVID 2).
    #[error("expected exactly one URI SAN, found {0}")]
    UriNames(usize),
    /// The URI SAN is no SPIFFE ID.
    #[error("URI SAN is not a SPIFFE ID: {0}")]
    NotASpiffeId(#[from] crate::spiffe_id::IdError),
    /// A leaf is a CA or may sign certificates (X509-SVID 4).
    #[error("leaf certificate is a certificate authority")]
    LeafIsCa,
    /// The key is not the one in the leaf.
    #[error("private key does not match the certificate")]
    ForeignKey,
}

/// How PEM text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PemPolicy {
    /// Blocks of other types are an error (trust bundles).
    CertificatesOnly,
    /// Blocks of other types are passed over (node certificates).
    SkipOthers,
}

/// A certificate chain that names one workload or agent, and its key: they always belong together.
#[derive(Debug)]
pub struct X509Svid {
    /// The leaf's SPIFFE ID.
    pub id: SpiffeId,
    leaf: Certificate,
    /// Leaf first, then intermediates as the server sent them; never empty.
    chain: Vec<Certificate>,
    /// The leaf's key.
    pub key: Arc<PrivateKey>,
    /// The chain's DER, concatenated.
    chain_der: Bytes,
}

impl Certificate {
    /// Parses one DER certificate of up to 64 KiB; trailing bytes are an error.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        match parse::certificate(der)? {
            (certificate, []) => Ok(certificate),
            _ => Err(CertificateError::Malformed("trailing bytes".to_owned())),
        }
    }

    /// Parses concatenated DER certificates; at least one, up to 100 and 1 MiB.
    pub fn list_from_der(der: &[u8]) -> Result<Vec<Self>, CertificateError> {
        parse::list(der)
    }

    /// Reads the certificates of a PEM text; at least one, up to 100. Text before, between and after blocks is passed over.
    pub fn list_from_pem(pem: &[u8], policy: PemPolicy) -> Result<Vec<Self>, CertificateError> {
        let blocks = pem::certificates(pem, policy)?;
        parse::check_count(blocks.len())?;
        blocks.iter().map(|der| Self::from_der(der)).collect()
    }

    /// The certificate as one PEM block, LF line ends, 64 characters a line.
    pub fn to_pem(&self) -> String {
        pem::certificate_block(&self.der)
    }

    /// The DER encoding.
    pub fn der(&self) -> &Bytes {
        &self.der
    }

    /// First instant of validity.
    pub fn not_before(&self) -> SystemTime {
        self.facts.not_before
    }

    /// Last instant of validity.
    pub fn not_after(&self) -> SystemTime {
        self.facts.not_after
    }

    /// Whether `now` lies within the validity, both ends included (RFC 5280 4.1.2.5).
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        self.facts.not_before <= now && now <= self.facts.not_after
    }

    /// The serial number, big-endian, as lower-case hex.
    pub fn serial_hex(&self) -> String {
        subject::hex(&self.facts.serial)
    }

    /// The subject in the form that Go prints (`CN=…,O=…,C=…`).
    pub fn subject(&self) -> &str {
        &self.facts.subject
    }

    /// `SubjectPublicKeyInfo`, DER.
    pub fn public_key_der(&self) -> &[u8] {
        &self.facts.public_key
    }

    /// All URI SANs.
    pub fn uri_names(&self) -> &[String] {
        &self.facts.uri_names
    }

    /// Whether basic constraints say that it is a CA.
    pub fn is_ca(&self) -> bool {
        self.facts.is_ca
    }

    /// Whether its key usage has keyCertSign or cRLSign.
    pub fn may_sign_certificates(&self) -> bool {
        self.facts.may_sign_certificates
    }

    /// The subject key identifier.
    pub fn subject_key_id(&self) -> Option<&[u8]> {
        self.facts.subject_key_id.as_deref()
    }

    /// The authority key identifier.
    pub fn authority_key_id(&self) -> Option<&[u8]> {
        self.facts.authority_key_id.as_deref()
    }

    /// The SPIFFE ID of a leaf: exactly one URI SAN, not a CA (X509-SVID 4, 5).
    pub fn leaf_id(&self) -> Result<SpiffeId, CertificateError> {
        if self.facts.is_ca || self.facts.may_sign_certificates {
            return Err(CertificateError::LeafIsCa);
        }
        match self.facts.uri_names.as_slice() {
            [name] => Ok(SpiffeId::parse(name)?),
            names => Err(CertificateError::UriNames(names.len())),
        }
    }
}

impl X509Svid {
    /// Joins a chain (leaf first) and the leaf's key, after checking that they belong together.
    pub fn new(
        chain: Vec<Certificate>,
        key: impl Into<Arc<PrivateKey>>,
    ) -> Result<Self, CertificateError> {
        let key = key.into();
        let leaf = chain.first().cloned().ok_or(CertificateError::Missing)?;
        let id = leaf.leaf_id()?;
        if leaf.public_key_der() != key.public_key_der() {
            return Err(CertificateError::ForeignKey);
        }
        let chain_der = chain
            .iter()
            .flat_map(|certificate| certificate.der.iter().copied())
            .collect();
        Ok(Self {
            id,
            leaf,
            chain,
            key,
            chain_der,
        })
    }

    /// The certificate that names the identity.
    pub fn leaf(&self) -> &Certificate {
        &self.leaf
    }

    /// Leaf first, then intermediates.
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// The chain's DER, concatenated, leaf first (Workload API 5.2.1). Shared, not copied.
    pub fn chain_der(&self) -> &Bytes {
        &self.chain_der
    }

    /// Last instant of validity.
    pub fn not_after(&self) -> SystemTime {
        self.leaf().not_after()
    }

    /// How long the certificate was made to live.
    pub fn lifetime(&self) -> Duration {
        self.leaf()
            .not_after()
            .duration_since(self.leaf().not_before())
            .unwrap_or_default()
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate")
            .field("serial", &self.serial_hex())
            .field("not_after", &self.facts.not_after)
            .finish_non_exhaustive()
    }
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for Certificate {}
