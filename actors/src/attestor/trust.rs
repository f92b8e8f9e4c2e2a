//! Where the first trust bundle comes from: files, URLs, another agent's Workload API, or nowhere (`insecure_bootstrap`); node-side 1.1.
//!
//! [`BundleSources`] asks one after the other until one answers. What a URL, a pin and a query mean is decided in the pure files
//! [`url`], [`pins`] and [`form`]; [`web`] and [`http`] fetch.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use crate::bundle::{Bundle, BundleError, BundleFormat};
use crate::credentials::ServerTrust;
use crate::spiffe_id::TrustDomain;
use crate::store::Purpose;
use crate::workload_api::{self, Address};
use pins::Pins;
use url::BundleUrl;
use web::Web;

mod file;
mod form;
mod http;
pub mod pins;
mod roots;
#[cfg(test)]
mod tests;
pub mod url;
pub mod web;

/// A source of the bundle that the server is verified by before one has been stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BundleSource {
    /// A file that is read anew at each attempt.
    File {
        /// Where it is.
        path: PathBuf,
        /// How it is written; none = its content tells.
        format: Option<BundleFormat>,
    },
    /// A document on a server.
    Url {
        /// `https`; `http` only over a Unix socket.
        url: BundleUrl,
        /// The socket that every connection goes to.
        unix_socket: Option<PathBuf>,
        /// How it is written; none = its content tells.
        format: Option<BundleFormat>,
    },
    /// Another agent, which holds the trust domain's bundle already.
    WorkloadApi {
        /// Its Workload API.
        address: Address,
    },
    /// None: only the ID in the server's certificate is compared.
    Insecure,
}

/// A source and which of its authorities are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedSource {
    /// Where the bundle is.
    pub source: BundleSource,
    /// Fingerprints of the authorities that are taken; none = all.
    pub pins: Pins,
}

/// Why there is no bundle. Names the file or the host, never a URL's user or query.
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
    /// Somebody else was asked, and has none that can be used: that may change.
    #[error("unable to fetch trust bundle from {from}: {reason}")]
    Unavailable {
        /// Scheme and host of a URL, or the address of a Workload API.
        from: String,
        /// What went wrong.
        reason: String,
    },
    /// There is a bundle, and none of its authorities is pinned.
    #[error("none of the authorities from {from} is pinned")]
    NotPinned {
        /// The source.
        from: String,
    },
    /// There is an SVID but no bundle, and none can be had: no unverified connection is made with an identity.
    #[error(
        "SVID loaded but no bundle in cache: set trust_bundle_path, or remove agent-data.json to attest anew"
    )]
    NoBundle,
    /// Every source failed.
    #[error("no source has a trust bundle: {}", listed(.0))]
    All(Vec<Self>),
}

/// The configured sources, asked in order until one answers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BundleSources(Rc<Sources>);

#[derive(Debug)]
struct Sources {
    list: Vec<PinnedSource>,
    web: Web,
    /// For each source whether a file of it is being read.
    busy: Vec<Arc<AtomicBool>>,
    /// For each source the failure that was logged last.
    reported: RefCell<Vec<Option<BundleSourceError>>>,
}

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
    /// Takes the sources in the order in which they are to be asked.
    pub fn new(list: Vec<PinnedSource>, web: Web) -> Self {
        Self(Rc::new(Sources {
            busy: list.iter().map(|_| Arc::default()).collect(),
            reported: RefCell::new(vec![None; list.len()]),
            list,
            web,
        }))
    }

    /// Fetches the bundle from the first source that has a usable one; an error that names every source if none has. Every source has a time
    /// limit of its own: files 10 s, URLs 30 s, a Workload API 1 min.
    pub fn fetch(&self, asking: Asking) -> Fetching {
        let sources = Rc::clone(&self.0);
        Box::pin(async move { sources.fetch(&asking).await })
    }
}

impl Sources {
    async fn fetch(&self, asking: &Asking) -> Result<ServerTrust, BundleSourceError> {
        let mut failures = Vec::new();
        for (index, (source, busy)) in self.list.iter().zip(&self.busy).enumerate() {
            match source.fetch(asking, &self.web, busy).await {
                Ok(trust) => {
                    self.is_news(index, None);
                    return Ok(trust);
                }
                Err(error) => {
                    let is_last = index + 1 == self.list.len();
                    if !is_last && self.is_news(index, Some(&error)) {
                        tracing::warn!(source = %source.source, %error, "Trust bundle source failed, asking the next one");
                    }
                    failures.push(error);
                }
            }
        }
        Err(match failures.len() {
            0 => BundleSourceError::NoBundle,
            1 => failures.remove(0),
            _ => BundleSourceError::All(failures),
        })
    }

