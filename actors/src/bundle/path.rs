//! Finds the path from a chain to an authority. Pure: webpki builds and checks it, with ring's signature algorithms.

use std::time::SystemTime;

use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{
    EndEntityCert, Error, ExtendedKeyUsageValidator, KeyPurposeIdIter, VerifiedPath,
    anchor_from_trusted_cert,
};

use super::VerifyError;
use crate::svid::Certificate;

/// Every algorithm that ring verifies, apart from RSA-PSS with uncommon parameters.
const ALGORITHMS: &[&dyn SignatureVerificationAlgorithm] = &[
    webpki::ring::ECDSA_P256_SHA256,
    webpki::ring::ECDSA_P256_SHA384,
    webpki::ring::ECDSA_P384_SHA256,
    webpki::ring::ECDSA_P384_SHA384,
    webpki::ring::ED25519,
    webpki::ring::RSA_PKCS1_2048_8192_SHA256,
    webpki::ring::RSA_PKCS1_2048_8192_SHA384,
    webpki::ring::RSA_PKCS1_2048_8192_SHA512,
    webpki::ring::RSA_PKCS1_2048_8192_SHA256_ABSENT_PARAMS,
    webpki::ring::RSA_PKCS1_2048_8192_SHA384_ABSENT_PARAMS,
    webpki::ring::RSA_PKCS1_2048_8192_SHA512_ABSENT_PARAMS,
    webpki::ring::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
    webpki::ring::RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
    webpki::ring::RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
];

/// SPIFFE does not constrain extended key usage (X509-SVID 4.4).
struct AnyUsage;

impl ExtendedKeyUsageValidator for AnyUsage {
    fn validate(&self, _purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), Error> {
        Ok(())
    }
}

/// The path from the first of `chain` over any of the others to one of `authorities`, all of it valid at `now`.
pub(super) fn find<'a>(
    chain: &[Certificate],
    authorities: impl Iterator<Item = &'a Certificate>,
    now: SystemTime,
) -> Result<Vec<Certificate>, VerifyError> {
    let leaf = chain
        .first()
        .ok_or_else(|| VerifyError::Invalid("no certificate".to_owned()))?;
    check_date(leaf, now)?;
    let (current, outdated): (Vec<_>, Vec<_>) = authorities
        .filter(|authority| authority.is_ca())
        .partition(|authority| authority.is_valid_at(now));
    let refused = match build(chain, &current, now) {
        Ok(path) => return check_dates(path, now),
        Err(refused) => refused,
    };
    // webpki holds an anchor valid for ever. One that has expired is not an unknown one, so it is tried apart.
    if refused == VerifyError::UnknownAuthority && !outdated.is_empty() {
        return check_dates(build(chain, &outdated, now)?, now);
    }
    Err(refused)
}

fn build(
    chain: &[Certificate],
    authorities: &[&Certificate],
    now: SystemTime,
) -> Result<Vec<Certificate>, VerifyError> {
    let ders: Vec<_> = chain
        .iter()
        .map(|certificate| CertificateDer::from(certificate.der().as_ref()))
        .collect();
    let (leaf, intermediates) = ders.split_first().ok_or(VerifyError::UnknownAuthority)?;
    let leaf = EndEntityCert::try_from(leaf).map_err(|error| reason_of(&error))?;
    let authority_ders: Vec<_> = authorities
        .iter()
        .map(|authority| CertificateDer::from(authority.der().as_ref()))
        .collect();
    // An authority that webpki cannot read anchors nothing; the others still count.
    let (authorities, anchors): (Vec<&Certificate>, Vec<TrustAnchor<'_>>) = authorities
        .iter()
        .zip(&authority_ders)
        .filter_map(|(authority, der)| Some((*authority, anchor_from_trusted_cert(der).ok()?)))
        .unzip();
    let time = UnixTime::since_unix_epoch(
        now.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default(),
    );
    let path = leaf
        .verify_for_usage(
            ALGORITHMS,
            &anchors,
            intermediates,
            time,
            AnyUsage,
            None,
            None,
        )
        .map_err(|error| reason_of(&error))?;
    certificates_of(&path, chain, &authorities, &anchors)
        .ok_or_else(|| VerifyError::Invalid("the path has foreign certificates".to_owned()))
}

/// The path in the agent's own terms.
fn certificates_of(
    path: &VerifiedPath<'_>,
    chain: &[Certificate],
    authorities: &[&Certificate],
    anchors: &[TrustAnchor<'_>],
) -> Option<Vec<Certificate>> {
    let mut certificates = vec![chain.first()?.clone()];
    for intermediate in path.intermediate_certificates() {
        let der = intermediate.der();
        certificates.push(
            chain
                .iter()
                .find(|certificate| certificate.der().as_ref() == der.as_ref())?
                .clone(),
        );
    }
    let anchor = anchors.iter().position(|anchor| anchor == path.anchor())?;
    certificates.push((*authorities.get(anchor)?).clone());
    Some(certificates)
}

fn check_dates(path: Vec<Certificate>, now: SystemTime) -> Result<Vec<Certificate>, VerifyError> {
    path.iter()
        .try_for_each(|certificate| check_date(certificate, now))?;
    Ok(path)
}

fn check_date(certificate: &Certificate, now: SystemTime) -> Result<(), VerifyError> {
    if now < certificate.not_before() {
        return Err(VerifyError::NotYetValid);
    }
    if now > certificate.not_after() {
        return Err(VerifyError::Expired);
    }
    Ok(())
}

/// A name that fits with a signature that does not is an authority of the same name but another key, such as that of a server
/// that was set up anew: unknown, as Go has it.
fn reason_of(error: &Error) -> VerifyError {
    if matches!(
        error,
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey
    ) {
        VerifyError::UnknownAuthority
    } else if matches!(error, Error::CertExpired { .. }) {
        VerifyError::Expired
    } else if matches!(error, Error::CertNotValidYet { .. }) {
        VerifyError::NotYetValid
    } else {
        VerifyError::Invalid(error.to_string())
    }
}
