//! One GET over an open stream, HTTP/1.1. Size and time are limited; what the other side sends may be hostile.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, LOCATION, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::url::{BundleUrl, UrlError};
use crate::proxy::ProxyError;
use crate::wire::Transport;

/// Time for each step to a document: finding an address, connecting, TLS, the head of the answer, each piece of its body.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(10);
/// Largest document in bytes; no real bundle comes near.
pub(super) const MAX_DOCUMENT_BYTES: usize = 4 << 20;
/// Largest head of an answer in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
const AGENT: &str = concat!("edge-agent/", env!("CARGO_PKG_VERSION"));

/// What comes back for a GET.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The body of a 200.
    Document(Vec<u8>),
    /// Where it is instead: the `Location` as it came.
    Redirect(String),
}

/// Why no document could be had. Holds no part of the URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FetchError {
    /// A step failed.
    #[error("{step}: {reason}")]
    Failed {
        /// What was being done.
        step: &'static str,
        /// In the words of whoever failed.
        reason: String,
    },
    /// A step took too long.
    #[error("{step}: took longer than {limit:?}")]
    TimedOut {
        /// What was being done.
        step: &'static str,
        /// How long it might have taken.
        limit: Duration,
    },
    /// The answer is neither a document nor a redirect.
    #[error("status {0}, expected 200 OK")]
    Status(StatusCode),
    /// The document is larger than any bundle.
    #[error("document is larger than {MAX_DOCUMENT_BYTES} bytes")]
    TooLarge,
    /// A redirect says no usable place.
    #[error("unusable redirect: {0}")]
    Redirect(UrlError),
    /// A redirect leads from https to http, or the other way round.
    #[error("redirect from {from} to {to} is refused")]
    Scheme {
        /// Where it comes from.
        from: String,
        /// Where it leads to.
        to: String,
    },
    /// There is no end to the redirects.
    #[error("stopped after {0} redirects")]
    TooManyRedirects(usize),
    /// The environment names a proxy that cannot be used.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// No authority for https is known.
    #[error("no root certificates in {0}")]
    NoRoots(String),
}

/// Waits for a step, at most [`STEP_LIMIT`].
pub(super) async fn within<T, E: Display>(
    step: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, FetchError> {
    match timeout(STEP_LIMIT, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(FetchError::Failed {
            step,
            reason: error.to_string(),
        }),
        Err(_) => Err(FetchError::TimedOut {
            step,
            limit: STEP_LIMIT,
        }),
    }
}

/// Asks for what the URL names. The stream ends with it.
pub(super) async fn get(stream: Box<dyn Transport>, url: &BundleUrl) -> Result<Answer, FetchError> {
    let request = request(url)?;
    let handshake = Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = within("HTTP", handshake).await?;
    let exchange = exchange(sender, request);
    tokio::pin!(exchange, connection);
    // Driven here and not in a task of its own: whoever gives up ends the connection with it.
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        // What has been read until then still waits in the body.
        _ = &mut connection => exchange.await,
    }
}

fn request(url: &BundleUrl) -> Result<Request<Empty<Bytes>>, FetchError> {
    let target = url.target().map_err(FetchError::Redirect)?;
    let failed = |error: http::Error| FetchError::Failed {
        step: "request",
        reason: error.to_string(),
    };
    let mut request = Request::get(target.as_str())
        .header(HOST, url.authority())
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(Empty::new())
        .map_err(failed)?;
    if let Some(authorization) = url.authorization() {
        request
            .headers_mut()
            .insert(AUTHORIZATION, authorization.clone());
    }
    Ok(request)
}

async fn exchange(
    mut sender: SendRequest<Empty<Bytes>>,
    request: Request<Empty<Bytes>>,
) -> Result<Answer, FetchError> {
    let response = within("waiting for the answer", sender.send_request(request)).await?;
    match response.status() {
        StatusCode::OK => document(response).await.map(Answer::Document),
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => response
            .headers()
            .get(LOCATION)
            .and_then(text_of)
            .map(Answer::Redirect)
            .ok_or(FetchError::Status(response.status())),
        other => Err(FetchError::Status(other)),
    }
}

fn text_of(value: &HeaderValue) -> Option<String> {
    str::from_utf8(value.as_bytes()).ok().map(str::to_owned)
}

async fn document(response: Response<Incoming>) -> Result<Vec<u8>, FetchError> {
    let mut body = response.into_body();
    let mut document = Vec::new();
    while let Some(piece) = within("reading the answer", async {
        body.frame().await.transpose()
    })
    .await?
    {
        let Ok(data) = piece.into_data() else {
            continue;
        };
        if document.len() + data.len() > MAX_DOCUMENT_BYTES {
            return Err(FetchError::TooLarge);
        }
        document.extend_from_slice(&data);
    }
    Ok(document)
}
