//! Proves the node to the server and keeps the agent SVID fresh. Owns the way in, the agent keys and SVID, and the anchors that the server is
//! verified by. Takes [`SvidRejected`], [`SvidAccepted`] and [`TrustBundle`] from the synchronizer. Publishes credentials through a `watch`, tells the
//! synchronizer [`Attested`]. Decisions are in [`lifecycle`].

pub mod attempt;
pub mod lifecycle;
pub mod node;
pub mod trust;
pub mod x509pop;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient,
    SpawnHandle, WrapFuture,
};

use crate::bundle::Bundle;
use crate::clock::Clock;
use crate::credentials::{Credentials, CredentialsWriter, ServerTrust};
use crate::exit::{ExitSender, fail};
use crate::random::Random;
use crate::readiness::{Phase, ReadinessWriter};
use crate::rotation::draw_renewal;
use crate::server::{Disposition, ServerApi, ServerError};
use crate::spiffe_id::TrustDomain;
use crate::store::{
    DeleteSvid, KeySlot, LoadIdentity, SaveBundle, SaveSvid, StoreError, StoreHandle,
    StoredIdentity,
};
use crate::svid::X509Svid;
use crate::synchronizer::Attested;
use attempt::{Attempt, AttemptError, Granted, PendingKey};
use lifecycle::{AfterFailure, Rejections, Replacing, Retries, Start, Way};
use node::NodeAttestor;
use trust::{BundleSource, BundleSourceError, BundleSources};

/// How long a bundle file may be missing at the first start (the reference's budget).
const BUNDLE_PATIENCE: Duration = Duration::from_mins(1);
/// Longest nap before a rotation: clocks step and machines are suspended.
const MAX_NAP: Duration = Duration::from_mins(1);
/// So many TLS alerts in a row against the agent certificate are believed.
const ALERTS_BELIEVED: u32 = 3;
/// How long after a failed write the agent SVID is written again.
const WRITE_RETRY: Duration = Duration::from_secs(30);

/// Settings of the attestor.
#[derive(Debug, Clone)]
pub struct AttestorConfig {
    /// The agent's trust domain.
    pub trust_domain: TrustDomain,
    /// Where the first bundle comes from.
    pub bundle_source: BundleSource,
    /// All sources, in the order in which they are asked.
    pub bundle_sources: BundleSources,
    /// How long before its end the agent SVID is replaced at the latest.
    pub availability_target: Option<Duration>,
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
    /// The bundle to verify the server by; stored ones come first, then the configured source.
    bundle: Option<Arc<Bundle>>,
    /// The newest bundle could not be written.
    bundle_is_unsaved: bool,
    pending_key: Option<PendingKey>,
    state: State,
    retries: Retries,
    rejections: Rejections,
    /// The server does not take the SVID that is held: its successor is announced, so that what was refused is made good.
    is_rejected: bool,
    /// TLS alerts against the held SVID since the server last accepted it.
    alerts: u32,
    /// Boot time of the next try, after a failure or a rejection; without one the rotation instant counts.
    retry_at: Option<Duration>,
    /// The slot of a stored key that must not be overwritten, while nothing is held.
    reserved_slot: Option<KeySlot>,
    /// Boot time of the first failure to read the bundle file.
    bundle_missing_since: Option<Duration>,
    timer: Option<SpawnHandle>,
    write_timer: Option<SpawnHandle>,
}

/// The SVID in use.
#[derive(Debug, Clone)]
struct Held {
    svid: Arc<X509Svid>,
    slot: KeySlot,
    reattestable: bool,
    /// Drawn once, when the certificate was taken into use.
    rotate_at: SystemTime,
}

/// What the attestor is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Disk state is being read: only at start.
    Loading,
    /// Waiting for the rotation instant, or for the next try.
    Waiting,
    /// An attestation or renewal is under way; credentials in use stay in use.
    Attempting,
    /// Banned or denied for good: the process is about to end.
    Ended,
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

/// The server has answered a sync with the agent SVID of this serial number.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SvidAccepted {
    /// Which certificate: one that is not held any more proves nothing.
    pub serial: String,
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

impl Attestor {
    /// An attestor that begins as soon as it is started.
    pub fn new(config: AttestorConfig, tools: AttestorTools) -> Self {
        Self {
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
            alerts: 0,
            retry_at: None,
            reserved_slot: None,
            bundle_missing_since: None,
            timer: None,
            write_timer: None,
        }
    }

