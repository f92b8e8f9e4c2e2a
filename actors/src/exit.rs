//! How an actor asks for the end of the process. `system.rs` in the binary carries it out in order.

use tokio::sync::mpsc;

/// Why the process is to end, and with which code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit code: 1 for a reason an operator must look at.
    pub code: u8,
    /// One line for the log.
    pub reason: String,
}

/// Where an actor hands in its request; never full, and late requests are moot.
pub type ExitSender = mpsc::UnboundedSender<Exit>;

/// Hands in a request to end with code 1.
pub fn fail(exit: &ExitSender, reason: impl Into<String>) {
    let request = Exit {
        code: 1,
        reason: reason.into(),
    };
    if exit.send(request).is_err() {
        tracing::debug!("the process is ending already");
    }
}
