//! Keeps the cache in step with the server. Owns the schedule and all RPCs for entries, bundles and signing.
//! Takes [`Attested`] from the attestor, [`IdentityMissing`] from the cache. Sends [`ApplyEntries`](crate::cache::ApplyEntries),
//! [`ApplyBundles`](crate::cache::ApplyBundles) and [`InstallSvids`](crate::cache::InstallSvids) to the cache, [`SvidRejected`] and
//! [`TrustBundle`] to the attestor. When to wake is decided in [`schedule`], what to retry in [`signing`], what to accept in [`verify`].

pub mod round;
pub mod schedule;
pub mod signing;
pub mod verify;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle,
    WrapFuture,
};

use crate::attestor::{SvidRejected, TrustBundle};
use crate::backoff::Backoff;
use crate::bundle::Bundle;
use crate::cache::IdentityMissing;
use crate::clock::Clock;
use crate::credentials::CredentialsReader;
use crate::keys::KeyType;
use crate::random::Random;
use crate::readiness::{Phase, ReadinessWriter};
use crate::rotation::{RETRY_CAP, RETRY_INITIAL, retry_wait};
use crate::server::{Disposition, ServerApi, ServerError};
use crate::spiffe_id::TrustDomain;
use round::{CacheHandle, FailedCall, SignedRound, SyncError, Tools};
use schedule::{Schedule, Work};
use signing::Failures;

/// Share of an authority's life after which the bundle is looked at again.
const REFRESH_SHARE: u32 = 10;

/// Settings of the synchronizer.
#[derive(Debug, Clone)]
pub struct SynchronizerConfig {
    /// The agent's trust domain.
    pub trust_domain: TrustDomain,
    /// How soon to learn of changes that nobody told of.
    pub sync_interval: Duration,
    /// What kind of key a workload gets.
    pub key_type: KeyType,
    /// How long before its end a certificate is replaced at the latest.
    pub availability_target: Option<Duration>,
}

/// Talks to the server about entries, bundles and workload SVIDs.
#[derive(Debug)]
pub struct Synchronizer {
    schedule: Schedule,
    failures: Failures,
    signing_backoff: Backoff,
    /// The own trust domain's bundle as last applied.
    bundle: Option<Arc<Bundle>>,
    timer: Option<SpawnHandle>,
    /// One round at a time; wake-ups meanwhile wait for its end.
    busy: bool,
    tools: Tools,
    rejected: Option<Recipient<SvidRejected>>,
    credentials: CredentialsReader,
    readiness: ReadinessWriter,
    random: Random,
}

/// The agent has credentials.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Attested;

/// Names the attestor: closes the cycle between attestor and synchronizer.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ReportTo {
    /// Who is told that the server rejects the agent SVID.
    pub rejected: Recipient<SvidRejected>,
    /// Who is told of the own trust domain's bundle.
    pub bundle: Recipient<TrustBundle>,
}

/// Self-timer. Private, so that nobody else can tick us.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Tick;

/// What one round came to.
#[derive(Debug)]
struct Outcome {
    synced: Option<Result<(Arc<Bundle>, usize), SyncError>>,
    refreshed: Option<Result<Arc<Bundle>, SyncError>>,
    signed: Option<SignedRound>,
}

impl Synchronizer {
    /// A synchronizer that waits for [`Attested`].
    pub fn new(
        config: SynchronizerConfig,
        server: Rc<dyn ServerApi>,
        cache: CacheHandle,
        credentials: CredentialsReader,
        readiness: ReadinessWriter,
        (clock, random): (Clock, Random),
    ) -> Self {
        Self {
            schedule: Schedule::new(config.sync_interval),
            failures: Failures::default(),
            signing_backoff: Backoff::new(RETRY_INITIAL, RETRY_CAP),
            bundle: None,
            timer: None,
            busy: false,
            tools: Tools {
                server,
                cache,
                attestor: None,
                trust_domain: config.trust_domain,
                key_type: config.key_type,
                availability_target: config.availability_target,
                clock,
            },
            rejected: None,
            credentials,
            readiness,
            random,
        }
    }

