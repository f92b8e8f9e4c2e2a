//! Keeps the cache in step with the server. Owns the schedule and all RPCs for entries, bundles and signing.
//! Takes [`Attested`] from the attestor, [`IdentityMissing`] from the cache. Sends [`ApplyEntries`](crate::cache::ApplyEntries),
//! [`ApplyBundles`](crate::cache::ApplyBundles) and [`InstallSvids`](crate::cache::InstallSvids) to the cache, [`SvidRejected`],
//! [`SvidAccepted`] and [`TrustBundle`] to the attestor. When to wake is decided in [`schedule`], what to retry in [`signing`], what to accept in [`verify`].

pub mod round;
pub mod schedule;
pub mod signing;
pub mod verify;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle,
    WrapFuture,
};

use crate::attestor::{ServerUnknown, SvidAccepted, SvidRejected, TrustBundle};
use crate::backoff::Backoff;
use crate::bundle::Bundle;
use crate::cache::IdentityMissing;
use crate::clock::Clock;
use crate::credentials::CredentialsReader;
use crate::keys::KeyType;
use crate::random::Random;
use crate::readiness::{Phase, ReadinessWriter};
use crate::rotation::{RETRY_CAP, RETRY_INITIAL, retry_wait};
use crate::server::{Disposition, MAX_SIGNING_BATCH, ServerApi, ServerError};
use crate::spiffe_id::TrustDomain;
use round::{CacheHandle, FailedCall, SignedRound, SyncError, Tools};
use schedule::{BundleAdvice, Schedule, Work};
use signing::Failures;

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
    /// How many SVIDs may be asked for in one call.
    batch_limit: usize,
    advice: BundleAdvice,
    /// The own trust domain's bundle as last applied.
    bundle: Option<Arc<Bundle>>,
    timer: Option<SpawnHandle>,
    /// One round at a time; wake-ups meanwhile wait for its end.
    busy: bool,
    /// What came while a round was under way, and would be lost in its outcome.
    meanwhile: Meanwhile,
    tools: Tools,
    rejected: Option<Recipient<SvidRejected>>,
    accepted: Option<Recipient<SvidAccepted>>,
    unknown: Option<Recipient<ServerUnknown>>,
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
    /// Who is told that the server accepts it.
    pub accepted: Recipient<SvidAccepted>,
    /// Who is told that the server's authority is unknown.
    pub unknown: Recipient<ServerUnknown>,
    /// Who is told of the own trust domain's bundle.
    pub bundle: Recipient<TrustBundle>,
}

/// Self-timer. Private, so that nobody else can tick us.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Tick;

/// Messages that have to wait for the end of a round.
#[derive(Debug, Default)]
struct Meanwhile {
    attested: bool,
    identity_missing: bool,
}

/// What one round came to.
#[derive(Debug)]
struct Outcome {
    /// The agent SVID that the round was begun with: a rejection concerns that one.
    serial: Option<String>,
    synced: Option<Result<(Arc<Bundle>, usize), SyncError>>,
    refreshed: Option<Result<Arc<Bundle>, SyncError>>,
    signed: Option<SignedRound>,
}

