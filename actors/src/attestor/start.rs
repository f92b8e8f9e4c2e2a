//! From the stored identity to the first credentials.

use std::sync::Arc;
use std::time::SystemTime;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};

use super::lifecycle::{self, Start};
use super::rebootstrap::Rebootstrap;
use super::trust::BundleSourceError;
use super::{ALERTS_BELIEVED, Attestor, Held, State};
use crate::bundle::Bundle;
use crate::credentials::{Credentials, ServerTrust};
use crate::readiness::Trouble;
use crate::rotation::draw_renewal;
use crate::store::{KeySlot, StoreError, StoredIdentity};
use crate::svid::X509Svid;
use crate::synchronizer::Attested;

impl Attestor {
    pub(super) fn loaded(
        &mut self,
        loaded: Result<StoredIdentity, StoreError>,
        ctx: &mut Context<Self>,
    ) {
        if self.state == State::Ended {
            return;
        }
        let stored = match loaded {
            Ok(stored) => stored,
            Err(error) => return self.end(error.to_string(), ctx),
        };
        self.state = State::Waiting;
        let has_bundle = !stored.bundle.is_empty();
        self.rebootstrap =
            Rebootstrap::resume(self.config.rebootstrap, stored.bootstrap, has_bundle);
        if has_bundle {
            self.bundle = Some(Arc::new(Bundle::of_certificates(
                self.config.trust_domain.clone(),
                stored.bundle.clone(),
            )));
        }
        let found =
            lifecycle::at_start(&stored, &self.config.trust_domain, self.tools.clock.wall());
        let may_attest = match &found {
            Start::Warm { reattestable, .. } => *reattestable,
            Start::Cold { .. } => self.tools.node.may_attest_again(),
        };
        if let Some(reason) = self.rebootstrap.refuses(may_attest) {
            return self.end(reason.into(), ctx);
        }
        self.stored = Some(stored);
        match found {
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
                self.arrive(ctx);
            }
        }
    }

    /// A cold start; with `arrival_spread` not at the same time as all others.
    fn arrive(&mut self, ctx: &mut Context<Self>) {
        let delay = self.tools.random.up_to(self.config.arrival_spread);
        if delay.is_zero() {
            return self.attempt(ctx);
        }
        tracing::info!(
            attesting_in = format!("{:.1}s", delay.as_secs_f64()),
            "Arrival is spread"
        );
        self.retry_after(delay, ctx);
    }

    /// The stored SVID, its slot and whether it renews by attesting, if nothing is held and it could be. A token that has been shown already
    /// brings no other.
    pub(super) fn usable_by_now(&self) -> Option<(Arc<X509Svid>, KeySlot, bool)> {
        let stored = self.stored.as_ref()?;
        let now = self.tools.clock.wall();
        match lifecycle::at_start(stored, &self.config.trust_domain, now) {
            Start::Warm {
                svid,
                slot,
                reattestable,
            } => Some((svid, slot, reattestable)),
            Start::Cold { .. } => None,
        }
    }

    /// A warm start. A stored SVID without a stored bundle needs one from the sources: an identity is never shown to an unverified server.
    pub(super) fn use_stored(
        &mut self,
        svid: Arc<X509Svid>,
        slot: KeySlot,
        reattestable: bool,
        ctx: &mut Context<Self>,
    ) {
        if self.bundle.is_some() {
            let issued = svid.leaf().not_before();
            return self.adopt(svid, slot, reattestable, issued, ctx);
        }
        self.state = State::Attempting {
            is_irreplaceable: false,
        };
        let asked = self.ask_sources();
        ctx.spawn(asked.into_actor(self).map(move |fetched, this, ctx| {
            if this.state == State::Ended {
                return;
            }
            this.state = State::Waiting;
            match fetched {
                Ok(ServerTrust::Bundle(bundle)) => {
                    this.bundle = Some(bundle);
                    this.bundle_is_unsaved = true;
                    let issued = svid.leaf().not_before();
                    this.adopt(svid, slot, reattestable, issued, ctx);
                }
                Ok(ServerTrust::Insecure) => {
                    this.end(BundleSourceError::NoBundle.to_string(), ctx);
                }
                Err(error) => {
                    this.reserved_slot = Some(slot);
                    this.no_bundle(&error, ctx);
                }
            }
        }));
    }

    /// Publishes credentials and draws the instant of their rotation. There is a bundle. An SVID that was `issued` long ago may be overdue: it
    /// is replaced at once, however often the agent is started.
    pub(super) fn adopt(
        &mut self,
        svid: Arc<X509Svid>,
        slot: KeySlot,
        reattestable: bool,
        issued: SystemTime,
        ctx: &mut Context<Self>,
    ) {
        let Some(bundle) = self.bundle.clone() else {
            return self.end("BUG: an SVID without a bundle".into(), ctx);
        };
        let now = self.tools.clock.now();
        let held = self.held.as_ref().map(|held| &*held.svid);
        let is_news = self.is_rejected
            || self.alerts >= ALERTS_BELIEVED
            || self.rebootstrap.is_starting_over();
        let is_planned = lifecycle::is_planned(held, is_news, &svid.id, now.wall);
        let rotation = draw_renewal(
            svid.leaf(),
            issued,
            self.config.availability_target,
            &mut self.tools.random,
        );
        self.held = Some(Held {
            svid: Arc::clone(&svid),
            slot,
            reattestable,
            rotate_at: self
                .retries
                .rotation(rotation.at, svid.leaf(), reattestable),
            since: now.boot,
        });
        self.stored = None;
        self.is_rejected = false;
        self.alerts = 0;
        self.bundle_missing_since = None;
        self.take_heart(ctx);
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

    /// The agent has an SVID that nobody has objected to yet.
    fn take_heart(&mut self, ctx: &mut Context<Self>) {
        self.given_up = None;
        self.trouble(Trouble::ShutOut, None);
        if let Some(timer) = self.end_timer.take() {
            ctx.cancel_future(timer);
        }
    }
}
