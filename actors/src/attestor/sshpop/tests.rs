use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use p521::ecdsa::signature::hazmat::PrehashVerifier as _;
use proptest::prelude::*;
use ring::digest::{SHA512, digest};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    UnparsedPublicKey,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::keys::der::{self, element, unsigned};
use crate::keys::pkcs8::Curve;
use certificate::PublicKey;
use private_key::OpenSshKey;
use wire::Reader;

/// Test keys and certificates by `ssh-keygen`, without a passphrase.
macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!("samples/", $name))
    };
}

const ED25519_CERT: &str = sample!("ed25519-cert.pub");
const P256_CERT: &str = sample!("ecdsa256-cert.pub");
const P384_CERT: &str = sample!("ecdsa384-cert.pub");
const P521_CERT: &str = sample!("ecdsa521-cert.pub");
const RSA_CERT: &str = sample!("rsa2048-cert.pub");
/// Of a key that is larger than ring signs with.
const LARGE_RSA_CERT: &str = sample!("rsa4608-cert.pub");
const ED25519_KEY: &str = sample!("ed25519");
const P256_KEY: &str = sample!("ecdsa256");

/// Each key file beside the certificate of its key, and the format of its signatures.
const PAIRS: [(&str, &str, &str); 11] = [
    (ED25519_KEY, ED25519_CERT, "ssh-ed25519"),
    (P256_KEY, P256_CERT, "ecdsa-sha2-nistp256"),
    (sample!("ecdsa256.sec1"), P256_CERT, "ecdsa-sha2-nistp256"),
    (sample!("ecdsa256.pkcs8"), P256_CERT, "ecdsa-sha2-nistp256"),
    (sample!("ecdsa384"), P384_CERT, "ecdsa-sha2-nistp384"),
    (sample!("ecdsa521"), P521_CERT, "ecdsa-sha2-nistp521"),
    (sample!("rsa2048"), RSA_CERT, "rsa-sha2-256"),
    (sample!("rsa2048.pkcs1"), RSA_CERT, "rsa-sha2-256"),
    (sample!("rsa2048.pkcs8"), RSA_CERT, "rsa-sha2-256"),
    (sample!("rsa4608"), LARGE_RSA_CERT, "rsa-sha2-256"),
    (
        include_str!("../x509pop/samples/rsa4608.key.pem"),
        LARGE_RSA_CERT,
        "rsa-sha2-256",
    ),
];

const ASKED: Nonce = [0; 32];

/// A folder with both files.
struct Host {
    folder: TempDir,
}

impl Host {
    fn new(key: &str, certificate: &str) -> Self {
        let host = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        host.write(key, certificate);
        host
    }

    fn write(&self, key: &str, certificate: &str) {
        fs::write(self.folder.path().join("key"), key).unwrap();
        fs::write(self.folder.path().join("cert"), certificate).unwrap();
    }

    fn attestor(&self) -> Sshpop {
        let path = |name| self.folder.path().join(name);
        Sshpop::new(path("key"), path("cert"))
    }

    /// What is wrong with the files, without their folder.
    fn complaint(&self) -> String {
        let error = self.attestor().check().unwrap_err().to_string();
        let folder = format!("{}/", self.folder.path().display());
        error.strip_prefix(&folder).unwrap().to_owned()
    }
}

fn challenge() -> String {
    json!({ "Nonce": STANDARD.encode(ASKED) }).to_string()
}

fn bytes(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap()).unwrap()
}

