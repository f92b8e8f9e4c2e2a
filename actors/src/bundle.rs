//! Trust bundles: the authorities of one trust domain, and whether a chain leads to one of them.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use proto::spire::api::types;

use crate::clock::from_unix_seconds;
use crate::spiffe_id::TrustDomain;
use crate::svid::parse::is_public_key;
use crate::svid::{Certificate, CertificateError, PemPolicy};

mod document;
mod path;

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
        let jwt_authorities = jwt_authorities.collect::<Result<_, _>>()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{KeyType, PrivateKey};
    use crate::testing::certificates::{Ca, leaf_params};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{ExtendedKeyUsagePurpose, KeyPair};

    const ID: &str = "spiffe://domain.test/web";
    const HOUR: Duration = Duration::from_hours(1);

    fn epoch() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
    }

    fn domain() -> TrustDomain {
        TrustDomain::parse("domain.test").unwrap()
    }

    fn message(ca: &Ca) -> types::Bundle {
        types::Bundle {
            trust_domain: "domain.test".to_owned(),
            x509_authorities: vec![types::X509Certificate {
                asn1: ca.certificate().der().to_vec(),
                tainted: true,
            }],
            jwt_authorities: vec![types::JwtKey {
                public_key: PrivateKey::generate(KeyType::EcP256)
                    .unwrap()
                    .public_key_der()
                    .to_vec(),
                key_id: "one".to_owned(),
                expires_at: 0,
                tainted: false,
            }],
            refresh_hint: 60,
            sequence_number: 7,
            ..Default::default()
        }
    }

    #[test]
    fn a_pem_file_gives_its_certificates() {
        let (one, two) = (Ca::new(epoch()), Ca::new(epoch()));
        let text = one.certificate().to_pem() + &two.certificate().to_pem();

        let bundle = Bundle::from_file_text(&domain(), text.as_bytes(), BundleFormat::Pem).unwrap();

        assert_eq!(
            bundle.x509_authorities(),
            [one.authority(), two.authority()]
        );
        assert_eq!(
            bundle.x509_der().len(),
            one.certificate().der().len() + two.certificate().der().len()
        );
        let refused = Bundle::from_file_text(&domain(), b"", BundleFormat::Pem).unwrap_err();
        assert_eq!(refused.to_string(), "no PEM blocks");
    }

    #[test]
    fn a_spiffe_document_gives_its_x509_authorities() {
        let ca = Ca::new(epoch());
        let encoded = STANDARD.encode(ca.certificate().der());
        let text = format!(
            r#"{{"keys": [{{"kty": "EC", "use": "x509-svid", "crv": "P-256", "x": "", "y": "", "x5c": ["{encoded}"]}},
                {{"kty": "EC", "use": "jwt-svid", "kid": "one"}}, {{"use": "wit-svid", "kid": "two"}}],
                "spiffe_sequence": 1, "spiffe_refresh_hint": 300}}"#
        );

        let bundle =
            Bundle::from_file_text(&domain(), text.as_bytes(), BundleFormat::Spiffe).unwrap();

        assert_eq!(bundle, ca.bundle("domain.test"));
    }

    #[test]
    fn unusable_spiffe_documents_are_refused_with_their_reason() {
        let table = [
            ("", "malformed SPIFFE bundle: EOF"),
            ("[]", "malformed SPIFFE bundle"),
            ("{}", "no X.509 authorities"),
            (r#"{"keys": null}"#, "no X.509 authorities"),
            (
                r#"{"keys": [{"use": "jwt-svid", "kid": "one"}]}"#,
                "no X.509 authorities",
            ),
            (
                r#"{"keys": [{"kid": "one"}]}"#,
                "missing use for key entry 0",
            ),
            (
                r#"{"keys": [{"use": "jwt-svid", "kid": "a"}, {"use": ""}]}"#,
                "missing use for key entry 1",
            ),
            (
                r#"{"keys": [{"use": "sig"}]}"#,
                r#"unrecognized use "sig" for key entry 0"#,
            ),
            (
                r#"{"keys": [{"use": "jwt-svid"}]}"#,
                "missing kid for key entry 0",
            ),
            (
                r#"{"keys": [{"use": "x509-svid"}]}"#,
                "expected one certificate in key entry 0, found 0",
            ),
            (
                r#"{"keys": [{"use": "x509-svid", "x5c": ["a", "b"]}]}"#,
                "expected one certificate in key entry 0, found 2",
            ),
            (
                r#"{"keys": [{"use": "x509-svid", "x5c": ["!"]}]}"#,
                "certificate of key entry 0 is not base64",
            ),
            (
                r#"{"keys": [{"use": "x509-svid", "x5c": ["AAAA"]}]}"#,
                "key entry 0: malformed certificate",
            ),
        ];

        for (text, reason) in table {
            let refused = Bundle::from_file_text(&domain(), text.as_bytes(), BundleFormat::Spiffe)
                .unwrap_err();
            assert!(refused.to_string().contains(reason), "{text}: {refused}");
        }
    }

    #[test]
    fn the_servers_message_is_taken_whole() {
        let ca = Ca::new(epoch());
        let mut limited = message(&ca);
        limited.jwt_authorities[0].expires_at = 1_790_000_000;

        let bundle = Bundle::from_proto(message(&ca), &domain()).unwrap();

        assert_eq!(
            bundle.x509_authorities(),
            [X509Authority {
                tainted: true,
                ..ca.authority()
            }]
        );
        assert_eq!(
            (bundle.refresh_hint, bundle.sequence_number),
            (Duration::from_mins(1), 7)
        );
        assert_eq!(
            (
                bundle.jwt_authorities[0].key_id.as_str(),
                bundle.jwt_authorities[0].expires_at
            ),
            ("one", None)
        );
        let limited = Bundle::from_proto(limited, &domain()).unwrap();
        assert_eq!(limited.jwt_authorities[0].expires_at, Some(epoch()));
    }

    #[test]
    fn unusable_messages_are_refused() {
        let ca = Ca::new(epoch());
        let changed = |change: fn(&mut types::Bundle)| {
            let mut message = message(&ca);
            change(&mut message);
            Bundle::from_proto(message, &domain()).unwrap_err()
        };

        assert_eq!(
            changed(|m| m.trust_domain = "other.test".to_owned()),
            BundleError::TrustDomain(domain())
        );
        assert_eq!(
            changed(|m| m.trust_domain.clear()),
            BundleError::TrustDomain(domain())
        );
        assert_eq!(
            changed(|m| m.jwt_authorities[0].key_id.clear()),
            BundleError::MissingKeyId(0)
        );
        assert_eq!(
            changed(|m| m.jwt_authorities[0].public_key.clear()),
            BundleError::JwtKey(0)
        );
        assert!(matches!(
            changed(|m| m.x509_authorities[0].asn1.truncate(9)),
            BundleError::Certificate(_)
        ));
        assert!(matches!(
            changed(|m| m.x509_authorities[0].asn1.clear()),
            BundleError::Certificate(_)
        ));
    }

    #[test]
    fn a_chain_is_followed_to_an_authority_of_the_bundle() {
        let root = Ca::new(epoch());
        let upper = root.intermediate(epoch(), epoch() + HOUR);
        let lower = upper.intermediate(epoch(), epoch() + HOUR);
        let svid = lower.svid(ID, epoch(), epoch() + HOUR);
        let swapped = [
            svid.chain()[0].clone(),
            svid.chain()[2].clone(),
            svid.chain()[1].clone(),
        ];
        let expected = [svid.chain(), &[root.certificate().clone()]].concat();

        assert_eq!(
            root.bundle("domain.test")
                .verified_path(svid.chain(), epoch())
                .unwrap(),
            expected
        );
        assert_eq!(
            root.bundle("domain.test")
                .verified_path(&swapped, epoch())
                .unwrap(),
            expected
        );
        assert_eq!(
            root.bundle("domain.test").verify(&swapped[..2], epoch()),
            Err(VerifyError::UnknownAuthority)
        );
        // An authority need not be self-signed.
        let path = upper
            .bundle("domain.test")
            .verified_path(svid.chain(), epoch())
            .unwrap();
        assert_eq!(path, expected[..3]);
    }

    #[test]
    fn a_path_is_refused_for_the_reason_that_go_gives() {
        let (early, late) = (epoch() - HOUR, epoch() + HOUR);
        let good = Ca::new(epoch());
        let expired_root = Ca::valid(early, epoch() - Duration::from_secs(1));
        let future_root = Ca::valid(late, late + HOUR);
        let table = [
            (good.svid(ID, early, late), &good, Ok(())),
            (good.svid(ID, early, epoch()), &good, Ok(())),
            (
                good.svid(ID, early, epoch() - Duration::from_secs(1)),
                &good,
                Err(VerifyError::Expired),
            ),
            (
                good.svid(ID, late, late),
                &good,
                Err(VerifyError::NotYetValid),
            ),
            (
                good.intermediate(early, early).svid(ID, early, late),
                &good,
                Err(VerifyError::Expired),
            ),
            (
                good.intermediate(late, late).svid(ID, early, late),
                &good,
                Err(VerifyError::NotYetValid),
            ),
            (
                expired_root.svid(ID, early, late),
                &expired_root,
                Err(VerifyError::Expired),
            ),
            (
                expired_root.intermediate(early, late).svid(ID, early, late),
                &expired_root,
                Err(VerifyError::Expired),
            ),
            (
                future_root.svid(ID, early, late),
                &future_root,
                Err(VerifyError::NotYetValid),
            ),
            (
                Ca::new(epoch()).svid(ID, early, late),
                &good,
                Err(VerifyError::UnknownAuthority),
            ),
            (
                Ca::new(epoch())
                    .intermediate(early, late)
                    .svid(ID, early, late),
                &good,
                Err(VerifyError::UnknownAuthority),
            ),
            (
                good.intermediate(early, late).svid(ID, early, late),
                &expired_root,
                Err(VerifyError::UnknownAuthority),
            ),
        ];

        for (row, (svid, ca, outcome)) in table.into_iter().enumerate() {
            assert_eq!(
                ca.bundle("domain.test").verify(svid.chain(), epoch()),
                outcome,
                "row {row}"
            );
        }
        assert!(matches!(
            good.bundle("domain.test").verify(&[], epoch()),
            Err(VerifyError::Invalid(_))
        ));
    }

    #[test]
    fn a_renewed_authority_with_the_same_name_is_found_beside_the_expired_one() {
        let old = Ca::valid(epoch() - HOUR, epoch() - Duration::from_secs(1));
        let new = Ca::new(epoch());
        let bundle = Bundle::new(domain(), vec![old.authority(), new.authority()]);

        assert_eq!(
            bundle.verify(new.svid(ID, epoch(), epoch()).chain(), epoch()),
            Ok(())
        );
        assert_eq!(
            bundle.verify(old.svid(ID, epoch(), epoch()).chain(), epoch()),
            Err(VerifyError::Expired)
        );
        assert_eq!(
            Bundle::new(domain(), vec![]).verify(new.svid(ID, epoch(), epoch()).chain(), epoch()),
            Err(VerifyError::UnknownAuthority)
        );
    }

    #[test]
    fn extended_key_usage_is_not_constrained() {
        let ca = Ca::new(epoch());
        for usages in [vec![], vec![ExtendedKeyUsagePurpose::CodeSigning]] {
            let mut params = leaf_params(&[ID], epoch(), epoch() + HOUR);
            params.extended_key_usages = usages;

            let chain = ca.chain(&params, &KeyPair::generate().unwrap());

            assert_eq!(ca.bundle("domain.test").verify(&chain, epoch()), Ok(()));
        }
    }

    #[test]
    fn a_certificate_that_is_no_authority_signs_nothing() {
        let ca = Ca::new(epoch());
        let false_authority = ca.svid(ID, epoch(), epoch() + HOUR).leaf().clone();
        let bundle = Bundle::new(
            domain(),
            vec![X509Authority {
                certificate: false_authority.clone(),
                tainted: false,
            }],
        );

        assert_eq!(
            bundle.verify(&[false_authority], epoch()),
            Err(VerifyError::UnknownAuthority)
        );
    }
}
