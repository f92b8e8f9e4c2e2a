//! Asks another agent's SPIFFE Workload API for one answer: the bundle of a trust domain, or an X.509-SVID with its key. Connects, takes the
//! first message, hangs up. What comes back may be hostile.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::Authority;
use prost::Message;
use proto::workload::{X509BundlesRequest, X509BundlesResponse, X509svidRequest, X509svidResponse};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};
use zeroize::Zeroizing;

use crate::bundle::Bundle;
use crate::spiffe_id::TrustDomain;
use crate::svid::{Certificate, CertificateError};
use crate::wire::Wire;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

const FETCH_X509_BUNDLES: &str = "/SpiffeWorkloadAPI/FetchX509Bundles";
const FETCH_X509_SVID: &str = "/SpiffeWorkloadAPI/FetchX509SVID";
/// Time for all of it (node-side 1.1).
const LIMIT: Duration = Duration::from_mins(1);
/// Longest text of the other side that is kept, in characters.
const MAX_WORDS: usize = 300;

/// Where a Workload API listens (SPIFFE Workload Endpoint 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `unix:///path` or `unix:/path`.
    Unix(PathBuf),
    /// `tcp://ip:port`.
    Tcp(SocketAddr),
}

/// Why a Workload API gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("workload API {address}: {reason}")]
pub struct WorkloadApiError {
    /// Who was asked.
    pub address: Address,
    /// What went wrong.
    pub reason: WorkloadApiFailure,
}

/// What went wrong with a Workload API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadApiFailure {
    /// Nobody listens.
    #[error("unable to connect: {0}")]
    Unreachable(String),
    /// It ended the stream.
    #[error("it ended the stream without an answer")]
    Ended,
    /// No answer came.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// It answered with an error.
    #[error("{code:?}: {message}")]
    Refused {
        /// The gRPC code.
        code: Code,
        /// Its words, without control characters.
        message: String,
    },
    /// It does not know the trust domain.
    #[error("it has no bundle for trust domain {0}")]
    NoBundle(TrustDomain),
    /// It has no identity for this process.
    #[error("it sent no X.509-SVID")]
    NoSvid,
    /// The certificates are damaged.
    #[error("unusable answer: {0}")]
    Certificate(#[from] CertificateError),
}

/// An X.509-SVID as it was handed out.
pub struct FetchedSvid {
    /// Leaf first; never empty.
    pub chain: Vec<Certificate>,
    /// PKCS#8, DER; not checked against the leaf.
    pub key: Zeroizing<Vec<u8>>,
}

impl Address {
    /// Reads an endpoint URI; none if it is of neither form.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(address) = text.strip_prefix("tcp://") {
            return address.parse().ok().map(Self::Tcp);
        }
        let path = text.strip_prefix("unix:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        (path.starts_with('/') && path.len() > 1 && !path.contains('\0'))
            .then(|| Self::Unix(path.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// Fetches the X.509 authorities of a trust domain. Gives up after a minute.
pub async fn fetch_x509_bundle(
    address: &Address,
    trust_domain: &TrustDomain,
) -> Result<Bundle, WorkloadApiError> {
    let fetched = first_message(address, FETCH_X509_BUNDLES, X509BundlesRequest {});
    let bundle = async {
        let mut answer: X509BundlesResponse = fetched.await?;
        let der = answer
            .bundles
            .remove(&trust_domain.id_string())
            .ok_or_else(|| WorkloadApiFailure::NoBundle(trust_domain.clone()))?;
        let authorities = Certificate::list_from_der(&der)?;
        Ok(Bundle::of_certificates(trust_domain.clone(), authorities))
    };
    limited(address, bundle).await
}

/// Fetches the default identity of this process: the first X.509-SVID. Gives up after a minute.
pub async fn fetch_x509_svid(address: &Address) -> Result<FetchedSvid, WorkloadApiError> {
    let fetched = first_message(address, FETCH_X509_SVID, X509svidRequest {});
    let svid = async {
        let answer: X509svidResponse = fetched.await?;
        let first = answer.svids.into_iter().next();
        let first = first.ok_or(WorkloadApiFailure::NoSvid)?;
        Ok(FetchedSvid {
            chain: Certificate::list_from_der(&first.x509_svid)?,
            key: Zeroizing::new(first.x509_svid_key.to_vec()),
        })
    };
    limited(address, svid).await
}

async fn limited<T>(
    address: &Address,
    work: impl Future<Output = Result<T, WorkloadApiFailure>>,
) -> Result<T, WorkloadApiError> {
    let outcome = timeout(LIMIT, work).await;
    outcome
        .unwrap_or(Err(WorkloadApiFailure::TimedOut(LIMIT)))
        .map_err(|reason| WorkloadApiError {
            address: address.clone(),
            reason,
        })
}

/// Opens a connection and a stream on it; both end with the first message.
async fn first_message<R: Message + Default>(
    address: &Address,
    path: &'static str,
    message: impl Message,
) -> Result<R, WorkloadApiFailure> {
    let wire = open(address).await?;
    let mut stream = wire
        .server_streaming(path, request(message))
        .await
        .map_err(|status| refused(&status))?;
    let message = stream.message().await.map_err(|status| refused(&status))?;
    message.ok_or(WorkloadApiFailure::Ended)
}

async fn open(address: &Address) -> Result<Wire, WorkloadApiFailure> {
    let failed = |error: &dyn fmt::Display| WorkloadApiFailure::Unreachable(error.to_string());
    let authority = Authority::from_static("localhost");
    let wire = match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await;
            Wire::open(stream.map_err(|error| failed(&error))?, authority).await
        }
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await;
            Wire::open(stream.map_err(|error| failed(&error))?, authority).await
        }
    };
    wire.map_err(|error| failed(&error))
}

/// With the header that keeps requests out that somebody was tricked into (SPIFFE Workload Endpoint 6).
fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("workload.spiffe.io", MetadataValue::from_static("true"));
    request
}

/// The words may be hostile.
fn refused(status: &Status) -> WorkloadApiFailure {
    let words = status.message().chars();
    let message = words
        .map(|word| if word.is_control() { ' ' } else { word })
        .take(MAX_WORDS)
        .collect();
    WorkloadApiFailure::Refused {
        code: status.code(),
        message,
    }
}

impl fmt::Debug for FetchedSvid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchedSvid")
            .field("chain", &self.chain)
            .finish_non_exhaustive()
    }
}
