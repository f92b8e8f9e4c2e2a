//! A CA for node certificates, with which agents attest by x509pop.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};

use rsa::Generate as _;
use rsa::pkcs8::{EncodePrivateKey, EncodePublicKey};
use rsa::rand_core::{TryCryptoRng, TryRng};

use crate::ca::NOT_BEFORE_CUSHION;
use crate::certificate::{Issuer, Purpose, Serial, Template, common_name, pem, random_bytes};
use crate::clock::{self, Seconds};

/// Lifetime of the root, intermediate and leaves unless asked otherwise.
const TTL: Seconds = 864_000;
const RSA_BITS: usize = 2048;

/// The kinds of node keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// ECDSA on P-256.
    EcP256,
    /// ECDSA on P-384.
    EcP384,
    /// ECDSA on P-521.
    EcP521,
    /// RSA with 2048 bits. Slow to generate in debug builds.
    Rsa2048,
}

/// A root, an intermediate, and the leaves that the latter signs.
#[derive(Debug)]
pub struct NodeCa {
    root_certificate: Vec<u8>,
    intermediate: Issuer,
    intermediate_certificate: Vec<u8>,
}

/// A node certificate with its key.
#[derive(Clone)]
pub struct NodeLeaf {
    /// The leaf and the intermediate.
    pub cert_pem: String,
    /// The leaf alone.
    pub leaf_pem: String,
    /// The private key as PKCS#8.
    pub key_pem: String,
}

impl std::fmt::Debug for NodeLeaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeLeaf")
            .field("cert_pem", &self.cert_pem)
            .finish_non_exhaustive()
    }
}

/// Where [`NodeLeaf::write`] put the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFiles {
    /// `certificate_path` of the agent's x509pop attestor.
    pub certificate: PathBuf,
    /// `private_key_path` of the agent's x509pop attestor.
    pub private_key: PathBuf,
}

impl NodeCa {
    /// A new CA.
    pub fn new() -> Self {
        let now = clock::unix_now(0);
        let root = Issuer::generate(common_name("node root"));
        let root_template = authority(&root, now);
        let intermediate = Issuer::generate(common_name("node intermediate"));
        let intermediate_template = authority(&intermediate, now);
        Self {
            root_certificate: root.issue(&root_template),
            intermediate_certificate: root.issue(&intermediate_template),
            intermediate,
        }
    }

    /// The root as PEM, for [`X509pop::roots_pem`](crate::X509pop::roots_pem).
    pub fn root_pem(&self) -> String {
        pem("CERTIFICATE", &self.root_certificate)
    }

    /// A certificate for a new key, valid from now on for ten days.
    pub fn leaf(&self, common_name: &str, kind: KeyKind) -> NodeLeaf {
        self.leaf_with(common_name, kind, &[], TTL)
    }

    /// A certificate with URI names (such as `x509pop://TRUST_DOMAIN/cluster/test`) that lives for `ttl` seconds,
    /// negative for one that is over.
    pub fn leaf_with(
        &self,
        common_name: &str,
        kind: KeyKind,
        uris: &[&str],
        ttl: Seconds,
    ) -> NodeLeaf {
        let now = clock::unix_now(0);
        let (private_key, public_key) = generate(kind);
        let leaf = self.intermediate.issue(&Template {
            subject: crate::certificate::common_name(common_name),
            public_key,
            purpose: Purpose::Node,
            uris: uris.iter().map(|&uri| uri.to_owned()).collect(),
            dns_names: Vec::new(),
            not_before: (now - NOT_BEFORE_CUSHION).min(now + ttl - NOT_BEFORE_CUSHION),
            not_after: now + ttl,
            serial: Serial::random(),
        });
        let leaf_pem = pem("CERTIFICATE", &leaf);
        let intermediate_pem = pem("CERTIFICATE", &self.intermediate_certificate);
        NodeLeaf {
            cert_pem: format!("{leaf_pem}{intermediate_pem}"),
            leaf_pem,
            key_pem: pem("PRIVATE KEY", &private_key),
        }
    }
}

impl Default for NodeCa {
    fn default() -> Self {
        Self::new()
    }
}

impl NodeLeaf {
    /// Writes `NAME.crt` and, readable by the owner alone, `NAME.key` into `directory`.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn write(&self, directory: &Path, name: &str) -> io::Result<NodeFiles> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;

        let certificate = directory.join(format!("{name}.crt"));
        let private_key = directory.join(format!("{name}.key"));
        std::fs::write(&certificate, &self.cert_pem)?;
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&private_key)?
            .write_all(self.key_pem.as_bytes())?;
        Ok(NodeFiles {
            certificate,
            private_key,
        })
    }
}

fn authority(holder: &Issuer, now: Seconds) -> Template {
    Template {
        subject: holder.subject().to_vec(),
        public_key: holder.public_key(),
        purpose: Purpose::Authority,
        uris: Vec::new(),
        dns_names: Vec::new(),
        not_before: now - NOT_BEFORE_CUSHION,
        not_after: now + TTL,
        serial: Serial::random(),
    }
}

/// A new key as PKCS#8 and `SubjectPublicKeyInfo` DER.
fn generate(kind: KeyKind) -> (Vec<u8>, Vec<u8>) {
    match kind {
        KeyKind::EcP256 => {
            let key = Issuer::generate(Vec::new());
            (key.expose_pkcs8().to_vec(), key.public_key())
        }
        KeyKind::EcP384 => {
            let key = p384::SecretKey::generate_from_rng(&mut SystemRng);
            encode(&key, &key.public_key())
        }
        KeyKind::EcP521 => {
            let key = p521::SecretKey::generate_from_rng(&mut SystemRng);
            encode(&key, &key.public_key())
        }
        KeyKind::Rsa2048 => {
            let key = rsa::PrivateKey::new(&mut SystemRng, RSA_BITS)
                .expect("2048 bits are enough for RSA");
            encode(&key, &key.to_public_key())
        }
    }
}

fn encode(private: &impl EncodePrivateKey, public: &impl EncodePublicKey) -> (Vec<u8>, Vec<u8>) {
    const GENERATED: &str = "a key that was just generated can be encoded";

    let private = private.to_pkcs8_der().expect(GENERATED);
    let public = public.to_public_key_der().expect(GENERATED);
    (private.as_bytes().to_vec(), public.as_bytes().to_vec())
}

/// The system's random source as `RustCrypto` wants it.
struct SystemRng;

impl TryRng for SystemRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_le_bytes(random_bytes()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from_le_bytes(random_bytes()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let random: [u8; 8] = random_bytes();
            chunk.copy_from_slice(random.get(..chunk.len()).unwrap_or_default());
        }
        Ok(())
    }
}

impl TryCryptoRng for SystemRng {}
