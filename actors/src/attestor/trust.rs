//! Where the first trust bundle comes from: a file, or nowhere (`insecure_bootstrap`).

use std::future::Future;
use std::io::Read;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use crate::bundle::{Bundle, BundleError, BundleFormat};
use crate::credentials::ServerTrust;
use crate::spiffe_id::TrustDomain;
use crate::store::Purpose;

/// Larger bundle files are refused: no real bundle comes near.
const MAX_BUNDLE_BYTES: u64 = 4 << 20;

/// A source of the bundle that the server is verified by before one has been stored.
#[derive(Debug, Clone)]
pub enum BundleSource {
    /// A file that is read anew at each attempt.
    File {
        /// Where it is.
        path: PathBuf,
        /// How it is written.
        format: BundleFormat,
    },
    /// None: only the ID in the server's certificate is compared.
    Insecure,
}

/// Why there is no bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleSourceError {
    /// The file cannot be read: it may still come.
    #[error("unable to read trust bundle {path}: {reason}")]
    Unreadable {
        /// The file as configured.
        path: String,
        /// The operating system's words.
        reason: String,
    },
    /// The file is no bundle: waiting does not help.
    #[error("unusable trust bundle {path}: {reason}")]
    Unusable {
        /// The file as configured.
        path: String,
        /// What is wrong with it.
        reason: BundleError,
    },
    /// There is an SVID but no bundle, and none can be had: no unverified connection is made with an identity.
    #[error(
        "SVID loaded but no bundle in cache: set trust_bundle_path, or remove agent-data.json to attest anew"
    )]
    NoBundle,
}

/// The configured sources, asked in order until one answers.
#[derive(Debug, Clone)]
pub struct BundleSources(pub Vec<BundleSource>);

/// What a source is told about the agent that asks (query parameters of node-side 1.1).
#[derive(Debug, Clone)]
pub struct Asking {
    /// First attestation, or a server that has become unknown.
    pub purpose: Purpose,
    /// How often sources were asked since `started`, this time included.
    pub attempts: i64,
    /// When the trouble began.
    pub started: SystemTime,
    /// Name or address of the server, as configured.
    pub server_address: String,
    /// Its port.
    pub server_port: u16,
    /// Whose bundle is wanted.
    pub trust_domain: TrustDomain,
}

/// A bundle on its way.
pub type Fetching = Pin<Box<dyn Future<Output = Result<ServerTrust, BundleSourceError>>>>;

impl BundleSources {
    /// Fetches the bundle from the first source that has a usable one; the last source's error if none has. Every source has a time limit of
    /// its own.
    pub fn fetch(&self, asking: Asking) -> Fetching {
        let sources = self.0.clone();
        Box::pin(async move {
            let mut last = BundleSourceError::NoBundle;
            for source in sources {
                match source.fetch(&asking.trust_domain) {
                    Ok(trust) => return Ok(trust),
                    Err(error) => last = error,
                }
            }
            Err(last)
        })
    }
}

impl BundleSourceError {
    /// Whether waiting does not help.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Unusable { .. })
    }

    /// Whether a local file is missing: somebody has to put it there.
    pub fn is_of_a_file(&self) -> bool {
        matches!(self, Self::Unreadable { .. })
    }
}

impl BundleSource {
    /// Fetches the bundle.
    pub fn fetch(&self, trust_domain: &TrustDomain) -> Result<ServerTrust, BundleSourceError> {
        let Self::File { path, format } = self else {
            return Ok(ServerTrust::Insecure);
        };
        let unreadable = |error: std::io::Error| BundleSourceError::Unreadable {
            path: path.display().to_string(),
            reason: error.to_string(),
        };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut text = Vec::new();
        file.take(MAX_BUNDLE_BYTES)
            .read_to_end(&mut text)
            .map_err(unreadable)?;
        let bundle = Bundle::from_file_text(trust_domain, &text, *format);
        bundle
            .map(|bundle| ServerTrust::Bundle(Arc::new(bundle)))
            .map_err(|reason| BundleSourceError::Unusable {
                path: path.display().to_string(),
                reason,
            })
    }
}
