//! Whether the agent can answer, and if not, what it is waiting for. Written by attestor and synchronizer, read by the endpoint.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

/// What the agent can do at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// How far the start has come.
    pub phase: Phase,
    /// When entries and bundles were last brought in step with the server.
    pub last_sync: Option<SystemTime>,
}

/// How far the start has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// No agent SVID yet; the last error, if there was one.
    Attesting(Option<Arc<str>>),
    /// Attested, but no sync has succeeded yet; the last error, if there was one.
    Syncing(Option<Arc<str>>),
    /// Serving.
    Ready,
}

/// The reading end.
pub type ReadinessReader = watch::Receiver<Readiness>;
/// The writing end, shared by attestor and synchronizer through `send_modify`.
pub type ReadinessWriter = Arc<watch::Sender<Readiness>>;

/// A fresh pair: attesting, never synced.
pub fn readiness() -> (ReadinessWriter, ReadinessReader) {
    let (writer, reader) = watch::channel(Readiness {
        phase: Phase::Attesting(None),
        last_sync: None,
    });
    (Arc::new(writer), reader)
}

impl Phase {
    /// What a caller is told while it has to wait.
    pub fn reason(&self) -> String {
        match self {
            Self::Attesting(None) => "agent is not attested yet".into(),
            Self::Attesting(Some(error)) => format!("agent is not attested yet: {error}"),
            Self::Syncing(None) => "agent has not synced with the server yet".into(),
            Self::Syncing(Some(error)) => {
                format!("agent has not synced with the server yet: {error}")
            }
            Self::Ready => "agent is ready".into(),
        }
    }
}
