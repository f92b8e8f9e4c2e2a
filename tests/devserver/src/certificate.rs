//! X.509 certificates: what goes into one, and the ECDSA P-256 keys that sign them.
//!
//! They are written here rather than by a library because a test server must also make what no library agrees to
//! make: leaves for keys of other curves, without a URI, with two identities, already over.

use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

use crate::clock::Seconds;
use crate::der;

const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SERIAL_NUMBER: &[u8] = &[0x55, 0x04, 0x05];
const COUNTRY: &[u8] = &[0x55, 0x04, 0x06];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
const CLIENT_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];
const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
/// `SubjectPublicKeyInfo` of a P-256 key up to the uncompressed point.
const P256_KEY_PREFIX: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

const RANDOM_WORKS: &str = "the system's random source works";

/// What a certificate is for, which decides its constraints and usages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Signs other certificates.
    Authority,
    /// An X.509-SVID: digital signature and key agreement, server and client authentication.
    Svid,
    /// A node certificate: digital signature, any use.
    Node,
}

/// A certificate to be signed.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// The encoded subject name.
    pub(crate) subject: Vec<u8>,
    /// The encoded `SubjectPublicKeyInfo` of the holder.
    pub(crate) public_key: Vec<u8>,
    pub(crate) purpose: Purpose,
    pub(crate) uris: Vec<String>,
    pub(crate) dns_names: Vec<String>,
    pub(crate) not_before: Seconds,
    pub(crate) not_after: Seconds,
    pub(crate) serial: Serial,
}

/// A certificate serial number: 16 bytes, positive, without a leading zero byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serial([u8; 16]);

impl Serial {
    /// A random serial number.
    pub(crate) fn random() -> Self {
        let mut bytes: [u8; 16] = random_bytes();
        bytes[0] = bytes[0] & 0x3f | 0x40;
        Self(bytes)
    }

    /// Lower-case hexadecimal text.
    pub(crate) fn hex(self) -> String {
        hex(&self.0)
    }
}

/// Someone who signs certificates: a key and the name that it signs with.
#[derive(Debug)]
pub(crate) struct Issuer {
    key: EcdsaKeyPair,
    pkcs8: Vec<u8>,
    subject: Vec<u8>,
}

impl Issuer {
    /// A new P-256 key under `subject` (an encoded name).
    pub(crate) fn generate(subject: Vec<u8>) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)
            .expect(RANDOM_WORKS);
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, document.as_ref(), &random)
                .expect("ring reads the key that it has made");
        Self {
            key,
            pkcs8: document.as_ref().to_vec(),
            subject,
        }
    }

    /// The encoded `SubjectPublicKeyInfo`.
    pub(crate) fn public_key(&self) -> Vec<u8> {
        [P256_KEY_PREFIX, self.key.public_key().as_ref()].concat()
    }

    /// The encoded name that this issuer signs with.
    pub(crate) fn subject(&self) -> &[u8] {
        &self.subject
    }

    /// The private key as PKCS#8 DER.
    pub(crate) fn expose_pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// An ASN.1 ECDSA signature with SHA-256 over `message`.
    fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.key
            .sign(&SystemRandom::new(), message)
            .expect(RANDOM_WORKS)
            .as_ref()
            .to_vec()
    }

    /// Signs `template` and returns the DER certificate.
    pub(crate) fn issue(&self, template: &Template) -> Vec<u8> {
        let algorithm = der::sequence(&[&der::oid(ECDSA_WITH_SHA256)]);
        let validity = der::sequence(&[
            &der::time(template.not_before),
            &der::time(template.not_after),
        ]);
        let body = der::sequence(&[
            &[0xa0, 0x03, 0x02, 0x01, 0x02], // version 3
            &der::tlv(der::INTEGER, &template.serial.0),
            &algorithm,
            &self.subject,
            &validity,
            &template.subject,
            &template.public_key,
            &der::tlv(0xa3, &self.extensions(template)),
        ]);
        let signature = self.sign(&body);
        der::sequence(&[&body, &algorithm, &der::bit_string(0, &signature)])
    }

    fn extensions(&self, template: &Template) -> Vec<u8> {
        let is_authority = template.purpose == Purpose::Authority;
        let constraints = if is_authority {
            der::sequence(&[der::boolean_true()])
        } else {
            der::sequence(&[])
        };
        let usage = match template.purpose {
            Purpose::Authority => der::bit_string(1, &[0b0000_0110]),
            Purpose::Svid => der::bit_string(3, &[0b1010_1000]),
            Purpose::Node => der::bit_string(7, &[0b1000_0000]),
        };
        let authority_key_id = der::tlv(0x80, &key_identifier(&self.public_key()));
        let mut all = vec![
            der::extension(KEY_USAGE, true, &usage),
            der::extension(BASIC_CONSTRAINTS, true, &constraints),
            der::extension(
                SUBJECT_KEY_ID,
                false,
                &der::tlv(der::OCTET_STRING, &key_identifier(&template.public_key)),
            ),
            der::extension(
                AUTHORITY_KEY_ID,
                false,
                &der::sequence(&[&authority_key_id]),
            ),
        ];
        if template.purpose == Purpose::Svid {
            let usages = der::sequence(&[&der::oid(SERVER_AUTH), &der::oid(CLIENT_AUTH)]);
            all.push(der::extension(EXTENDED_KEY_USAGE, false, &usages));
        }
        let names: Vec<Vec<u8>> = template
            .uris
            .iter()
            .map(|uri| der::tlv(0x86, uri.as_bytes()))
            .chain(
                template
                    .dns_names
                    .iter()
                    .map(|name| der::tlv(0x82, name.as_bytes())),
            )
            .collect();
        if !names.is_empty() {
            all.push(der::extension(
                SUBJECT_ALT_NAME,
                false,
                &der::tlv(der::SEQUENCE, &names.concat()),
            ));
        }
        der::tlv(der::SEQUENCE, &all.concat())
    }
}

