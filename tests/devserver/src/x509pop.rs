//! The server half of the x509pop attestor (2.3): payload, chain, agent path, selectors; `proof` has
//! challenge and response. Pure.

mod proof;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use serde::Deserialize;
use tonic::Status;
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

use crate::certificate::{hex, sha1};
use crate::clock::Seconds;
use crate::settings::{AgentPath, X509pop, X509popMode};
use proof::NodeKey;

#[derive(Deserialize)]
struct Payload {
    #[serde(default)]
    certificates: Option<Vec<String>>,
}

/// A node whose certificate has been verified; possession of its key has not.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) key: NodeKey,
    /// The agent's path below `/spire/agent`.
    pub(crate) agent_path: String,
    /// Node selectors as `x509pop:value`.
    pub(crate) selectors: Vec<String>,
}

/// Any extended key usage will do.
struct AnyUsage;

impl ExtendedKeyUsageValidator for AnyUsage {
    fn validate(&self, _: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}

/// Steps 1 to 7 and 9 to 12: from the payload to a node, with `own_authorities` as roots in SPIFFE mode.
pub(crate) fn verify_node(
    payload: &[u8],
    settings: &X509pop,
    trust_domain: &str,
    own_authorities: Vec<Vec<u8>>,
    now: Seconds,
) -> Result<Node, Status> {
    let certificates = parse_payload(payload, settings.max_intermediates)?;
    let (leaf_der, intermediates) = certificates
        .split_first()
        .ok_or_else(|| Status::invalid_argument("x509pop payload has no certificate"))?;
    let (_, leaf) = X509Certificate::from_der(leaf_der)
        .map_err(|error| Status::invalid_argument(format!("x509pop leaf: {error}")))?;
    for (number, der) in intermediates.iter().enumerate() {
        X509Certificate::from_der(der).map_err(|error| {
            Status::invalid_argument(format!("x509pop intermediate {number}: {error}"))
        })?;
    }
    let roots = match settings.mode {
        X509popMode::ExternalPki => crate::certificate::certificates_from_pem(&settings.roots_pem)
            .map_err(|error| Status::internal(format!("x509pop roots: {error}")))?,
        X509popMode::Spiffe { .. } => own_authorities,
    };
    let issuers = verify_chain(leaf_der, intermediates, &roots, now)?;
    let signs = leaf
        .key_usage()
        .ok()
        .flatten()
        .is_some_and(|usage| usage.value.digital_signature());
    if !signs {
        return Err(Status::internal(
            "x509pop leaf is not for digital signatures",
        ));
    }
    Ok(Node {
        key: NodeKey::of(&leaf)?,
        agent_path: agent_path(&leaf, leaf_der, settings)?,
        selectors: selectors(&leaf, &issuers, trust_domain),
    })
}

fn parse_payload(payload: &[u8], max_intermediates: Option<usize>) -> Result<Vec<Vec<u8>>, Status> {
    let payload: Payload = serde_json::from_slice(payload)
        .map_err(|error| Status::invalid_argument(format!("x509pop payload: {error}")))?;
    let encoded = payload.certificates.unwrap_or_default();
    if max_intermediates.is_some_and(|most| encoded.len() > most + 1) {
        return Err(Status::invalid_argument(
            "x509pop payload has too many certificates",
        ));
    }
    encoded
        .iter()
        .map(|text| {
            STANDARD
                .decode(text)
                .map_err(|error| Status::invalid_argument(format!("x509pop payload: {error}")))
        })
        .collect()
}

/// Verifies the leaf and returns the certificates above it, the root included.
fn verify_chain(
    leaf: &[u8],
    intermediates: &[Vec<u8>],
    roots: &[Vec<u8>],
    now: Seconds,
) -> Result<Vec<Vec<u8>>, Status> {
    let denied =
        |error: webpki::Error| Status::permission_denied(format!("x509pop certificate: {error}"));
    let root_certificates: Vec<CertificateDer<'_>> = roots
        .iter()
        .map(|der| CertificateDer::from(der.as_slice()))
        .collect();
    let anchors: Vec<TrustAnchor<'_>> = root_certificates
        .iter()
        .filter_map(|certificate| webpki::anchor_from_trusted_cert(certificate).ok())
        .collect();
    let intermediates: Vec<CertificateDer<'_>> = intermediates
        .iter()
        .map(|der| CertificateDer::from(der.as_slice()))
        .collect();
    let leaf = CertificateDer::from(leaf);
    let leaf = EndEntityCert::try_from(&leaf).map_err(denied)?;
    let since_epoch = Duration::from_secs(now.try_into().unwrap_or_default());
    let path = leaf
        .verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors,
            &intermediates,
            UnixTime::since_unix_epoch(since_epoch),
            AnyUsage,
            None,
            None,
        )
        .map_err(denied)?;
    let root = anchors
        .iter()
        .position(|anchor| {
            anchor.subject == path.anchor().subject
                && anchor.subject_public_key_info == path.anchor().subject_public_key_info
        })
        .and_then(|position| roots.get(position).cloned());
    Ok(path
        .intermediate_certificates()
        .map(|certificate| certificate.der().to_vec())
        .chain(root)
        .collect())
}

