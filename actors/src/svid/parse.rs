//! From DER to [`Certificate`]. Pure; everything that comes in may be hostile.

use std::sync::Arc;

use bytes::Bytes;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::subject::print_name;
use super::{Certificate, CertificateError, Facts};
use crate::clock::from_unix_seconds;

/// Largest certificate in bytes.
const MAX_CERTIFICATE_BYTES: usize = 64 * 1024;
/// Largest list of certificates in bytes.
const MAX_LIST_BYTES: usize = 1024 * 1024;
/// Most certificates in a list.
const MAX_CERTIFICATES: usize = 100;

/// Parses the certificate that `bytes` begins with, and returns what follows it.
pub(super) fn certificate(bytes: &[u8]) -> Result<(Certificate, &[u8]), CertificateError> {
    let (rest, parsed) = X509Certificate::from_der(bytes)
        .map_err(|error| CertificateError::Malformed(error.to_string()))?;
    let (der, _) = bytes.split_at(bytes.len() - rest.len());
    if der.len() > MAX_CERTIFICATE_BYTES {
        return Err(CertificateError::Malformed(format!(
            "larger than {MAX_CERTIFICATE_BYTES} bytes"
        )));
    }
    let facts = Arc::new(facts_of(&parsed)?);
    Ok((
        Certificate {
            der: Bytes::copy_from_slice(der),
            facts,
        },
        rest,
    ))
}

/// Parses concatenated certificates; at least one.
pub(super) fn list(mut bytes: &[u8]) -> Result<Vec<Certificate>, CertificateError> {
    if bytes.len() > MAX_LIST_BYTES {
        return Err(CertificateError::Malformed(format!(
            "list larger than {MAX_LIST_BYTES} bytes"
        )));
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (certificate, rest) = certificate(bytes)?;
        found.push(certificate);
        check_count(found.len())?;
        bytes = rest;
    }
    if found.is_empty() {
        Err(CertificateError::Missing)
    } else {
        Ok(found)
    }
}

/// Refuses a list that is longer than any honest one.
pub(super) fn check_count(certificates: usize) -> Result<(), CertificateError> {
    if certificates > MAX_CERTIFICATES {
        return Err(CertificateError::Malformed(format!(
            "more than {MAX_CERTIFICATES} certificates"
        )));
    }
    Ok(())
}

/// Whether `der` is exactly one `SubjectPublicKeyInfo`.
pub(crate) fn is_public_key(der: &[u8]) -> bool {
    SubjectPublicKeyInfo::from_der(der).is_ok_and(|(rest, _)| rest.is_empty())
}

fn facts_of(parsed: &X509Certificate<'_>) -> Result<Facts, CertificateError> {
    let malformed = |what: &str| CertificateError::Malformed(what.to_owned());
    let names = parsed
        .subject_alternative_name()
        .map_err(|_| malformed("subject alternative name"))?
        .map(|names| names.value);
    let uri_names = names
        .into_iter()
        .flat_map(|names| &names.general_names)
        .filter_map(|name| {
            let GeneralName::URI(uri) = name else {
                return None;
            };
            Some((*uri).to_owned())
        });
    let constraints = parsed
        .basic_constraints()
        .map_err(|_| malformed("basic constraints"))?;
    let usage = parsed.key_usage().map_err(|_| malformed("key usage"))?;
    let (subject_key_id, authority_key_id) = key_ids_of(parsed);
    Ok(Facts {
        not_before: from_unix_seconds(parsed.validity().not_before.timestamp()),
        not_after: from_unix_seconds(parsed.validity().not_after.timestamp()),
        serial: serial_of(parsed),
        subject: print_name(parsed.subject()),
        public_key: parsed.public_key().raw.to_vec(),
        uri_names: uri_names.collect(),
        is_ca: constraints.is_some_and(|constraints| constraints.value.ca),
        may_sign_certificates: usage
            .is_some_and(|usage| usage.value.key_cert_sign() || usage.value.crl_sign()),
        subject_key_id,
        authority_key_id,
    })
}

/// The serial number without the zero that only keeps it positive.
fn serial_of(parsed: &X509Certificate<'_>) -> Vec<u8> {
    match parsed.raw_serial() {
        [0, rest @ ..] if !rest.is_empty() => rest.to_vec(),
        serial => serial.to_vec(),
    }
}

fn key_ids_of(parsed: &X509Certificate<'_>) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let mut subject = None;
    let mut authority = None;
    for extension in parsed.extensions() {
        if let ParsedExtension::SubjectKeyIdentifier(id) = extension.parsed_extension() {
            subject = Some(id.0.to_vec());
        } else if let ParsedExtension::AuthorityKeyIdentifier(ids) = extension.parsed_extension() {
            authority = ids.key_identifier.as_ref().map(|id| id.0.to_vec());
        }
    }
    (subject, authority)
}
