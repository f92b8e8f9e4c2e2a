//! Private keys. Bytes leave through `expose_…` methods alone, so one grep lists every place that touches a key.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, DnValue, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, PublicKeyData, SanType, SignatureAlgorithm,
    SigningKey,
};
use ring::error::Unspecified;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, KeyPair,
    RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls::crypto::ring::sign::any_supported_type;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use crate::keys::pkcs8::{Curve, Pkcs8Kind, read_pkcs8};
use crate::spiffe_id::SpiffeId;

pub(crate) mod der;
pub(crate) mod generate;
pub(crate) mod pkcs8;

const MALFORMED_NAME: KeyError = KeyError::Failed("naming a certificate request");

/// What kind of key is made for an SVID (`workload_x509_svid_key_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyType {
    /// NIST P-256, the default.
    #[default]
    EcP256,
    /// NIST P-384.
    EcP384,
    /// RSA with 2048 bits. Slow to make: not on the actors' thread.
    Rsa2048,
}

/// A private key in PKCS#8, zeroised when dropped. Not cloned: share it as `Arc<PrivateKey>`.
pub struct PrivateKey {
    /// Unencrypted PKCS#8 in an allocation that is zeroised with its last owner.
    pkcs8: Bytes,
    /// The public half as `SubjectPublicKeyInfo`, DER.
    public: Vec<u8>,
}

/// Why a key cannot be made or used. Never says anything about the key's bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The bytes are no private key in PKCS#8, or damaged.
    #[error("not a private key in PKCS#8")]
    Malformed,
    /// The key is of a kind that the agent does not use.
    #[error("unsupported kind of key: {0}")]
    Unsupported(String),
    /// The generator or the signer failed.
    #[error("key operation failed: {0}")]
    Failed(&'static str),
}

impl PrivateKey {
    /// Makes a new key. RSA takes up to seconds: call it on a blocking thread.
    pub fn generate(kind: KeyType) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let made = |algorithm| {
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random)
                .map_err(|_| KeyError::Failed("generating an EC key"))?;
            Self::from_pkcs8(document.as_ref())
        };
        match kind {
            KeyType::EcP256 => made(&ECDSA_P256_SHA256_ASN1_SIGNING),
            KeyType::EcP384 => made(&ECDSA_P384_SHA384_ASN1_SIGNING),
            KeyType::Rsa2048 => Self::from_pkcs8(&generate::rsa_2048_pkcs8(&random)?),
        }
    }

    /// Reads PKCS#8 DER: EC P-256 and P-384 with their public half, RSA of 2048 to 4096 bits (node-side 3.7).
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        let public = Signer::from_pkcs8(der)?.subject_public_key_info();
        Ok(Self {
            pkcs8: Bytes::from_owner(Zeroizing::new(der.to_vec())),
            public,
        })
    }

    /// The public half as `SubjectPublicKeyInfo`, DER.
    pub fn public_key_der(&self) -> &[u8] {
        &self.public
    }

    /// The PKCS#8 DER: for storing, and for handing to the workload that owns the identity.
    pub fn expose_pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The PKCS#8 DER, sharing the allocation.
    pub fn expose_pkcs8_shared(&self) -> Bytes {
        self.pkcs8.clone()
    }

    /// A certificate signing request (PKCS#10 DER, subject `C=US,O=SPIRE`), with `id` as its URI SAN where one is given.
    pub fn certificate_request(&self, id: Option<&SpiffeId>) -> Result<Vec<u8>, KeyError> {
        let mut request = CertificateParams::default();
        request.distinguished_name = DistinguishedName::new();
        for (kind, value) in [
            (DnType::CountryName, "US"),
            (DnType::OrganizationName, "SPIRE"),
        ] {
            let value = value.try_into().map_err(|_| MALFORMED_NAME)?;
            request
                .distinguished_name
                .push(kind, DnValue::PrintableString(value));
        }
        if let Some(id) = id {
            let name = id.as_str().try_into().map_err(|_| MALFORMED_NAME)?;
            request.subject_alt_names.push(SanType::URI(name));
        }
        let signed = request.serialize_request(&Signer::from_pkcs8(&self.pkcs8)?);
        Ok(signed
            .map_err(|_| KeyError::Failed("signing a certificate request"))?
            .der()
            .to_vec())
    }

    /// The key as rustls signs handshakes with it.
    pub fn tls_signer(&self) -> Result<Arc<dyn rustls::sign::SigningKey>, KeyError> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(&self.pkcs8[..]));
        any_supported_type(&key).map_err(|_| KeyError::Failed("preparing a TLS signer"))
    }
}

