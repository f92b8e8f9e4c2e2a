//! `sshpop`: the node proves that it holds the SSH host key of a host certificate (node-side 2.5).
//!
//! Owns the two paths and, for the length of one attestation, what stands in the files. The certificate is read in [`certificate`], the key in
//! [`private_key`] and [`signing`], which also signs; the JSON on the wire is in [`messages`].

use std::fmt;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ring::rand::SystemRandom;

use super::node::{Answer, Evidence, EvidenceError, NodeAttestor, Proof};
use super::node_file;
use super::node_key;
use certificate::HostCertificate;
use messages::Nonce;
use signing::HostKey;

mod certificate;
mod messages;
mod private_key;
mod signing;
#[cfg(test)]
mod tests;
mod wire;

/// Type string of the attestor.
const NAME: &str = "sshpop";
/// Largest file in bytes; an RSA key of 8192 bits has 6500.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Attestation by a host key and its certificate in OpenSSH's files, which are read anew each time: a renewed certificate counts from the
/// next attestation on.
#[derive(Debug, Clone)]
pub struct Sshpop {
    host_key: PathBuf,
    host_cert: PathBuf,
}

/// What stood in the files.
struct HostProof {
    certificate: HostCertificate,
    key: HostKey,
}

impl Sshpop {
    /// Takes the paths as configured: the host key (OpenSSH's format, PKCS#8, PKCS#1 or SEC1, unencrypted), and its certificate as `ssh-keygen -s`
    /// writes it.
    pub fn new(host_key_path: PathBuf, host_cert_path: PathBuf) -> Self {
        Self {
            host_key: host_key_path,
            host_cert: host_cert_path,
        }
    }

    /// Reads the files and checks that they can be used, so that a mistake ends the start and not the first attestation.
    pub fn check(&self) -> Result<(), EvidenceError> {
        self.load().map(drop)
    }

    fn load(&self) -> Result<HostProof, EvidenceError> {
        let read = |path: &Path| {
            node_file::read(path, MAX_FILE_BYTES).map_err(|error| unusable(path, &error))
        };
        let certificate = HostCertificate::read(&read(&self.host_cert)?)
            .map_err(|error| unusable(&self.host_cert, &error))?;
        let key = HostKey::load(&read(&self.host_key)?, &certificate.key)
            .map_err(|error| unusable(&self.host_key, &error))?;
        Ok(HostProof { certificate, key })
    }
}

impl NodeAttestor for Sshpop {
    fn name(&self) -> &'static str {
        NAME
    }

    fn may_attest_again(&self) -> bool {
        true
    }

    fn prepare(self: Rc<Self>) -> Evidence {
        let files = Self::clone(&self);
        Box::pin(async move {
            // Reading and checking a large RSA key takes longer than the actors' thread should wait.
            let loaded = tokio::task::spawn_blocking(move || files.load()).await;
            let stopped = |_| unusable(&self.host_key, &"loading was interrupted");
            let proof = loaded.map_err(stopped)??;
            Ok(Box::new(proof) as Box<dyn Proof>)
        })
    }
}

impl Proof for HostProof {
    fn attestor_name(&self) -> &'static str {
        NAME
    }

    fn payload(&self) -> Vec<u8> {
        messages::payload(&self.certificate.wire)
    }

    fn respond<'a>(&'a mut self, challenge: &'a [u8]) -> Answer<'a> {
        Box::pin(ready(self.answer_with_new_nonce(challenge)))
    }
}

impl HostProof {
    fn answer_with_new_nonce(&self, challenge: &[u8]) -> Result<Vec<u8>, EvidenceError> {
        let random = SystemRandom::new();
        self.answer(challenge, &node_key::fresh_nonce(&random)?, &random)
    }

    fn answer(
        &self,
        challenge: &[u8],
        nonce: &Nonce,
        random: &SystemRandom,
    ) -> Result<Vec<u8>, EvidenceError> {
        let asked = messages::challenge(challenge).map_err(EvidenceError::Challenge)?;
        let signature = self
            .key
            .sign(messages::message(&asked, nonce).as_ref(), random)
            .map_err(|error| EvidenceError::Signing(error.to_string()))?;
        Ok(messages::response(nonce, &signature))
    }
}

impl fmt::Debug for HostProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostProof")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

fn unusable(path: &Path, reason: &dyn fmt::Display) -> EvidenceError {
    EvidenceError::File {
        path: path.display().to_string(),
        reason: reason.to_string(),
    }
}
