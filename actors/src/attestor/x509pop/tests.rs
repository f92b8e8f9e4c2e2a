use std::fs;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use p384::ecdsa::signature::hazmat::PrehashVerifier as _;
use ring::digest::{SHA256, digest};
use ring::signature::{ECDSA_P256_SHA256_FIXED, RSA_PSS_2048_8192_SHA256, UnparsedPublicKey};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::attestor::node_key::NodeKeyError;
use crate::keys::der::{self, Reader, element, unsigned};
use crate::keys::pkcs8::{RSA_ENCRYPTION, read_pkcs8, read_public_key};
use crate::keys::{KeyType, PrivateKey};
use crate::testing::certificates::{Ca, leaf_params};
use crate::workload_api::fake::{Fake, Reply};
use signing::{KeyKind, Signature};

/// A test key and its self-signed certificate by openssl.
const P521_KEY: &str = include_str!("samples/p521.key.pem");
const P521_CERTIFICATE: &str = include_str!("samples/p521.crt.pem");
/// A test key by openssl, larger than ring signs with.
const RSA_4608_KEY: &str = include_str!("samples/rsa4608.key.pem");

const EC_PUBLIC_KEY: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01";
const P256: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
const P384: &[u8] = b"\x06\x05\x2b\x81\x04\x00\x22";
const P521: &[u8] = b"\x06\x05\x2b\x81\x04\x00\x23";

const ASKED: Nonce = [0; 32];
const OWN: Nonce = [1; 32];

fn epoch() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn pem_block(label: &str, der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let lines: Vec<_> = encoded
        .as_bytes()
        .chunks(64)
        .map(|line| str::from_utf8(line).unwrap())
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}

fn pkcs8_block(algorithm: &[&[u8]], private_key: &[u8]) -> String {
    let algorithm = element(der::SEQUENCE, algorithm);
    let fields: [&[u8]; 3] = [
        &unsigned(&[0]),
        &algorithm,
        &element(der::OCTET_STRING, &[private_key]),
    ];
    pem_block("PRIVATE KEY", &element(der::SEQUENCE, &fields))
}

/// A certificate's key and the PEM texts that all hold its private half.
struct Sample {
    name: &'static str,
    public_key: Vec<u8>,
    texts: Vec<String>,
}

fn ec_private_key(scalar: &[u8], optional: &[&[u8]]) -> Vec<u8> {
    let scalar = element(der::OCTET_STRING, &[scalar]);
    element(
        der::SEQUENCE,
        &[&[&unsigned(&[1])[..], &scalar], optional].concat(),
    )
    .to_vec()
}

/// Every encoding of an EC key: with and without the curve and the public half, with more or fewer zeros in front.
fn ec_sample(name: &'static str, curve: &[u8], scalar: &[u8], public_key: &[u8]) -> Sample {
    let (_, point) = read_public_key(public_key).unwrap();
    let parameters = element(der::CONTEXT_0, &[curve]);
    let public = element(0xa1, &[&element(der::BIT_STRING, &[&[0], point])]);
    let algorithm: [&[u8]; 2] = [EC_PUBLIC_KEY, curve];
    let sec1 = |optional: &[&[u8]]| pem_block("EC PRIVATE KEY", &ec_private_key(scalar, optional));
    let texts = vec![
        sec1(&[&parameters, &public]),
        sec1(&[&parameters]),
        sec1(&[&public]),
        sec1(&[]),
        pem_block("EC PARAMETERS", curve) + &sec1(&[&parameters, &public]),
        pkcs8_block(&algorithm, &ec_private_key(scalar, &[&public])),
        pkcs8_block(&algorithm, &ec_private_key(scalar, &[])),
        pkcs8_block(&algorithm, &ec_private_key(&[&[0], scalar].concat(), &[])),
        pkcs8_block(
            &algorithm,
            &ec_private_key(der::without_leading_zeros(scalar), &[]),
        ),
    ];
    Sample {
        name,
        public_key: public_key.to_vec(),
        texts,
    }
}

fn rsa_public_key(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
    let algorithm = element(
        der::SEQUENCE,
        &[
            &element(der::OBJECT_IDENTIFIER, &[RSA_ENCRYPTION]),
            &der::NULL,
        ],
    );
    let numbers = element(der::SEQUENCE, &[&unsigned(modulus), &unsigned(exponent)]);
    element(
        der::SEQUENCE,
        &[&algorithm, &element(der::BIT_STRING, &[&[0], &numbers])],
    )
    .to_vec()
}