/// A parsed key, as long as one signature takes. Signs for rcgen without handing it a copy of the key.
enum Signer {
    Ec {
        pair: EcdsaKeyPair,
        algorithm: &'static SignatureAlgorithm,
    },
    Rsa(RsaKeyPair),
}

impl Signer {
    fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let key = read_pkcs8(der).ok_or(KeyError::Malformed)?;
        let ec = |signing, algorithm| {
            let pair =
                EcdsaKeyPair::from_pkcs8(signing, der, &random).map_err(|_| KeyError::Malformed)?;
            Ok(Self::Ec { pair, algorithm })
        };
        match key.kind {
            Pkcs8Kind::Ec(Curve::P256) => {
                ec(&ECDSA_P256_SHA256_ASN1_SIGNING, &PKCS_ECDSA_P256_SHA256)
            }
            Pkcs8Kind::Ec(Curve::P384) => {
                ec(&ECDSA_P384_SHA384_ASN1_SIGNING, &PKCS_ECDSA_P384_SHA384)
            }
            Pkcs8Kind::Ec(Curve::P521) => Err(KeyError::Unsupported("EC P-521".to_owned())),
            Pkcs8Kind::Rsa => RsaKeyPair::from_pkcs8(der)
                .map(Self::Rsa)
                .map_err(|refused| KeyError::Unsupported(format!("RSA ({refused})"))),
            Pkcs8Kind::Other => Err(KeyError::Unsupported(
                "neither EC P-256, EC P-384 nor RSA".to_owned(),
            )),
        }
    }
}

impl PublicKeyData for Signer {
    fn der_bytes(&self) -> &[u8] {
        match self {
            Self::Ec { pair, .. } => pair.public_key().as_ref(),
            Self::Rsa(pair) => pair.public_key().as_ref(),
        }
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        match self {
            Self::Ec { algorithm, .. } => algorithm,
            Self::Rsa(_) => &PKCS_RSA_SHA256,
        }
    }
}

