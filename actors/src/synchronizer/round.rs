//! One round of talking to the server: entries, bundles, signatures. Carries out what the schedule asked for; decides nothing about time.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler, MailboxError, Recipient};

use super::signing::Failures;
use super::verify::{self, RefusedSvid};
use crate::attestor::TrustBundle;
use crate::bundle::{Bundle, VerifyError};
use crate::cache::{
    ApplyBundles, ApplyEntries, Due, DueForRenewal, InstallSvids, KnownVersions, Signed, SvidCount,
};
use crate::clock::{Clock, Now};
use crate::entry::EntryId;
use crate::keys::{KeyError, KeyType, PrivateKey};
use crate::random::Random;
use crate::rotation::draw_renewal;
use crate::server::{Disposition, MAX_SIGNING_BATCH, ServerApi, ServerError, SigningRequest};
use crate::spiffe_id::TrustDomain;
use crate::svid::{Certificate, X509Svid};

/// What a round works with.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The server.
    pub server: Rc<dyn ServerApi>,
    /// What workloads are entitled to.
    pub cache: CacheHandle,
    /// Told of every bundle of the own trust domain.
    pub attestor: Option<Recipient<TrustBundle>>,
    /// Whose entries these are.
    pub trust_domain: TrustDomain,
    /// What kind of key a workload gets.
    pub key_type: KeyType,
    /// `availability_target`.
    pub availability_target: Option<Duration>,
    /// For validity and renewal instants.
    pub clock: Clock,
    /// What has been said of entries and bundles: a problem that stays is no news.
    pub said: Rc<RefCell<Said>>,
}

/// Problems of the last sync, by what they concern.
#[derive(Debug, Default)]
pub struct Said(HashMap<String, String>);

impl Said {
    /// Takes the problems of a sync and returns those that are new. A sync that was not `complete` has not looked for all of them.
    pub(super) fn news(
        &mut self,
        mut problems: HashMap<String, String>,
        complete: bool,
    ) -> Vec<(String, String)> {
        if !complete {
            for (what, why) in &self.0 {
                problems.entry(what.clone()).or_insert_with(|| why.clone());
            }
        }
        let known = std::mem::replace(&mut self.0, problems);
        let is_new = |(what, why): &(&String, &String)| known.get(*what) != Some(*why);
        let news = self.0.iter().filter(is_new);
        news.map(|(what, why)| (what.clone(), why.clone()))
            .collect()
    }
}

/// The cache as the synchronizer holds it: one recipient per message.
#[derive(Debug, Clone)]
pub struct CacheHandle {
    versions: Recipient<KnownVersions>,
    entries: Recipient<ApplyEntries>,
    bundles: Recipient<ApplyBundles>,
    due: Recipient<DueForRenewal>,
    install: Recipient<InstallSvids>,
    count: Recipient<SvidCount>,
}

/// Why a step of a round failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The server did not answer, or refused.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The cache is gone: the process is about to end.
    #[error("cache is gone")]
    CacheGone,
    /// No key could be made.
    #[error("unable to make a key: {0}")]
    Key(#[from] KeyError),
}

impl CacheHandle {
    /// Hands out recipients of any actor that takes the cache's messages.
    pub fn of<A>(cache: &Addr<A>) -> Self
    where
        A: Actor
            + Handler<KnownVersions>
            + Handler<ApplyEntries>
            + Handler<ApplyBundles>
            + Handler<DueForRenewal>
            + Handler<InstallSvids>
            + Handler<SvidCount>,
        A::Context: ToEnvelope<A, KnownVersions>
            + ToEnvelope<A, ApplyEntries>
            + ToEnvelope<A, ApplyBundles>
            + ToEnvelope<A, DueForRenewal>
            + ToEnvelope<A, InstallSvids>
            + ToEnvelope<A, SvidCount>,
    {
        Self {
            versions: cache.clone().recipient(),
            entries: cache.clone().recipient(),
            bundles: cache.clone().recipient(),
            due: cache.clone().recipient(),
            install: cache.clone().recipient(),
            count: cache.clone().recipient(),
        }
    }
}

impl From<MailboxError> for SyncError {
    fn from(_: MailboxError) -> Self {
        Self::CacheGone
    }
}

/// What came of signing.
#[derive(Debug)]
pub struct SignedRound {
    /// Gaps of entries that failed.
    pub failures: Failures,
    /// When the next SVID is due.
    pub next: Option<SystemTime>,
    /// The own trust domain's bundle, newer than at the start if an SVID's issuer was not in that.
    pub bundle: Arc<Bundle>,
    /// How many SVIDs may be asked for in one call from now on.
    pub batch_limit: usize,
    /// What failed as a whole.
    pub failed: Option<FailedCall>,
}

/// A signing call that failed as a whole: what it asked for is still due.
#[derive(Debug)]
pub struct FailedCall {
    /// Why.
    pub error: SyncError,
    /// The earliest end among the SVIDs that it was to replace.
    pub earliest_end: Option<SystemTime>,
}

