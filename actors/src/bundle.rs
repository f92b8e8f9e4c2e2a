//! Trust bundles: the authorities of one trust domain, and whether a chain leads to one of them.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use proto::spire::api::types;

use crate::clock::from_unix_seconds;
use crate::spiffe_id::TrustDomain;
use crate::svid::parse::is_public_key;
use crate::svid::{Certificate, CertificateError, PemPolicy};

mod document;
mod path;
#[cfg(test)]
mod tests;

/// The authorities of one trust domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// Whose authorities these are.
    pub trust_domain: TrustDomain,
    /// Signers of X.509-SVIDs, in the server's order.
    x509_authorities: Vec<X509Authority>,
    /// Signers of JWT-SVIDs, in the server's order.
    pub jwt_authorities: Vec<JwtAuthority>,
    /// How soon the server advises to look again; zero = no advice.
    pub refresh_hint: Duration,
    /// Counts changes at the server.
    pub sequence_number: u64,
    /// The X.509 authorities' DER, concatenated.
    x509_der: Bytes,
}

/// A signer of X.509-SVIDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct X509Authority {
    /// Its certificate; need not be self-signed.
    pub certificate: Certificate,
    /// What it signed is to be replaced.
    pub tainted: bool,
}

/// A signer of JWT-SVIDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtAuthority {
    /// `kid` of the tokens it signs; never empty.
    pub key_id: String,
    /// `SubjectPublicKeyInfo`, DER.
    pub public_key: Bytes,
    /// When the key stops signing; none = no limit.
    pub expires_at: Option<SystemTime>,
    /// What it signed is to be replaced.
    pub tainted: bool,
}

/// Formats of a bundle file (`trust_bundle_format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BundleFormat {
    /// PEM blocks of type `CERTIFICATE`.
    #[default]
    Pem,
    /// A SPIFFE bundle document (JWKS).
    Spiffe,
}

/// Why a bundle cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// A certificate in it is damaged.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The JWKS is not JSON, or not of its shape.
    #[error("malformed SPIFFE bundle: {0}")]
    Document(String),
    /// There is no X.509 authority in it.
    #[error("no X.509 authorities")]
    Empty,
    /// It belongs to another trust domain than expected, or names none that is valid.
    #[error("bundle is not that of trust domain {0}")]
    TrustDomain(TrustDomain),
    /// A JWT authority has no key ID.
    #[error("JWT authority {0} has no key ID")]
    MissingKeyId(usize),
    /// The public key of a JWT authority is no `SubjectPublicKeyInfo`.
    #[error("JWT authority {0} has no usable public key")]
    JwtKey(usize),
}

/// Why a chain is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// No path leads to an authority of the bundle: the one case of "unknown authority" (node-side 1.2).
    #[error("x509: certificate signed by unknown authority")]
    UnknownAuthority,
    /// A certificate on the path, or the authority, has expired.
    #[error("certificate has expired")]
    Expired,
    /// A certificate on the path is not valid yet.
    #[error("certificate is not valid yet")]
    NotYetValid,
    /// Something else is wrong with the path.
    #[error("certificate verification failed: {0}")]
    Invalid(String),
}

impl Bundle {
    /// Puts a bundle together; the X.509 part is marshalled here, once.
    pub fn new(trust_domain: TrustDomain, x509_authorities: Vec<X509Authority>) -> Self {
        let x509_der = x509_authorities
            .iter()
            .flat_map(|authority| authority.certificate.der().iter().copied())
            .collect();
        Self {
            trust_domain,
            x509_authorities,
            jwt_authorities: Vec::new(),
            refresh_hint: Duration::ZERO,
            sequence_number: 0,
            x509_der,
        }
    }

    /// A bundle of untainted certificates, such as a stored one.
    pub fn of_certificates(trust_domain: TrustDomain, certificates: Vec<Certificate>) -> Self {
        Self::new(
            trust_domain,
            certificates
                .into_iter()
                .map(|certificate| X509Authority {
                    certificate,
                    tainted: false,
                })
                .collect(),
        )
    }

    /// The same bundle with the X.509 authorities of another one after its own.
    #[must_use]
    pub fn with_authorities_of(&self, other: &Self) -> Self {
        let mut authorities = self.x509_authorities.clone();
        for authority in &other.x509_authorities {
            let is_known = |known: &X509Authority| known.certificate == authority.certificate;
            if !authorities.iter().any(is_known) {
                authorities.push(authority.clone());
            }
        }
        let marshalled = Self::new(self.trust_domain.clone(), authorities);
        Self {
            x509_authorities: marshalled.x509_authorities,
            x509_der: marshalled.x509_der,
            ..self.clone()
        }
    }

