//! A response stream driven by a future: the future sends answers and ends the stream with its result.
//!
//! It needs no task of its own, so it ends when the client goes away.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

/// Answers that wait for the client; the client's flow control holds back the future beyond.
const ANSWERS_IN_FLIGHT: usize = 4;

/// The sending end of a conversation.
#[derive(Debug)]
pub(crate) struct Answers<T>(mpsc::Sender<T>);

impl<T> Answers<T> {
    /// Sends one answer.
    pub(crate) async fn send(&self, answer: T) -> Result<(), Status> {
        self.0
            .send(answer)
            .await
            .map_err(|_| Status::cancelled("the client has gone away"))
    }
}

/// What leads a conversation to its end.
type Driver = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// A stream of answers.
pub(crate) struct Conversation<T> {
    driver: Option<Driver>,
    answers: mpsc::Receiver<T>,
    outcome: Option<Status>,
}

impl<T> fmt::Debug for Conversation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation")
            .field("is_running", &self.driver.is_some())
            .finish_non_exhaustive()
    }
}

impl<T> Conversation<T> {
    /// Starts a conversation that `drive` leads.
    pub(crate) fn start<D>(drive: impl FnOnce(Answers<T>) -> D) -> Self
    where
        D: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let (sender, answers) = mpsc::channel(ANSWERS_IN_FLIGHT);
        Self {
            driver: Some(Box::pin(drive(Answers(sender)))),
            answers,
            outcome: None,
        }
    }
}

impl<T> Stream for Conversation<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(driver) = &mut self.driver
            && let Poll::Ready(result) = driver.as_mut().poll(context)
        {
            self.driver = None;
            self.outcome = result.err();
        }
        // The driver owned the only sender: once it is done the channel runs dry and then ends.
        match self.answers.poll_recv(context) {
            Poll::Ready(Some(answer)) => Poll::Ready(Some(Ok(answer))),
            Poll::Ready(None) => Poll::Ready(self.outcome.take().map(Err)),
            Poll::Pending => Poll::Pending,
        }
    }
}
