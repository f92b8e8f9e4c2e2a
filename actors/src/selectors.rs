//! Workload attestation: what is known of a caller. Owns the workload attestors, one flight and a short cache per process (design D13).
//! Takes [`AttestWorkload`]. Sends nothing. Who may run is decided in [`admission`], what a process's files say in [`proc_status`] and [`accounts`].

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt as _, AsyncContext as _, Context, Handler, Message, ResponseFuture,
    WrapFuture as _,
};
use tokio::sync::oneshot;

mod account_table;
pub mod accounts;
pub mod admission;
mod executable;
pub mod proc_status;
mod process;
pub mod recent;
pub mod unix;

use admission::{Admission, Admitted, Limits};
use process::ProcessDir;
use recent::Recent;

use crate::clock::Clock;
use crate::peer::Peer;
use crate::selector::{Selector, SelectorSet};

/// How long one attestor may take over one process.
pub const ATTESTOR_DEADLINE: Duration = Duration::from_secs(5);
/// How long an answer is given again for the same process.
pub const ANSWER_GOOD_FOR: Duration = Duration::from_secs(2);

/// Answers kept at most, and the most selectors that one of them may have: bounds what callers can make the agent hold.
const MAX_ANSWERS: usize = 256;
const MAX_SELECTORS_KEPT: usize = 1024;
/// Callers that wait for one and the same process.
const MAX_WAITERS: usize = 1024;
/// A user's failures of one attestor are logged as errors this often.
const FAILURE_LOGGED_EVERY: Duration = Duration::from_mins(1);
const MAX_FAILURES_KEPT: usize = 256;
const PROC: &str = "/proc";

/// The actor.
pub struct Selectors {
    attestors: Vec<Rc<dyn WorkloadAttestor>>,
    clock: Clock,
    flights: HashMap<Subject, Vec<oneshot::Sender<Answer>>>,
    admission: Admission<(Subject, Arc<Peer>)>,
    answers: Recent<Subject, SelectorSet>,
    failures: Recent<(&'static str, u32), ()>,
    /// Failures of all users beyond those of `failures`, together.
    other_failures: Recent<(), ()>,
}

/// A way of finding out something about a process.
pub trait WorkloadAttestor {
    /// The type of its selectors, such as `unix`.
    fn name(&self) -> &'static str;

    /// Finds the selectors of a process. Dropping the future ends the attempt.
    fn attest(&self, peer: Arc<Peer>) -> AttestorFuture;
}

/// The answer of one attestor, to be.
pub type AttestorFuture = Pin<Box<dyn Future<Output = Result<Vec<Selector>, AttestorError>>>>;

/// Why one attestor has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttestorError {
    /// The operating system refused.
    #[error("unable to read {what} of the workload: {reason}")]
    Unreadable {
        /// What was read.
        what: &'static str,
        /// The operating system's words.
        reason: String,
    },
    /// A file of the process file system is not of its form.
    #[error("malformed {0} of the workload")]
    Malformed(&'static str),
    /// The process has changed its user or group since it connected.
    #[error("the workload does not run as the user and group that connected")]
    AnotherUser,
    /// It took too long.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// Another reason, in the words of what was asked.
    #[error("{0}")]
    Failed(String),
}

/// Finds the selectors of a caller.
#[derive(Debug, Message)]
#[rtype(result = "Result<SelectorSet, AttestationError>")]
pub struct AttestWorkload {
    /// The calling process.
    pub peer: Arc<Peer>,
}

/// Why nothing is known of a caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttestationError {
    /// Every workload attestor failed.
    #[error("workload attestation failed: {0}")]
    AllFailed(String),
    /// The process has ended, its number names another one now, or it runs as another user than the one that connected.
    #[error("could not verify existence of the original caller")]
    PeerGone,
    /// Too many attestations are under way.
    #[error("too many workload attestations are under way")]
    Busy,
}

type Answer = Result<SelectorSet, AttestationError>;

/// A process while its rights and its executable stay the same: what an answer holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Subject {
    pid: i32,
    start_time: u64,
    uid: u32,
    gid: u32,
    /// A hash of the supplementary groups.
    groups: u64,
    /// File system and inode; none where the agent may not look.
    executable: Option<(u64, u64)>,
}

