//! Certificate authorities for tests: they issue SVIDs with any dates, for a new key, a given key or a signing request.
//!
//! ```
//! # use std::time::{Duration, SystemTime};
//! # use actors::testing::certificates::Ca;
//! let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
//! let ca = Ca::new(epoch);
//! let svid = ca.svid("spiffe://domain.test/web", epoch, epoch + Duration::from_secs(3600));
//! assert_eq!(ca.bundle("domain.test").verify(svid.chain(), epoch), Ok(()));
//! ```

#![expect(
    clippy::missing_panics_doc,
    reason = "a fixture panics where a test is wrong"
)]

use std::fmt;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
    SanType, SerialNumber, SubjectPublicKeyInfo,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls_pki_types::CertificateSigningRequestDer;

use crate::bundle::{Bundle, X509Authority};
use crate::keys::{KeyType, PrivateKey};
use crate::spiffe_id::TrustDomain;
use crate::svid::{Certificate, X509Svid};

const DAY: Duration = Duration::from_hours(24);

/// A certificate authority with a P-256 key. Panics where a test is wrong.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
    /// What a leaf of this authority is sent with, nearest first; empty for a root.
    intermediates: Vec<Certificate>,
}

impl Ca {
    /// A root that is valid from a day before `epoch` until ten years after it.
    pub fn new(epoch: SystemTime) -> Self {
        Self::valid(epoch - DAY, epoch + 3650 * DAY)
    }

    /// A root that is valid between two dates. All roots have the same name, as those of a server that is set up anew do.
    pub fn valid(from: SystemTime, until: SystemTime) -> Self {
        let key = KeyPair::generate().expect("ring makes keys");
        let params = authority_params("authority", from, until);
        let certificate = params.self_signed(&key).expect("the parameters are valid");
        Self {
            certificate: parsed(&certificate),
            issuer: Issuer::new(params, key),
            intermediates: Vec::new(),
        }
    }

    /// An authority below this one; its leaves come with its certificate.
    #[must_use]
    pub fn intermediate(&self, from: SystemTime, until: SystemTime) -> Self {
        let key = KeyPair::generate().expect("ring makes keys");
        let params = authority_params(
            &format!("intermediate {}", self.intermediates.len() + 1),
            from,
            until,
        );
        let certificate = parsed(
            &params
                .signed_by(&key, &self.issuer)
                .expect("the parameters are valid"),
        );
        let intermediates = [
            std::slice::from_ref(&certificate),
            self.intermediates.as_slice(),
        ]
        .concat();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
            intermediates,
        }
    }

    /// The authority's own certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The authority as an entry of a bundle.
    pub fn authority(&self) -> X509Authority {
        X509Authority {
            certificate: self.certificate.clone(),
            tainted: false,
        }
    }

    /// A bundle with this authority alone.
    pub fn bundle(&self, trust_domain: &str) -> Bundle {
        let trust_domain =
            TrustDomain::parse(trust_domain).expect("tests name valid trust domains");
        Bundle::new(trust_domain, vec![self.authority()])
    }

    /// An SVID with a new P-256 key.
    pub fn svid(&self, id: &str, from: SystemTime, until: SystemTime) -> X509Svid {
        let key = PrivateKey::generate(KeyType::EcP256).expect("ring makes keys");
        let chain = self.chain_for_key(&key, id, from, until);
        X509Svid::new(chain, key).expect("the leaf is made for this key")
    }

    /// A leaf and its intermediates for a key.
    pub fn chain_for_key(
        &self,
        key: &PrivateKey,
        id: &str,
        from: SystemTime,
        until: SystemTime,
    ) -> Vec<Certificate> {
        let public_key = SubjectPublicKeyInfo::from_der(key.public_key_der())
            .expect("the key is of a kind that rcgen knows");
        self.chain(&leaf_params(&[id], from, until), &public_key)
    }

    /// A leaf and its intermediates for the public key in a signing request, as a server issues it.
    pub fn chain_for_request(
        &self,
        request: &[u8],
        id: &str,
        from: SystemTime,
        until: SystemTime,
    ) -> Vec<Certificate> {
        let request =
            CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
                .expect("the request is valid");
        self.chain(&leaf_params(&[id], from, until), &request.public_key)
    }

    /// A leaf with other parameters (see [`leaf_params`]) and its intermediates.
    pub fn chain(
        &self,
        params: &CertificateParams,
        public_key: &impl PublicKeyData,
    ) -> Vec<Certificate> {
        let leaf = params
            .signed_by(public_key, &self.issuer)
            .expect("the parameters are valid");
        [&[parsed(&leaf)], self.intermediates.as_slice()].concat()
    }
}

/// What a SPIRE server puts into a leaf, with any number of URI SANs.
pub fn leaf_params(uri_names: &[&str], from: SystemTime, until: SystemTime) -> CertificateParams {
    let mut params = params(from, until);
    params.subject_alt_names = uri_names
        .iter()
        .map(|name| SanType::URI((*name).try_into().expect("tests name ASCII URIs")))
        .collect();
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyAgreement,
    ];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.is_ca = IsCa::ExplicitNoCa;
    params
}

fn authority_params(name: &str, from: SystemTime, until: SystemTime) -> CertificateParams {
    let mut params = params(from, until);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn params(from: SystemTime, until: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch = |date: SystemTime| {
        date.duration_since(SystemTime::UNIX_EPOCH)
            .expect("tests play after 1970")
    };
    params.not_before = epoch + since_epoch(from);
    params.not_after = epoch + since_epoch(until);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CountryName, "US");
    params
        .distinguished_name
        .push(DnType::OrganizationName, "SPIRE");
    params.use_authority_key_identifier_extension = true;
    let mut serial = [0; 16];
    SystemRandom::new()
        .fill(&mut serial)
        .expect("the system has random numbers");
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params
}

fn parsed(certificate: &rcgen::Certificate) -> Certificate {
    Certificate::from_der(certificate.der()).expect("rcgen makes valid certificates")
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}
