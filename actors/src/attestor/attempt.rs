//! One attempt to get an agent SVID: key to disk, question, check, SVID to disk (design 5). The order is the point.

use std::rc::Rc;
use std::sync::Arc;

use actix::MailboxError;

use super::lifecycle::{self, RefusedAgentSvid, Way};
use super::node::NodeAttestor;
use crate::bundle::{Bundle, VerifyError};
use crate::clock::Clock;
use crate::credentials::ServerTrust;
use crate::keys::{KeyError, KeyType, PrivateKey};
use crate::server::{Disposition, ServerApi, ServerError};
use crate::spiffe_id::TrustDomain;
use crate::store::{KeySlot, SaveBundle, SaveKey, SaveSvid, StoreError, StoreHandle};
use crate::svid::X509Svid;

/// What one attempt works with.
#[derive(Debug)]
pub struct Attempt {
    /// Attest or renew.
    pub way: Way,
    /// Where the new key goes.
    pub slot: KeySlot,
    /// A key of an earlier attempt that came to nothing: it is on disk already.
    pub pending_key: Option<PendingKey>,
    /// How the server is verified.
    pub trust: ServerTrust,
    /// The agent's trust domain.
    pub trust_domain: TrustDomain,
    /// The way in.
    pub node: Rc<dyn NodeAttestor>,
    /// The server.
    pub server: Rc<dyn ServerApi>,
    /// Disk state.
    pub store: StoreHandle,
    /// For validity.
    pub clock: Clock,
}

/// A key that waits for its certificate.
#[derive(Debug, Clone)]
pub struct PendingKey {
    /// Where it is stored.
    pub slot: KeySlot,
    /// The key.
    pub key: Arc<PrivateKey>,
}

/// What an attempt brought.
#[derive(Debug)]
pub struct Granted {
    /// How it was got.
    pub way: Way,
    /// Certificate and key, both on disk unless `write_error` says otherwise.
    pub svid: Arc<X509Svid>,
    /// Where the key is.
    pub slot: KeySlot,
    /// Whether the agent renews by attesting again; a renewal does not say.
    pub reattestable: Option<bool>,
    /// The newest bundle, where one was fetched.
    pub bundle: Option<Arc<Bundle>>,
    /// That bundle could not be stored.
    pub bundle_is_unsaved: bool,
    /// The SVID could not be stored after an attestation; the server has dropped the one before, so it is used from memory.
    pub write_error: Option<StoreError>,
}

/// Why an attempt came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttemptError {
    /// The server did not answer, or refused.
    #[error(transparent)]
    Server(#[from] ServerError),
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
    /// Whether the server says that the agent is banned.
    pub fn is_banned(&self) -> bool {
        matches!(self, Self::Server(error) if error.disposition() == Disposition::Banned)
    }
}

impl AttemptError {
    /// Whether the server wants the agent to attest instead of renewing.
    pub fn asks_for_attestation(&self) -> bool {
        matches!(self, Self::Server(error) if error.disposition() == Disposition::Reattest)
    }
}

impl From<MailboxError> for AttemptError {
    fn from(_: MailboxError) -> Self {
        Self::StoreGone
    }
}

impl Attempt {
    /// Runs it. The pending key is handed back for the next attempt unless it got its certificate.
    pub async fn run(mut self) -> (Result<Granted, AttemptError>, Option<PendingKey>) {
        let pending = match self.stored_key().await {
            Ok(pending) => pending,
            Err(error) => return (Err(error), None),
        };
        let outcome = match self.way {
            Way::Attest => self.attest(&pending).await,
            Way::Renew => self.renew(&pending).await,
        };
        let left = if outcome.is_ok() { None } else { Some(pending) };
        (outcome, left)
    }

