//! `x509pop`: the node proves that it holds the key of an X.509 certificate, from a file or from another agent (node-side 2.3).
//!
//! Owns the three paths or the other agent's address and, for the length of one attestation, what stands there. Signatures are in
//! [`signing`], the JSON on the wire in [`messages`].

use std::fmt;
use std::future::{Future, ready};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use ring::rand::SystemRandom;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use super::node::{Answer, EvidenceError, NodeAttestor, Proof};
use super::node_file;
use super::node_key::{self, NodeKey, NodeKeyError};
use crate::svid::{Certificate, PemPolicy, pem};
use crate::workload_api::{self, Address, FetchedSvid};
use messages::Nonce;

mod messages;
mod signing;
#[cfg(test)]
mod tests;

/// Type string of the attestor.
const NAME: &str = "x509pop";
/// Operators grep for it, as Go has it.
const UNLOADABLE: &str = "unable to load keypair";
/// Largest file in bytes.
const MAX_FILE_BYTES: u64 = 2 * 1024 * 1024;

/// Attestation by a certificate and its key in PEM files, which are read anew each time: a renewed node certificate counts
/// from the next attestation on.
#[derive(Debug, Clone)]
pub struct X509pop {
    private_key: PathBuf,
    certificate: PathBuf,
    intermediates: Option<PathBuf>,
}

/// Attestation by the X.509-SVID that another agent hands out to this process, asked for anew each time.
#[derive(Debug, Clone)]
pub struct X509popSvid {
    address: Address,
}

/// What stood in the files, or was handed out.
struct Evidence {
    /// Leaf first; never empty.
    certificates: Vec<Certificate>,
    key: NodeKey,
}

impl X509pop {
    /// Takes the paths as configured: the key (PKCS#8, PKCS#1 or SEC1), the certificate with or without its intermediates,
    /// and a file with further intermediates. A blank third path counts as none.
    pub fn new(
        private_key_path: PathBuf,
        certificate_path: PathBuf,
        intermediates_path: Option<PathBuf>,
    ) -> Self {
        let intermediates = intermediates_path.filter(|path| !path.as_os_str().is_empty());
        Self {
            private_key: private_key_path,
            certificate: certificate_path,
            intermediates,
        }
    }

    /// Reads the files and checks that they can be used, so that a mistake ends the start and not the first attestation.
    pub fn check(&self) -> Result<(), EvidenceError> {
        self.load().map(drop)
    }

    fn load(&self) -> Result<Evidence, EvidenceError> {
        let mut certificates = read_certificates(&self.certificate)?;
        if let Some(path) = &self.intermediates {
            certificates.extend(read_certificates(path)?);
        }
        let leaf = certificates
            .first()
            .expect("a certificate file without certificates is an error");
        let key = self.load_key(leaf)?;
        Ok(Evidence { certificates, key })
    }

    fn load_key(&self, leaf: &Certificate) -> Result<NodeKey, EvidenceError> {
        let path = &self.private_key;
        let text = read_file(path)?;
        let key = pem::private_key(&text)
            .map(Zeroizing::new)
            .map_err(|error| unusable(path, &error))?;
        NodeKey::load(&key, leaf.public_key_der()).map_err(|error| unusable(path, &error))
    }
}

impl NodeAttestor for X509pop {
    fn name(&self) -> &'static str {
        NAME
    }

    fn may_attest_again(&self) -> bool {
        true
    }

    fn prepare(
        self: Rc<Self>,
    ) -> Pin<Box<dyn Future<Output = Result<Box<dyn Proof>, EvidenceError>>>> {
        let files = Self::clone(&self);
        Box::pin(async move {
            // Reading and checking a large RSA key takes longer than the actors' thread should wait.
            let loaded = tokio::task::spawn_blocking(move || files.load()).await;
            let stopped = |_| unusable(&self.private_key, &"loading was interrupted");
            let evidence = loaded.map_err(stopped)??;
            Ok(Box::new(evidence) as Box<dyn Proof>)
        })
    }
}

impl X509popSvid {
    /// Takes the address of the other agent's Workload API (`spiffe_endpoint_socket`).
    pub fn new(address: Address) -> Self {
        Self { address }
    }

    fn unavailable(&self, reason: &dyn fmt::Display) -> EvidenceError {
        EvidenceError::WorkloadApi {
            address: self.address.to_string(),
            reason: format!("{UNLOADABLE}: {reason}"),
        }
    }
}

impl NodeAttestor for X509popSvid {
    fn name(&self) -> &'static str {
        NAME
    }

    fn may_attest_again(&self) -> bool {
        true
    }

    fn prepare(
        self: Rc<Self>,
    ) -> Pin<Box<dyn Future<Output = Result<Box<dyn Proof>, EvidenceError>>>> {
        Box::pin(async move {
            let svid = workload_api::fetch_x509_svid(&self.address)
                .await
                .map_err(|error| self.unavailable(&error.reason))?;
            // Checking a large RSA key takes longer than the actors' thread should wait.
            let loaded = tokio::task::spawn_blocking(move || Evidence::of(svid)).await;
            let evidence = loaded
                .map_err(|_| self.unavailable(&"loading was interrupted"))?
                .map_err(|error| self.unavailable(&error))?;
            Ok(Box::new(evidence) as Box<dyn Proof>)
        })
    }
}

impl Proof for Evidence {
    fn attestor_name(&self) -> &'static str {
        NAME
    }

    fn payload(&self) -> Vec<u8> {
        messages::payload(&self.certificates)
    }

    fn respond<'a>(&'a mut self, challenge: &'a [u8]) -> Answer<'a> {
        Box::pin(ready(self.answer_with_new_nonce(challenge)))
    }
}

impl Evidence {
    fn answer_with_new_nonce(&self, challenge: &[u8]) -> Result<Vec<u8>, EvidenceError> {
        let random = SystemRandom::new();
        self.answer(challenge, &node_key::fresh_nonce(&random)?, &random)
    }

    fn of(svid: FetchedSvid) -> Result<Self, NodeKeyError> {
        let FetchedSvid { chain, key } = svid;
        let leaf = chain.first().expect("an SVID has a leaf");
        let pkcs8 = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(&key[..]));
        let key = NodeKey::load(&pkcs8, leaf.public_key_der())?;
        Ok(Self {
            certificates: chain,
            key,
        })
    }

    fn answer(
        &self,
        challenge: &[u8],
        nonce: &Nonce,
        random: &SystemRandom,
    ) -> Result<Vec<u8>, EvidenceError> {
        let asked =
            messages::challenge(challenge, self.key.kind()).map_err(EvidenceError::Challenge)?;
        let signature = self
            .key
            .sign(&asked, nonce, random)
            .map_err(|error| EvidenceError::Signing(error.to_string()))?;
        Ok(messages::response(nonce, &signature))
    }
}

impl fmt::Debug for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evidence")
            .field("certificates", &self.certificates)
            .finish_non_exhaustive()
    }
}

fn read_certificates(path: &Path) -> Result<Vec<Certificate>, EvidenceError> {
    let text = read_file(path)?;
    Certificate::list_from_pem(&text, PemPolicy::SkipOthers).map_err(|error| unusable(path, &error))
}

fn read_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, EvidenceError> {
    node_file::read(path, MAX_FILE_BYTES).map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, reason: &dyn fmt::Display) -> EvidenceError {
    EvidenceError::File {
        path: path.display().to_string(),
        reason: format!("{UNLOADABLE}: {reason}"),
    }
}