fn rsa_sample(name: &'static str, private_key: &[u8]) -> Sample {
    let mut fields = Reader::new(Reader::new(private_key).read(der::SEQUENCE).unwrap());
    fields.read_unsigned().unwrap();
    let public_key = rsa_public_key(
        fields.read_unsigned().unwrap(),
        fields.read_unsigned().unwrap(),
    );
    let algorithm: [&[u8]; 2] = [
        &element(der::OBJECT_IDENTIFIER, &[RSA_ENCRYPTION]),
        &der::NULL,
    ];
    let texts = vec![
        pem_block("RSA PRIVATE KEY", private_key),
        pkcs8_block(&algorithm, private_key),
    ];
    Sample {
        name,
        public_key,
        texts,
    }
}

fn scalar_of(ec_private_key: &[u8]) -> Vec<u8> {
    let mut fields = Reader::new(Reader::new(ec_private_key).read(der::SEQUENCE).unwrap());
    fields.read_unsigned().unwrap();
    fields.read(der::OCTET_STRING).unwrap().to_vec()
}

fn samples() -> Vec<Sample> {
    let made = |kind| {
        let key = PrivateKey::generate(kind).unwrap();
        let private_key = read_pkcs8(key.expose_pkcs8()).unwrap().private_key.to_vec();
        (private_key, key.public_key_der().to_vec())
    };
    let (p256, p256_public) = made(KeyType::EcP256);
    let (p384, p384_public) = made(KeyType::EcP384);
    let (rsa_2048, _) = made(KeyType::Rsa2048);
    let p521_certificate =
        Certificate::list_from_pem(P521_CERTIFICATE.as_bytes(), PemPolicy::SkipOthers).unwrap();
    let p521 = pem::private_key(P521_KEY.as_bytes()).unwrap();
    let rsa_4608 = pem::private_key(RSA_4608_KEY.as_bytes()).unwrap();
    vec![
        ec_sample("P-256", P256, &scalar_of(&p256), &p256_public),
        ec_sample("P-384", P384, &scalar_of(&p384), &p384_public),
        ec_sample(
            "P-521",
            P521,
            &scalar_of(p521.secret_der()),
            p521_certificate[0].public_key_der(),
        ),
        rsa_sample("RSA 2048", &rsa_2048),
        rsa_sample("RSA 4608", rsa_4608.secret_der()),
    ]
}

fn load(text: &str, public_key: &[u8]) -> Result<NodeKey, NodeKeyError> {
    NodeKey::load(&pem::private_key(text.as_bytes()).unwrap(), public_key)
}

/// r and s as a verifier wants them.
fn padded(r: &[u8], s: &[u8], length: usize) -> Vec<u8> {
    let pad = |number: &[u8]| [&vec![0; length - number.len()], number].concat();
    [pad(r), pad(s)].concat()
}

fn verify(name: &str, public_key: &[u8], signature: &Signature) {
    let message = [ASKED, OWN].concat();
    let digest = digest(&SHA256, &message);
    let (_, point) = read_public_key(public_key).unwrap();
    match signature {
        Signature::Rsa(signature) => {
            UnparsedPublicKey::new(&RSA_PSS_2048_8192_SHA256, point)
                .verify(&message, signature)
                .unwrap();
        }
        Signature::Ecdsa { r, s } => {
            assert!(r[0] != 0 && s[0] != 0, "{name}: leading zeros");
            match name {
                "P-256" => {
                    let signature = padded(r, s, 32);
                    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                        .verify(&message, &signature)
                        .unwrap();
                }
                "P-384" => {
                    let signature = p384::ecdsa::Signature::from_slice(&padded(r, s, 48)).unwrap();
                    let key = p384::ecdsa::VerifyingKey::from_sec1_bytes(point).unwrap();
                    key.verify_prehash(digest.as_ref(), &signature).unwrap();
                }
                _ => {
                    let signature = p521::ecdsa::Signature::from_slice(&padded(r, s, 66)).unwrap();
                    let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(point).unwrap();
                    let zeros_in_front = [&[0; 34], digest.as_ref()].concat();
                    key.verify_prehash(&zeros_in_front, &signature).unwrap();
                }
            }
        }
    }
}

#[test]
fn every_kind_and_encoding_of_a_key_signs() {
    for sample in samples() {
        for text in &sample.texts {
            let key = load(text, &sample.public_key)
                .unwrap_or_else(|error| panic!("{}: {error}", sample.name));

            let signature = key.sign(&ASKED, &OWN, &SystemRandom::new()).unwrap();

            verify(sample.name, &sample.public_key, &signature);
        }
    }
}

