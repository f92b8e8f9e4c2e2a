//! Proves the node to the server and keeps the agent SVID fresh. Owns the way in, the agent keys and SVID, and the anchors that the server is
//! verified by. Takes [`SvidRejected`], [`SvidAccepted`], [`ServerUnknown`] and [`TrustBundle`] from the synchronizer, and [`Settle`] when the process
//! ends. Publishes credentials through a `watch`, tells the synchronizer [`Attested`]. Decisions are in [`lifecycle`], [`rebootstrap`] and [`arrival`].

pub mod arrival;
mod attempt;
pub mod http_challenge;
pub mod join_token;
mod keep;
pub mod lifecycle;
pub mod node;
mod node_file;
mod node_key;
mod outcome;
pub mod rebootstrap;
mod settle;
pub mod sshpop;
mod start;
pub mod trust;
pub mod x509pop;

use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle,
    WrapFuture,
};
use tokio::sync::oneshot;

use crate::bundle::Bundle;
use crate::cache::LastEnd;
use crate::clock::Clock;
use crate::credentials::{CredentialsWriter, ServerTrust};
use crate::exit::ExitSender;
use crate::random::Random;
use crate::readiness::{ReadinessWriter, Trouble};
use crate::server::{Disposition, ServerApi, ServerError};
use crate::spiffe_id::TrustDomain;
use crate::store::{BootstrapState, KeySlot, LoadIdentity, StoreHandle, StoredIdentity};
use crate::svid::X509Svid;
use crate::synchronizer::Attested;
use attempt::{Attempt, PendingKey};
use lifecycle::{Rejections, Replacing, Retries, Way};
use node::NodeAttestor;
use rebootstrap::{Rebootstrap, RebootstrapConfig};
use trust::{Asking, BundleSources, Fetching};

pub use settle::Settle;

/// Longest nap before a rotation: clocks step and machines are suspended.
const MAX_NAP: Duration = Duration::from_mins(1);
/// So many TLS alerts in a row against the agent certificate are believed.
const ALERTS_BELIEVED: u32 = 3;

/// Settings of the attestor.
#[derive(Debug, Clone)]
pub struct AttestorConfig {
    /// The agent's trust domain.
    pub trust_domain: TrustDomain,
    /// Name or address of the server, for the sources of bundles.
    pub server_address: String,
    /// Its port.
    pub server_port: u16,
    /// Where the first bundle comes from.
    pub bundle_sources: BundleSources,
    /// When to start over from them.
    pub rebootstrap: RebootstrapConfig,
    /// How long before its end the agent SVID is replaced at the latest.
    pub availability_target: Option<Duration>,
    /// A start without a usable SVID waits a random part of this before it attests; zero = it does not.
    pub arrival_spread: Duration,
}

/// What the attestor works with.
#[derive(Debug)]
pub struct AttestorTools {
    /// The way in.
    pub node: Rc<dyn NodeAttestor>,
    /// The server.
    pub server: Rc<dyn ServerApi>,
    /// Disk state.
    pub store: StoreHandle,
    /// Told when there are credentials.
    pub synchronizer: Recipient<Attested>,
    /// Asked how long anybody is served, before the agent gives up (design D4).
    pub cache: Recipient<LastEnd>,
    /// Told before a banned agent ends (design D5).
    pub banned: Recipient<Banned>,
    /// Where credentials are published.
    pub credentials: CredentialsWriter,
    /// How far the start has come.
    pub readiness: ReadinessWriter,
    /// Where the end of the process is asked for.
    pub exit: ExitSender,
    /// For validity and rotation instants.
    pub clock: Clock,
    /// For every jitter.
    pub random: Random,
}

