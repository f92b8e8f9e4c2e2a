//! How far the endpoint's life has come, as every connection and every open call sees it.

use std::sync::Arc;

use tokio::sync::watch;

use super::status::Refusal;

/// The life of the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// Calls are answered.
    Serving,
    /// Calls that were open when this was said end with these words; later ones are answered.
    Revoked(Arc<str>),
    /// Shutdown: open calls end, new ones are refused, connections end when their calls have.
    Draining,
    /// Shutdown: connections are cut.
    Closed,
}

/// The reading end.
pub(super) type StageReader = watch::Receiver<Stage>;

/// Waits until a call that opened when `stage` was last marked seen has to end, and says why.
pub(super) async fn ended(stage: &mut StageReader) -> Refusal {
    // Shutdown may have begun between the arrival of the call and its first step.
    if matches!(*stage.borrow(), Stage::Draining | Stage::Closed) {
        return Refusal::ShuttingDown;
    }
    match stage.changed().await {
        Ok(()) => match &*stage.borrow_and_update() {
            Stage::Revoked(text) => Refusal::Revoked(Arc::clone(text)),
            Stage::Serving | Stage::Draining | Stage::Closed => Refusal::ShuttingDown,
        },
        Err(_) => Refusal::ShuttingDown,
    }
}

/// Does `work` unless the call has to end first.
pub(super) async fn unless_ended<T>(
    stage: &mut StageReader,
    work: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    tokio::select! {
        biased;
        refusal = ended(stage) => Err(refusal),
        outcome = work => outcome,
    }
}