    /// Notes how a source did; whether that is other than what was noted before.
    fn is_news(&self, index: usize, failure: Option<&BundleSourceError>) -> bool {
        let mut reported = self.reported.borrow_mut();
        let is_news = reported[index].as_ref() != failure;
        reported[index] = failure.cloned();
        is_news
    }
}

impl PinnedSource {
    /// A source whose authorities are all taken.
    pub fn unpinned(source: BundleSource) -> Self {
        Self {
            source,
            pins: Pins::default(),
        }
    }

    async fn fetch(
        &self,
        asking: &Asking,
        web: &Web,
        busy: &Arc<AtomicBool>,
    ) -> Result<ServerTrust, BundleSourceError> {
        let unavailable = |reason: String| BundleSourceError::Unavailable {
            from: self.source.to_string(),
            reason,
        };
        let bundle = match &self.source {
            BundleSource::File { path, format } => {
                file::read(path, *format, &asking.trust_domain, busy).await?
            }
            BundleSource::Url {
                url,
                unix_socket,
                format,
            } => {
                let fetched = match unix_socket {
                    None => web.get(url).await,
                    Some(socket) => {
                        let url = url.with_query(form::told(url.query(), asking));
                        web::get_over_socket(socket, &url).await
                    }
                };
                let text = fetched.map_err(|error| unavailable(error.to_string()))?;
                bundle_of(&asking.trust_domain, &text, *format)
                    .map_err(|error| unavailable(error.to_string()))?
            }
            BundleSource::WorkloadApi { address } => {
                workload_api::fetch_x509_bundle(address, &asking.trust_domain)
                    .await
                    .map_err(|error| unavailable(error.reason.to_string()))?
            }
            BundleSource::Insecure => return Ok(ServerTrust::Insecure),
        };
        let kept = self.pins.keep(bundle);
        kept.map(|bundle| ServerTrust::Bundle(Arc::new(bundle)))
            .ok_or_else(|| BundleSourceError::NotPinned {
                from: self.source.to_string(),
            })
    }
}

/// Reads a bundle; without a format the first byte that is no blank tells it.
fn bundle_of(
    trust_domain: &TrustDomain,
    text: &[u8],
    format: Option<BundleFormat>,
) -> Result<Bundle, BundleError> {
    let format = format.unwrap_or_else(|| {
        if text.trim_ascii_start().starts_with(b"{") {
            BundleFormat::Spiffe
        } else {
            BundleFormat::Pem
        }
    });
    Bundle::from_file_text(trust_domain, text, format)
}

#[cfg(any(test, feature = "testing"))]
impl From<BundleSource> for BundleSources {
    /// One source alone, in an environment that says nothing.
    fn from(source: BundleSource) -> Self {
        let web = Web::from_environment(&|_| None, crate::clock::Clock::system());
        Self::new(vec![PinnedSource::unpinned(source)], web)
    }
}

impl BundleSourceError {
    /// Whether waiting does not help: every source is a damaged file.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Unusable { .. } => true,
            Self::All(failures) => failures.iter().all(Self::is_final),
            Self::Unreadable { .. }
            | Self::Unavailable { .. }
            | Self::NotPinned { .. }
            | Self::NoBundle => false,
        }
    }

    /// Whether all there is to wait for is that somebody puts a local file in its place.
    pub fn is_of_a_file(&self) -> bool {
        match self {
            Self::Unreadable { .. } | Self::Unusable { .. } => true,
            Self::All(failures) => failures.iter().all(Self::is_of_a_file),
            Self::Unavailable { .. } | Self::NotPinned { .. } | Self::NoBundle => false,
        }
    }
}

fn listed(failures: &[BundleSourceError]) -> String {
    let failures: Vec<_> = failures.iter().map(ToString::to_string).collect();
    failures.join("; ")
}

impl fmt::Display for BundleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "{}", path.display()),
            Self::Url {
                url,
                unix_socket: Some(socket),
                ..
            } => write!(f, "{url} over {}", socket.display()),
            Self::Url { url, .. } => write!(f, "{url}"),
            Self::WorkloadApi { address } => write!(f, "workload API {address}"),
            Self::Insecure => f.write_str("insecure_bootstrap"),
        }
    }
}