/// Keeps the agent's own identity.
#[derive(Debug)]
pub struct Attestor {
    config: AttestorConfig,
    tools: AttestorTools,
    held: Option<Held>,
    /// The bundle to verify the server by; stored ones come first, then the configured sources.
    bundle: Option<Arc<Bundle>>,
    /// The newest bundle could not be written.
    bundle_is_unsaved: bool,
    pending_key: Option<PendingKey>,
    state: State,
    retries: Retries,
    rejections: Rejections,
    rebootstrap: Rebootstrap,
    /// The server does not take the SVID that is held: its successor is announced, so that what was refused is made good.
    is_rejected: bool,
    /// Why the agent is about to give up, once nobody is served any more.
    given_up: Option<GivenUp>,
    /// TLS alerts against the held SVID since the server last accepted it.
    alerts: u32,
    /// Boot time of the next try, after a failure or a rejection; without one the rotation instant counts.
    retry_at: Option<Duration>,
    /// The slot of a stored key that must not be overwritten, while nothing is held.
    reserved_slot: Option<KeySlot>,
    /// What is on disk, while nothing is held: once there is a bundle, or the clock is set, it may be of use.
    stored: Option<StoredIdentity>,
    /// Boot time of the first failure to read the bundle file.
    bundle_missing_since: Option<Duration>,
    /// Who waits for the last attempt, once the process is about to end.
    settled: Option<oneshot::Sender<()>>,
    timer: Option<SpawnHandle>,
    write_timer: Option<SpawnHandle>,
    end_timer: Option<SpawnHandle>,
    /// The cache is being asked how long anybody is served.
    is_asking_for_end: bool,
    look_timer: Option<SpawnHandle>,
}

/// The SVID in use.
#[derive(Debug, Clone)]
struct Held {
    svid: Arc<X509Svid>,
    slot: KeySlot,
    reattestable: bool,
    /// Drawn once, when the certificate was taken into use.
    rotate_at: SystemTime,
    /// Boot time of that.
    since: Duration,
}

/// What the attestor is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Disk state is being read: only at start.
    Loading,
    /// Waiting for the rotation instant, or for the next try.
    Waiting,
    /// An attestation or renewal is under way; credentials in use stay in use.
    Attempting {
        /// The server does not grant it a second time.
        is_irreplaceable: bool,
    },
    /// Banned, given up or told to stop: the process is about to end.
    Ended,
}

/// An agent that nothing can bring in again.
#[derive(Debug, Clone)]
struct GivenUp {
    reason: String,
    /// The server has said that it does not know the SVID: it is not left for the next start.
    is_disowned: bool,
}

/// The server does not take the agent SVID with this serial number.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SvidRejected {
    /// Which certificate: rejections of an older one are moot.
    pub serial: String,
    /// What the server's details ask for.
    pub disposition: Disposition,
    /// The server's words.
    pub error: ServerError,
}

/// The server has answered a call with the agent SVID of this serial number.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SvidAccepted {
    /// Which certificate: one that is not held any more proves nothing.
    pub serial: String,
}

/// The server's certificate leads to no known authority (design D2).
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ServerUnknown {
    /// The agent SVID of that time: with another one came another bundle.
    pub serial: String,
    /// Names the server.
    pub error: ServerError,
}

/// The own trust domain's bundle as the server has it now.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TrustBundle(pub Arc<Bundle>);

/// The agent is banned: identities are withdrawn before the process ends.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Banned;

/// Self-timer: rotation is due, or a retry.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Wake;

/// Self-timer: the SVID is still to be written.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct WriteAgain;

/// Self-timer: nobody may be served any more.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct LookForEnd;

/// Self-timer: is the server's authority still unknown?
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct LookAgain;

impl Attestor {
    /// An attestor that begins as soon as it is started.
    pub fn new(config: AttestorConfig, tools: AttestorTools) -> Self {
        Self {
            rebootstrap: Rebootstrap::resume(config.rebootstrap, BootstrapState::default(), false),
            config,
            tools,
            held: None,
            bundle: None,
            bundle_is_unsaved: false,
            pending_key: None,
            state: State::Loading,
            retries: Retries::default(),
            rejections: Rejections::default(),
            is_rejected: false,
            given_up: None,
            alerts: 0,
            retry_at: None,
            reserved_slot: None,
            stored: None,
            bundle_missing_since: None,
            settled: None,
            timer: None,
            write_timer: None,
            end_timer: None,
            is_asking_for_end: false,
            look_timer: None,
        }
    }