impl Tools {
    /// Asks for entries, then bundles, and applies both. Signing is a step of its own.
    pub async fn sync(&self) -> Result<Arc<Bundle>, SyncError> {
        let known = self.cache.versions.send(KnownVersions).await?;
        let entries = Rc::clone(&self.server).sync_entries(known).await?;
        let mut problems: HashMap<String, String> = HashMap::new();
        for (entry, reason) in &entries.skipped {
            problems.insert(format!("entry {entry:?}"), format!("skipped: {reason}"));
        }
        let federated = self.cache.entries.send(ApplyEntries(entries)).await?;
        let bundles = self.refresh(federated, &mut problems).await;
        for (what, error) in self.said.borrow_mut().news(problems, bundles.is_ok()) {
            tracing::warn!(what, error, "Part of what the server sent cannot be used");
        }
        if bundles.is_err() {
            // Entries that came are told to callers all the same.
            self.cache.bundles.send(ApplyBundles(Vec::new())).await?;
        }
        bundles
    }

    /// Asks for the own bundle alone.
    pub async fn refresh_bundle(&self) -> Result<Arc<Bundle>, SyncError> {
        self.refresh(BTreeSet::new(), &mut HashMap::new()).await
    }

    /// Asks for the own bundle and those named. A federated one that fails keeps its last good version (design D11).
    async fn refresh(
        &self,
        federated: BTreeSet<TrustDomain>,
        problems: &mut HashMap<String, String>,
    ) -> Result<Arc<Bundle>, SyncError> {
        let own = Arc::new(Rc::clone(&self.server).bundle().await?);
        let mut bundles = vec![Arc::clone(&own)];
        for domain in federated
            .into_iter()
            .filter(|domain| *domain != self.trust_domain)
        {
            let what = format!("bundle of {}", domain.id_string());
            match Rc::clone(&self.server).federated_bundle(domain).await {
                Ok(Some(bundle)) => bundles.push(Arc::new(bundle)),
                Ok(None) => {
                    problems.insert(what, "not found".to_owned());
                }
                Err(error) => {
                    problems.insert(what, format!("the last good one is kept: {error}"));
                }
            }
        }
        self.cache.bundles.send(ApplyBundles(bundles)).await?;
        if let Some(attestor) = &self.attestor {
            // The attestor takes each message at once; one lost to a full mailbox comes again with the next refresh.
            if attestor.try_send(TrustBundle(Arc::clone(&own))).is_err() {
                tracing::debug!("attestor is busy");
            }
        }
        Ok(own)
    }

    /// Signs what is due, batch by batch, and hands it to the cache. The first failing call ends it; what was signed before is kept. Batches
    /// shrink by half when a call fails, to one in the end, and grow again (node-side 4.1). An entry that the server fails at when it is asked
    /// for it alone is from then on asked for alone and last, in gaps of its own: it does not keep all others waiting.
    pub async fn sign_due(
        &self,
        mut failures: Failures,
        mut bundle: Arc<Bundle>,
        mut batch_limit: usize,
        mut random: Random,
    ) -> SignedRound {
        let (mut next, mut failed) = (None, None);
        while failed.is_none() {
            let now = self.clock.now();
            let renewals = match self.cache.due.send(DueForRenewal { now: now.wall }).await {
                Ok(renewals) => renewals,
                Err(gone) => {
                    failed = Some(FailedCall {
                        error: gone.into(),
                        earliest_end: None,
                    });
                    break;
                }
            };
            next = renewals.next;
            failures.retain_due(&renewals.due);
            let batch = failures.batch(renewals.due, batch_limit, now);
            if batch.is_empty() {
                break;
            }
            let signed = self
                .sign_batch(&batch, &mut failures, &mut bundle, &mut random)
                .await;
            let Err(error) = signed else {
                batch_limit = (batch_limit * 2).min(MAX_SIGNING_BATCH);
                continue;
            };
            batch_limit = (batch_limit.min(batch.len()) / 2).max(1);
            if let [due] = &batch[..]
                && is_answer(&error)
            {
                let is_known = failures.is_apart(&due.entry.id);
                let told = self
                    .set_apart(due, &error, &mut failures, &mut random)
                    .await;
                if is_known && told.is_ok() {
                    continue;
                }
            }
            let earliest_end = batch.iter().filter_map(|due| due.expires_at).min();
            failed = Some(FailedCall {
                error,
                earliest_end,
            });
        }
        SignedRound {
            failures,
            next,
            bundle,
            batch_limit,
            failed,
        }
    }

