//! The end of the process, as the attestor sees it: what the server can give only once is not left on the way.

use actix::{Context, Handler, Message, ResponseFuture};
use tokio::sync::oneshot;

use super::{Attestor, State};

/// The process is about to end: no attempt begins any more. Answered once none is under way whose loss could not be made good, such as the
/// one attestation of a join token.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Settle;

impl Handler<Settle> for Attestor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Settle, _: &mut Context<Self>) -> Self::Result {
        let (settled, wait) = oneshot::channel();
        self.settled = Some(settled);
        match self.state {
            State::Attempting {
                is_irreplaceable: true,
            } => tracing::info!("Waiting for the attestation that is under way"),
            State::Attempting { .. } | State::Loading | State::Waiting | State::Ended => {
                self.settle();
            }
        }
        Box::pin(async move { drop(wait.await) })
    }
}

impl Attestor {
    /// Ends for good if that was asked for: what is worth keeping is on disk.
    pub(super) fn settle(&mut self) {
        // Whoever waits is answered by the drop.
        if self.settled.take().is_some() {
            self.state = State::Ended;
        }
    }
}
