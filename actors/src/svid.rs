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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyType;
    use crate::testing::certificates::{Ca, leaf_params};
    use rcgen::{DnType, KeyPair};

    const ID: &str = "spiffe://domain.test/web";
    const KEY_BLOCK: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";

    fn epoch() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
    }

    fn leaf() -> Certificate {
        Ca::new(epoch())
            .svid(ID, epoch(), epoch() + Duration::from_mins(1))
            .leaf()
            .clone()
    }

    #[test]
    fn a_certificate_says_what_it_was_made_with() {
        let ca = Ca::new(epoch());
        let svid = ca.svid(ID, epoch(), epoch() + Duration::from_mins(1));

        let leaf = svid.leaf();

        assert_eq!(
            (leaf.not_before(), leaf.not_after()),
            (epoch(), epoch() + Duration::from_mins(1))
        );
        assert_eq!(leaf.uri_names(), [ID.to_owned()]);
        assert_eq!(svid.id.as_str(), ID);
        assert_eq!(svid.lifetime(), Duration::from_mins(1));
        assert_eq!(leaf.authority_key_id(), ca.certificate().subject_key_id());
        assert!(leaf.authority_key_id().is_some());
        assert_eq!((leaf.is_ca(), leaf.may_sign_certificates()), (false, false));
        assert_eq!(
            (
                ca.certificate().is_ca(),
                ca.certificate().may_sign_certificates()
            ),
            (true, true)
        );
        assert_eq!(ca.certificate().subject(), "CN=authority,O=SPIRE,C=US");
    }

    #[test]
    fn subjects_print_as_go_prints_them() {
        let mut params = leaf_params(&[ID], epoch(), epoch() + Duration::from_mins(1));
        params
            .distinguished_name
            .push(DnType::from_oid(&[2, 5, 4, 45]), "ab@c");
        params
            .distinguished_name
            .push(DnType::OrganizationalUnitName, "a,b+c");
        params.distinguished_name.push(DnType::LocalityName, " #x ");
        params
            .distinguished_name
            .push(DnType::CommonName, "#agent\u{1b}");

        let chain = Ca::new(epoch()).chain(&params, &KeyPair::generate().unwrap());

        assert_eq!(
            chain[0].subject(),
            r"CN=\#agent\1B,L=\ #x\ ,OU=a\,b\+c,O=SPIRE,C=US,2.5.4.45=#0c0461624063"
        );
    }

    #[test]
    fn der_and_pem_round_trip() {
        let chain = [leaf(), leaf()];
        let der: Vec<u8> = chain
            .iter()
            .flat_map(|certificate| certificate.der().to_vec())
            .collect();
        let pem: String = chain.iter().map(Certificate::to_pem).collect();

        assert_eq!(Certificate::list_from_der(&der).unwrap(), chain);
        assert_eq!(
            Certificate::list_from_pem(pem.as_bytes(), PemPolicy::CertificatesOnly).unwrap(),
            chain
        );
        assert!(pem.lines().all(|line| line.len() <= 64));
        let crlf = format!("Certificate:\r\n  Data:\r\n{}", pem.replace('\n', "\r\n"));
        assert_eq!(
            Certificate::list_from_pem(crlf.as_bytes(), PemPolicy::CertificatesOnly).unwrap(),
            chain
        );
    }

    #[test]
    fn unusable_pem_is_refused_with_its_reason() {
        let good = leaf().to_pem();
        let mixed = format!("{good}{KEY_BLOCK}");
        let foreign = || CertificateError::ForeignBlock("PRIVATE KEY".to_owned());
        let unknown =
            "-----BEGIN TRUSTED CERTIFICATE-----\nAAAA\n-----END TRUSTED CERTIFICATE-----\n";
        let table = [
            (
                "",
                PemPolicy::CertificatesOnly,
                CertificateError::NoPemBlock,
            ),
            (
                "text",
                PemPolicy::CertificatesOnly,
                CertificateError::NoPemBlock,
            ),
            ("text", PemPolicy::SkipOthers, CertificateError::Missing),
            (KEY_BLOCK, PemPolicy::SkipOthers, CertificateError::Missing),
            (&mixed, PemPolicy::CertificatesOnly, foreign()),
            (
                unknown,
                PemPolicy::CertificatesOnly,
                CertificateError::ForeignBlock("TRUSTED CERTIFICATE".to_owned()),
            ),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n",
                PemPolicy::SkipOthers,
                CertificateError::MalformedPem("block without an end".to_owned()),
            ),
            (
                "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
                PemPolicy::SkipOthers,
                CertificateError::MalformedPem("damaged base64".to_owned()),
            ),
        ];

        for (text, policy, reason) in table {
            assert_eq!(
                Certificate::list_from_pem(text.as_bytes(), policy).unwrap_err(),
                reason,
                "{text}"
            );
        }
        assert_eq!(
            Certificate::list_from_pem(mixed.as_bytes(), PemPolicy::SkipOthers)
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            foreign().to_string(),
            r#"expected block type "CERTIFICATE"; got "PRIVATE KEY""#
        );
    }

    #[test]
    fn hostile_der_is_refused() {
        let der = leaf().der().to_vec();
        let trailing = [der.as_slice(), &[0]].concat();
        let many = der.repeat(101);
        let huge = vec![0x30; 2 * 1024 * 1024];

        assert_eq!(
            Certificate::list_from_der(&[]),
            Err(CertificateError::Missing)
        );
        for bytes in [
            &trailing[..],
            &der[..der.len() - 1],
            &[0x30, 0x80],
            &many,
            &huge,
        ] {
            assert!(matches!(
                Certificate::list_from_der(bytes),
                Err(CertificateError::Malformed(_))
            ));
            assert!(matches!(
                Certificate::from_der(bytes),
                Err(CertificateError::Malformed(_))
            ));
        }
        for cut in 0..der.len() {
            assert!(Certificate::from_der(&der[..cut]).is_err());
        }
    }

    #[test]
    fn only_a_leaf_with_one_spiffe_id_names_an_identity() {
        let ca = Ca::new(epoch());
        let until = epoch() + Duration::from_mins(1);
        let leaf_with = |names: &[&str]| {
            ca.chain(
                &leaf_params(names, epoch(), until),
                &KeyPair::generate().unwrap(),
            )
            .remove(0)
        };

        assert_eq!(leaf_with(&[ID]).leaf_id().unwrap().as_str(), ID);
        assert_eq!(leaf_with(&[]).leaf_id(), Err(CertificateError::UriNames(0)));
        assert_eq!(
            leaf_with(&[ID, ID]).leaf_id(),
            Err(CertificateError::UriNames(2))
        );
        assert!(matches!(
            leaf_with(&["http://domain.test"]).leaf_id(),
            Err(CertificateError::NotASpiffeId(_))
        ));
        assert_eq!(ca.certificate().leaf_id(), Err(CertificateError::LeafIsCa));
    }

    #[test]
    fn an_svid_with_a_foreign_key_is_refused() {
        let ca = Ca::new(epoch());
        let svid = ca.svid(ID, epoch(), epoch() + Duration::from_mins(1));
        let other = PrivateKey::generate(KeyType::EcP256).unwrap();

        let refused = X509Svid::new(svid.chain().to_vec(), other);

        assert_eq!(refused.unwrap_err(), CertificateError::ForeignKey);
    }
}
