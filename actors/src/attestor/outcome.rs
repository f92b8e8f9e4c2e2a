//! What follows an attempt, and what the server lets the agent know between attempts.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorContext, ActorFutureExt, AsyncContext, Context, WrapFuture};

use super::attempt::{AttemptError, Granted};
use super::lifecycle::{AfterFailure, Attempted, Way};
use super::node::EvidenceError;
use super::rebootstrap::AboutUnknown;
use super::trust::BundleSourceError;
use super::{ALERTS_BELIEVED, Attestor, Banned, GivenUp, LookAgain, LookForEnd, State};
use crate::bundle::Bundle;
use crate::cache::LastEnd;
use crate::exit::fail;
use crate::readiness::{Phase, Trouble};
use crate::rotation::RETRY_INITIAL;
use crate::server::{DeniedReason, ServerError};
use crate::store::DeleteSvid;

/// How long a bundle file may be missing at the first start (the reference's budget).
const BUNDLE_PATIENCE: Duration = Duration::from_mins(1);

impl Attestor {
    /// `begun_with` is the bundle that was held when the attempt began.
    pub(super) fn granted(
        &mut self,
        granted: Granted,
        begun_with: Option<&Arc<Bundle>>,
        ctx: &mut Context<Self>,
    ) {
        let Granted {
            way,
            svid,
            slot,
            reattestable,
            vouching,
            bundle,
            bundle_is_unsaved,
            write_error,
            queued,
        } = granted;
        // One that came from the synchronizer meanwhile is newer than what the attempt brings, unless it came from a server that is not to be
        // believed any more.
        let is_unchanged = match (&self.bundle, begun_with) {
            (None, _) => true,
            (Some(now), Some(then)) => Arc::ptr_eq(now, then),
            (Some(_), None) => false,
        };
        if is_unchanged || self.rebootstrap.is_starting_over() {
            match (bundle, vouching) {
                (Some(bundle), _) => {
                    self.bundle = Some(bundle);
                    self.bundle_is_unsaved = bundle_is_unsaved;
                }
                (None, Some(vouching)) => self.bundle = Some(vouching),
                (None, None) => {}
            }
        } else {
            // The attempt has written the bundle that it began with.
            self.bundle_is_unsaved = true;
            self.save_bundle(ctx);
        }
        let reattestable = reattestable
            .unwrap_or_else(|| self.held.as_ref().is_some_and(|held| held.reattestable));
        match way {
            Way::Attest => {
                tracing::info!(spiffe_id = %svid.id, reattestable, "Node attestation was successful");
                self.retries.admitted(queued, self.tools.clock.now());
            }
            Way::Renew => tracing::info!(spiffe_id = %svid.id, "Agent SVID renewed"),
        }
        if let Some(error) = write_error {
            tracing::error!(%error, "Agent SVID is in use but could not be stored; the write is tried again");
            self.trouble(Trouble::Unsaved, Some(&error.to_string()));
            self.write_again_later(ctx);
        } else if self.bundle_is_unsaved {
            self.trouble(Trouble::Unsaved, Some("the trust bundle is not stored yet"));
        } else {
            self.trouble(Trouble::Unsaved, None);
        }
        let issued = self.tools.clock.wall();
        self.adopt(svid, slot, reattestable, issued, ctx);
        // Written together with the SVID.
        self.rebootstrap.stored();
        self.server_known(ctx);
        if let Some(reason) = self.rebootstrap.refuses(reattestable) {
            self.end(reason.into(), ctx);
        }
    }

