//! One attempt to get an agent SVID: key to disk, question, check, SVID to disk (design 5). The order is the point.

use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::MailboxError;

use super::lifecycle::{self, RefusedAgentSvid, Way};
use super::node::{EvidenceError, NodeAttestor};
use super::trust::{BundleSourceError, Fetching};
use crate::backoff::Backoff;
use crate::bundle::{Bundle, VerifyError};
use crate::clock::Clock;
use crate::credentials::ServerTrust;
use crate::keys::{KeyError, KeyType, PrivateKey};
use crate::random::Random;
use crate::rotation::{RETRY_CAP, RETRY_INITIAL};
use crate::server::{Disposition, ServerApi, ServerError};
use crate::spiffe_id::TrustDomain;
use crate::store::{KeySlot, SaveBundle, SaveKey, SaveSvid, StoreError, StoreHandle};
use crate::svid::{Certificate, X509Svid};

/// How long evidence may take: files on a dead disk, another agent, a slow TPM.
const EVIDENCE_LIMIT: Duration = Duration::from_mins(2);

/// What one attempt works with.
pub(super) struct Attempt {
    /// Attest or renew.
    pub(super) way: Way,
    /// Where the new key goes.
    pub(super) slot: KeySlot,
    /// A key of an earlier attempt that came to nothing: it is on disk already.
    pub(super) pending_key: Option<PendingKey>,
    /// How the server is verified: the bundle that is held, or what the sources are going to give.
    pub(super) trust: Fetching,
    /// An SVID that is lost can be made good by another attestation.
    pub(super) may_attest_again: bool,
    /// The agent's trust domain.
    pub(super) trust_domain: TrustDomain,
    /// The way in.
    pub(super) node: Rc<dyn NodeAttestor>,
    /// The server.
    pub(super) server: Rc<dyn ServerApi>,
    /// Disk state.
    pub(super) store: StoreHandle,
    /// For validity.
    pub(super) clock: Clock,
    /// For the gaps between questions for a bundle.
    pub(super) random: Random,
}

/// A key that waits for its certificate.
#[derive(Debug, Clone)]
pub(super) struct PendingKey {
    /// Where it is stored.
    pub(super) slot: KeySlot,
    /// The key.
    pub(super) key: Arc<PrivateKey>,
}

/// What an attempt brought.
#[derive(Debug)]
pub(super) struct Granted {
    /// How it was got.
    pub(super) way: Way,
    /// Certificate and key, both on disk unless `write_error` says otherwise.
    pub(super) svid: Arc<X509Svid>,
    /// Where the key is.
    pub(super) slot: KeySlot,
    /// Whether the agent renews by attesting again; a renewal does not say.
    pub(super) reattestable: Option<bool>,
    /// The bundle that the server was verified by; none with `insecure_bootstrap`.
    pub(super) vouching: Option<Arc<Bundle>>,
    /// The newest bundle, where one was fetched.
    pub(super) bundle: Option<Arc<Bundle>>,
    /// That bundle could not be stored.
    pub(super) bundle_is_unsaved: bool,
    /// The SVID could not be stored after an attestation; the server has dropped the one before, so it is used from memory.
    pub(super) write_error: Option<StoreError>,
    /// How long the attestation took, most of it in the server's queue.
    pub(super) queued: Duration,
}