impl Subject {
    /// Looks at the process as it is now.
    fn of(peer: &Peer) -> Result<Self, AttestationError> {
        let gone = |_| AttestationError::PeerGone;
        let process = ProcessDir::open(Path::new(PROC), peer.pid).map_err(gone)?;
        let status = process.status().map_err(gone)?;
        // A set-user-ID program behind a socket that its starter still holds must not speak with its rights.
        if !status.runs_as(peer.uid, peer.gid) {
            return Err(AttestationError::PeerGone);
        }
        let executable = process
            .executable_version()
            .ok()
            .map(|version| version.place);
        // Asked last: a process that lives now is the one that everything above was read of.
        if !peer.is_alive() {
            return Err(AttestationError::PeerGone);
        }
        Ok(Self {
            pid: peer.pid,
            start_time: peer.start_time,
            uid: status.uid,
            gid: status.gid,
            groups: hash_of_groups(&status.groups),
            executable,
        })
    }
}

/// Nobody chooses groups freely without being able to choose any: no secret key is needed.
fn hash_of_groups(groups: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    groups.hash(&mut hasher);
    hasher.finish()
}

impl Selectors {
    /// `attestors` run side by side for each process. The clock ages the answers.
    pub fn new(attestors: Vec<Rc<dyn WorkloadAttestor>>, clock: Clock) -> Self {
        Self {
            attestors,
            clock,
            flights: HashMap::new(),
            admission: Admission::new(Limits::default()),
            answers: Recent::new(ANSWER_GOOD_FOR, MAX_ANSWERS),
            failures: Recent::new(FAILURE_LOGGED_EVERY, MAX_FAILURES_KEPT),
            other_failures: Recent::new(FAILURE_LOGGED_EVERY, 1),
        }
    }

    /// Joins the flight of this process, or starts one.
    fn board(
        &mut self,
        subject: Subject,
        peer: Arc<Peer>,
        ctx: &mut Context<Self>,
    ) -> Result<oneshot::Receiver<Answer>, AttestationError> {
        let (waiter, answer) = oneshot::channel();
        if let Some(waiters) = self.flights.get_mut(&subject) {
            if waiters.len() >= MAX_WAITERS {
                return Err(AttestationError::Busy);
            }
            waiters.push(waiter);
            return Ok(answer);
        }
        match self
            .admission
            .ask(subject.uid, || (subject, Arc::clone(&peer)))
        {
            Admitted::Refused => return Err(AttestationError::Busy),
            Admitted::Now => self.take_off(subject, peer, ctx),
            Admitted::Later => {}
        }
        self.flights.insert(subject, vec![waiter]);
        Ok(answer)
    }

    fn take_off(&self, subject: Subject, peer: Arc<Peer>, ctx: &mut Context<Self>) {
        let attempts = self
            .attestors
            .iter()
            .map(|attestor| attempt(attestor.as_ref(), &peer))
            .collect();
        let flight = all(attempts).into_actor(self);
        ctx.spawn(flight.map(move |outcomes, this, ctx| this.land(subject, &peer, outcomes, ctx)));
    }

    fn land(
        &mut self,
        subject: Subject,
        peer: &Peer,
        outcomes: Vec<Outcome>,
        ctx: &mut Context<Self>,
    ) {
        let answer = self.conclude(subject, peer, outcomes);
        if let Ok(selectors) = &answer
            && selectors.len() <= MAX_SELECTORS_KEPT
        {
            self.answers
                .insert(subject, selectors.clone(), self.clock.now().boot);
        }
        for waiter in self.flights.remove(&subject).unwrap_or_default() {
            // A caller that has gone away needs no answer.
            waiter.send(answer.clone()).ok();
        }
        if let Some((subject, peer)) = self.admission.finished(subject.uid) {
            self.take_off(subject, peer, ctx);
        }
    }