impl SigningKey for Signer {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let random = SystemRandom::new();
        let failed = |_: Unspecified| rcgen::Error::RingUnspecified;
        match self {
            Self::Ec { pair, .. } => pair
                .sign(&random, message)
                .map(|signature| signature.as_ref().to_vec())
                .map_err(failed),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .map_err(failed)?;
                Ok(signature)
            }
        }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svid::Certificate;
    use crate::testing::certificates::Ca;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rustls::SignatureScheme;
    use std::time::{Duration, SystemTime};

    const ID: &str = "spiffe://domain.test/spire/agent/x509pop/one";
    /// A test key by Go's `x509.MarshalPKCS8PrivateKey`, as in `keys.json`.
    const GO_P256: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgsYJqAVo2sx6D6ar8NBblPqkIVZmWb+/7stTlgpodKCahRANCAATlJv+95hcNplkZV1fQ9j1W8/ufnRlHx41092HE+BENK7gKJ5CcA0mNMbqtxQllmv9DPgotlV5ZuauqO4kVFwuG";
    /// A test key by `openssl pkcs8`.
    const OPENSSL_P384: &str = "MIG2AgEAMBAGByqGSM49AgEGBSuBBAAiBIGeMIGbAgEBBDA49MqmqSLdn9KqCm41P/b2yGs9TShrv7LtG091nksvCpt6S7rwvp2IgsTnUtHtRIyhZANiAATHhcIAjW+0OlcWBOqhdDgc+5HWSKlnSqIpk5DQYTGIcUS9dEayjNJF0t+F9yhY8Nm68/gEBGvHoKSRVZtQEHTHP97UWSaQAMjyAlmKO6tcFUztQSahZifbbLIHte97YS4=";

    fn request_of(key: &PrivateKey, id: Option<&SpiffeId>) -> Certificate {
        let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let request = key.certificate_request(id).unwrap();
        Ca::new(epoch)
            .chain_for_request(&request, ID, epoch, epoch + Duration::from_mins(1))
            .remove(0)
    }

    #[test]
    fn every_kind_of_key_is_made_reloaded_and_signs() {
        let table = [
            (KeyType::EcP256, SignatureScheme::ECDSA_NISTP256_SHA256),
            (KeyType::EcP384, SignatureScheme::ECDSA_NISTP384_SHA384),
            (KeyType::Rsa2048, SignatureScheme::RSA_PSS_SHA256),
        ];

        for (kind, scheme) in table {
            let key = PrivateKey::generate(kind).unwrap();
            let again = PrivateKey::from_pkcs8(key.expose_pkcs8()).unwrap();
            let leaf = request_of(&again, None);

            assert_eq!(key.public_key_der(), again.public_key_der(), "{kind:?}");
            assert_eq!(leaf.public_key_der(), key.public_key_der(), "{kind:?}");
            let signer = again.tls_signer().unwrap();
            assert_eq!(
                signer.public_key().unwrap().as_ref(),
                key.public_key_der(),
                "{kind:?}"
            );
            assert!(signer.choose_scheme(&[scheme]).is_some(), "{kind:?}");
        }
    }

    #[test]
    fn a_request_has_the_subject_of_spire_and_the_id_where_one_is_given() {
        let key = PrivateKey::generate(KeyType::EcP256).unwrap();

        let plain = key.certificate_request(None).unwrap();
        let named = key
            .certificate_request(Some(&SpiffeId::parse(ID).unwrap()))
            .unwrap();

        // An RDNSequence of C=US and O=SPIRE.
        let subject = der::element(
            der::SEQUENCE,
            &[
                &der::element(
                    0x31,
                    &[&der::element(
                        der::SEQUENCE,
                        &[b"\x06\x03\x55\x04\x06", b"\x13\x02US"],
                    )],
                ),
                &der::element(
                    0x31,
                    &[&der::element(
                        der::SEQUENCE,
                        &[b"\x06\x03\x55\x04\x0a", b"\x13\x05SPIRE"],
                    )],
                ),
            ],
        );
        let contains =
            |request: &[u8], part: &[u8]| request.windows(part.len()).any(|window| window == part);
        for request in [&plain, &named] {
            assert!(contains(request, &subject), "{request:x?}");
        }
        assert!(!contains(&plain, ID.as_bytes()));
        assert!(contains(&named, &der::element(0x86, &[ID.as_bytes()])));
    }

    #[test]
    fn keys_of_other_makers_load() {
        for (encoded, length) in [(GO_P256, 91), (OPENSSL_P384, 120)] {
            let key = PrivateKey::from_pkcs8(&STANDARD.decode(encoded).unwrap()).unwrap();

            assert_eq!(key.public_key_der().len(), length);
        }
    }

    #[test]
    fn what_is_no_usable_key_is_refused() {
        let good = PrivateKey::generate(KeyType::EcP256).unwrap();
        let cut = &good.expose_pkcs8()[..good.expose_pkcs8().len() - 1];
        let ed25519 = der::element(
            der::SEQUENCE,
            &[
                &der::unsigned(&[0]),
                &der::element(der::SEQUENCE, &[b"\x06\x03\x2b\x65\x70"]),
                &der::element(4, &[&[4, 1, 0]]),
            ],
        );

        assert_eq!(
            PrivateKey::from_pkcs8(&[]).unwrap_err(),
            KeyError::Malformed
        );
        assert_eq!(
            PrivateKey::from_pkcs8(cut).unwrap_err(),
            KeyError::Malformed
        );
        assert!(matches!(
            PrivateKey::from_pkcs8(&ed25519),
            Err(KeyError::Unsupported(_))
        ));
    }

    #[test]
    fn debug_shows_nothing_of_the_key() {
        let key = PrivateKey::generate(KeyType::EcP256).unwrap();

        assert_eq!(format!("{key:?}"), "PrivateKey(…)");
    }
}
