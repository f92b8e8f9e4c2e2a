//! HTTP/2 requests for tonic's clients over one connection: to the server, and from a command to the running agent. Sees to it that no header
//! of an answer can upset tonic.

mod raw;

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{HeaderValue, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codec::Streaming;
use tonic::{Request, Response, Status};
use tower_service::Service;

const DETAILS: &str = "grpc-status-details-bin";
const AGENT: &str = concat!("edge-agent/", env!("CARGO_PKG_VERSION"));
/// What tonic decodes the details with; it takes for granted that they can be decoded.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Flow-control windows: what one stream, and all of them, may have under way to us, in bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Errors as tonic wants them.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Sends requests over one connection. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Wire {
    sender: SendRequest<Body>,
    authority: Authority,
}

/// The body of an answer.
#[derive(Debug)]
pub struct Answer(Incoming);

/// Where the messages of an open call go in. Whether they go out is told by the answers.
#[derive(Debug)]
pub struct Outbox(mpsc::Sender<Bytes>);

/// What an [`Outbox`] hands over; ends with it.
pub type Outgoing = ReceiverStream<Bytes>;

/// Where the answers of an open call come out.
#[derive(Debug)]
pub struct Inbox<R> {
    stream: Streaming<Bytes>,
    kind: PhantomData<R>,
}

impl Outbox {
    /// Both ends.
    pub fn new() -> (Self, Outgoing) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), ReceiverStream::new(receiver))
    }

    /// Hands in a message. A failure is no reason: the status that ended the call comes with the answers.
    pub async fn send(&self, message: &impl Message) {
        drop(self.0.send(message.encode_to_vec().into()).await);
    }
}

impl<R: Message + Default> Inbox<R> {
    /// The next answer; none at the end.
    pub async fn message(&mut self) -> Result<Option<R>, Status> {
        let message = self.stream.message().await?;
        message.map(decoded).transpose()
    }
}

fn decoded<R: Message + Default>(message: Bytes) -> Result<R, Status> {
    R::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// What HTTP/2 runs on. Boxed, so that one instance of the protocol's code serves every kind of stream.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

impl Wire {
    /// Begins HTTP/2 on a stream. The connection ends when the last copy is gone and nothing runs on it.
    pub async fn open(
        stream: impl Transport + 'static,
        authority: Authority,
    ) -> Result<Self, hyper::Error> {
        let stream: Box<dyn Transport> = Box::new(stream);
        let (sender, driver) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await?;
        let driver = async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "connection ended");
            }
        };
        hyper::rt::Executor::execute(&TokioExecutor::new(), driver);
        Ok(Self { sender, authority })
    }

    /// Makes a unary call: `path` is `/package.Service/Method`. What tonic does for it is instantiated once for all messages.
    pub async fn unary<R: Message + Default>(
        self,
        path: &'static str,
        request: Request<impl Message>,
    ) -> Result<Response<R>, Status> {
        let request = request.map(|message| Bytes::from(message.encode_to_vec()));
        let (metadata, message, extensions) = raw::unary(self, path, request).await?.into_parts();
        Ok(Response::from_parts(
            metadata,
            decoded(message)?,
            extensions,
        ))
    }

    /// Opens a call with messages in both directions.
    pub async fn streaming<R>(
        self,
        path: &'static str,
        request: Request<Outgoing>,
    ) -> Result<Inbox<R>, Status> {
        let stream = raw::streaming(self, path, request).await?.into_inner();
        let kind = PhantomData;
        Ok(Inbox { stream, kind })
    }

    /// Opens a call with one message out and many back.
    pub async fn server_streaming<R>(
        self,
        path: &'static str,
        request: Request<impl Message>,
    ) -> Result<Inbox<R>, Status> {
        let (outbox, outgoing) = Outbox::new();
        let (metadata, extensions, message) = request.into_parts();
        outbox.send(&message).await;
        let request = Request::from_parts(metadata, extensions, outgoing);
        drop(outbox);
        self.streaming(path, request).await
    }

    /// Whether nothing can be sent any more.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Service<http::Request<Body>> for Wire {
    type Response = http::Response<Answer>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.sender.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let path = request
            .uri()
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        let uri = Uri::builder()
            .scheme(Scheme::HTTPS)
            .authority(self.authority.clone())
            .path_and_query(path)
            .build();
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let sender = &mut self.sender;
        let answer = uri.map(|uri| {
            *request.uri_mut() = uri;
            sender.send_request(request)
        });
        Box::pin(async move {
            let (mut head, body) = answer?.await?.into_parts();
            drop_unreadable_details(&mut head.headers);
            Ok(http::Response::from_parts(head, Answer(body)))
        })
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut polled = Pin::new(&mut self.0).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            drop_unreadable_details(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// Removes status details that are not base64.
fn drop_unreadable_details(headers: &mut HeaderMap) {
    if headers
        .get(DETAILS)
        .is_some_and(|value| BASE64.decode(value).is_err())
    {
        headers.remove(DETAILS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_that_cannot_be_decoded_are_dropped() {
        for (text, stays) in [
            ("AAEC", true),
            ("AAE", true),
            ("AAE=", true),
            ("", true),
            ("%%%", false),
            ("A", false),
            ("AA-_", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(DETAILS, HeaderValue::from_static(text));

            drop_unreadable_details(&mut headers);

            assert_eq!(headers.contains_key(DETAILS), stays, "{text:?}");
        }
    }
}