/// An ECDSA P-256 signature with SHA-256 in the fixed form (r and s of 32 bytes each) that JWS uses (RFC 7518 3.4).
pub(crate) fn sign_fixed(pkcs8: &[u8], message: &[u8]) -> Vec<u8> {
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::from_pkcs8(
        &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING,
        pkcs8,
        &random,
    )
    .expect("ring reads the key that it has made");
    key.sign(&random, message)
        .expect(RANDOM_WORKS)
        .as_ref()
        .to_vec()
}

/// The subject of SVIDs: `C=US, O=SPIRE`.
pub(crate) fn svid_subject() -> Vec<u8> {
    name(&[(COUNTRY, "US"), (ORGANIZATION, "SPIRE")])
}

/// The subject of an authority: `C=US, O=SPIFFE` and a serial number that tells generations apart.
pub(crate) fn authority_subject(serial: Serial) -> Vec<u8> {
    name(&[
        (COUNTRY, "US"),
        (ORGANIZATION, "SPIFFE"),
        (SERIAL_NUMBER, &serial.hex()),
    ])
}

/// A subject with only a common name.
pub(crate) fn common_name(text: &str) -> Vec<u8> {
    name(&[(COMMON_NAME, text)])
}

fn name(attributes: &[(&[u8], &str)]) -> Vec<u8> {
    let relative: Vec<Vec<u8>> = attributes
        .iter()
        .map(|(id, value)| {
            let tag = if [COUNTRY, SERIAL_NUMBER].contains(id) {
                der::PRINTABLE_STRING
            } else {
                der::UTF8_STRING
            };
            der::tlv(
                der::SET,
                &der::sequence(&[&der::oid(id), &der::tlv(tag, value.as_bytes())]),
            )
        })
        .collect();
    der::tlv(der::SEQUENCE, &relative.concat())
}

/// SHA-1 of the key bits (RFC 5280 4.2.1.2, method 1); empty for what is not a `SubjectPublicKeyInfo`.
fn key_identifier(public_key: &[u8]) -> Vec<u8> {
    use x509_parser::prelude::FromDer as _;

    match x509_parser::x509::SubjectPublicKeyInfo::from_der(public_key) {
        Ok((_, key)) => sha1(&key.subject_public_key.data).to_vec(),
        Err(_) => Vec::new(),
    }
}

/// SHA-1, which SPIRE uses for fingerprints and key identifiers.
pub(crate) fn sha1(bytes: &[u8]) -> [u8; 20] {
    let mut out = [0; 20];
    out.copy_from_slice(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref());
    out
}

/// Lower-case hexadecimal text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all that is written");
        text
    })
}

/// Random bytes from the system.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect(RANDOM_WORKS);
    bytes
}

/// One PEM block of type `label`.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;

    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for start in (0..text.len()).step_by(64) {
        out.push_str(
            text.get(start..text.len().min(start + 64))
                .unwrap_or_default(),
        );
        out.push('\n');
    }
    out + "-----END " + label + "-----\n"
}

/// The DER certificates of a PEM text.
///
/// # Errors
/// A message that says what is wrong with the text.
pub(crate) fn certificates_from_pem(text: &str) -> Result<Vec<Vec<u8>>, String> {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject as _;

    CertificateDer::pem_slice_iter(text.as_bytes())
        .map(|block| {
            block
                .map(|der| der.to_vec())
                .map_err(|error| error.to_string())
        })
        .collect()
}