    fn loaded(&mut self, loaded: Result<StoredIdentity, StoreError>, ctx: &mut Context<Self>) {
        let stored = match loaded {
            Ok(stored) => stored,
            Err(error) => return self.end(error.to_string(), ctx),
        };
        self.state = State::Waiting;
        if !stored.bundle.is_empty() {
            self.bundle = Some(Arc::new(Bundle::of_certificates(
                self.config.trust_domain.clone(),
                stored.bundle.clone(),
            )));
        }
        match lifecycle::at_start(&stored, &self.config.trust_domain, self.tools.clock.wall()) {
            Start::Warm {
                svid,
                slot,
                reattestable,
            } => {
                tracing::info!(spiffe_id = %svid.id, "SVID loaded");
                self.use_stored(svid, slot, reattestable, ctx);
            }
            Start::Cold { why, slot } => {
                tracing::info!(reason = why, "SVID is not found. Starting node attestation");
                self.reserved_slot = slot;
                self.attempt(ctx);
            }
        }
    }

    /// A warm start. A stored SVID without a stored bundle needs the configured one: an identity is never shown to an unverified server.
    fn use_stored(
        &mut self,
        svid: Arc<X509Svid>,
        slot: KeySlot,
        reattestable: bool,
        ctx: &mut Context<Self>,
    ) {
        if self.bundle.is_none() {
            match self.config.bundle_source.fetch(&self.config.trust_domain) {
                Ok(ServerTrust::Bundle(bundle)) => {
                    self.bundle = Some(bundle);
                    self.bundle_is_unsaved = true;
                }
                Ok(ServerTrust::Insecure) => {
                    return self.end(BundleSourceError::NoBundle.to_string(), ctx);
                }
                Err(error) => {
                    self.reserved_slot = Some(slot);
                    return self.no_bundle(&error, ctx);
                }
            }
        }
        self.adopt(svid, slot, reattestable, ctx);
    }