    /// Reads a bundle file in either format (node-side 1.1). Only X.509 authorities are taken; an empty result is an error.
    pub fn from_file_text(
        trust_domain: &TrustDomain,
        text: &[u8],
        format: BundleFormat,
    ) -> Result<Self, BundleError> {
        let certificates = match format {
            BundleFormat::Pem => Certificate::list_from_pem(text, PemPolicy::CertificatesOnly)?,
            BundleFormat::Spiffe => document::x509_authorities(text)?,
        };
        if certificates.is_empty() {
            return Err(BundleError::Empty);
        }
        let untainted = |certificate| X509Authority {
            certificate,
            tainted: false,
        };
        Ok(Self::new(
            trust_domain.clone(),
            certificates.into_iter().map(untainted).collect(),
        ))
    }

    /// Takes the server's message. `expected` guards against an answer for another trust domain.
    pub fn from_proto(message: types::Bundle, expected: &TrustDomain) -> Result<Self, BundleError> {
        if TrustDomain::parse(&message.trust_domain).as_ref() != Ok(expected) {
            return Err(BundleError::TrustDomain(expected.clone()));
        }
        let mut x509_authorities = Vec::new();
        for authority in message.x509_authorities {
            let tainted = authority.tainted;
            let certificates = Certificate::list_from_der(&authority.asn1)?;
            x509_authorities.extend(certificates.into_iter().map(|certificate| X509Authority {
                certificate,
                tainted,
            }));
        }
        let jwt_authorities = message.jwt_authorities.into_iter().enumerate();
        let jwt_authorities =
            jwt_authorities.map(|(index, key)| JwtAuthority::from_proto(index, key));
        let jwt_authorities = last_of_each(jwt_authorities.collect::<Result<_, _>>()?);
        Ok(Self {
            jwt_authorities,
            refresh_hint: Duration::from_secs(
                u64::try_from(message.refresh_hint).unwrap_or_default(),
            ),
            sequence_number: message.sequence_number,
            ..Self::new(expected.clone(), x509_authorities)
        })
    }

    /// The X.509 authorities, in the server's order.
    pub fn x509_authorities(&self) -> &[X509Authority] {
        &self.x509_authorities
    }

    /// The X.509 authorities' certificates, in the server's order: what is stored.
    pub fn certificates(&self) -> Vec<Certificate> {
        let certificates = self.x509_authorities.iter();
        certificates
            .map(|authority| authority.certificate.clone())
            .collect()
    }

    /// The X.509 authorities' DER, concatenated (Workload API 5.2.1). Shared, not copied.
    pub fn x509_der(&self) -> &Bytes {
        &self.x509_der
    }

    /// Checks that `chain` (leaf first) leads to an authority, everything on the path being valid at `now`, the authority too.
    /// Extended key usage is not constrained. Says nothing about the leaf's ID.
    pub fn verify(&self, chain: &[Certificate], now: SystemTime) -> Result<(), VerifyError> {
        self.verified_path(chain, now).map(drop)
    }

    /// The verified path of `chain`: leaf, intermediates, authority. Intermediates may stand in any order.
    pub fn verified_path(
        &self,
        chain: &[Certificate],
        now: SystemTime,
    ) -> Result<Vec<Certificate>, VerifyError> {
        path::find(
            chain,
            self.x509_authorities
                .iter()
                .map(|authority| &authority.certificate),
            now,
        )
    }
}

/// A key ID names one key: where several claim it, the last one has it, as in the reference.
fn last_of_each(authorities: Vec<JwtAuthority>) -> Vec<JwtAuthority> {
    let mut seen = HashSet::new();
    let mut kept: Vec<_> = authorities
        .into_iter()
        .rev()
        .filter(|authority| seen.insert(authority.key_id.clone()))
        .collect();
    kept.reverse();
    kept
}

impl JwtAuthority {
    fn from_proto(index: usize, key: types::JwtKey) -> Result<Self, BundleError> {
        if key.key_id.is_empty() {
            return Err(BundleError::MissingKeyId(index));
        }
        if !is_public_key(&key.public_key) {
            return Err(BundleError::JwtKey(index));
        }
        Ok(Self {
            key_id: key.key_id,
            public_key: key.public_key.into(),
            expires_at: (key.expires_at != 0).then(|| from_unix_seconds(key.expires_at)),
            tainted: key.tainted,
        })
    }
}
