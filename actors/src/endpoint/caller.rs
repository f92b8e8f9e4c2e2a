//! From a connection to selectors: who calls, whether that process still lives, and what is said in the log when it is refused.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use actix::Recipient;
use tokio::sync::Notify;

use crate::cache::Subscribe;
use crate::cache::view::{View, ViewReader, Waiting, WorkloadUpdate};
use crate::clock::Clock;
use crate::peer::Peer;
use crate::readiness::{Phase, ReadinessReader};
use crate::selector::SelectorSet;
use crate::selectors::{AttestWorkload, AttestationError};

use super::Services;
use super::denials::{Denials, Reason, Report};
use super::stage::{Stage, StageReader};
use super::status::Refusal;

/// How long a unary call waits for the agent to become ready (design D1).
const UNARY_PATIENCE: Duration = Duration::from_secs(2);
/// The user of those who have none, by convention.
const NOBODY: u32 = 65_534;

/// The process at the other end of a connection. Lives as long as the connection, shared by its calls.
#[derive(Debug)]
pub(super) struct Caller {
    /// Who connected.
    pub(super) peer: Arc<Peer>,
    hang_up: Notify,
}

/// What every call on the Workload API passes. Shared by all connections.
#[derive(Debug)]
pub(super) struct Gate {
    selectors: Recipient<AttestWorkload>,
    cache: Recipient<Subscribe>,
    readiness: ReadinessReader,
    clock: Clock,
    stage: StageReader,
    denials: Mutex<Denials>,
}

impl Caller {
    /// A caller on a new connection.
    pub(super) fn new(peer: Peer) -> Self {
        Self {
            peer: Arc::new(peer),
            hang_up: Notify::new(),
        }
    }

    /// Waits until a call has found the process gone: its connection is closed then.
    pub(super) async fn hung_up(&self) {
        self.hang_up.notified().await;
    }
}

impl Gate {
    /// A gate before the actors that know.
    pub(super) fn new(services: &Services, stage: StageReader) -> Self {
        Self {
            selectors: services.selectors.clone(),
            cache: services.cache.clone(),
            readiness: services.readiness.clone(),
            clock: services.clock.clone(),
            stage,
            denials: Mutex::default(),
        }
    }

    /// The date, by which certificates are valid.
    pub(super) fn wall(&self) -> SystemTime {
        self.clock.wall()
    }

    /// The endpoint's life, for a call that begins now.
    pub(super) fn stage(&self) -> StageReader {
        let mut stage = self.stage.clone();
        stage.mark_unchanged();
        stage
    }

    /// Whether calls are refused because the agent is ending.
    pub(super) fn is_draining(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Draining | Stage::Closed)
    }

    /// The caller's selectors, if it is still the process that connected. If not, its connection is closed.
    pub(super) async fn attest(&self, caller: &Caller) -> Result<SelectorSet, Refusal> {
        let peer = Arc::clone(&caller.peer);
        match self.selectors.send(AttestWorkload { peer }).await {
            Ok(Ok(selectors)) if caller.peer.is_alive() => Ok(selectors),
            Ok(Ok(_) | Err(AttestationError::PeerGone)) => {
                caller.hang_up.notify_one();
                Err(Refusal::CallerGone)
            }
            Ok(Err(error @ (AttestationError::AllFailed(_) | AttestationError::Busy))) => {
                if let Some(Report { silent }) =
                    self.note(caller.peer.uid, Reason::AttestationFailed)
                {
                    tracing::error!(pid = caller.peer.pid, uid = caller.peer.uid, %error, silent, "Workload attestation failed");
                }
                Err(Refusal::AttestationFailed)
            }
            Err(_) => Err(Refusal::ShuttingDown),
        }
    }

    /// A subscription to everything that the selectors entitle to.
    pub(super) async fn subscribe(&self, selectors: SelectorSet) -> Result<ViewReader, Refusal> {
        self.cache
            .send(Subscribe { selectors })
            .await
            .map_err(|_| Refusal::ShuttingDown)
    }

    /// The set as it is now, for a unary call: waits a little while it is not complete.
    pub(super) async fn current(
        &self,
        mut view: ViewReader,
    ) -> Result<Arc<WorkloadUpdate>, Refusal> {
        let ready = async {
            loop {
                match &*view.borrow_and_update() {
                    View::Ready(update) => return Ok(Arc::clone(update)),
                    View::Waiting(Waiting::Expired) => {
                        return Err(Refusal::Waiting(Waiting::Expired));
                    }
                    View::Waiting(Waiting::FirstSync | Waiting::Signing) => {}
                }
                if view.changed().await.is_err() {
                    return Err(Refusal::ShuttingDown);
                }
            }
        };
        match tokio::time::timeout(UNARY_PATIENCE, ready).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.not_ready(&view)),
        }
    }

    fn not_ready(&self, view: &ViewReader) -> Refusal {
        let phase = &self.readiness.borrow().phase;
        match (phase, &*view.borrow()) {
            (Phase::Ready, View::Waiting(waiting)) => Refusal::Waiting(*waiting),
            _ => Refusal::NotReady(phase.reason()),
        }
    }

    /// Writes the line of a denied call, if one is due (design D20).
    pub(super) fn log_no_identity(&self, caller: &Caller, method: &'static str) {
        if let Some(Report { silent }) = self.note(caller.peer.uid, Reason::NoIdentity) {
            let (pid, uid) = (caller.peer.pid, caller.peer.uid);
            tracing::error!(
                service = "WorkloadAPI",
                method,
                pid,
                uid,
                registered = false,
                silent,
                "No identity issued"
            );
        }
    }

    /// Writes the line about entries that are left out because of their hint, if one is due.
    pub(super) fn log_repeated_hint(&self, caller: &Caller, hint: &str, entry: &str) {
        if let Some(Report { silent }) = self.note(caller.peer.uid, Reason::RepeatedHint) {
            tracing::warn!(
                hint,
                entry,
                pid = caller.peer.pid,
                silent,
                "Ignoring entry with repeated hint"
            );
        }
    }

    /// Writes the line of a refused connection, if one is due.
    pub(super) fn log_too_many_connections(&self, uid: u32) {
        if let Some(Report { silent }) = self.note(uid, Reason::TooManyConnections) {
            tracing::warn!(uid, silent, "Connection refused: too many are open");
        }
    }

    /// Writes the line of a call refused for their number, if one is due.
    pub(super) fn log_too_many_calls(&self, uid: u32) {
        if let Some(Report { silent }) = self.note(uid, Reason::TooManyCalls) {
            tracing::warn!(uid, silent, "Call refused: too many are open");
        }
    }

    /// Writes the line of a connection whose process cannot be told, if one is due.
    pub(super) fn log_failed_accept(&self, uid: Option<u32>, error: &impl std::fmt::Display) {
        // Users who cannot be told share a tally with `nobody`.
        let tallied = uid.unwrap_or(NOBODY);
        if let Some(Report { silent }) = self.note(tallied, Reason::FailedAccept) {
            tracing::warn!(uid, silent, %error, "Connection failed during accept");
        }
    }

    fn note(&self, uid: u32, reason: Reason) -> Option<Report> {
        let now = self.clock.now().boot;
        self.denials
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .note(uid, reason, now)
    }
}
