//! The connection of a command to the running agent, and how its errors read.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use actors::wire::{Inbox, Wire};
use prost::Message;
use proto::workload::{X509svidRequest, X509svidResponse};
use tokio::net::UnixStream;
use tonic::codegen::http::uri::Authority;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};

use crate::telemetry::escape::printable;
use crate::telemetry::plain_words;

const FETCH_X509_SVID: &str = "/SpiffeWorkloadAPI/FetchX509SVID";
/// Time for an answer from the admin socket, which asks nobody else.
pub(super) const ADMIN_TIME_LIMIT: Duration = Duration::from_secs(5);

/// What went wrong with a call, shown as Go's gRPC shows it.
#[derive(Debug, thiserror::Error)]
#[error("rpc error: code = {} desc = {}", code_name(.0.code()), printable(.0.message()))]
pub(crate) struct CallError(pub(crate) Status);

impl From<Status> for CallError {
    /// A call that its connection did not survive is UNAVAILABLE, as in every other client.
    fn from(status: Status) -> Self {
        match std::error::Error::source(&status) {
            Some(broken) if status.code() == Code::Unknown => Self(Status::unavailable(format!(
                "error reading from server: {broken}"
            ))),
            _ => Self(status),
        }
    }
}

impl CallError {
    /// The stream ended where a message was due.
    pub(crate) fn ended() -> Self {
        Self(Status::unavailable("the agent ended the stream"))
    }
}

/// Connects to the socket; what is returned sends over this one connection.
pub(crate) async fn connect(socket: &str) -> Result<Wire, CallError> {
    let unavailable = |reason: String| {
        let text = format!(
            "connection error: desc = \"transport: Error while dialing: dial unix {socket}: {reason}\""
        );
        CallError(Status::unavailable(text))
    };
    let stream = UnixStream::connect(Path::new(socket))
        .await
        .map_err(|error| unavailable(format!("connect: {}", plain_words(&error))))?;
    Wire::open(stream, Authority::from_static("localhost"))
        .await
        .map_err(|error| unavailable(error.to_string()))
}

/// A request with the header that the Workload API asks for (SPIFFE Workload Endpoint 4).
pub(crate) fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("workload.spiffe.io", MetadataValue::from_static("true"));
    request
}

/// Makes one unary call over a connection of its own, at most for the given time; `path` is `/package.Service/Method`.
pub(super) async fn unary<R: Message + Default>(
    socket: &str,
    limit: Option<Duration>,
    path: &'static str,
    message: impl Message,
) -> Result<Response<R>, CallError> {
    let call = async {
        let wire = connect(socket).await?;
        Ok(wire.unary(path, request(message)).await?)
    };
    within(limit, call).await
}

/// Opens the stream of the caller's X.509-SVIDs.
pub(super) async fn x509_svids(socket: &str) -> Result<Inbox<X509svidResponse>, CallError> {
    let wire = connect(socket).await?;
    let request = request(X509svidRequest {});
    Ok(wire.server_streaming(FETCH_X509_SVID, request).await?)
}

/// Waits for a call, at most for the given time.
pub(super) async fn within<T>(
    limit: Option<Duration>,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let Some(limit) = limit else {
        return call.await;
    };
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => Err(CallError(Status::deadline_exceeded(
            "context deadline exceeded",
        ))),
    }
}

/// The code by Go's name.
pub(super) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_gos_grpc_writes_it() {
        let denied = CallError(Status::permission_denied("no identity issued"));
        let hostile = CallError(Status::cancelled("a\nb\u{1b}[0m"));

        assert_eq!(
            denied.to_string(),
            "rpc error: code = PermissionDenied desc = no identity issued"
        );
        assert_eq!(
            hostile.to_string(),
            "rpc error: code = Canceled desc = a\\nb\\x1b[0m"
        );
    }

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("none.sock");
        let socket = socket.to_str().unwrap();

        let error = connect(socket).await.unwrap_err();

        assert_eq!(error.0.code(), Code::Unavailable);
        assert!(error.to_string().contains(&format!(
            "dial unix {socket}: connect: no such file or directory"
        )));
    }

    #[tokio::test]
    async fn a_call_without_an_answer_ends_at_its_limit() {
        let silent = std::future::pending::<Result<(), CallError>>();

        let error = within(Some(Duration::from_millis(1)), silent)
            .await
            .unwrap_err();

        assert_eq!(
            error.to_string(),
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
        );
    }
}
