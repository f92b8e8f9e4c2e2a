//! Asking an actor, with one kind of error instead of two.

use actix::dev::{MessageResponse, ToEnvelope};
use actix::{Actor, Addr, Handler, MailboxError, Message};

/// Why an actor gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError<E> {
    /// The actor is gone: the process is about to end.
    #[error("actor is gone")]
    Gone,
    /// The actor's own answer.
    #[error(transparent)]
    Answer(E),
}

/// Sends a message whose answer is a `Result` and folds both failures into one.
pub async fn ask<A, M, T, E>(actor: &Addr<A>, message: M) -> Result<T, AskError<E>>
where
    A: Actor + Handler<M>,
    A::Context: ToEnvelope<A, M>,
    M: Message<Result = Result<T, E>> + Send + 'static,
    Result<T, E>: MessageResponse<A, M> + Send,
    T: 'static,
    E: 'static,
{
    match actor.send(message).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(AskError::Answer(error)),
        Err(MailboxError::Closed | MailboxError::Timeout) => Err(AskError::Gone),
    }
}