    /// How long until the next attempt: a retry, else the rotation.
    fn until_attempt(&self) -> Option<Duration> {
        let now = self.tools.clock.now();
        match (self.retry_at, &self.held) {
            (Some(retry_at), _) => Some(retry_at.saturating_sub(now.boot)),
            (None, Some(held)) => Some(now.until(held.rotate_at)),
            (None, None) => None,
        }
    }

    /// Sleeps until the next attempt, or a while on the way.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(wait) = self.until_attempt() {
            let nap = wait.min(MAX_NAP) + Duration::from_millis(1);
            self.timer = Some(ctx.notify_later(Wake, nap));
        }
    }

    fn retry_after(&mut self, wait: Duration, ctx: &mut Context<Self>) {
        self.retry_at = Some(self.tools.clock.now().boot + wait);
        self.arm(ctx);
    }

    /// What the server is verified by: the bundle that is held, or what the sources give.
    fn trust(&mut self) -> Fetching {
        match &self.bundle {
            Some(bundle) if !self.rebootstrap.passes_over_held() => {
                Box::pin(ready(Ok(ServerTrust::Bundle(Arc::clone(bundle)))))
            }
            Some(_) | None => self.ask_sources(),
        }
    }

    fn ask_sources(&mut self) -> Fetching {
        let now = self.tools.clock.wall();
        self.rebootstrap.asking(now);
        let state = self.rebootstrap.state();
        self.config.bundle_sources.fetch(Asking {
            purpose: state.purpose.unwrap_or(crate::store::Purpose::Bootstrap),
            attempts: state.attempts,
            started: state.started.unwrap_or(now),
            server_address: self.config.server_address.clone(),
            server_port: self.config.server_port,
            trust_domain: self.config.trust_domain.clone(),
        })
    }

    /// Starts an attestation or a renewal. Nothing else waits for it.
    fn attempt(&mut self, ctx: &mut Context<Self>) {
        if self.is_rejected {
            let now = self.tools.clock.now();
            self.rejections.acted(now, &mut self.tools.random);
        }
        let way = self.way();
        let may_attest_again = self.tools.node.may_attest_again();
        self.state = State::Attempting {
            is_irreplaceable: way == Way::Attest && !may_attest_again,
        };
        let held_slot = self.held.as_ref().map(|held| held.slot);
        let attempt = Attempt {
            way,
            slot: lifecycle::free_slot(held_slot.or(self.reserved_slot)),
            pending_key: self.pending_key.take(),
            trust: self.trust(),
            may_attest_again,
            trust_domain: self.config.trust_domain.clone(),
            node: Rc::clone(&self.tools.node),
            server: Rc::clone(&self.tools.server),
            store: self.tools.store.clone(),
            clock: self.tools.clock.clone(),
            random: self.tools.random.fork(),
        };
        let begun_with = self.bundle.clone();
        ctx.spawn(
            attempt
                .run()
                .into_actor(self)
                .map(move |(outcome, pending), this, ctx| {
                    this.pending_key = pending;
                    if this.state == State::Ended {
                        return;
                    }
                    this.note_contact(outcome.as_ref().map(drop));
                    match outcome {
                        Ok(granted) => this.granted(granted, begun_with.as_ref(), ctx),
                        Err(error) => this.failed(&error, way, ctx),
                    }
                    this.settle();
                }),
        );
    }

    /// How the SVID is replaced. Starting over means attesting: the server that is to be found does not know the SVID that is held.
    fn way(&self) -> Way {
        if self.rebootstrap.is_starting_over() {
            Way::Attest
        } else {
            lifecycle::way(self.replacing())
        }
    }

    fn replacing(&self) -> Option<Replacing> {
        let held = self.held.as_ref()?;
        Some(Replacing {
            reattestable: held.reattestable,
            is_spent: self.is_rejected || held.svid.not_after() < self.tools.clock.wall(),
            may_attest_again: self.tools.node.may_attest_again(),
        })
    }

    /// Whether the agent could come in again if it lost its SVID.
    fn may_attest(&self) -> bool {
        match &self.held {
            Some(held) => held.reattestable,
            None => self.tools.node.may_attest_again(),
        }
    }

    fn note_contact(&self, outcome: Result<(), &attempt::AttemptError>) {
        let boot = self.tools.clock.now().boot;
        let failure = outcome.err().map(attempt::AttemptError::as_server_error);
        self.tools.readiness.send_if_modified(|readiness| {
            let before = readiness.unreachable_since;
            readiness.asked(failure.as_ref().map_or(Ok(()), Err), boot);
            readiness.unreachable_since != before
        });
    }

    /// Begins or ends a trouble that callers do not feel; tells whether it has just begun.
    fn trouble(&self, trouble: Trouble, words: Option<&str>) -> bool {
        let mut has_begun = false;
        self.tools.readiness.send_if_modified(|readiness| {
            let before = readiness.troubles.len();
            has_begun = readiness.trouble(trouble, words.map(Into::into));
            has_begun || readiness.troubles.len() != before
        });
        has_begun
    }

    /// Whether this is the serial number of the SVID in use.
    fn holds(&self, serial: &str) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.svid.leaf().serial_hex() == serial)
    }
}