/// Checks a response as the server does: the algorithm of the certificate's key over a digest of both nonces.
fn verify(certificate: &str, format: &str, response: &[u8]) {
    let response: Value = serde_json::from_slice(response).unwrap();
    let nonce = bytes(&response["Nonce"]);
    assert_eq!(nonce.len(), 32);
    let message = digest(&ring::digest::SHA256, &[&ASKED[..], &nonce].concat());
    let signature = &response["Signature"];
    assert_eq!(signature["Format"], format);
    assert_eq!(signature.get("Rest"), Some(&Value::Null));
    let blob = bytes(&signature["Blob"]);
    let fixed = |half: usize| {
        let mut numbers = Reader::new(&blob);
        let mut number = || {
            let number = numbers.unsigned().unwrap();
            [&vec![0; half - number.len()], number].concat()
        };
        let both = [number(), number()].concat();
        assert!(numbers.rest().is_empty());
        both
    };
    let check = |algorithm, key: &[u8], signature: &[u8]| {
        UnparsedPublicKey::new(algorithm, key)
            .verify(message.as_ref(), signature)
            .unwrap();
    };
    match HostCertificate::read(certificate.as_bytes()).unwrap().key {
        PublicKey::Ed25519(key) => check(&ED25519, &key, &blob),
        PublicKey::Ec { curve, point } => match curve {
            Curve::P256 => check(&ECDSA_P256_SHA256_FIXED, &point, &fixed(32)),
            Curve::P384 => check(&ECDSA_P384_SHA384_FIXED, &point, &fixed(48)),
            Curve::P521 => p521::ecdsa::VerifyingKey::from_sec1_bytes(&point)
                .unwrap()
                .verify_prehash(
                    digest(&SHA512, message.as_ref()).as_ref(),
                    &p521::ecdsa::Signature::from_slice(&fixed(66)).unwrap(),
                )
                .unwrap(),
        },
        PublicKey::Rsa { exponent, modulus } => {
            let key = element(der::SEQUENCE, &[&unsigned(&modulus), &unsigned(&exponent)]);
            check(&RSA_PKCS1_2048_8192_SHA256, &key, &blob);
        }
    }
}

/// A certificate file with this content, as far as it is read.
fn certificate_file(kind: &str, fields: &[&[u8]], role: u32, principals: &[u8]) -> String {
    let string = |content: &[u8]| {
        let length = u32::try_from(content.len()).unwrap();
        [&length.to_be_bytes(), content].concat()
    };
    let mut wire = string(kind.as_bytes());
    wire.extend(string(b"nonce"));
    for field in fields {
        wire.extend(string(field));
    }
    wire.extend([0; 8]);
    wire.extend(role.to_be_bytes());
    wire.extend(string(b"id"));
    wire.extend(string(principals));
    wire.extend([0; 16]);
    for part in [&b""[..], b"", b"", b"authority", b"signature"] {
        wire.extend(string(part));
    }
    format!("{kind} {}\n", STANDARD.encode(wire))
}

#[tokio::test]
async fn every_kind_of_host_key_answers_a_challenge_with_a_signature_of_its_certificate() {
    for (key, certificate, format) in PAIRS {
        let host = Host::new(key, certificate);
        let mut proof = Rc::new(host.attestor()).prepare().await.unwrap();

        let response = proof.respond(challenge().as_bytes()).await.unwrap();

        verify(certificate, format, &response);
    }
}

#[tokio::test]
async fn an_ed25519_key_in_pkcs8_is_as_good_as_one_in_the_format_of_openssh() {
    let block = private_key::find_block(ED25519_KEY.as_bytes())
        .unwrap()
        .unwrap();
    let Ok(OpenSshKey::Ed25519 { seed }) = private_key::read(&block) else {
        panic!("another kind of key");
    };
    let private_key = element(der::OCTET_STRING, &[seed]);
    let fields: [&[u8]; 3] = [
        &unsigned(&[0]),
        &element(
            der::SEQUENCE,
            &[&element(der::OBJECT_IDENTIFIER, &[b"\x2b\x65\x70"])],
        ),
        &element(der::OCTET_STRING, &[&private_key]),
    ];
    let text = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        STANDARD.encode(&*element(der::SEQUENCE, &fields))
    );
    let host = Host::new(&text, ED25519_CERT);
    let mut proof = Rc::new(host.attestor()).prepare().await.unwrap();

    let response = proof.respond(challenge().as_bytes()).await.unwrap();

    verify(ED25519_CERT, "ssh-ed25519", &response);
}