    /// Publishes credentials and draws the instant of their rotation. There is a bundle.
    fn adopt(
        &mut self,
        svid: Arc<X509Svid>,
        slot: KeySlot,
        reattestable: bool,
        ctx: &mut Context<Self>,
    ) {
        let Some(bundle) = self.bundle.clone() else {
            return self.end("BUG: an SVID without a bundle".into(), ctx);
        };
        let now = self.tools.clock.wall();
        let held = self.held.as_ref().map(|held| &*held.svid);
        let is_planned = lifecycle::is_planned(held, self.is_rejected, &svid.id, now);
        let rotation = draw_renewal(
            svid.leaf(),
            now,
            self.config.availability_target,
            &mut self.tools.random,
        );
        self.held = Some(Held {
            svid: Arc::clone(&svid),
            slot,
            reattestable,
            rotate_at: rotation.at,
        });
        self.is_rejected = false;
        self.alerts = 0;
        self.tools
            .credentials
            .send_replace(Some(Arc::new(Credentials {
                svid,
                reattestable,
                bundle,
            })));
        self.retries.reset();
        self.retry_at = None;
        // A planned rotation is no reason to ask for entries.
        if !is_planned {
            let told = self.tools.synchronizer.send(Attested);
            ctx.spawn(told.into_actor(self).map(|told, _, _| {
                if told.is_err() {
                    tracing::error!("synchronizer is gone");
                }
            }));
        }
        self.state = State::Waiting;
        self.arm(ctx);
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

    /// Starts an attestation or a renewal. Nothing else waits for it.
    fn attempt(&mut self, ctx: &mut Context<Self>) {
        let trust = match &self.bundle {
            Some(bundle) => Ok(ServerTrust::Bundle(Arc::clone(bundle))),
            None => self.config.bundle_source.fetch(&self.config.trust_domain),
        };
        let trust = match trust {
            Ok(trust) => trust,
            Err(error) => return self.no_bundle(&error, ctx),
        };
        let vouching = match &trust {
            ServerTrust::Bundle(bundle) => Some(Arc::clone(bundle)),
            ServerTrust::Insecure => None,
        };
        if self.is_rejected {
            let now = self.tools.clock.now();
            self.rejections.acted(now, &mut self.tools.random);
        }
        self.bundle_missing_since = None;
        self.state = State::Attempting;
        let attempt = Attempt {
            way: lifecycle::way(self.replacing()),
            slot: lifecycle::free_slot(
                self.held
                    .as_ref()
                    .map(|held| held.slot)
                    .or(self.reserved_slot),
            ),
            pending_key: self.pending_key.take(),
            trust,
            trust_domain: self.config.trust_domain.clone(),
            node: Rc::clone(&self.tools.node),
            server: Rc::clone(&self.tools.server),
            store: self.tools.store.clone(),
            clock: self.tools.clock.clone(),
        };
        ctx.spawn(
            attempt
                .run()
                .into_actor(self)
                .map(|(outcome, pending), this, ctx| {
                    this.pending_key = pending;
                    if this.state == State::Ended {
                        return;
                    }
                    match outcome {
                        Ok(granted) => this.granted(granted, vouching, ctx),
                        Err(error) => this.failed(&error, ctx),
                    }
                }),
        );
    }

    fn replacing(&self) -> Option<Replacing> {
        let held = self.held.as_ref()?;
        Some(Replacing {
            reattestable: held.reattestable,
            is_spent: self.is_rejected || held.svid.not_after() < self.tools.clock.wall(),
            may_attest_again: self.tools.node.may_attest_again(),
        })
    }

    /// `vouching` is the bundle that the attempt was begun with.
    fn granted(
        &mut self,
        granted: Granted,
        vouching: Option<Arc<Bundle>>,
        ctx: &mut Context<Self>,
    ) {
        let Granted {
            way,
            svid,
            slot,
            reattestable,
            bundle,
            bundle_is_unsaved,
            write_error,
        } = granted;
        // One that came from the synchronizer meanwhile is newer than what the attempt brings.
        let is_unchanged = self.bundle.as_ref().is_none_or(|held| {
            vouching
                .as_ref()
                .is_some_and(|then| Arc::ptr_eq(then, held))
        });
        if let Some(bundle) = bundle
            && is_unchanged
        {
            self.bundle = Some(bundle);
            self.bundle_is_unsaved = bundle_is_unsaved;
        } else if self.bundle.is_none() {
            self.bundle = vouching;
            self.bundle_is_unsaved = true;
        }
        let reattestable = reattestable
            .unwrap_or_else(|| self.held.as_ref().is_some_and(|held| held.reattestable));
        match way {
            Way::Attest => {
                tracing::info!(spiffe_id = %svid.id, reattestable, "Node attestation was successful");
            }
            Way::Renew => tracing::info!(spiffe_id = %svid.id, "Agent SVID renewed"),
        }
        if let Some(error) = write_error {
            tracing::error!(%error, "Agent SVID is in use but could not be stored; the write is tried again");
            self.write_again_later(ctx);
        }
        self.adopt(svid, slot, reattestable, ctx);
    }

    fn failed(&mut self, error: &AttemptError, ctx: &mut Context<Self>) {
        self.state = State::Waiting;
        self.is_rejected |= error.asks_for_attestation();
        let now = self.tools.clock.now();
        let held = self.held.as_ref().map(|held| Arc::clone(&held.svid));
        let after = match error {
            AttemptError::Server(error) => {
                self.retries
                    .after(error, held.as_deref(), now, &mut self.tools.random)
            }
            AttemptError::Key(_)
            | AttemptError::Store(_)
            | AttemptError::Refused(_)
            | AttemptError::Path(_)
            | AttemptError::StoreGone => {
                let unanswered = ServerError::Proof(error.to_string());
                self.retries
                    .after(&unanswered, held.as_deref(), now, &mut self.tools.random)
            }
        };
        match after {
            AfterFailure::Exit(reason) if error.is_banned() => self.banned(&reason, ctx),
            AfterFailure::Exit(reason) => self.end(format!("failed to attest: {reason}"), ctx),
            AfterFailure::Retry(wait) => {
                let retry_in = format!("{:.1}s", wait.as_secs_f64());
                if self.held.is_some() {
                    tracing::error!(%error, retry_in, "Unable to rotate the agent SVID");
                } else {
                    tracing::warn!(%error, retry_in, "Failed to retrieve attestation result");
                    self.show_attesting(&error.to_string());
                }
                self.retry_after(wait, ctx);
            }
        }
    }

    /// No bundle to verify the server by: a file may still come within a minute, a damaged one does not mend itself.
    fn no_bundle(&mut self, error: &BundleSourceError, ctx: &mut Context<Self>) {
        let now = self.tools.clock.now();
        let since = *self.bundle_missing_since.get_or_insert(now.boot);
        let out_of_patience = now.boot.saturating_sub(since) >= BUNDLE_PATIENCE;
        if matches!(error, BundleSourceError::Unusable { .. }) || out_of_patience {
            return self.end(format!("failed to attest: {error}"), ctx);
        }
        self.show_attesting(&error.to_string());
        let unavailable = ServerError::Proof(error.to_string());
        if let AfterFailure::Retry(wait) =
            self.retries
                .after(&unavailable, None, now, &mut self.tools.random)
        {
            tracing::warn!(%error, retry_in = format!("{:.1}s", wait.as_secs_f64()), "No trust bundle yet");
            self.retry_after(wait, ctx);
        }
    }

    fn show_attesting(&self, error: &str) {
        self.tools.readiness.send_modify(|readiness| {
            if matches!(readiness.phase, Phase::Attesting(_)) {
                readiness.phase = Phase::Attesting(Some(error.into()));
            }
        });
    }

    /// Design D5: the SVID goes from disk, every identity is withdrawn, then the process ends.
    fn banned(&mut self, reason: &str, ctx: &mut Context<Self>) {
        tracing::error!(
            error = reason,
            "Agent is banned: removing SVID and shutting down"
        );
        self.state = State::Ended;
        let delete = self.tools.store.delete_svid.send(DeleteSvid);
        let withdraw = self.tools.banned.send(Banned);
        let reason = format!("agent is banned: {reason}");
        ctx.spawn(
            async move { (delete.await, withdraw.await) }
                .into_actor(self)
                .map(|(deleted, _), this, ctx| {
                    if let Ok(Err(error)) = deleted {
                        tracing::error!(%error, "Unable to remove the agent SVID");
                    }
                    this.end(reason, ctx);
                }),
        );
    }

    fn end(&mut self, reason: String, ctx: &mut Context<Self>) {
        self.state = State::Ended;
        fail(&self.tools.exit, reason);
        ctx.stop();
    }

    fn write_again_later(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.write_timer.take() {
            ctx.cancel_future(timer);
        }
        self.write_timer = Some(ctx.notify_later(WriteAgain, WRITE_RETRY));
    }

    fn save_svid(&mut self, ctx: &mut Context<Self>) {
        let Some(held) = &self.held else {
            return;
        };
        let save = self.tools.store.save_svid.send(SaveSvid {
            chain: held.svid.chain().to_vec(),
            reattestable: held.reattestable,
        });
        ctx.spawn(save.into_actor(self).map(|saved, this, ctx| match saved {
            Ok(Ok(())) => tracing::info!("SVID stored successfully"),
            Ok(Err(_)) => this.write_again_later(ctx),
            Err(_) => tracing::error!("store is gone"),
        }));
    }

    /// The server does not take the SVID that is held: it is replaced, at once the first time, then in growing gaps.
    fn rejected(&mut self, error: &ServerError, ctx: &mut Context<Self>) {
        self.is_rejected = true;
        let may_attest = lifecycle::way(self.replacing()) == Way::Attest;
        if self.state != State::Waiting || !may_attest {
            return;
        }
        let now = self.tools.clock.now();
        let held = self.held.as_ref();
        let left = held.map(|held| now.until(held.svid.not_after()));
        let wait = self.rejections.wait(now, left);
        if wait.is_zero() {
            tracing::warn!(%error, "Agent needs to re-attest; will attempt to re-attest");
            self.attempt(ctx);
        } else if self.retry_at.is_none() {
            self.retry_after(wait, ctx);
        }
    }

    /// The held SVID was accepted: an attestation that was put off because of a rejection is called off.
    fn accepted(&mut self, ctx: &mut Context<Self>) {
        let now = self.tools.clock.now();
        self.rejections.accepted(now);
        self.alerts = 0;
        let is_due = |held: &Held| held.rotate_at <= now.wall;
        if self.is_rejected
            && self.state == State::Waiting
            && !self.held.as_ref().is_some_and(is_due)
        {
            self.is_rejected = false;
            self.retry_at = None;
            self.arm(ctx);
        }
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
            // An alert may come from anything between here and the server: only a series of them is believed (weakness W18).
            Disposition::Retry => {
                self.alerts += 1;
                if self.alerts >= ALERTS_BELIEVED {
                    self.rejected(&rejected.error, ctx);
                }
            }
        }
    }
}

