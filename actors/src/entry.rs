//! Registration entries as the server hands them to this agent.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use crate::selector::SelectorSet;
use crate::spiffe_id::{SpiffeId, TrustDomain};

/// The server's name for an entry. Ordered bytewise: the order of identities in every answer (workload-side 1.7).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(Arc<str>);

/// What tells two versions of an entry with the same ID apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryVersion {
    /// Counts changes.
    pub revision: i64,
    /// Seconds since the Unix epoch; 0 from servers that do not say.
    pub created_at: i64,
}

/// One registration entry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "these are the flags of the wire message"
)]
pub struct Entry {
    /// The server's name for it.
    pub id: EntryId,
    /// The identity it grants.
    pub spiffe_id: SpiffeId,
    /// What a workload must show; never empty.
    pub selectors: SelectorSet,
    /// Trust domains whose bundles the workload gets; the agent's own is left out.
    pub federates_with: Vec<TrustDomain>,
    /// Which version of the entry this is.
    pub version: EntryVersion,
    /// Chooses among several identities; often empty.
    pub hint: String,
    /// The workload may administer the server.
    pub admin: bool,
    /// The workload is a downstream server.
    pub downstream: bool,
    /// The SVID goes to a store plugin, not to workloads.
    pub store_svid: bool,
    /// No SVID is signed before a workload asks.
    pub disable_x509_svid_prefetch: bool,
    /// Every JWT-SVID carries an ID of its own and is not cached.
    pub jwt_svid_include_jti: bool,
}

/// What one sync of entries brought.
#[derive(Debug, Default)]
pub struct EntrySync {
    /// New and changed entries, in full.
    pub changed: Vec<Arc<Entry>>,
    /// Every entry that the server named, changed or not. What is known and not in here is gone.
    pub present: HashSet<EntryId>,
    /// Entries that were skipped because they are damaged, with the reason.
    pub skipped: Vec<(String, String)>,
}

/// The versions that are known already: a sync fetches only what differs.
pub type KnownEntries = HashMap<EntryId, EntryVersion>;

impl EntryId {
    /// Any non-empty text is a name.
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Entry {
    /// Whether a certificate signed for `other` may be served for this entry as well (design D21).
    pub fn has_same_identity(&self, other: &Self) -> bool {
        self.id == other.id
            && self.spiffe_id == other.spiffe_id
            && self.version.created_at == other.version.created_at
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