/// Why an attempt came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AttemptError {
    /// There is no bundle to verify the server by.
    #[error(transparent)]
    Bundle(#[from] BundleSourceError),
    /// The server did not answer, or refused.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The node cannot prove anything.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    /// No key could be made.
    #[error("unable to make an agent key: {0}")]
    Key(#[from] KeyError),
    /// Key or SVID could not be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The certificate is not what was asked for (weakness W20).
    #[error("agent SVID refused: {0}")]
    Refused(#[from] RefusedAgentSvid),
    /// The certificate leads to no authority of the trust domain.
    #[error("agent SVID refused: {0}")]
    Path(#[from] VerifyError),
    /// The store is gone: the process is about to end.
    #[error("store is gone")]
    StoreGone,
}

impl AttemptError {
    /// Whether the server wants the agent to attest instead of renewing.
    pub(super) fn asks_for_attestation(&self) -> bool {
        matches!(self, Self::Server(error) if error.disposition() == Disposition::Reattest)
    }

    /// As the server would have said it.
    pub(super) fn as_server_error(&self) -> ServerError {
        if let Self::Server(error) = self {
            error.clone()
        } else {
            ServerError::Proof(self.to_string())
        }
    }
}

impl From<MailboxError> for AttemptError {
    fn from(_: MailboxError) -> Self {
        Self::StoreGone
    }
}

impl Attempt {
    /// Runs it. The pending key is handed back for the next attempt unless it got its certificate.
    pub(super) async fn run(mut self) -> (Result<Granted, AttemptError>, Option<PendingKey>) {
        let known = self
            .pending_key
            .take()
            .filter(|pending| pending.slot == self.slot);
        let trust = std::mem::replace(
            &mut self.trust,
            Box::pin(ready(Err(BundleSourceError::NoBundle))),
        );
        let trust = match trust.await {
            Ok(trust) => trust,
            Err(error) => return (Err(error.into()), known),
        };
        let pending = match self.stored_key(known).await {
            Ok(pending) => pending,
            Err(error) => return (Err(error), None),
        };
        let outcome = match self.way {
            Way::Attest => self.attest(&pending, trust).await,
            Way::Renew => self.renew(&pending, trust).await,
        };
        let left = if outcome.is_ok() { None } else { Some(pending) };
        (outcome, left)
    }

    /// The new key is on disk before the server is asked: if that fails nothing is asked and the old credential stays good.
    async fn stored_key(&self, known: Option<PendingKey>) -> Result<PendingKey, AttemptError> {
        if let Some(pending) = known {
            return Ok(pending);
        }
        let key = Arc::new(PrivateKey::generate(KeyType::EcP256)?);
        self.store
            .save_key
            .send(SaveKey {
                slot: self.slot,
                key: Arc::clone(&key),
            })
            .await??;
        Ok(PendingKey {
            slot: self.slot,
            key,
        })
    }

    /// The server drops the SVID before this one as soon as it has answered: whatever fails from then on must not cost the new one
    /// (weakness W10).
    async fn attest(
        &mut self,
        pending: &PendingKey,
        trust: ServerTrust,
    ) -> Result<Granted, AttemptError> {
        let gathering = Rc::clone(&self.node).prepare();
        let proof = tokio::time::timeout(EVIDENCE_LIMIT, gathering)
            .await
            .map_err(|_| {
                let reason = format!("evidence was not at hand within {EVIDENCE_LIMIT:?}");
                ServerError::Proof(reason)
            })??;
        if matches!(trust, ServerTrust::Insecure) {
            tracing::warn!("Insecure bootstrap enabled; skipping server certificate verification");
        }
        let csr = pending.key.certificate_request(None)?;
        let asked = self.clock.now().boot;
        let attestation = Rc::clone(&self.server)
            .attest(trust.clone(), proof, csr)
            .await?;
        let queued = self.clock.now().boot.saturating_sub(asked);
        let reattestable = attestation.reattestable;
        let svid = Arc::new(lifecycle::accept(
            attestation.chain,
            Arc::clone(&pending.key),
            &self.trust_domain,
            self.clock.wall(),
        )?);
        let vouching = match &trust {
            ServerTrust::Bundle(bundle) => Some(Arc::clone(bundle)),
            ServerTrust::Insecure => None,
        };
        let now = self.clock.wall().max(svid.leaf().not_before());
        let known = vouching
            .as_ref()
            .filter(|known| known.verify(svid.chain(), now).is_ok());
        // An SVID without a bundle that vouches for it is of no use to the next start. Where another can be had, it waits for the bundle.
        let mut write_error = None;
        let is_stored = known.is_some() || !(reattestable && self.may_attest_again);
        if is_stored {
            let authorities = known.map(|known| known.certificates());
            write_error = self.store_svid(&svid, reattestable, authorities).await?;
        }
        let newest = self.newest_bundle(&trust, &svid, known.is_some()).await?;
        let bundle = match newest {
            None => None,
            Some(bundle) => match bundle.verify(svid.chain(), now) {
                Ok(()) => Some(bundle),
                Err(error) if known.is_some() => {
                    tracing::error!(%error, "The server's bundle does not vouch for the SVID that it granted; the known bundle is kept");
                    None
                }
                Err(error) => return Err(error.into()),
            },
        };
        let mut bundle_is_unsaved = false;
        if let Some(bundle) = &bundle {
            if is_stored {
                bundle_is_unsaved = !self.store_bundle(bundle).await?;
            } else {
                let authorities = Some(bundle.certificates());
                write_error = self.store_svid(&svid, reattestable, authorities).await?;
                bundle_is_unsaved = write_error.is_some();
            }
        }
        Ok(Granted {
            way: Way::Attest,
            svid,
            slot: self.slot,
            reattestable: Some(reattestable),
            vouching,
            bundle,
            bundle_is_unsaved,
            write_error,
            queued,
        })
    }

    /// Whether it is on disk.
    async fn store_bundle(&self, bundle: &Bundle) -> Result<bool, AttemptError> {
        let authorities = bundle.certificates();
        let saved = self
            .store
            .save_bundle
            .send(SaveBundle { authorities })
            .await?;
        if let Err(error) = &saved {
            tracing::error!(%error, "Unable to store the trust bundle");
        }
        Ok(saved.is_ok())
    }

    async fn store_svid(
        &self,
        svid: &X509Svid,
        reattestable: bool,
        bundle: Option<Vec<Certificate>>,
    ) -> Result<Option<StoreError>, AttemptError> {
        Ok(self
            .store
            .save_svid
            .send(SaveSvid {
                chain: svid.chain().to_vec(),
                reattestable,
                bundle,
            })
            .await?
            .err())
    }

    /// The newest bundle. Where it cannot be had, a known one that vouches for the SVID goes on doing so; without one the server is asked
    /// until the SVID ends, because the SVID is of no use without.
    async fn newest_bundle(
        &mut self,
        trust: &ServerTrust,
        svid: &X509Svid,
        is_known: bool,
    ) -> Result<Option<Arc<Bundle>>, AttemptError> {
        let mut gaps = Backoff::new(RETRY_INITIAL, RETRY_CAP);
        loop {
            let fetched = Rc::clone(&self.server).bootstrap_bundle(trust.clone());
            let error = match fetched.await {
                Ok(bundle) => return Ok(Some(Arc::new(bundle))),
                Err(error) if is_known => {
                    tracing::warn!(%error, "Bundle not fetched after the attestation; the known one is kept");
                    return Ok(None);
                }
                Err(error) => error,
            };
            let gap = gaps.next(&mut self.random);
            if self.clock.now().until(svid.not_after()) <= gap {
                return Err(error.into());
            }
            tracing::warn!(%error, retry_in = format!("{:.1}s", gap.as_secs_f64()), "Attested, but there is no bundle yet");
            tokio::time::sleep(gap).await;
        }
    }

    async fn renew(
        &self,
        pending: &PendingKey,
        trust: ServerTrust,
    ) -> Result<Granted, AttemptError> {
        let csr = pending.key.certificate_request(None)?;
        let chain = Rc::clone(&self.server).renew(csr).await?;
        let now = self.clock.wall();
        let svid = Arc::new(lifecycle::accept(
            chain,
            Arc::clone(&pending.key),
            &self.trust_domain,
            now,
        )?);
        let ServerTrust::Bundle(bundle) = trust else {
            return Err(ServerError::NotAttested.into());
        };
        bundle.verify(svid.chain(), now.max(svid.leaf().not_before()))?;
        // The old SVID stays good until the new one is used for the first time: without a stored copy it is not used.
        if let Some(error) = self.store_svid(&svid, false, None).await? {
            return Err(error.into());
        }
        Ok(Granted {
            way: Way::Renew,
            svid,
            slot: self.slot,
            reattestable: None,
            vouching: Some(bundle),
            bundle: None,
            bundle_is_unsaved: false,
            write_error: None,
            queued: Duration::ZERO,
        })
    }
}