#[test]
fn a_key_fits_no_certificate_but_its_own() {
    let (samples, others) = (samples(), samples());

    for (row, sample) in samples.iter().enumerate() {
        for (other_row, other) in others.iter().enumerate() {
            // The two samples from files are the same each time.
            if row == other_row && ["P-521", "RSA 4608"].contains(&sample.name) {
                continue;
            }
            let refused = load(&sample.texts[0], &other.public_key)
                .map(|key| key.kind())
                .unwrap_err();

            assert_eq!(
                refused,
                NodeKeyError::Mismatch,
                "{} for {}",
                sample.name,
                other.name
            );
        }
    }
}

#[test]
fn the_digest_is_that_of_the_check_vector() {
    let digest = signing::signed_digest(&ASKED, &OWN);

    assert_eq!(
        digest.as_ref(),
        b"\x5c\x85\x95\x5f\x70\x92\x83\xec\xce\x2b\x74\xf1\xb1\x55\x29\x18\
          \x81\x9f\x39\x09\x11\x81\x6e\x7b\xb4\x66\x80\x5a\x38\xab\x87\xf3"
    );
}

#[test]
fn unusable_keys_are_refused() {
    let small = rsa_public_key(&[0xff; 128], &[1, 0, 1]);
    let large = rsa_public_key(&[0xff; 1025], &[1, 0, 1]);
    let ed25519 = element(
        der::SEQUENCE,
        &[
            &element(der::SEQUENCE, &[b"\x06\x03\x2b\x65\x70"]),
            &[3, 2, 0, 7],
        ],
    );
    let rsa = pem::private_key(RSA_4608_KEY.as_bytes()).unwrap();
    let sec1 = |der: &[u8]| PrivateKeyDer::Sec1(der.to_vec().into());
    let p521 = Certificate::list_from_pem(P521_CERTIFICATE.as_bytes(), PemPolicy::SkipOthers)
        .unwrap()
        .remove(0);
    let refusal = |key: &PrivateKeyDer<'_>, public_key: &[u8]| {
        NodeKey::load(key, public_key)
            .map(|key| key.kind())
            .unwrap_err()
    };

    assert_eq!(refusal(&rsa, &small), NodeKeyError::RsaBits(1024));
    assert_eq!(refusal(&rsa, &large), NodeKeyError::RsaBits(8200));
    assert_eq!(refusal(&rsa, &ed25519), NodeKeyError::Unsupported);
    assert_eq!(refusal(&rsa, &[]), NodeKeyError::Unsupported);
    assert_eq!(refusal(&rsa, p521.public_key_der()), NodeKeyError::Mismatch);
    assert_eq!(
        refusal(&sec1(&[]), p521.public_key_der()),
        NodeKeyError::Malformed
    );
    assert_eq!(
        refusal(&sec1(&ec_private_key(&[], &[])), p521.public_key_der()),
        NodeKeyError::Malformed
    );
    assert_eq!(
        refusal(&sec1(&ec_private_key(&[9; 67], &[])), p521.public_key_der()),
        NodeKeyError::Malformed
    );
}

/// A node with a P-256 certificate below an intermediate.
struct Node {
    dir: TempDir,
    chain: Vec<Certificate>,
    key: String,
}

