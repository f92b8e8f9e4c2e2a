//! Certificates for these tests.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::bundle::{Bundle, X509Authority};
use crate::keys::PrivateKey;
use crate::spiffe_id::TrustDomain;
use crate::svid::{Certificate, X509Svid};

/// A certificate authority.
#[derive(Clone)]
pub(super) struct Authority {
    pub(super) certificate: CertificateDer<'static>,
    issuer: Arc<Issuer<'static, KeyPair>>,
}

/// A leaf and its key.
pub(super) struct Identity {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivatePkcs8KeyDer<'static>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.subject_alt_names = vec![SanType::URI("spiffe://domain.test".try_into().unwrap())];
        let key = KeyPair::generate().unwrap();
        // Names of its own, lest a foreign authority look like a damaged one.
        let name = STANDARD.encode(key.public_key_raw());
        params.distinguished_name.push(
            DnType::CommonName,
            name.chars().take(40).collect::<String>(),
        );
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self {
            certificate,
            issuer: Arc::new(Issuer::new(params, key)),
        }
    }

    pub(super) fn issue(&self, id: &str) -> Identity {
        self.issue_until(id, 2100)
    }

    pub(super) fn issue_until(&self, id: &str, year: i32) -> Identity {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity {
            certificate: certificate.der().clone(),
            key: PrivatePkcs8KeyDer::from(key.serialize_der()),
        }
    }

    pub(super) fn bundle(&self) -> Arc<Bundle> {
        let authority = X509Authority {
            certificate: Certificate::from_der(&self.certificate).unwrap(),
            tainted: false,
        };
        Arc::new(Bundle::new(
            TrustDomain::parse("domain.test").unwrap(),
            vec![authority],
        ))
    }
}

impl Identity {
    pub(super) fn svid(&self) -> Arc<X509Svid> {
        let chain = vec![Certificate::from_der(&self.certificate).unwrap()];
        let key = PrivateKey::from_pkcs8(self.key.secret_pkcs8_der()).unwrap();
        Arc::new(X509Svid::new(chain, key).unwrap())
    }
}