    /// Does what is due, or sleeps until something is.
    fn wake(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        if self.busy {
            return;
        }
        let now = self.tools.clock.now();
        let work = self.schedule.work(now);
        if work.is_some() {
            self.busy = true;
            let round = run(
                self.tools.clone(),
                work,
                self.failures.clone(),
                self.bundle.clone(),
                self.random.fork(),
            );
            ctx.spawn(
                round
                    .into_actor(self)
                    .map(|outcome, this, ctx| this.finish(outcome, ctx)),
            );
        } else {
            // tokio's timers have a grain of a millisecond: waking early would mean a second nap.
            self.timer =
                Some(ctx.notify_later(Tick, self.schedule.nap(now) + Duration::from_millis(1)));
        }
    }

    fn finish(&mut self, outcome: Outcome, ctx: &mut Context<Self>) {
        self.busy = false;
        if let Some(synced) = outcome.synced {
            match synced {
                Ok((bundle, svid_count)) => self.sync_succeeded(bundle, svid_count),
                Err(error) => self.sync_failed(&error),
            }
        }
        if let Some(refreshed) = outcome.refreshed {
            match refreshed {
                Ok(bundle) => self.keep(bundle),
                Err(error) => {
                    tracing::warn!(%error, "Bundle not refreshed");
                    self.schedule.bundles_refreshed(self.tools.clock.now());
                    self.report(&error);
                }
            }
        }
        if let Some(signed) = outcome.signed {
            self.signed(signed);
        }
        self.wake(ctx);
    }

    fn sync_succeeded(&mut self, bundle: Arc<Bundle>, svid_count: usize) {
        let now = self.tools.clock.now();
        self.keep(bundle);
        self.schedule
            .sync_succeeded(now, svid_count, &mut self.random);
        self.readiness.send_modify(|readiness| {
            readiness.phase = Phase::Ready;
            readiness.last_sync = Some(now.wall);
        });
    }

    fn sync_failed(&mut self, error: &SyncError) {
        self.schedule
            .sync_failed(self.tools.clock.now(), &mut self.random);
        tracing::error!(%error, "Synchronize failed");
        let reason: Arc<str> = error.to_string().into();
        self.readiness
            .send_if_modified(|readiness| match &mut readiness.phase {
                Phase::Syncing(last) => {
                    *last = Some(reason);
                    true
                }
                Phase::Attesting(_) | Phase::Ready => false,
            });
        self.report(error);
    }

    fn signed(&mut self, signed: SignedRound) {
        let now = self.tools.clock.now();
        self.failures = signed.failures;
        self.schedule.renew_at(signed.next);
        self.schedule
            .retry_renewal(now, self.failures.next_try(now));
        let Some(FailedCall {
            error,
            earliest_end,
        }) = signed.failed
        else {
            self.signing_backoff.reset();
            return self.schedule.rest_signing(now, None);
        };
        let step = self.signing_backoff.next(&mut self.random);
        let rest = retry_wait(step, earliest_end.map(|end| now.until(end)));
        self.schedule.rest_signing(now, Some(rest));
        tracing::error!(%error, "Unable to sign X509-SVIDs");
        self.report(&error);
    }

    fn keep(&mut self, bundle: Arc<Bundle>) {
        let now = self.tools.clock.now();
        self.schedule
            .refresh_bundles_every(refresh_interval(&bundle, now.wall), now);
        self.bundle = Some(bundle);
    }

    /// Tells the attestor when the server does not take the agent SVID any more.
    fn report(&mut self, error: &SyncError) {
        let SyncError::Server(error) = error else {
            return;
        };
        let certificate_rejected = matches!(error, ServerError::CertificateRejected { .. });
        if error.disposition() == Disposition::Retry && !certificate_rejected {
            return;
        }
        let serial = self
            .credentials
            .borrow()
            .as_ref()
            .map(|credentials| credentials.svid.leaf().serial_hex());
        if let (Some(attestor), Some(serial)) = (&self.rejected, serial) {
            let message = SvidRejected {
                serial,
                disposition: error.disposition(),
                error: error.clone(),
            };
            // A full mailbox means that the attestor has been told already; the next failing call tells it again.
            if attestor.try_send(message).is_err() {
                tracing::debug!("attestor is busy");
            }
        }
    }
}

