//! What the attestor has written: SVID, bundle, the state of a bootstrap. A write that fails is reported and tried again (design 5).

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};

use super::{Attestor, WriteAgain, lifecycle};
use crate::bundle::Bundle;
use crate::credentials::Credentials;
use crate::readiness::Trouble;
use crate::store::{SaveBootstrap, SaveBundle, SaveSvid};

/// How long after a failed write the agent SVID is written again.
const WRITE_RETRY: Duration = Duration::from_secs(30);

impl Attestor {
    pub(super) fn write_again_later(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.write_timer.take() {
            ctx.cancel_future(timer);
        }
        self.write_timer = Some(ctx.notify_later(WriteAgain, WRITE_RETRY));
    }

    pub(super) fn save_svid(&mut self, ctx: &mut Context<Self>) {
        let Some(held) = &self.held else {
            return;
        };
        let save = self.tools.store.save_svid.send(SaveSvid {
            chain: held.svid.chain().to_vec(),
            reattestable: held.reattestable,
            bundle: self.bundle.as_ref().map(|bundle| bundle.certificates()),
        });
        ctx.spawn(save.into_actor(self).map(|saved, this, ctx| match saved {
            Ok(Ok(())) => {
                tracing::info!("SVID stored successfully");
                this.bundle_is_unsaved = false;
                this.trouble(Trouble::Unsaved, None);
            }
            Ok(Err(_)) => this.write_again_later(ctx),
            Err(_) => tracing::error!("store is gone"),
        }));
    }

    /// A bundle that the server handed to the synchronizer: published and stored where it is news.
    pub(super) fn keep_bundle(&mut self, newer: &Arc<Bundle>, ctx: &mut Context<Self>) {
        let is_news = self
            .bundle
            .as_deref()
            .is_none_or(|held| lifecycle::is_news(held, newer));
        if !is_news && !self.bundle_is_unsaved {
            return;
        }
        self.bundle = Some(Arc::clone(newer));
        self.tools.credentials.send_if_modified(|credentials| {
            let Some(current) = credentials else {
                return false;
            };
            *current = Arc::new(Credentials {
                bundle: Arc::clone(newer),
                ..(**current).clone()
            });
            true
        });
        self.save_bundle(ctx);
    }

    /// Writes the bundle that is held.
    pub(super) fn save_bundle(&mut self, ctx: &mut Context<Self>) {
        let Some(bundle) = &self.bundle else {
            return;
        };
        let authorities = bundle.certificates();
        let save = self
            .tools
            .store
            .save_bundle
            .send(SaveBundle { authorities });
        ctx.spawn(save.into_actor(self).map(|saved, this, _| {
            this.bundle_is_unsaved = !matches!(saved, Ok(Ok(())));
            match saved {
                Ok(Err(error)) => {
                    tracing::error!(%error, "Unable to store the trust bundle; the next refresh tries again");
                    this.trouble(Trouble::Unsaved, Some(&error.to_string()));
                }
                // An SVID that is still unsaved says so at its next try.
                Ok(Ok(())) if this.write_timer.is_none() => {
                    this.trouble(Trouble::Unsaved, None);
                }
                Ok(Ok(())) | Err(_) => {}
            }
        }));
    }

    /// The delay of a rebootstrap goes on over restarts. Nothing waits for the disk: what is lost is a little of the delay.
    pub(super) fn save_bootstrap(&mut self, ctx: &mut Context<Self>) {
        let Some(state) = self.rebootstrap.to_be_stored() else {
            return;
        };
        let save = self.tools.store.save_bootstrap.send(SaveBootstrap(state));
        ctx.spawn(save.into_actor(self).map(|saved, this, _| {
            if let Ok(Err(error)) = saved {
                tracing::warn!(%error, "Unable to store the state of the bootstrap");
                this.rebootstrap.not_stored();
            }
        }));
    }
}
