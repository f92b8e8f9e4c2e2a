//! Fetches the document that a URL names: over TLS by the Web PKI, or over a Unix socket, from redirect to redirect.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::http::{self, Answer, FetchError, within};
use super::roots::RootPlaces;
use super::url::BundleUrl;
use crate::clock::{Clock, unix_seconds};
use crate::proxy::Proxies;
use crate::wire::Transport;

/// Time for all of it, redirects included.
const TOTAL_LIMIT: Duration = Duration::from_secs(30);
/// Most requests for one document: the redirect that would make it more is refused, as in Go.
const MAX_REQUESTS: usize = 10;
const ALPN: &[u8] = b"http/1.1";

/// What the environment says about https: authorities and proxies.
#[derive(Debug, Clone)]
pub struct Web {
    roots: RootPlaces,
    proxies: Proxies,
    clock: Clock,
}

/// Where streams to a URL's host come from.
#[derive(Debug)]
pub(super) enum Route {
    /// TLS, perhaps through a proxy.
    Web {
        tls: Arc<ClientConfig>,
        proxies: Proxies,
    },
    /// Every host is behind this socket.
    Socket(PathBuf),
}

/// Certificates are valid by the agent's clock.
#[derive(Debug)]
struct Date(Clock);

impl TimeProvider for Date {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(unix_seconds(self.0.wall())).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

impl Web {
    /// Reads `SSL_CERT_FILE`, `SSL_CERT_DIR` and the variables for proxies.
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>, clock: Clock) -> Self {
        Self {
            roots: RootPlaces::from_environment(variable),
            proxies: Proxies::from_environment(variable),
            clock,
        }
    }

    /// Fetches over TLS. The server is verified as a browser does it.
    pub(super) async fn get(&self, url: &BundleUrl) -> Result<Vec<u8>, FetchError> {
        limited(async {
            let route = Route::Web {
                tls: Arc::new(self.tls_config().await?),
                proxies: self.proxies.clone(),
            };
            route.follow(url).await
        })
        .await
    }

    async fn tls_config(&self) -> Result<ClientConfig, FetchError> {
        let places = self.roots.clone();
        // More than a hundred certificates: longer than the actors' thread should wait.
        let loading = tokio::task::spawn_blocking(move || places.load());
        let roots = within("reading the root certificates", loading).await?;
        if roots.is_empty() {
            return Err(FetchError::NoRoots(self.roots.describe()));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_details(provider, Arc::new(Date(self.clock.clone())))
                .with_safe_default_protocol_versions()
                .map_err(|error| FetchError::Failed {
                    step: "TLS",
                    reason: error.to_string(),
                })?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}

/// Fetches over a Unix socket.
pub(super) async fn get_over_socket(socket: &Path, url: &BundleUrl) -> Result<Vec<u8>, FetchError> {
    limited(Route::Socket(socket.to_owned()).follow(url)).await
}

/// Waits for a document, at most [`TOTAL_LIMIT`].
pub(super) async fn limited<T>(
    work: impl Future<Output = Result<T, FetchError>>,
) -> Result<T, FetchError> {
    timeout(TOTAL_LIMIT, work)
        .await
        .unwrap_or(Err(FetchError::TimedOut {
            step: "fetching",
            limit: TOTAL_LIMIT,
        }))
}

impl Route {
    /// Goes from redirect to redirect until there is a document.
    pub(super) async fn follow(&self, url: &BundleUrl) -> Result<Vec<u8>, FetchError> {
        let mut url = url.clone();
        for _ in 0..MAX_REQUESTS {
            let stream = self.open(&url).await?;
            let location = match http::get(stream, &url).await? {
                Answer::Document(document) => return Ok(document),
                Answer::Redirect(location) => location,
            };
            let next = url.resolve(&location).map_err(FetchError::Redirect)?;
            if next.scheme() != url.scheme() {
                return Err(FetchError::Scheme {
                    from: url.to_string(),
                    to: next.to_string(),
                });
            }
            url = next;
        }
        Err(FetchError::TooManyRedirects(MAX_REQUESTS))
    }

    async fn open(&self, url: &BundleUrl) -> Result<Box<dyn Transport>, FetchError> {
        let (tls, proxies) = match self {
            Self::Socket(path) => {
                let stream = within("connecting", UnixStream::connect(path)).await?;
                return Ok(Box::new(stream));
            }
            Self::Web { tls, proxies } => (tls, proxies),
        };
        let name = ServerName::try_from(url.host().to_owned());
        let name = name.map_err(|error| FetchError::Failed {
            step: "TLS",
            reason: error.to_string(),
        })?;
        let stream = match proxies.for_target(url.host(), url.port())? {
            None => dial(url.host(), url.port()).await?,
            Some(proxy) => {
                let stream = dial(&proxy.host, proxy.port).await?;
                within("proxy", proxy.tunnel(stream, &url.peer())).await?
            }
        };
        let handshake = TlsConnector::from(Arc::clone(tls)).connect(name, stream);
        Ok(Box::new(within("TLS handshake", handshake).await?))
    }
}

/// Connects to the first address of a host that answers.
async fn dial(host: &str, port: u16) -> Result<TcpStream, FetchError> {
    let found = within("resolving the name", tokio::net::lookup_host((host, port))).await?;
    let addresses: Vec<SocketAddr> = found.collect();
    let mut last = FetchError::Failed {
        step: "resolving the name",
        reason: "it has no address".to_owned(),
    };
    for address in addresses {
        match within("connecting", TcpStream::connect(address)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