/// Steps 9 and 11: the agent's path below `/spire/agent`.
fn agent_path(
    leaf: &X509Certificate<'_>,
    leaf_der: &[u8],
    settings: &X509pop,
) -> Result<String, Status> {
    let last = match (&settings.mode, settings.agent_path) {
        (X509popMode::Spiffe { prefix }, _) => {
            let prefix = format!("{}/", prefix.trim_end_matches('/'));
            let denied =
                || Status::permission_denied("x509pop leaf has no SPIFFE ID below the prefix");
            let id = uris(leaf)
                .into_iter()
                .find(|uri| uri.starts_with("spiffe://"))
                .ok_or_else(denied)?;
            let path = id
                .splitn(4, '/')
                .nth(3)
                .map(|rest| format!("/{rest}"))
                .ok_or_else(denied)?;
            path.strip_prefix(&prefix).ok_or_else(denied)?.to_owned()
        }
        (X509popMode::ExternalPki, AgentPath::Fingerprint) => hex(&sha1(leaf_der)),
        (X509popMode::ExternalPki, AgentPath::CommonName) => {
            common_name(leaf).ok_or_else(|| {
                Status::internal("x509pop leaf has no common name for the agent path")
            })?
        }
    };
    Ok(format!("/x509pop/{last}"))
}

/// Step 12: the node's selectors, in SPIRE's order.
fn selectors(leaf: &X509Certificate<'_>, issuers: &[Vec<u8>], trust_domain: &str) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(common_name(leaf).map(|name| format!("x509pop:subject:cn:{name}")));
    for issuer in issuers {
        let selector = format!("x509pop:ca:fingerprint:{}", hex(&sha1(issuer)));
        if !all.contains(&selector) {
            all.push(selector);
        }
    }
    let serial = leaf.raw_serial();
    let serial = serial
        .strip_prefix(&[0])
        .filter(|rest| !rest.is_empty())
        .unwrap_or(serial);
    all.push(format!("x509pop:serialnumber:{}", hex(serial)));
    let prefix = format!("x509pop://{trust_domain}/");
    for uri in uris(leaf) {
        if let Some((key, value)) = uri
            .strip_prefix(&prefix)
            .and_then(|rest| rest.split_once('/'))
        {
            all.push(format!("x509pop:san:{key}:{value}"));
        }
    }
    all
}

fn common_name(leaf: &X509Certificate<'_>) -> Option<String> {
    let name = leaf.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

/// The URI names of a certificate.
pub(crate) fn uris(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let mut uris = Vec::new();
    for name in &names.value.general_names {
        if let GeneralName::URI(uri) = name {
            uris.push((*uri).to_owned());
        }
    }
    uris
}
