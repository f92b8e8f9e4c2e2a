//! What a subscriber sees: complete sets only, shared, newest wins (design D9).

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::bundle::Bundle;
use crate::entry::Entry;
use crate::spiffe_id::TrustDomain;
use crate::svid::X509Svid;

/// The newest state for one set of selectors. A slow reader costs one pointer.
pub type ViewReader = watch::Receiver<View>;

/// What can be said to one caller now.
#[derive(Debug, Clone)]
pub enum View {
    /// Nothing complete yet: streams wait, unary calls get UNAVAILABLE after a while.
    Waiting(Waiting),
    /// Everything the caller is entitled to; no identities = no entry matches.
    Ready(Arc<WorkloadUpdate>),
}

/// Why a caller has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// No sync has succeeded yet.
    FirstSync,
    /// A matching entry has no SVID yet.
    Signing,
    /// Every matching SVID has expired and none could be renewed (design D6).
    Expired,
}

/// A complete set for one caller. Lives until the next change, shared by all callers with the same selectors.
#[derive(Debug)]
pub struct WorkloadUpdate {
    /// Identities in entry-ID order, hints not yet filtered.
    pub identities: Vec<Identity>,
    /// The agent's own trust domain.
    pub bundle: Arc<Bundle>,
    /// Bundles named by the matching entries, as far as known.
    pub federated: BTreeMap<TrustDomain, Arc<Bundle>>,
}

/// One identity: entry, certificate and key always belong together (design D21).
#[derive(Debug, Clone)]
pub struct Identity {
    /// The entry that grants it.
    pub entry: Arc<Entry>,
    /// Certificate and key.
    pub svid: Arc<X509Svid>,
}