impl Outcome {
    /// Whether the server has taken the agent SVID in every call of the round.
    fn is_accepted(&self) -> bool {
        let failed = matches!(self.synced, Some(Err(_)))
            || matches!(self.refreshed, Some(Err(_)))
            || self
                .signed
                .as_ref()
                .is_some_and(|signed| signed.failed.is_some());
        !failed && (self.synced.is_some() || self.refreshed.is_some())
    }
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
            batch_limit: MAX_SIGNING_BATCH,
            advice: BundleAdvice::default(),
            bundle: None,
            timer: None,
            busy: false,
            meanwhile: Meanwhile::default(),
            tools: Tools {
                server,
                cache,
                attestor: None,
                trust_domain: config.trust_domain,
                key_type: config.key_type,
                availability_target: config.availability_target,
                clock,
                said: Rc::default(),
            },
            rejected: None,
            accepted: None,
            unknown: None,
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
                Signing {
                    failures: self.failures.clone(),
                    bundle: self.bundle.clone(),
                    batch_limit: self.batch_limit,
                    random: self.random.fork(),
                },
                self.serial(),
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
        let serial = outcome.serial.as_deref();
        if outcome.is_accepted() {
            self.accepted(serial);
        }
        if let Some(synced) = outcome.synced {
            match synced {
                Ok((bundle, svid_count)) => self.sync_succeeded(bundle, svid_count),
                Err(error) => self.sync_failed(&error, serial),
            }
        }
        if let Some(refreshed) = outcome.refreshed {
            match refreshed {
                Ok(bundle) => self.keep(bundle),
                Err(error) => {
                    self.complain(&error, "Bundle not refreshed");
                    self.schedule.bundles_refreshed(self.tools.clock.now());
                    self.report(&error, serial);
                }
            }
        }
        if let Some(signed) = outcome.signed {
            self.signed(signed, serial);
        }
        let meanwhile = std::mem::take(&mut self.meanwhile);
        if meanwhile.attested {
            self.begin_anew();
        }
        if meanwhile.identity_missing {
            self.schedule.renew_now(self.tools.clock.now());
        }
        self.wake(ctx);
    }

    /// There are new credentials of a kind that the server may treat differently: whatever it held against the old ones is moot.
    fn begin_anew(&mut self) {
        let now = self.tools.clock.now();
        self.failures = Failures::default();
        self.signing_backoff.reset();
        self.schedule.rest_signing(now, None);
        self.schedule.attested(now);
    }

    fn serial(&self) -> Option<String> {
        let credentials = self.credentials.borrow();
        Some(credentials.as_ref()?.svid.leaf().serial_hex())
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

    /// Tells the attestor that the server has answered a call with the agent SVID of this serial number.
    fn accepted(&self, serial: Option<&str>) {
        self.note_contact(Ok(()));
        if let (Some(attestor), Some(serial)) = (&self.accepted, serial) {
            // One that is lost to a full mailbox comes again with the next success.
            let serial = serial.to_owned();
            if attestor.try_send(SvidAccepted { serial }).is_err() {
                tracing::debug!("attestor is busy");
            }
        }
    }

    fn note_contact(&self, outcome: Result<(), &ServerError>) {
        let boot = self.tools.clock.now().boot;
        self.readiness.send_if_modified(|readiness| {
            let before = readiness.unreachable_since;
            readiness.asked(outcome, boot);
            readiness.unreachable_since != before
        });
    }

    fn sync_failed(&mut self, error: &SyncError, serial: Option<&str>) {
        self.schedule
            .sync_failed(self.tools.clock.now(), &mut self.random);
        self.complain(error, "Synchronize failed");
        let reason: Arc<str> = error.to_string().into();
        self.readiness
            .send_if_modified(|readiness| match &mut readiness.phase {
                Phase::Syncing(last) => {
                    *last = Some(reason);
                    true
                }
                Phase::Attesting(_) | Phase::Ready => false,
            });
        self.report(error, serial);
    }

    fn signed(&mut self, signed: SignedRound, serial: Option<&str>) {
        let now = self.tools.clock.now();
        if self.bundle.as_ref() != Some(&signed.bundle) {
            self.keep(Arc::clone(&signed.bundle));
        }
        self.batch_limit = signed.batch_limit;
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
        self.complain(&error, "Unable to sign X509-SVIDs");
        self.report(&error, serial);
    }

    /// Says that something failed. An unknown authority is said once, by the attestor: it may stay for days.
    fn complain(&self, error: &SyncError, what: &str) {
        if matches!(
            error,
            SyncError::Server(ServerError::UnknownAuthority { .. })
        ) && self.unknown.is_some()
        {
            tracing::debug!(%error, "{what}");
        } else {
            tracing::error!(%error, "{what}");
        }
    }

    fn keep(&mut self, bundle: Arc<Bundle>) {
        let now = self.tools.clock.now();
        let advice = self.advice.of(&bundle, now.wall);
        self.schedule.refresh_bundles_every(advice, now);
        self.bundle = Some(bundle);
    }

    /// Tells the attestor when the server does not take the agent SVID with this serial number any more, or cannot be believed itself.
    fn report(&self, error: &SyncError, serial: Option<&str>) {
        let SyncError::Server(error) = error else {
            return;
        };
        self.note_contact(Err(error));
        if let (ServerError::UnknownAuthority { .. }, Some(attestor), Some(serial)) =
            (error, &self.unknown, serial)
        {
            let unknown = ServerUnknown {
                serial: serial.to_owned(),
                error: error.clone(),
            };
            // As below: the next failing call tells it again.
            if attestor.try_send(unknown).is_err() {
                tracing::debug!("attestor is busy");
            }
        }
        let certificate_rejected = matches!(error, ServerError::CertificateRejected { .. });
        if error.disposition() == Disposition::Retry && !certificate_rejected {
            return;
        }
        if let (Some(attestor), Some(serial)) = (&self.rejected, serial) {
            let message = SvidRejected {
                serial: serial.to_owned(),
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
        self.readiness.send_modify(|readiness| {
            if readiness.phase != Phase::Ready {
                readiness.phase = Phase::Syncing(None);
            }
        });
        if self.busy {
            self.meanwhile.attested = true;
        } else {
            self.begin_anew();
            self.wake(ctx);
        }
    }
}

impl Handler<ReportTo> for Synchronizer {
    type Result = ();

    fn handle(&mut self, report_to: ReportTo, _: &mut Self::Context) {
        let ReportTo {
            rejected,
            accepted,
            unknown,
            bundle,
        } = report_to;
        self.rejected = Some(rejected);
        self.unknown = Some(unknown);
        self.accepted = Some(accepted);
        self.tools.attestor = Some(bundle);
    }
}

impl Handler<IdentityMissing> for Synchronizer {
    type Result = ();

    fn handle(&mut self, _: IdentityMissing, ctx: &mut Self::Context) {
        if self.busy {
            self.meanwhile.identity_missing = true;
        } else {
            self.schedule.renew_now(self.tools.clock.now());
            self.wake(ctx);
        }
    }
}

impl Handler<Tick> for Synchronizer {
    type Result = ();

    fn handle(&mut self, _: Tick, ctx: &mut Self::Context) {
        self.timer = None;
        self.wake(ctx);
    }
}

/// What signing in a round begins with.
struct Signing {
    failures: Failures,
    bundle: Option<Arc<Bundle>>,
    batch_limit: usize,
    random: Random,
}

/// Carries out one round. SVIDs are signed after the entries came, so that a new entry is served at once; the cache is asked for its count
/// when that is done, and only if the sync succeeded. After a failed sync nothing is signed: what is due has a timer of its own.
async fn run(tools: Tools, work: Work, signing: Signing, serial: Option<String>) -> Outcome {
    let synced = if work.entries {
        Some(tools.sync().await)
    } else {
        None
    };
    let refreshed = if work.bundles {
        Some(tools.refresh_bundle().await)
    } else {
        None
    };
    let newest = match (&synced, &refreshed) {
        (Some(Err(_)), _) => None,
        (Some(Ok(newest)), _) | (None, Some(Ok(newest))) => Some(Arc::clone(newest)),
        (None, None | Some(Err(_))) => signing.bundle,
    };
    let signed = match newest {
        Some(bundle) if work.renewals => {
            let Signing {
                failures,
                batch_limit,
                random,
                ..
            } = signing;
            let signed = tools.sign_due(failures, bundle, batch_limit, random);
            Some(signed.await)
        }
        Some(_) | None => None,
    };
    let synced = match synced {
        Some(Ok(bundle)) => Some(tools.svid_count().await.map(|count| (bundle, count))),
        Some(Err(error)) => Some(Err(error)),
        None => None,
    };
    Outcome {
        serial,
        synced,
        refreshed,
        signed,
    }
}

#[cfg(test)]
mod tests;