    pub(super) fn failed(&mut self, error: &AttemptError, way: Way, ctx: &mut Context<Self>) {
        self.state = State::Waiting;
        if let AttemptError::Bundle(error) = error
            && self.held.is_none()
        {
            return self.no_bundle(error, ctx);
        }
        if let AttemptError::Store(error) = error {
            self.trouble(Trouble::Unsaved, Some(&error.to_string()));
        }
        if let AttemptError::Evidence(EvidenceError::Unprepared(reason)) = error
            && self.held.is_none()
            && !self.tools.node.may_attest_again()
        {
            // A token that is not configured does not come by waiting.
            return self.end(format!("failed to attest: {reason}"), ctx);
        }
        self.is_rejected |= error.asks_for_attestation();
        let error = error.as_server_error();
        let now = self.tools.clock.now();
        let held = self.held.as_ref();
        let attempted = Attempted {
            way,
            left: held.map(|held| now.until(held.svid.not_after())),
            is_rejected: self.is_rejected,
            may_attest_again: self.tools.node.may_attest_again(),
        };
        self.save_bootstrap(ctx);
        let after = self
            .retries
            .after(&error, attempted, now, &mut self.tools.random);
        let wait = match after {
            AfterFailure::Banned => return self.banned(&error.to_string(), ctx),
            AfterFailure::Hopeless(wait) => {
                let is_disowned = is_disowned(&error);
                self.give_up(format!("failed to attest: {error}"), is_disowned, ctx);
                wait
            }
            AfterFailure::Retry(wait) => wait,
        };
        if self.state == State::Ended {
            return;
        }
        let retry_in = format!("{:.1}s", wait.as_secs_f64());
        if self.held.is_none() {
            self.show_attesting(&error.to_string());
        }
        if matches!(error, ServerError::UnknownAuthority { .. }) {
            // Said once, by what follows: it may stay for days.
            tracing::debug!(%error, retry_in, "The attempt failed");
            self.retry_after(wait, ctx);
            return self.server_unknown(&error, ctx);
        }
        if self.held.is_some() {
            tracing::error!(%error, retry_in, "Unable to rotate the agent SVID");
        } else {
            tracing::warn!(%error, retry_in, "Failed to retrieve attestation result");
        }
        self.retry_after(wait, ctx);
    }

