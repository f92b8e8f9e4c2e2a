//! An actor that keeps what it was sent.

use std::sync::{Arc, Mutex, PoisonError};

use actix::{Actor, Context, Handler, Message, Recipient};

/// Collects messages of one kind.
#[derive(Debug)]
pub struct Probe<M> {
    seen: Arc<Mutex<Vec<M>>>,
}

/// The reading end of a [`Probe`].
#[derive(Debug)]
pub struct Seen<M>(Arc<Mutex<Vec<M>>>);

impl<M> Probe<M>
where
    M: Message<Result = ()> + Send + Unpin + 'static,
{
    /// Starts a probe: where to send, and what came.
    pub fn start_new() -> (Recipient<M>, Seen<M>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let probe = Self {
            seen: Arc::clone(&seen),
        };
        (probe.start().recipient(), Seen(seen))
    }
}

impl<M> Seen<M> {
    /// Takes what came so far.
    pub fn take(&self) -> Vec<M> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<M: Unpin + 'static> Actor for Probe<M> {
    type Context = Context<Self>;
}

impl<M> Handler<M> for Probe<M>
where
    M: Message<Result = ()> + Send + Unpin + 'static,
{
    type Result = ();

    fn handle(&mut self, message: M, _: &mut Self::Context) {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(message);
    }
}