impl Actor for Attestor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let load = self.tools.store.load.send(LoadIdentity);
        ctx.spawn(load.into_actor(self).map(|loaded, this, ctx| match loaded {
            Ok(loaded) => this.loaded(loaded, ctx),
            Err(_) => this.end("store is gone".into(), ctx),
        }));
    }
}

impl Handler<SvidRejected> for Attestor {
    type Result = ();

    fn handle(&mut self, rejected: SvidRejected, ctx: &mut Self::Context) {
        if !self.holds(&rejected.serial) || matches!(self.state, State::Ended | State::Loading) {
            return;
        }
        match rejected.disposition {
            Disposition::Banned => self.banned(&rejected.error.to_string(), ctx),
            Disposition::Reattest => self.rejected(&rejected.error, ctx),
            Disposition::Retry => self.alerted(&rejected.error, ctx),
        }
    }
}

impl Handler<SvidAccepted> for Attestor {
    type Result = ();

    fn handle(&mut self, SvidAccepted { serial }: SvidAccepted, ctx: &mut Self::Context) {
        if self.holds(&serial) && self.state != State::Ended {
            self.accepted(ctx);
        }
    }
}

impl Handler<ServerUnknown> for Attestor {
    type Result = ();

    fn handle(&mut self, unknown: ServerUnknown, ctx: &mut Self::Context) {
        if self.holds(&unknown.serial) && self.state != State::Ended {
            self.server_unknown(&unknown.error, ctx);
        }
    }
}

impl Handler<TrustBundle> for Attestor {
    type Result = ();

    fn handle(&mut self, TrustBundle(newer): TrustBundle, ctx: &mut Self::Context) {
        self.keep_bundle(&newer, ctx);
    }
}

impl Handler<Wake> for Attestor {
    type Result = ();

    fn handle(&mut self, _: Wake, ctx: &mut Self::Context) {
        self.timer = None;
        if self.state != State::Waiting {
            return;
        }
        if self.until_attempt().is_none_or(|wait| wait.is_zero()) {
            self.retry_at = None;
            match self.usable_by_now() {
                Some((svid, slot, reattestable)) => {
                    self.use_stored(svid, slot, reattestable, ctx);
                }
                None => self.attempt(ctx),
            }
        } else {
            self.arm(ctx);
        }
    }
}

impl Handler<WriteAgain> for Attestor {
    type Result = ();

    fn handle(&mut self, _: WriteAgain, ctx: &mut Self::Context) {
        self.write_timer = None;
        match self.state {
            State::Waiting => self.save_svid(ctx),
            // What the attempt brings is stored by the attempt.
            State::Attempting { .. } => self.write_again_later(ctx),
            State::Loading | State::Ended => {}
        }
    }
}

impl Handler<LookForEnd> for Attestor {
    type Result = ();

    fn handle(&mut self, _: LookForEnd, ctx: &mut Self::Context) {
        self.end_timer = None;
        self.end_when_nobody_is_served(ctx);
    }
}

impl Handler<LookAgain> for Attestor {
    type Result = ();

    fn handle(&mut self, _: LookAgain, ctx: &mut Self::Context) {
        self.look_timer = None;
        self.look_again(ctx);
    }
}

#[cfg(test)]
mod tests;