impl Actor for Synchronizer {
    type Context = Context<Self>;
}

impl Handler<Attested> for Synchronizer {
    type Result = ();

    fn handle(&mut self, _: Attested, ctx: &mut Self::Context) {
        // Whatever the server held against the old SVID says nothing about the new one.
        self.failures = Failures::default();
        self.signing_backoff.reset();
        self.schedule.rest_signing(self.tools.clock.now(), None);
        self.schedule.attested(self.tools.clock.now());
        self.readiness.send_modify(|readiness| {
            if readiness.phase != Phase::Ready {
                readiness.phase = Phase::Syncing(None);
            }
        });
        self.wake(ctx);
    }
}

impl Handler<ReportTo> for Synchronizer {
    type Result = ();

    fn handle(&mut self, ReportTo { rejected, bundle }: ReportTo, _: &mut Self::Context) {
        self.rejected = Some(rejected);
        self.tools.attestor = Some(bundle);
    }
}

impl Handler<IdentityMissing> for Synchronizer {
    type Result = ();

    fn handle(&mut self, _: IdentityMissing, ctx: &mut Self::Context) {
        self.schedule.renew_now(self.tools.clock.now());
        self.wake(ctx);
    }
}

impl Handler<Tick> for Synchronizer {
    type Result = ();

    fn handle(&mut self, _: Tick, ctx: &mut Self::Context) {
        self.timer = None;
        self.wake(ctx);
    }
}

/// Carries out one round. SVIDs are signed after the entries came, so that a new entry is served at once; the cache is asked for its count
/// when that is done, and only if the sync succeeded. After a failed sync nothing is signed: what is due has a timer of its own.
async fn run(
    tools: Tools,
    work: Work,
    failures: Failures,
    bundle: Option<Arc<Bundle>>,
    random: Random,
) -> Outcome {
    let synced = if work.entries {
        Some(tools.sync().await)
    } else {
        None
    };
    let refreshed = if work.bundles {
        Some(tools.refresh_bundles(BTreeSet::new()).await)
    } else {
        None
    };
    let newest = match (&synced, &refreshed) {
        (Some(Err(_)), _) => None,
        (Some(Ok(newest)), _) | (None, Some(Ok(newest))) => Some(Arc::clone(newest)),
        (None, None | Some(Err(_))) => bundle,
    };
    let signed = match newest {
        Some(bundle) if work.renewals => Some(tools.sign_due(failures, bundle, random).await),
        _ => None,
    };
    let synced = match synced {
        Some(Ok(bundle)) => Some(tools.svid_count().await.map(|count| (bundle, count))),
        Some(Err(error)) => Some(Err(error)),
        None => None,
    };
    Outcome {
        synced,
        refreshed,
        signed,
    }
}

/// How often a bundle is to be looked at: the server's hint, or a tenth of its shortest authority's life (design 4).
fn refresh_interval(bundle: &Bundle, now: std::time::SystemTime) -> Option<Duration> {
    let x509 = bundle
        .x509_authorities()
        .iter()
        .map(|authority| &authority.certificate);
    let lifetimes = x509.filter_map(|certificate| {
        certificate
            .not_after()
            .duration_since(certificate.not_before())
            .ok()
    });
    let jwt = bundle
        .jwt_authorities
        .iter()
        .filter_map(|authority| authority.expires_at?.duration_since(now).ok());
    let shortest = lifetimes
        .chain(jwt)
        .min()
        .map(|lifetime| lifetime / REFRESH_SHARE);
    if bundle.refresh_hint.is_zero() {
        shortest
    } else {
        Some(bundle.refresh_hint)
    }
}

#[cfg(test)]
mod tests;
