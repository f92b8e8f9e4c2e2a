//! Server streams: one message for each change of what the caller is entitled to, newest only (design D9).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_core::Stream;
use tonic::Status;

use crate::cache::view::{View, ViewReader};

use super::caller::{Caller, Gate};
use super::stage::{self, StageReader};
use super::status::Refusal;

/// What is made of each view.
pub(super) trait Answers: Send + 'static {
    /// The stream's messages.
    type Message: Send + 'static;
    /// The method's name, for the log.
    const METHOD: &'static str;

    /// Decides what follows from a view at `now`. A message counts as sent.
    fn next(&mut self, view: &View, now: SystemTime) -> Next<Self::Message>;

    /// Says in the log what was sent last.
    fn log_sent(&self, _gate: &Gate, _caller: &Caller, _now: SystemTime) {}
}

/// What follows from a view.
#[derive(Debug)]
pub(super) enum Next<M> {
    /// This is sent.
    Send(M),
    /// Nothing until the view changes, or this time has passed.
    Wait(Option<Duration>),
    /// The stream ends.
    End(Refusal),
}

/// One open stream, between two messages.
pub(super) struct Subscription<A> {
    /// What every call passes.
    pub(super) gate: Arc<Gate>,
    /// Who reads.
    pub(super) caller: Arc<Caller>,
    /// The newest state for the caller's selectors.
    pub(super) view: ViewReader,
    /// The endpoint's life since the call began.
    pub(super) stage: StageReader,
    /// What is made of it.
    pub(super) answers: A,
}

/// The work up to the next message, which gives the subscription back.
type Advance<A> = Pin<
    Box<dyn Future<Output = (Result<<A as Answers>::Message, Status>, Subscription<A>)> + Send>,
>;

/// A [`Subscription`] as tonic wants it. Ends after its first error.
pub(super) struct Updates<A: Answers>(Option<Advance<A>>);

impl<A: Answers> Subscription<A> {
    async fn next(&mut self) -> Result<A::Message, Refusal> {
        loop {
            let now = self.gate.wall();
            let next = self.answers.next(&self.view.borrow_and_update(), now);
            let nap = match next {
                Next::Send(message) => {
                    self.answers.log_sent(&self.gate, &self.caller, now);
                    return Ok(message);
                }
                Next::End(refusal) => return Err(refusal),
                Next::Wait(nap) => nap,
            };
            tokio::select! {
                biased;
                refusal = stage::ended(&mut self.stage) => return Err(refusal),
                changed = self.view.changed() => changed.map_err(|_| Refusal::ShuttingDown)?,
                () = tokio::time::sleep(nap.unwrap_or_default()), if nap.is_some() => {}
            }
        }
    }

    async fn advance(mut self) -> (Result<A::Message, Status>, Self) {
        let outcome = self.next().await.map_err(|refusal| {
            if refusal == Refusal::NoIdentity {
                self.gate.log_no_identity(&self.caller, A::METHOD);
            }
            Status::from(refusal)
        });
        (outcome, self)
    }
}

impl<A: Answers> From<Subscription<A>> for Updates<A> {
    fn from(subscription: Subscription<A>) -> Self {
        Self(Some(Box::pin(subscription.advance())))
    }
}

impl<A: Answers> Stream for Updates<A> {
    type Item = Result<A::Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(advance) = self.0.as_mut() else {
            return Poll::Ready(None);
        };
        let Poll::Ready((outcome, subscription)) = advance.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.0 = outcome
            .is_ok()
            .then(|| Box::pin(subscription.advance()) as Advance<A>);
        Poll::Ready(Some(outcome))
    }
}