impl Node {
    fn new() -> Self {
        let (from, until) = (epoch(), epoch() + Duration::from_hours(1));
        let key = rcgen::KeyPair::generate().unwrap();
        let chain = Ca::new(epoch())
            .intermediate(from, until)
            .chain(&leaf_params(&[], from, until), &key);
        Self {
            dir: tempfile::tempdir().unwrap(),
            chain,
            key: pem_block("PRIVATE KEY", key.serialized_der()),
        }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn chain_pem(&self) -> String {
        self.chain.iter().map(Certificate::to_pem).collect()
    }

    fn attestor(&self) -> X509pop {
        X509pop::new(
            self.write("node.key", &self.key),
            self.write("node.crt", &self.chain_pem()),
            None,
        )
    }
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

#[tokio::test]
async fn the_payload_is_the_chain_with_the_leaf_first_wherever_the_intermediates_stand() {
    let node = Node::new();
    let key = node.write("node.key", &node.key);
    let both = node.write(
        "both.crt",
        &format!("text\n{}{}", node.key, node.chain_pem()),
    );
    let leaf = node.write("leaf.crt", &node.chain[0].to_pem());
    let intermediates = node.write("int.crt", &node.chain[1].to_pem());
    let expected: Vec<_> = node
        .chain
        .iter()
        .map(|certificate| STANDARD.encode(certificate.der()))
        .collect();

    for attestor in [
        X509pop::new(key.clone(), both, Some(PathBuf::new())),
        X509pop::new(key.clone(), leaf, Some(intermediates)),
    ] {
        let proof = Rc::new(attestor).prepare().await.unwrap();

        assert_eq!(json(&proof.payload()), json!({ "certificates": expected }));
        assert_eq!(proof.attestor_name(), "x509pop");
    }
}

#[tokio::test]
async fn a_challenge_is_answered_with_a_fresh_nonce_and_a_signature() {
    let node = Node::new();
    let mut proof = Rc::new(node.attestor()).prepare().await.unwrap();
    let challenge =
        json!({ "rsa_signature": null, "ecdsa_signature": { "nonce": STANDARD.encode(ASKED) } })
            .to_string();

    let first = json(&proof.respond(challenge.as_bytes()).await.unwrap());
    let second = json(&proof.respond(challenge.as_bytes()).await.unwrap());

    assert_eq!(first["rsa_signature"], Value::Null);
    assert_ne!(
        first["ecdsa_signature"]["nonce"],
        second["ecdsa_signature"]["nonce"]
    );
    let bytes = |name: &str| {
        STANDARD
            .decode(first["ecdsa_signature"][name].as_str().unwrap())
            .unwrap()
    };
    let message = [ASKED.to_vec(), bytes("nonce")].concat();
    let (_, point) = read_public_key(node.chain[0].public_key_der()).unwrap();
    let signature = padded(&bytes("r"), &bytes("s"), 32);
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
        .verify(&message, &signature)
        .unwrap();
}

#[test]
fn messages_are_those_that_go_writes() {
    let rsa = messages::response(&OWN, &Signature::Rsa(vec![0xff, 0xfe]));
    let ecdsa = messages::response(
        &OWN,
        &Signature::Ecdsa {
            r: vec![1],
            s: vec![2],
        },
    );

    let nonce = STANDARD.encode(OWN);
    let expected = format!(
        r#"{{"rsa_signature":{{"nonce":"{nonce}","signature":"//4="}},"ecdsa_signature":null}}"#
    );
    assert_eq!(String::from_utf8(rsa).unwrap(), expected);
    let expected = format!(
        r#"{{"rsa_signature":null,"ecdsa_signature":{{"nonce":"{nonce}","r":"AQ==","s":"Ag=="}}}}"#
    );
    assert_eq!(String::from_utf8(ecdsa).unwrap(), expected);
}

#[test]
fn only_a_fitting_challenge_is_taken() {
    let nonce = STANDARD.encode(ASKED);
    let asking =
        |name: &str, nonce: &str| format!(r#"{{"{name}":{{"nonce":"{nonce}"}},"new":[1]}}"#);
    let table = [
        (asking("rsa_signature", &nonce), KeyKind::Rsa, Ok(ASKED)),
        (asking("ecdsa_signature", &nonce), KeyKind::Ecdsa, Ok(ASKED)),
        (
            asking("rsa_signature", &nonce),
            KeyKind::Ecdsa,
            Err("asks for no ECDSA signature"),
        ),
        (
            asking("ecdsa_signature", &nonce),
            KeyKind::Rsa,
            Err("asks for no RSA signature"),
        ),
        (
            asking("rsa_signature", nonce.trim_end_matches('=')),
            KeyKind::Rsa,
            Err("not base64"),
        ),
        (
            asking("rsa_signature", "AAAA"),
            KeyKind::Rsa,
            Err("the nonce has 3 bytes instead of 32"),
        ),
        (
            r#"{"rsa_signature":{}}"#.to_owned(),
            KeyKind::Rsa,
            Err("the nonce has 0 bytes"),
        ),
        (
            r#"{"rsa_signature":[7]}"#.to_owned(),
            KeyKind::Rsa,
            Err("malformed"),
        ),
        ("null".to_owned(), KeyKind::Rsa, Err("malformed")),
        (String::new(), KeyKind::Rsa, Err("malformed")),
        ("[".repeat(4000), KeyKind::Rsa, Err("malformed")),
        (
            " ".repeat(4097),
            KeyKind::Rsa,
            Err("larger than 4096 bytes"),
        ),
    ];

    for (challenge, kind, outcome) in table {
        match (messages::challenge(challenge.as_bytes(), kind), outcome) {
            (Ok(nonce), Ok(expected)) => assert_eq!(nonce, expected),
            (Err(refused), Err(reason)) => {
                assert!(refused.contains(reason), "{challenge}: {refused}");
            }
            (found, expected) => panic!("{challenge}: {found:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_the_reason() {
    let node = Node::new();
    let key = node.write("node.key", &node.key);
    let certificate = node.write("node.crt", &node.chain_pem());
    let missing = node.dir.path().join("missing");
    let other = node.write("other.key", &Node::new().key);
    let encrypted = node.write(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let header = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
    let old_encrypted = node.write("old-encrypted.key", header);
    let cut = node.write("cut.key", &node.key[..100]);
    let text = node.write("text", "no PEM");
    let table = [
        (&missing, &certificate, None, &missing, "No such file"),
        (
            &encrypted,
            &certificate,
            None,
            &encrypted,
            "private key is encrypted",
        ),
        (
            &old_encrypted,
            &certificate,
            None,
            &old_encrypted,
            "private key is encrypted",
        ),
        (
            &other,
            &certificate,
            None,
            &other,
            "private key does not match",
        ),
        (&text, &certificate, None, &text, "no private key block"),
        (
            &certificate,
            &certificate,
            None,
            &certificate,
            "no private key block",
        ),
        (
            &cut,
            &certificate,
            None,
            &cut,
            "malformed private key block",
        ),
        (&key, &missing, None, &missing, "No such file"),
        (&key, &key, None, &key, "no certificate"),
        (&key, &text, None, &text, "no certificate"),
        (&key, &certificate, Some(&missing), &missing, "No such file"),
        (&key, &certificate, Some(&key), &key, "no certificate"),
    ];

    for (key, certificate, intermediates, at_fault, reason) in table {
        let attestor = X509pop::new(key.clone(), certificate.clone(), intermediates.cloned());

        let refused = attestor.check().unwrap_err().to_string();

        let expected = format!("{}: unable to load keypair: ", at_fault.display());
        assert!(
            refused.starts_with(&expected) && refused.contains(reason),
            "{refused}"
        );
    }
    assert_eq!(node.attestor().check(), Ok(()));
}

#[tokio::test]
async fn a_renewed_certificate_counts_from_the_next_attestation() {
    let (node, renewed) = (Node::new(), Node::new());
    let attestor = Rc::new(node.attestor());
    let before = Rc::clone(&attestor).prepare().await.unwrap().payload();

    node.write("node.key", &renewed.key);
    node.write("node.crt", &renewed.chain_pem());
    let after = Rc::clone(&attestor).prepare().await.unwrap().payload();

    assert_ne!(before, after);
    assert_eq!(after, messages::payload(&renewed.chain));
}

#[tokio::test]
async fn debug_shows_nothing_of_the_key() {
    let proof = Rc::new(Node::new().attestor()).prepare().await.unwrap();

    let shown = format!("{proof:?}");

    assert!(
        shown.starts_with("Evidence { certificates: [Certificate") && !shown.contains("key"),
        "{shown}"
    );
}

#[tokio::test]
async fn an_svid_from_another_agent_is_evidence() {
    let ca = Ca::new(epoch());
    let one = ca.svid(
        "spiffe://domain.test/node",
        epoch(),
        epoch() + Duration::from_hours(1),
    );
    let fake = Fake::start(Reply::svids(&[&one]));
    let attestor = Rc::new(X509popSvid::new(fake.address.clone()));

    let mut proof = attestor.prepare().await.unwrap();

    let expected = messages::payload(one.chain());
    assert_eq!(proof.payload(), expected);
    let challenge = json!({ "ecdsa_signature": { "nonce": STANDARD.encode(ASKED) } });
    assert!(
        proof
            .respond(challenge.to_string().as_bytes())
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn another_agent_without_a_usable_identity_is_named() {
    let ca = Ca::new(epoch());
    let svid = |path: &str| ca.svid(path, epoch(), epoch() + Duration::from_hours(1));
    let (one, other) = (
        svid("spiffe://domain.test/a"),
        svid("spiffe://domain.test/b"),
    );
    let foreign_key = proto::workload::X509svidResponse {
        svids: vec![proto::workload::X509svid {
            x509_svid: one.chain_der().clone(),
            x509_svid_key: other.key.expose_pkcs8_shared(),
            ..proto::workload::X509svid::default()
        }],
        ..proto::workload::X509svidResponse::default()
    };
    let table = [
        (Reply::of(&foreign_key), "private key does not match"),
        (Reply::svids(&[]), "it sent no X.509-SVID"),
        (
            Reply::Status(7, "no identity issued"),
            "PermissionDenied: no identity issued",
        ),
    ];

    for (reply, reason) in table {
        let fake = Fake::start(reply);
        let attestor = Rc::new(X509popSvid::new(fake.address.clone()));

        let error = attestor.prepare().await.unwrap_err().to_string();
        let expected = format!("{}: unable to load keypair: {reason}", fake.address);
        assert!(error.starts_with(&expected), "{error}");
    }
}