impl Handler<SvidAccepted> for Attestor {
    type Result = ();

    fn handle(&mut self, SvidAccepted { serial }: SvidAccepted, ctx: &mut Self::Context) {
        if self.holds(&serial) {
            self.accepted(ctx);
        }
    }
}

impl Handler<TrustBundle> for Attestor {
    type Result = ();

    fn handle(&mut self, TrustBundle(newer): TrustBundle, ctx: &mut Self::Context) {
        let is_news = self
            .bundle
            .as_deref()
            .is_none_or(|held| lifecycle::is_news(held, &newer));
        if !is_news && !self.bundle_is_unsaved {
            return;
        }
        self.bundle = Some(Arc::clone(&newer));
        self.tools.credentials.send_if_modified(|credentials| {
            let Some(current) = credentials else {
                return false;
            };
            *current = Arc::new(Credentials {
                bundle: Arc::clone(&newer),
                ..(**current).clone()
            });
            true
        });
        let authorities = newer.certificates();
        let save = self
            .tools
            .store
            .save_bundle
            .send(SaveBundle { authorities });
        ctx.spawn(save.into_actor(self).map(|saved, this, _| {
            this.bundle_is_unsaved = !matches!(saved, Ok(Ok(())));
            if let Ok(Err(error)) = saved {
                tracing::error!(%error, "Unable to store the trust bundle; the next refresh tries again");
            }
        }));
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
            self.attempt(ctx);
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
            State::Attempting => self.write_again_later(ctx),
            State::Loading | State::Ended => {}
        }
    }
}

#[cfg(test)]
mod tests;