    /// No bundle to verify the server by: a file may still come within a minute, a damaged one does not mend itself, a server is waited for.
    pub(super) fn no_bundle(&mut self, error: &BundleSourceError, ctx: &mut Context<Self>) {
        let now = self.tools.clock.now();
        let since = *self.bundle_missing_since.get_or_insert(now.boot);
        let out_of_patience = now.boot.saturating_sub(since) >= BUNDLE_PATIENCE;
        // With a bundle of its own the agent can wait for the server that it knows.
        let is_first = self.bundle.is_none();
        if is_first && (error.is_final() || (error.is_of_a_file() && out_of_patience)) {
            return self.end(format!("failed to attest: {error}"), ctx);
        }
        self.show_attesting(&error.to_string());
        self.save_bootstrap(ctx);
        let unavailable = ServerError::Proof(error.to_string());
        let attempted = Attempted {
            way: Way::Attest,
            left: None,
            is_rejected: false,
            may_attest_again: true,
        };
        let after = self
            .retries
            .after(&unavailable, attempted, now, &mut self.tools.random);
        if let AfterFailure::Retry(wait) = after {
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
    pub(super) fn banned(&mut self, reason: &str, ctx: &mut Context<Self>) {
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

    pub(super) fn end(&mut self, reason: String, ctx: &mut Context<Self>) {
        self.state = State::Ended;
        fail(&self.tools.exit, reason);
        ctx.stop();
    }

    /// Design D4: an agent that nothing can bring in again serves what is valid, then ends.
    fn give_up(&mut self, reason: String, is_disowned: bool, ctx: &mut Context<Self>) {
        if self.trouble(Trouble::ShutOut, Some(&reason)) {
            tracing::error!(
                error = reason,
                "Agent cannot come in again; it ends when the last valid X509-SVID has"
            );
        }
        let was_disowned = self.given_up.as_ref().is_some_and(|now| now.is_disowned);
        self.given_up = Some(GivenUp {
            reason,
            is_disowned: is_disowned || was_disowned,
        });
        if self.end_timer.is_none() {
            self.end_when_nobody_is_served(ctx);
        }
    }

    pub(super) fn end_when_nobody_is_served(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.is_asking_for_end, true) {
            return;
        }
        let asked = self.tools.cache.send(LastEnd);
        ctx.spawn(asked.into_actor(self).map(|last_end, this, ctx| {
            this.is_asking_for_end = false;
            let Some(given_up) = this.given_up.clone() else {
                return;
            };
            let now = this.tools.clock.now();
            match last_end.ok().flatten().filter(|end| *end >= now.wall) {
                Some(end) => {
                    // An SVID may be replaced, or its entry go, before its end.
                    let nap = now.until(end).min(super::MAX_NAP) + Duration::from_secs(1);
                    this.end_timer = Some(ctx.notify_later(LookForEnd, nap));
                }
                // What is under way may still bring the agent in.
                None if matches!(this.state, State::Attempting { .. }) => {
                    this.end_timer = Some(ctx.notify_later(LookForEnd, Duration::from_secs(1)));
                }
                None => this.conclude(given_up, ctx),
            }
        }));
    }

    fn conclude(&mut self, given_up: GivenUp, ctx: &mut Context<Self>) {
        self.state = State::Ended;
        if !given_up.is_disowned {
            return self.end(given_up.reason, ctx);
        }
        let delete = self.tools.store.delete_svid.send(DeleteSvid);
        ctx.spawn(delete.into_actor(self).map(|deleted, this, ctx| {
            if let Ok(Err(error)) = deleted {
                tracing::error!(%error, "Unable to remove the agent SVID");
            }
            this.end(given_up.reason, ctx);
        }));
    }

    /// The server does not take the SVID that is held: it is replaced, at once the first time, then in growing gaps.
    pub(super) fn rejected(&mut self, error: &ServerError, ctx: &mut Context<Self>) {
        let was_rejected = std::mem::replace(&mut self.is_rejected, true);
        if self.way() != Way::Attest {
            let reason = format!("agent is not attested any more and cannot attest again: {error}");
            return self.give_up(reason, is_disowned(error), ctx);
        }
        // A try that is put off already has its reasons, such as a crowded server.
        if was_rejected && self.retry_at.is_some() {
            return;
        }
        self.replace_refused(error, ctx);
    }

    fn replace_refused(&mut self, error: &ServerError, ctx: &mut Context<Self>) {
        if self.state != State::Waiting {
            return;
        }
        let now = self.tools.clock.now();
        let held = self.held.as_ref();
        let left = held.map(|held| now.until(held.svid.not_after()));
        let wait = self.rejections.wait(now, left);
        let age = held.map_or(Duration::MAX, |held| now.boot.saturating_sub(held.since));
        if self.rejections.reveals_clone(error.denied_reason(), age) {
            let words = "another agent attests with the same node identity: each attestation ends the other's SVID; give every agent evidence of its own";
            tracing::error!(attestor = self.tools.node.name(), spiffe_id = held.map(|held| held.svid.id.to_string()), %error, "{words}");
            self.trouble(Trouble::SharedIdentity, Some(words));
        }
        if wait.is_zero() {
            tracing::warn!(%error, "Agent needs to re-attest; will attempt to re-attest");
            self.attempt(ctx);
        } else {
            self.retry_after(wait, ctx);
        }
    }

    /// An alert may come from anything between here and the server: only a series of them is believed (weakness W18), and it costs nothing
    /// where the agent could not attest again.
    pub(super) fn alerted(&mut self, error: &ServerError, ctx: &mut Context<Self>) {
        self.alerts += 1;
        let may_attest = self.held.as_ref().is_some_and(|held| held.reattestable);
        if self.alerts >= ALERTS_BELIEVED && may_attest && self.retry_at.is_none() {
            self.replace_refused(error, ctx);
        }
    }

    /// The held SVID was accepted: an attestation that was put off because of a rejection is called off.
    pub(super) fn accepted(&mut self, ctx: &mut Context<Self>) {
        let now = self.tools.clock.now();
        if self.rejections.accepted(now) {
            self.trouble(Trouble::SharedIdentity, None);
        }
        self.alerts = 0;
        self.server_known(ctx);
        if self.given_up.is_some() {
            tracing::info!("The server accepts the agent again");
            self.given_up = None;
            self.trouble(Trouble::ShutOut, None);
        }
        let is_due = self
            .held
            .as_ref()
            .is_some_and(|held| held.rotate_at <= now.wall);
        let was_rejected = std::mem::replace(&mut self.is_rejected, false);
        if was_rejected && self.state == State::Waiting && !is_due {
            self.retry_at = None;
            self.arm(ctx);
        }
    }

    /// Reports an unknown authority once, and starts over where that is configured and the time has come (design D2).
    pub(super) fn server_unknown(&mut self, error: &ServerError, ctx: &mut Context<Self>) {
        if self.trouble(Trouble::UnknownAuthority, Some(&error.to_string())) {
            tracing::error!(%error, "The server cannot be verified; valid identities are served on and the agent keeps trying");
        }
        if self.rebootstrap.is_starting_over() {
            return;
        }
        let about = self
            .rebootstrap
            .unknown_authority(self.tools.clock.wall(), self.may_attest());
        self.save_bootstrap(ctx);
        match about {
            AboutUnknown::Retry => {}
            AboutUnknown::Wait(left) => {
                if self.look_timer.is_none() {
                    tracing::warn!(
                        starting_over_in = format!("{:.1}s", left.as_secs_f64()),
                        "Waiting before starting over from the bootstrap bundle"
                    );
                    self.look_later(left, ctx);
                }
            }
            AboutUnknown::StartOver => {
                tracing::warn!("Starting over from the bootstrap bundle");
                if self.state == State::Waiting {
                    self.attempt(ctx);
                } else {
                    self.retry_after(RETRY_INITIAL, ctx);
                }
            }
        }
    }

    /// The delay before starting over has passed: is the authority still unknown?
    pub(super) fn look_again(&mut self, ctx: &mut Context<Self>) {
        if self.state == State::Ended || !self.knows_that_unknown() {
            return;
        }
        let left = self.rebootstrap.left(self.tools.clock.wall());
        if !left.is_zero() {
            return self.look_later(left, ctx);
        }
        let Some(serial) = self.held.as_ref().map(|held| held.svid.leaf().serial_hex()) else {
            return;
        };
        let asked = Rc::clone(&self.tools.server).bundle();
        ctx.spawn(asked.into_actor(self).map(move |answer, this, ctx| {
            if !this.holds(&serial) || this.state == State::Ended {
                return;
            }
            match answer {
                Ok(bundle) => {
                    this.keep_bundle(&Arc::new(bundle), ctx);
                    this.accepted(ctx);
                }
                Err(error @ ServerError::UnknownAuthority { .. }) => {
                    this.server_unknown(&error, ctx);
                }
                Err(error) => {
                    tracing::debug!(%error, "Whether the authority is still unknown is not known");
                    this.look_later(super::MAX_NAP, ctx);
                }
            }
        }));
    }

    fn look_later(&mut self, left: Duration, ctx: &mut Context<Self>) {
        if let Some(timer) = self.look_timer.take() {
            ctx.cancel_future(timer);
        }
        // A machine may be suspended meanwhile.
        let nap = left.min(super::MAX_NAP) + Duration::from_millis(1);
        self.look_timer = Some(ctx.notify_later(LookAgain, nap));
    }

    fn knows_that_unknown(&self) -> bool {
        let readiness = self.tools.readiness.borrow();
        readiness.troubles.contains_key(&Trouble::UnknownAuthority)
    }

    fn server_known(&mut self, ctx: &mut Context<Self>) {
        if self.knows_that_unknown() {
            tracing::info!("The server's authority is known again");
            self.trouble(Trouble::UnknownAuthority, None);
        }
        if let Some(timer) = self.look_timer.take() {
            ctx.cancel_future(timer);
        }
        self.rebootstrap.succeeded();
        self.save_bootstrap(ctx);
    }
}

/// Whether the server has said that it does not know the SVID.
fn is_disowned(error: &ServerError) -> bool {
    matches!(
        error.denied_reason(),
        Some(DeniedReason::AgentNotAttested | DeniedReason::AgentNotActive)
    )
}