#[tokio::test]
async fn the_payload_is_the_certificate_as_it_is_on_the_wire() {
    let host = Host::new(P256_KEY, &format!("\n# comment\n {P256_CERT}"));

    let proof = Rc::new(host.attestor()).prepare().await.unwrap();

    let encoded = P256_CERT.split(' ').nth(1).unwrap();
    assert_eq!(proof.attestor_name(), "sshpop");
    assert_eq!(
        String::from_utf8(proof.payload()).unwrap(),
        format!(r#"{{"Certificate":"{encoded}"}}"#)
    );
}

#[tokio::test]
async fn every_answer_has_a_nonce_of_its_own() {
    let host = Host::new(ED25519_KEY, ED25519_CERT);
    let mut proof = Rc::new(host.attestor()).prepare().await.unwrap();

    let first = proof.respond(challenge().as_bytes()).await.unwrap();
    let second = proof.respond(challenge().as_bytes()).await.unwrap();

    assert_ne!(first, second);
}

#[tokio::test]
async fn a_renewed_host_key_counts_from_the_next_attestation_on() {
    let host = Host::new(ED25519_KEY, ED25519_CERT);
    let attestor = Rc::new(host.attestor());
    let first = Rc::clone(&attestor).prepare().await.unwrap().payload();

    host.write(P256_KEY, P256_CERT);
    let second = attestor.prepare().await.unwrap().payload();

    assert_ne!(first, second);
}

#[tokio::test]
async fn a_challenge_that_is_not_exactly_a_nonce_of_32_bytes_is_refused() {
    let host = Host::new(ED25519_KEY, ED25519_CERT);
    let mut proof = Rc::new(host.attestor()).prepare().await.unwrap();
    let short = STANDARD.encode([0; 31]);
    let long = json!({ "Nonce": STANDARD.encode(ASKED), "more": "x".repeat(5000) }).to_string();

    for challenge in [
        "",
        "[]",
        "{}",
        r#"{"Nonce":null}"#,
        r#"{"Nonce":"-_"}"#,
        &format!(r#"{{"Nonce":"{short}"}}"#),
        &long,
    ] {
        let error = proof.respond(challenge.as_bytes()).await.unwrap_err();

        assert!(matches!(error, EvidenceError::Challenge(_)), "{challenge}");
    }
}

#[test]
fn a_key_of_another_certificate_is_refused_at_once() {
    let mismatch = "key: private key does not match the public key of the certificate";
    let certificates = [ED25519_CERT, P256_CERT, P384_CERT, P521_CERT, RSA_CERT];

    for (key, own, _) in PAIRS {
        for certificate in certificates.into_iter().filter(|other| *other != own) {
            assert_eq!(Host::new(key, certificate).complaint(), mismatch);
        }
    }
}

#[test]
fn another_key_of_the_same_kind_is_refused_too() {
    let other = include_str!("samples/other-cert.pub");
    let modulus = [&[0][..], &[0xff; 256]].concat();
    let rsa = certificate_file(
        "ssh-rsa-cert-v01@openssh.com",
        &[&[3], &modulus],
        2,
        b"\0\0\0\x01h",
    );
    let p256 = certificate_file(
        "ecdsa-sha2-nistp256-cert-v01@openssh.com",
        &[b"nistp256", &[4; 65]],
        2,
        b"\0\0\0\x01h",
    );

    for (key, certificate) in [
        (ED25519_KEY, other),
        (sample!("rsa2048"), &rsa),
        (sample!("rsa2048.pkcs1"), &rsa),
        (P256_KEY, &p256),
    ] {
        assert_eq!(
            Host::new(key, certificate).complaint(),
            "key: private key does not match the public key of the certificate"
        );
    }
}

#[test]
fn a_key_file_that_cannot_be_used_is_named_with_the_reason() {
    let damaged = ED25519_KEY.replace("AAAA", "AAAB");
    let cut = ED25519_KEY.replace("-----END", "-----");
    let no_base64 = ED25519_KEY.replace("b3Bl", "b3B-");
    let large = "x".repeat(70_000);
    for (key, reason) in [
        (
            sample!("locked"),
            "private key is encrypted; only unencrypted keys can be used",
        ),
        (
            "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n",
            "private key is encrypted; only unencrypted keys can be used",
        ),
        (&damaged, "malformed private key block"),
        (&cut, "malformed private key block"),
        (&no_base64, "malformed private key block"),
        ("", "no private key block (OpenSSH, PKCS#8, PKCS#1 or SEC1)"),
        (&large, "larger than 65536 bytes"),
    ] {
        let complaint = Host::new(key, ED25519_CERT).complaint();

        assert_eq!(complaint, format!("key: {reason}"));
    }
}

#[test]
fn a_certificate_file_that_cannot_be_used_is_named_with_the_reason() {
    let bare = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDgV4iNdB1PSoEHzAaRpmPn2RiQAh3w/4s3FXo9FM0Rr";
    let truncated = &ED25519_CERT[..100];
    let security_key = certificate_file(
        "sk-ssh-ed25519@openssh.com-cert-v01@openssh.com",
        &[&[0; 32]],
        2,
        b"\0\0\0\x01h",
    );
    for (certificate, reason) in [
        ("", "no certificate"),
        ("word", "no certificate"),
        ("ssh-ed25519 AAAA", "malformed certificate"),
        ("ssh-ed25519 AAAAA3dlcg==", "no certificate"),
        (bare, "a public key without a certificate"),
        (truncated, "malformed certificate"),
        (&security_key, "unsupported kind of key in the certificate"),
        (
            sample!("user-cert.pub"),
            "a certificate of a user, not of a host",
        ),
        (
            sample!("any-cert.pub"),
            "the certificate names no principal",
        ),
    ] {
        let complaint = Host::new(ED25519_KEY, certificate).complaint();

        assert!(
            complaint.starts_with(&format!("cert: {reason}")),
            "{complaint} instead of {reason}"
        );
    }
}

#[test]
fn a_missing_file_is_named() {
    let host = Host::new(ED25519_KEY, ED25519_CERT);
    fs::remove_file(host.folder.path().join("key")).unwrap();

    assert!(host.complaint().starts_with("key: No such file"));
}

#[test]
fn an_rsa_key_too_small_to_be_safe_is_refused() {
    let modulus = [&[0x80][..], &[1; 127]].concat();
    let certificate = certificate_file(
        "ssh-rsa-cert-v01@openssh.com",
        &[&[3], &[&[0][..], &modulus].concat()],
        2,
        b"\0\0\0\x01h",
    );
    let host = Host::new(sample!("rsa2048.pkcs1"), &certificate);

    assert!(
        host.complaint().contains("1024 bits"),
        "{}",
        host.complaint()
    );
}

#[tokio::test]
async fn debug_shows_nothing_of_the_key() {
    let host = Host::new(ED25519_KEY, ED25519_CERT);
    let proof = Rc::new(host.attestor()).prepare().await.unwrap();

    let shown = format!("{proof:?}");

    assert!(shown.starts_with("HostProof { certificate: "), "{shown}");
    assert!(shown.ends_with(", .. }"), "{shown}");
    assert!(!shown.contains("key: HostKey"), "{shown}");
}

/// Any outcome will do.
fn returned<T>(_: T) {}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let text = format!("x {}", STANDARD.encode(&bytes));
        let pem = format!(
            "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
            STANDARD.encode(&bytes)
        );

        returned(HostCertificate::read(&bytes));
        returned(HostCertificate::read(text.as_bytes()));
        returned(private_key::read(&bytes));
        returned(messages::challenge(&bytes));
        let certificate = HostCertificate::read(RSA_CERT.as_bytes()).unwrap();
        prop_assert!(HostKey::load(pem.as_bytes(), &certificate.key).is_err());
    }

    #[test]
    fn no_damage_to_a_key_or_certificate_makes_the_readers_panic(
        pair in 0..PAIRS.len(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (key, certificate, _) = PAIRS[pair];
        let mut block = match private_key::find_block(key.as_bytes()) {
            Some(block) => block.unwrap().to_vec(),
            None => return Ok(()),
        };
        let mut wire = HostCertificate::read(certificate.as_bytes()).unwrap();
        let place_in_block = place.index(block.len());
        block[place_in_block] = byte;
        let place_in_wire = place.index(wire.wire.len());
        wire.wire[place_in_wire] = byte;
        let pem = format!(
            "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
            STANDARD.encode(&block)
        );
        let text = format!("x {}", STANDARD.encode(&wire.wire));

        returned(HostKey::load(pem.as_bytes(), &wire.key));
        returned(HostCertificate::read(text.as_bytes()));
    }
}