    /// The new key is on disk before the server is asked: if that fails nothing is asked and the old credential stays good.
    async fn stored_key(&mut self) -> Result<PendingKey, AttemptError> {
        if let Some(pending) = self
            .pending_key
            .take()
            .filter(|pending| pending.slot == self.slot)
        {
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

    async fn attest(&self, pending: &PendingKey) -> Result<Granted, AttemptError> {
        let proof = Rc::clone(&self.node)
            .prepare()
            .await
            .map_err(|error| ServerError::Proof(error.to_string()))?;
        if let ServerTrust::Insecure = self.trust {
            tracing::warn!("Insecure bootstrap enabled; skipping server certificate verification");
        }
        let csr = pending.key.certificate_request(None)?;
        let attestation = Rc::clone(&self.server)
            .attest(self.trust.clone(), proof, csr)
            .await?;
        let svid = lifecycle::accept(
            attestation.chain,
            Arc::clone(&pending.key),
            &self.trust_domain,
            self.clock.wall(),
        )?;
        let svid = Arc::new(svid);
        let now = self.clock.wall().max(svid.leaf().not_before());
        // The server has dropped the SVID before this one: whatever fails from here on must not cost the new one (weakness W10). Only one that
        // no known bundle vouches for waits for the newest bundle: on disk it would be of no use without.
        let is_vouched_for = match &self.trust {
            ServerTrust::Bundle(known) => known.verify(svid.chain(), now).is_ok(),
            ServerTrust::Insecure => false,
        };
        let mut write_error = None;
        if is_vouched_for {
            write_error = self.store_svid(&svid, attestation.reattestable).await?;
        }
        let bundle = self.bundle_after_attestation().await?;
        let mut bundle_is_unsaved = false;
        if let Some(bundle) = &bundle {
            bundle.verify(svid.chain(), now)?;
            bundle_is_unsaved = !self.store_bundle(bundle).await?;
        }
        if !is_vouched_for {
            write_error = self.store_svid(&svid, attestation.reattestable).await?;
        }
        Ok(Granted {
            way: Way::Attest,
            svid,
            slot: self.slot,
            reattestable: Some(attestation.reattestable),
            bundle,
            bundle_is_unsaved,
            write_error,
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
    ) -> Result<Option<StoreError>, AttemptError> {
        Ok(self
            .store
            .save_svid
            .send(SaveSvid {
                chain: svid.chain().to_vec(),
                reattestable,
            })
            .await?
            .err())
    }

    /// The newest bundle. Where it cannot be had, the one that vouches for the SVID goes on doing so.
    async fn bundle_after_attestation(&self) -> Result<Option<Arc<Bundle>>, AttemptError> {
        let fetched = Rc::clone(&self.server)
            .bootstrap_bundle(self.trust.clone())
            .await;
        match (fetched, &self.trust) {
            (Ok(bundle), _) => Ok(Some(Arc::new(bundle))),
            (Err(error), ServerTrust::Bundle(_)) => {
                tracing::warn!(%error, "Bundle not fetched after the attestation; the known one is kept");
                Ok(None)
            }
            (Err(error), ServerTrust::Insecure) => Err(error.into()),
        }
    }

    async fn renew(&self, pending: &PendingKey) -> Result<Granted, AttemptError> {
        let csr = pending.key.certificate_request(None)?;
        let chain = Rc::clone(&self.server).renew(csr).await?;
        let now = self.clock.wall();
        let svid = Arc::new(lifecycle::accept(
            chain,
            Arc::clone(&pending.key),
            &self.trust_domain,
            now,
        )?);
        let ServerTrust::Bundle(bundle) = &self.trust else {
            return Err(ServerError::NotAttested.into());
        };
        bundle.verify(svid.chain(), now.max(svid.leaf().not_before()))?;
        // The old SVID stays good until the new one is used for the first time: without a stored copy it is not used.
        if let Some(error) = self.store_svid(&svid, false).await? {
            return Err(error.into());
        }
        Ok(Granted {
            way: Way::Renew,
            svid,
            slot: self.slot,
            reattestable: None,
            bundle: None,
            bundle_is_unsaved: false,
            write_error: None,
        })
    }
}
