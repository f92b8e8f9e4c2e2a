//! A panic while a call is being answered ends that call alone. Everywhere else the panic hook ends the process (design 3);
//! it asks [`polling_rpc`] which of the two it is.

use std::cell::Cell;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;
use tonic::codegen::BoxFuture;

use super::census::CallPlace;
use super::status::Refusal;

thread_local! {
    static POLLING: Cell<bool> = const { Cell::new(false) };
}

/// A call as the generated services hand it out.
pub(super) type Answer = BoxFuture<http::Response<tonic::body::Body>, Infallible>;

/// A call whose panic becomes INTERNAL. Keeps its place among the open calls.
pub(super) struct GuardedCall {
    answer: Answer,
    place: Option<CallPlace>,
}

/// The messages of an answer; a panic while one is made becomes INTERNAL and the end.
#[derive(Debug)]
pub(super) struct GuardedBody {
    body: tonic::body::Body,
    is_over: bool,
    /// Given back when the answer has been sent, or nobody waits for it.
    _place: Option<CallPlace>,
}

/// Sets the mark while it lives, and puts back what was before.
struct Mark(bool);

/// Whether this thread is answering a local call at this moment: a panic then is that call's own affair.
pub fn polling_rpc() -> bool {
    POLLING.get()
}

impl Drop for Mark {
    fn drop(&mut self) {
        POLLING.set(self.0);
    }
}

/// Runs `work` under the mark; `None` if it panicked.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _mark = Mark(POLLING.replace(true));
    catch_unwind(AssertUnwindSafe(work)).ok()
}

impl GuardedCall {
    /// Guards a call; `place` is held until its answer is dropped.
    pub(super) fn new(answer: Answer, place: Option<CallPlace>) -> Self {
        Self { answer, place }
    }
}

impl Future for GuardedCall {
    type Output = Result<http::Response<GuardedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match guarded(|| self.answer.as_mut().poll(cx)) {
            Some(Poll::Pending) => return Poll::Pending,
            Some(Poll::Ready(Ok(response))) => response,
            None => Status::from(Refusal::Fault).into_http(),
        };
        let place = self.place.take();
        Poll::Ready(Ok(response.map(|body| GuardedBody {
            body,
            is_over: false,
            _place: place,
        })))
    }
}

impl Body for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Some(poll) = guarded(|| Pin::new(&mut self.body).poll_frame(cx)) {
            return poll;
        }
        self.is_over = true;
        let mut trailers = http::HeaderMap::new();
        let written = Status::from(Refusal::Fault).add_header(&mut trailers);
        Poll::Ready(Some(written.map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl std::fmt::Debug for GuardedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GuardedCall")
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tonic::Code;

    use super::*;

    /// A body that yields one message and then panics.
    struct Faulty(bool);

    impl Body for Faulty {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            assert!(
                polling_rpc() && !std::mem::replace(&mut self.0, true),
                "a fault in a stream"
            );
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"message")))))
        }
    }

    #[tokio::test]
    async fn a_panic_in_a_call_becomes_internal() {
        let call = GuardedCall::new(Box::pin(async { panic!("a fault in a call") }), None);

        let response = call.await.unwrap();

        assert_eq!(
            response.headers()["grpc-status"],
            (Code::Internal as i32).to_string().as_str()
        );
        assert!(!polling_rpc());
    }

    #[tokio::test]
    async fn a_panic_between_messages_becomes_internal() {
        let call = GuardedCall::new(
            Box::pin(async { Ok(http::Response::new(tonic::body::Body::new(Faulty(false)))) }),
            None,
        );

        let mut body = call.await.unwrap().into_body();
        let message = body.frame().await.unwrap().unwrap();
        let trailers = body
            .frame()
            .await
            .unwrap()
            .unwrap()
            .into_trailers()
            .unwrap();

        assert_eq!(message.into_data().unwrap(), "message");
        assert_eq!(
            trailers["grpc-status"],
            (Code::Internal as i32).to_string().as_str()
        );
        assert!(body.frame().await.is_none());
        assert!(!polling_rpc());
    }

    #[tokio::test]
    async fn the_mark_is_set_while_a_call_is_polled_and_only_then() {
        assert!(!polling_rpc());

        let call = GuardedCall::new(
            Box::pin(async {
                assert!(polling_rpc());
                Ok(http::Response::default())
            }),
            None,
        );

        assert_eq!(call.await.unwrap().status(), 200);
        assert!(!polling_rpc());
    }
}