    fn conclude(&mut self, subject: Subject, peer: &Peer, outcomes: Vec<Outcome>) -> Answer {
        // Selectors of before and after an exec or a change of user must not be mixed.
        if Subject::of(peer)? != subject {
            return Err(AttestationError::AllFailed(
                "the process changed while it was looked at".to_owned(),
            ));
        }
        let mut selectors = Vec::new();
        let mut failures = Vec::new();
        for (attestor, outcome) in outcomes {
            match outcome {
                Ok(found) => selectors.extend(found),
                Err(error) => {
                    self.report_failure(subject, attestor, &error);
                    failures.push(format!("{attestor}: {error}"));
                }
            }
        }
        if !failures.is_empty() && failures.len() == self.attestors.len() {
            return Err(AttestationError::AllFailed(failures.join("; ")));
        }
        let selectors: SelectorSet = selectors.into_iter().collect();
        report_success(subject, &selectors);
        Ok(selectors)
    }

    /// A caller in a loop must not fill the log.
    fn report_failure(&mut self, subject: Subject, attestor: &'static str, error: &AttestorError) {
        let (key, now) = ((attestor, subject.uid), self.clock.now().boot);
        let is_news = self.failures.get(&key, now).is_none()
            && (self.failures.insert(key, (), now) || self.other_failures.insert((), (), now));
        if is_news {
            tracing::error!(pid = subject.pid, plugin_name = attestor, %error, "workload attestor failed");
        } else {
            tracing::debug!(pid = subject.pid, plugin_name = attestor, %error, "workload attestor failed");
        }
    }
}

impl fmt::Debug for Selectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attestors: Vec<_> = self
            .attestors
            .iter()
            .map(|attestor| attestor.name())
            .collect();
        f.debug_struct("Selectors")
            .field("attestors", &attestors)
            .field("flights", &self.flights.len())
            .finish_non_exhaustive()
    }
}

impl Actor for Selectors {
    type Context = Context<Self>;
}

impl Handler<AttestWorkload> for Selectors {
    type Result = ResponseFuture<Answer>;

    fn handle(
        &mut self,
        AttestWorkload { peer }: AttestWorkload,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        let boarded = Subject::of(&peer).and_then(|subject| {
            match self.answers.get(&subject, self.clock.now().boot) {
                Some(answer) => Ok(Boarded::Known(answer.clone())),
                None => self.board(subject, peer, ctx).map(Boarded::Waiting),
            }
        });
        Box::pin(async move {
            match boarded? {
                Boarded::Known(answer) => Ok(answer),
                Boarded::Waiting(answer) => answer.await.unwrap_or(Err(AttestationError::Busy)),
            }
        })
    }
}

enum Boarded {
    Known(SelectorSet),
    Waiting(oneshot::Receiver<Answer>),
}

type Outcome = (&'static str, Result<Vec<Selector>, AttestorError>);
type Attempt = Pin<Box<dyn Future<Output = Outcome>>>;

fn attempt(attestor: &dyn WorkloadAttestor, peer: &Arc<Peer>) -> Attempt {
    let (name, answer) = (attestor.name(), attestor.attest(Arc::clone(peer)));
    Box::pin(async move {
        let outcome = tokio::time::timeout(ATTESTOR_DEADLINE, answer).await;
        (
            name,
            outcome.unwrap_or(Err(AttestorError::Deadline(ATTESTOR_DEADLINE))),
        )
    })
}

/// Runs a handful of futures side by side to their ends.
async fn all(attempts: Vec<Attempt>) -> Vec<Outcome> {
    let mut attempts: Vec<_> = attempts.into_iter().map(Some).collect();
    let mut outcomes = Vec::new();
    poll_fn(move |ctx| {
        for slot in &mut attempts {
            if let Some(Poll::Ready(outcome)) =
                slot.as_mut().map(|attempt| attempt.as_mut().poll(ctx))
            {
                outcomes.push(outcome);
                *slot = None;
            }
        }
        if attempts.iter().all(Option::is_none) {
            Poll::Ready(std::mem::take(&mut outcomes))
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Types and number only: values may tell secrets (design D18).
fn report_success(subject: Subject, selectors: &SelectorSet) {
    let types: BTreeSet<_> = selectors.iter().map(Selector::kind).collect();
    let types = Vec::from_iter(types).join(",");
    tracing::debug!(
        pid = subject.pid,
        count = selectors.len(),
        types,
        "PID attested to have selectors"
    );
}

#[cfg(test)]
mod tests;