    async fn sign_batch(
        &self,
        batch: &[Due],
        failures: &mut Failures,
        bundle: &mut Arc<Bundle>,
        random: &mut Random,
    ) -> Result<(), SyncError> {
        let mut keys = Vec::with_capacity(batch.len());
        let mut requests = Vec::with_capacity(batch.len());
        for due in batch {
            tracing::debug!(entry = %due.entry.id, spiffe_id = %due.entry.spiffe_id, "{}", if due.expires_at.is_some() { "Renewing X509-SVID" } else { "Creating X509-SVID" });
            let key = new_key(self.key_type).await?;
            requests.push(SigningRequest {
                entry_id: due.entry.id.clone(),
                csr: key.certificate_request(Some(&due.entry.spiffe_id))?,
            });
            keys.push(key);
        }
        let answers = Rc::clone(&self.server).sign_x509(requests).await?;
        let now = self.clock.now();
        let mut assembled = Vec::with_capacity(batch.len());
        let mut refused = Vec::new();
        for ((due, key), answer) in batch.iter().zip(keys).zip(answers) {
            match answer
                .map_err(|refusal| refusal.to_string())
                .and_then(|chain| assemble(chain, key, due, now))
            {
                Ok(svid) => assembled.push((due, svid)),
                Err(reason) => refuse(due, &reason, &mut refused, failures, now, random),
            }
        }
        self.know_issuers(&assembled, bundle, now).await;
        let mut signed = Vec::with_capacity(assembled.len());
        for (due, svid) in assembled {
            match verify::check_path(&svid, bundle, now.wall) {
                Ok(()) => {
                    failures.succeeded(&due.entry.id);
                    let renewal =
                        draw_renewal(svid.leaf(), now.wall, self.availability_target, random);
                    signed.push(Signed {
                        entry: Arc::clone(&due.entry),
                        svid: Arc::new(svid),
                        renewal,
                    });
                }
                Err(reason) => refuse(
                    due,
                    &RefusedSvid::from(reason).to_string(),
                    &mut refused,
                    failures,
                    now,
                    random,
                ),
            }
        }
        self.cache
            .install
            .send(InstallSvids { signed, refused })
            .await?;
        Ok(())
    }

    /// Takes down that the server fails at this entry alone.
    async fn set_apart(
        &self,
        due: &Due,
        error: &SyncError,
        failures: &mut Failures,
        random: &mut Random,
    ) -> Result<(), SyncError> {
        let (mut refused, now) = (Vec::new(), self.clock.now());
        refuse(due, &error.to_string(), &mut refused, failures, now, random);
        failures.set_apart(&due.entry.id);
        let signed = Vec::new();
        self.cache
            .install
            .send(InstallSvids { signed, refused })
            .await?;
        Ok(())
    }

    /// Refreshes the bundle once if some SVID was issued by an authority that is not in it: workloads never see an SVID that their bundle
    /// cannot verify (design 4).
    async fn know_issuers(
        &self,
        assembled: &[(&Due, X509Svid)],
        bundle: &mut Arc<Bundle>,
        now: Now,
    ) {
        let unknown = |(_, svid): &(&Due, X509Svid)| {
            verify::check_path(svid, bundle, now.wall) == Err(VerifyError::UnknownAuthority)
        };
        if assembled.iter().any(unknown) {
            match self.refresh_bundle().await {
                Ok(newer) => *bundle = newer,
                Err(error) => {
                    tracing::warn!(%error, "Bundle not refreshed though an SVID has an unknown issuer");
                }
            }
        }
    }

    /// The question behind the next tick (design 4).
    pub async fn svid_count(&self) -> Result<usize, SyncError> {
        Ok(self.cache.count.send(SvidCount).await?)
    }
}

fn assemble(
    chain: Vec<Certificate>,
    key: PrivateKey,
    due: &Due,
    now: Now,
) -> Result<X509Svid, String> {
    verify::assemble(chain, key, &due.entry, now.wall).map_err(|refused| refused.to_string())
}

/// Says once per try that an entry got no SVID, and starts its gap (design D22).
fn refuse(
    due: &Due,
    reason: &str,
    refused: &mut Vec<EntryId>,
    failures: &mut Failures,
    now: Now,
    random: &mut Random,
) {
    tracing::error!(entry = %due.entry.id, spiffe_id = %due.entry.spiffe_id, error = reason, "X509-SVID refused");
    refused.push(due.entry.id.clone());
    failures.failed(&due.entry.id, due.expires_at, now, random);
}

/// Whether the server has looked at what it was asked, and said that it cannot do it.
fn is_answer(error: &SyncError) -> bool {
    match error {
        SyncError::Server(error @ (ServerError::Status { .. } | ServerError::Malformed { .. })) => {
            error.disposition() == Disposition::Retry
        }
        SyncError::Server(_) | SyncError::CacheGone | SyncError::Key(_) => false,
    }
}

/// RSA keys take long: they are made on a blocking thread.
async fn new_key(kind: KeyType) -> Result<PrivateKey, KeyError> {
    match kind {
        KeyType::EcP256 | KeyType::EcP384 => PrivateKey::generate(kind),
        KeyType::Rsa2048 => {
            let made = actix_rt::task::spawn_blocking(move || PrivateKey::generate(kind)).await;
            made.unwrap_or(Err(KeyError::Failed("the key generator was interrupted")))
        }
    }
}
