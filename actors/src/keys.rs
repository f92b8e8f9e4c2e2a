//! Private keys. Bytes leave through `expose_…` methods alone, so one grep lists every place that touches a key.

use std::fmt;

use bytes::Bytes;
use std::sync::Arc;

use crate::spiffe_id::SpiffeId;

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
    pub fn generate(_kind: KeyType) -> Result<Self, KeyError> {
        todo!()
    }

    /// Reads PKCS#8 DER: EC P-256 and P-384, RSA 2048 and 4096 (node-side 3.7).
    pub fn from_pkcs8(_der: &[u8]) -> Result<Self, KeyError> {
        todo!()
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
    pub fn certificate_request(&self, _id: Option<&SpiffeId>) -> Result<Vec<u8>, KeyError> {
        todo!()
    }

    /// The key as rustls signs handshakes with it.
    pub fn tls_signer(&self) -> Result<Arc<dyn rustls::sign::SigningKey>, KeyError> {
        todo!()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}
