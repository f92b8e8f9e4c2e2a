//! The request of a call, which must be there in time: a call that says it will ask something and does not holds memory for nothing.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;
use tonic::Status;

use super::status::Refusal;

/// How long a request may take from its head to its end.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// A request's body. Ends with `DEADLINE_EXCEEDED` if it is not over in time.
#[derive(Debug)]
pub(super) struct RequestBody {
    body: Incoming,
    /// Begins when something is first waited for: most requests come in one piece.
    limit: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    /// A body that begins now.
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, limit: None }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(
                frame.map(|frame| frame.map_err(|error| Status::from_error(Box::new(error)))),
            );
        }
        let limit = self
            .limit
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(REQUEST_LIMIT)));
        ready!(limit.as_mut().poll(cx));
        Poll::Ready(Some(Err(Refusal::RequestLate.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
