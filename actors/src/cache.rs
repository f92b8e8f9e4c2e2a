//! Entries, X.509-SVIDs with their keys, bundles and subscribers.
//! Takes [`ApplyEntries`], [`ApplyBundles`], [`InstallSvids`], [`Forget`] and [`DueForRenewal`], [`SvidCount`], [`KnownVersions`] from the synchronizer,
//! [`Subscribe`] and [`DescribeCache`] from the endpoint. Sends nothing. Decisions are in [`entries`] and [`index`].

pub mod view;

use std::sync::Arc;
use std::time::SystemTime;

use actix::Message;

use crate::bundle::Bundle;
use crate::entry::{Entry, EntryId, EntrySync, KnownEntries};
use crate::selector::SelectorSet;
use crate::spiffe_id::TrustDomain;
use crate::svid::X509Svid;
use view::ViewReader;

/// Opens a subscription for everything that these selectors entitle to. Dropping the reader ends it.
#[derive(Debug, Message)]
#[rtype(result = "ViewReader")]
pub struct Subscribe {
    /// The caller's selectors.
    pub selectors: SelectorSet,
}

/// How many X.509-SVIDs are held: the question behind the next tick (design 4).
#[derive(Debug, Message)]
#[rtype(result = "usize")]
pub struct SvidCount;

/// The versions of all entries held.
#[derive(Debug, Message)]
#[rtype(result = "KnownEntries")]
pub struct KnownVersions;

/// Brings entries in step with the server.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ApplyEntries(pub EntrySync);

/// New bundles; trust domains that are not named keep what they have. Domains that no entry names any more are dropped.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ApplyBundles(pub Vec<Arc<Bundle>>);

/// Which entries need an SVID now, and when the next one does.
#[derive(Debug, Message)]
#[rtype(result = "Renewals")]
pub struct DueForRenewal {
    /// Also take along what is due up to this date.
    pub until: SystemTime,
}

/// Freshly signed SVIDs, checked by the synchronizer.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct InstallSvids(pub Vec<Signed>);

/// Drops every identity: the agent is banned (design D5).
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Forget;

/// Numbers for operators.
#[derive(Debug, Message)]
#[rtype(result = "CacheFacts")]
pub struct DescribeCache;

/// One SVID and when it is to be replaced.
#[derive(Debug)]
pub struct Signed {
    /// The entry as it was when the SVID was asked for.
    pub entry: Arc<Entry>,
    /// Certificate and key.
    pub svid: Arc<X509Svid>,
    /// Drawn once, at issue (design 4).
    pub renew_at: SystemTime,
}

/// Answer to [`DueForRenewal`].
#[derive(Debug, Default)]
pub struct Renewals {
    /// Entries without an SVID, or with one that is due; in entry-ID order.
    pub due: Vec<Due>,
    /// When the next SVID that is not in `due` has to be replaced.
    pub next: Option<SystemTime>,
}

/// An entry that needs an SVID.
#[derive(Debug, Clone)]
pub struct Due {
    /// The entry.
    pub entry: Arc<Entry>,
    /// End of the SVID it has, if any.
    pub expires_at: Option<SystemTime>,
}

/// Numbers for operators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheFacts {
    /// Entries known.
    pub entries: usize,
    /// X.509-SVIDs held.
    pub x509_svids: usize,
    /// JWT-SVIDs held.
    pub jwt_svids: usize,
    /// Records for store plugins.
    pub store_records: usize,
    /// Live subscriptions.
    pub subscribers: usize,
}

#[expect(unused_imports, reason = "vocabulary")]
use {EntryId as _, TrustDomain as _};
