//! What is held for each entry, and what a caller is told. Pure: takes dates, returns what has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::index::SelectorIndex;
use super::view::{Identity, View, Waiting, WorkloadUpdate};
use super::{CacheFacts, Due, Renewals, Signed};
use crate::bundle::{Bundle, VerifyError};
use crate::entry::{Entry, EntryId, EntrySync, KnownEntries};
use crate::rotation::Renewal;
use crate::selector::SelectorSet;
use crate::spiffe_id::TrustDomain;
use crate::svid::X509Svid;

/// How often the server must refuse to sign for an entry before a caller's other identities are served without it, and before an SVID is let
/// go that the newest bundle does not vouch for.
const REFUSALS_BEFORE_SERVING_WITHOUT: u32 = 3;

/// All entries, their SVIDs and the bundles.
#[derive(Debug)]
pub struct Entries {
    own: TrustDomain,
    records: BTreeMap<EntryId, Record>,
    index: SelectorIndex,
    bundles: BTreeMap<TrustDomain, Arc<Bundle>>,
    /// SVIDs are signed ahead for at most this many entries; asked-for ones are signed beyond it.
    prefetch_limit: usize,
    held: usize,
    synced: bool,
}

#[derive(Debug)]
struct Record {
    entry: Arc<Entry>,
    holding: Holding,
    /// Set while the SVID that is held is not valid yet.
    early: Option<Early>,
    /// The own bundle before this one, while nothing else vouches for the SVID that is served.
    vouching: Option<Arc<Bundle>>,
    /// Live subscriptions that match: such an entry is signed whatever the limit.
    subscriptions: usize,
    refusals: u32,
}

/// The server's clock is ahead of ours by more than it back-dates.
#[derive(Debug, Default)]
struct Early {
    /// The SVID before, served until the one that is held becomes valid.
    before: Option<Arc<X509Svid>>,
}

/// What is held for one entry.
#[derive(Debug)]
enum Holding {
    /// Nothing was ever signed for it, or what was belonged to another identity: callers wait.
    Missing,
    /// An SVID that is served until its renewal and, if renewal fails, until its own end.
    Held {
        svid: Arc<X509Svid>,
        renewal: Renewal,
    },
    /// The entry has changed: the SVID is served until its replacement is signed.
    Outdated {
        svid: Arc<X509Svid>,
        /// The entry that the SVID was signed for: callers hear of the change once, with the new certificate.
        entry: Arc<Entry>,
    },
    /// The SVID's end came before its replacement: never served (design D6).
    Expired { since: SystemTime },
}

/// Which callers a change concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Everybody: the own bundle changed.
    pub everybody: bool,
    /// Callers that have all selectors of one of these sets.
    pub selectors: Vec<SelectorSet>,
}

impl Changes {
    /// Whether a caller with these selectors is concerned.
    pub fn concern(&self, caller: &SelectorSet) -> bool {
        self.everybody || self.selectors.iter().any(|set| set.is_subset_of(caller))
    }

    /// Whether nobody is concerned.
    pub fn is_empty(&self) -> bool {
        !self.everybody && self.selectors.is_empty()
    }

    /// Adds what another change concerns.
    pub fn merge(&mut self, other: Self) {
        self.everybody |= other.everybody;
        self.selectors.extend(other.selectors);
    }
}

impl Entries {
    /// Nothing yet, of this trust domain.
    pub fn new(own: TrustDomain, prefetch_limit: usize) -> Self {
        Self {
            own,
            records: BTreeMap::new(),
            index: SelectorIndex::default(),
            bundles: BTreeMap::new(),
            prefetch_limit,
            held: 0,
            synced: false,
        }
    }

    /// The versions of all entries.
    pub fn versions(&self) -> KnownEntries {
        self.records
            .iter()
            .map(|(id, record)| (id.clone(), record.entry.version))
            .collect()
    }

    /// Brings the entries in step with a sync. Callers are told once bundles are there as well.
    pub fn apply(&mut self, sync: EntrySync) -> Changes {
        let mut changes = Changes::default();
        let gone: Vec<EntryId> = self
            .records
            .keys()
            .filter(|id| !sync.present.contains(*id))
            .cloned()
            .collect();
        for id in gone {
            if let Some(record) = self.records.remove(&id) {
                self.index.remove(&id);
                tracing::debug!(entry = %id, spiffe_id = %record.entry.spiffe_id, "Entry removed");
                changes.selectors.push(record.entry.selectors.clone());
            }
        }
        for entry in sync.changed {
            self.replace(entry, &mut changes);
        }
        self.synced = true;
        self.count();
        changes
    }

    /// Takes an entry in full. Most syncs bring entries that are as they were: for those nothing changes, refusals are still counted.
    fn replace(&mut self, entry: Arc<Entry>, changes: &mut Changes) {
        let id = entry.id.clone();
        if self
            .records
            .get(&id)
            .is_some_and(|held| held.entry == entry)
        {
            return;
        }
        let old = self.records.remove(&id);
        if entry.store_svid {
            self.index.remove(&id);
        } else {
            self.index.insert(&id, &entry.selectors);
        }
        changes.selectors.push(entry.selectors.clone());
        let record = match old {
            None => {
                tracing::debug!(entry = %id, spiffe_id = %entry.spiffe_id, "Entry created");
                Record {
                    entry,
                    holding: Holding::Missing,
                    early: None,
                    vouching: None,
                    subscriptions: 0,
                    refusals: 0,
                }
            }
            Some(old) => {
                tracing::debug!(entry = %id, spiffe_id = %entry.spiffe_id, "Entry updated");
                if old.entry.selectors != entry.selectors {
                    changes.selectors.push(old.entry.selectors.clone());
                }
                Record {
                    early: old.early,
                    vouching: old.vouching,
                    holding: old.holding.after_change(&old.entry, &entry),
                    entry,
                    subscriptions: old.subscriptions,
                    refusals: 0,
                }
            }
        };
        self.records.insert(id, record);
    }

    /// Every trust domain that some entry federates with.
    pub fn federated_domains(&self) -> BTreeSet<TrustDomain> {
        self.records
            .values()
            .flat_map(|record| record.entry.federates_with.iter().cloned())
            .collect()
    }

    /// Takes new bundles; drops those of domains that no entry names any more.
    pub fn apply_bundles(&mut self, bundles: Vec<Arc<Bundle>>, now: SystemTime) -> Changes {
        let mut changed: BTreeSet<TrustDomain> = BTreeSet::new();
        for bundle in bundles {
            let domain = bundle.trust_domain.clone();
            if self.bundles.get(&domain) != Some(&bundle) {
                tracing::debug!(trust_domain_id = %domain.id_string(), "Bundle updated");
                if domain == self.own {
                    self.replace_unverifiable(&bundle, now);
                }
                self.bundles.insert(domain.clone(), bundle);
                changed.insert(domain);
            }
        }
        let named = self.federated_domains();
        self.bundles
            .retain(|domain, _| *domain == self.own || named.contains(domain));
        let federates = |entry: &Entry| {
            entry
                .federates_with
                .iter()
                .any(|domain| changed.contains(domain))
        };
        let concerned = self
            .records
            .values()
            .map(|record| &record.entry)
            .filter(|entry| federates(entry));
        let selectors = concerned.map(|entry| entry.selectors.clone()).collect();
        Changes {
            everybody: changed.contains(&self.own),
            selectors,
        }
    }

    /// SVIDs that lead to no authority of the own bundle any more are due at once. Until they are replaced their callers are told of the
    /// authorities before as well: nobody is ever shown an SVID without what verifies it (design 4).
    fn replace_unverifiable(&mut self, own: &Bundle, now: SystemTime) {
        let before = self.own_bundle().map(Arc::clone);
        let is_unknown = |svid: &X509Svid| {
            let at = now.max(svid.leaf().not_before());
            own.verify(svid.chain(), at) == Err(VerifyError::UnknownAuthority)
        };
        for record in self.records.values_mut() {
            if let Holding::Held { svid, .. } = &record.holding
                && is_unknown(svid)
            {
                record.holding = Holding::Outdated {
                    svid: Arc::clone(svid),
                    entry: Arc::clone(&record.entry),
                };
            }
            let known = record.vouching.take();
            if record.served(now).is_some_and(|svid| is_unknown(svid)) {
                record.vouching = known.or_else(|| before.clone());
            }
        }
    }

    /// When the last of the SVIDs that are held ends; none = nobody is served.
    pub fn last_end(&self) -> Option<SystemTime> {
        self.records
            .values()
            .filter_map(|record| Some(record.holding.svid()?.not_after()))
            .max()
    }

    /// The own trust domain's bundle.
    pub fn own_bundle(&self) -> Option<&Arc<Bundle>> {
        self.bundles.get(&self.own)
    }

    /// Takes signed SVIDs. One whose entry has changed its identity meanwhile, or gone, is dropped (design D21).
    pub fn install(&mut self, signed: Vec<Signed>, now: SystemTime) -> Changes {
        let mut changes = Changes::default();
        for Signed {
            entry,
            svid,
            renewal,
        } in signed
        {
            let Some(record) = self
                .records
                .get_mut(&entry.id)
                .filter(|record| record.entry.has_same_identity(&entry))
            else {
                tracing::debug!(entry = %entry.id, "SVID dropped: its entry changed while it was signed");
                continue;
            };
            tracing::debug!(entry = %entry.id, spiffe_id = %entry.spiffe_id, "SVID updated");
            record.refusals = 0;
            record.early = (svid.leaf().not_before() > now).then(|| Early {
                before: record.served(now).map(Arc::clone),
            });
            if record.early.is_none() {
                record.vouching = None;
            }
            record.holding = if record.entry.version == entry.version {
                Holding::Held { svid, renewal }
            } else {
                Holding::Outdated {
                    svid,
                    entry: Arc::clone(&entry),
                }
            };
            changes.selectors.push(entry.selectors.clone());
        }
        self.count();
        changes
    }

    /// Notes that the server would not sign for these entries.
    pub fn refused(&mut self, refused: &[EntryId]) -> Changes {
        let mut changes = Changes::default();
        for id in refused {
            if let Some(record) = self.records.get_mut(id) {
                record.refusals = record.refusals.saturating_add(1);
                let is_told_now =
                    record.refusals == 1 && matches!(record.holding, Holding::Outdated { .. });
                if is_told_now || record.refusals == REFUSALS_BEFORE_SERVING_WITHOUT {
                    changes.selectors.push(record.entry.selectors.clone());
                }
            }
        }
        changes
    }

    /// Lets go of SVIDs whose end has come, and brings those into use whose beginning has.
    pub fn age(&mut self, now: SystemTime) -> Changes {
        let mut changes = Changes::default();
        for record in self.records.values_mut() {
            let Some(svid) = record.holding.svid().map(Arc::clone) else {
                continue;
            };
            let begins = record.early.is_some() && svid.leaf().not_before() <= now;
            if begins {
                record.early = None;
                record.vouching = None;
            }
            let ends = svid.not_after() < now;
            if ends {
                tracing::error!(entry = %record.entry.id, spiffe_id = %record.entry.spiffe_id, "X509-SVID has expired and could not be renewed");
                record.holding = Holding::Expired {
                    since: svid.not_after(),
                };
            }
            if begins || ends {
                changes.selectors.push(record.entry.selectors.clone());
            }
        }
        if !changes.is_empty() {
            self.count();
        }
        changes
    }

    /// When [`Self::age`] has something to do next.
    pub fn next_turn(&self) -> Option<SystemTime> {
        // Validity includes its last second (RFC 5280 4.1.2.5).
        let turn = |record: &Record| {
            let leaf = record.holding.svid()?.leaf();
            Some(match record.early {
                Some(_) => leaf.not_before(),
                None => leaf.not_after() + Duration::from_secs(1),
            })
        };
        self.records.values().filter_map(turn).min()
    }

    /// Which entries need an SVID at `now`, or within the slack of one that they have.
    pub fn due(&self, now: SystemTime) -> Renewals {
        let mut renewals = Renewals::default();
        let mut room = self.prefetch_limit.saturating_sub(self.held);
        for record in self
            .records
            .values()
            .filter(|record| !record.entry.store_svid)
        {
            let (due, expires_at) = match &record.holding {
                Holding::Held { renewal, svid } if renewal.at > now + renewal.slack => {
                    renewals.next = Some(
                        renewals
                            .next
                            .map_or(renewal.at, |next| next.min(renewal.at)),
                    );
                    (false, Some(svid.not_after()))
                }
                Holding::Held { svid, .. } | Holding::Outdated { svid, .. } => {
                    (true, Some(svid.not_after()))
                }
                Holding::Expired { since } => (true, Some(*since)),
                Holding::Missing if record.subscriptions > 0 => (true, None),
                Holding::Missing if record.entry.disable_x509_svid_prefetch || room == 0 => {
                    (false, None)
                }
                Holding::Missing => {
                    room -= 1;
                    (true, None)
                }
            };
            if due {
                renewals.due.push(Due {
                    entry: Arc::clone(&record.entry),
                    expires_at,
                });
            }
        }
        renewals
    }

    /// Counts a subscription in; tells whether an entry now waits for an SVID that nobody is asking for yet.
    pub fn subscribed(&mut self, selectors: &SelectorSet) -> bool {
        let mut missing = false;
        for id in self.index.matching(selectors) {
            if let Some(record) = self.records.get_mut(&id) {
                record.subscriptions += 1;
                missing |= matches!(record.holding, Holding::Missing);
            }
        }
        missing
    }

    /// Counts all live subscriptions anew: after entries came or subscribers went.
    pub fn recount_subscriptions<'a>(&mut self, live: impl Iterator<Item = &'a SelectorSet>) {
        let mut counts: HashMap<EntryId, usize> = HashMap::new();
        for selectors in live {
            for id in self.index.matching(selectors) {
                *counts.entry(id).or_default() += 1;
            }
        }
        for (id, record) in &mut self.records {
            record.subscriptions = counts.get(id).copied().unwrap_or_default();
        }
    }

    /// What a caller with these selectors is told at `now`. `before` is what it was told last: while the set that follows is not complete, what is
    /// left of the one before goes on being served (design D9).
    pub fn view(&self, selectors: &SelectorSet, now: SystemTime, before: Option<&View>) -> View {
        let Some(bundle) = self.own_bundle().filter(|_| self.synced) else {
            return View::Waiting(Waiting::FirstSync);
        };
        let matching = self.index.matching(selectors);
        let mut identities = Vec::with_capacity(matching.len());
        let (mut incomplete, mut expired) = (false, false);
        let mut bundle = Arc::clone(bundle);
        for record in matching.iter().filter_map(|id| self.records.get(id)) {
            match record.standing(now) {
                Standing::Valid(_) if record.is_let_go() => {}
                Standing::Valid(svid) => {
                    identities.push(Identity {
                        entry: Arc::clone(record.told()),
                        svid: Arc::clone(svid),
                    });
                    if let Some(before) = &record.vouching {
                        bundle = Arc::new(bundle.with_authorities_of(before));
                    }
                }
                Standing::Pending => incomplete = true,
                Standing::Expired => expired = true,
                Standing::Refused => {}
            }
        }
        if incomplete {
            let Some(View::Ready(before)) = before else {
                return View::Waiting(Waiting::Signing);
            };
            identities.retain(|identity| {
                before
                    .identities
                    .iter()
                    .any(|old| old.entry.id == identity.entry.id)
            });
        }
        if identities.is_empty() && !matching.is_empty() {
            return View::Waiting(if expired {
                Waiting::Expired
            } else {
                Waiting::Signing
            });
        }
        let named = identities
            .iter()
            .flat_map(|identity| &identity.entry.federates_with);
        let federated = named
            .filter_map(|domain| Some((domain.clone(), Arc::clone(self.bundles.get(domain)?))))
            .collect();
        View::Ready(Arc::new(WorkloadUpdate {
            identities,
            bundle,
            federated,
        }))
    }

    /// How many X.509-SVIDs are held for workloads.
    pub fn svid_count(&self) -> usize {
        self.held
    }

    /// Drops everything but the bundles.
    pub fn clear(&mut self) {
        self.records.clear();
        self.index = SelectorIndex::default();
        self.held = 0;
    }

    /// Numbers for operators, subscribers aside.
    pub fn facts(&self) -> CacheFacts {
        CacheFacts {
            entries: self.records.len(),
            x509_svids: self.held,
            store_records: self
                .records
                .values()
                .filter(|record| record.entry.store_svid)
                .count(),
            ..CacheFacts::default()
        }
    }

    fn count(&mut self) {
        self.held = self
            .records
            .values()
            .filter(|record| record.holding.svid().is_some())
            .count();
    }
}

/// How an entry stands with a caller at one instant.
enum Standing<'a> {
    Valid(&'a Arc<X509Svid>),
    Pending,
    Expired,
    Refused,
}

impl Record {
    /// The entry as callers are told of it.
    fn told(&self) -> &Arc<Entry> {
        match &self.holding {
            Holding::Outdated { entry, .. } if self.refusals == 0 => entry,
            Holding::Outdated { .. }
            | Holding::Held { .. }
            | Holding::Missing
            | Holding::Expired { .. } => &self.entry,
        }
    }

    /// The server does not replace it, and does not stand by it either.
    fn is_let_go(&self) -> bool {
        self.vouching.is_some() && self.refusals >= REFUSALS_BEFORE_SERVING_WITHOUT
    }

    fn served(&self, now: SystemTime) -> Option<&Arc<X509Svid>> {
        match self.standing(now) {
            Standing::Valid(svid) => Some(svid),
            Standing::Pending | Standing::Expired | Standing::Refused => None,
        }
    }

    fn standing(&self, now: SystemTime) -> Standing<'_> {
        let before = self.early.as_ref().and_then(|early| early.before.as_ref());
        match &self.holding {
            Holding::Held { svid, .. } | Holding::Outdated { svid, .. } => {
                let valid = [Some(svid), before].into_iter().flatten();
                let valid = valid.into_iter().find(|svid| svid.leaf().is_valid_at(now));
                match valid {
                    Some(svid) => Standing::Valid(svid),
                    None if svid.leaf().not_before() > now => Standing::Pending,
                    None => Standing::Expired,
                }
            }
            Holding::Expired { .. } => Standing::Expired,
            Holding::Missing if self.refusals < REFUSALS_BEFORE_SERVING_WITHOUT => {
                Standing::Pending
            }
            Holding::Missing => Standing::Refused,
        }
    }
}

impl Holding {
    fn svid(&self) -> Option<&Arc<X509Svid>> {
        match self {
            Self::Held { svid, .. } | Self::Outdated { svid, .. } => Some(svid),
            Self::Missing | Self::Expired { .. } => None,
        }
    }

    /// What is left of it when its entry changes: nothing for another identity; a new revision wants a new certificate.
    fn after_change(self, old: &Arc<Entry>, new: &Entry) -> Self {
        if !old.has_same_identity(new) || new.store_svid {
            return Self::Missing;
        }
        match self {
            Self::Held { svid, .. } if old.version.revision != new.version.revision => {
                Self::Outdated {
                    svid,
                    entry: Arc::clone(old),
                }
            }
            unchanged @ (Self::Missing
            | Self::Held { .. }
            | Self::Outdated { .. }
            | Self::Expired { .. }) => unchanged,
        }
    }
}

/// Whether two views would be told to a caller in the same words.
pub fn is_same(one: &View, other: &View) -> bool {
    match (one, other) {
        (View::Waiting(one), View::Waiting(other)) => one == other,
        (View::Ready(one), View::Ready(other)) => {
            one.bundle == other.bundle
                && one.federated == other.federated
                && one.identities.len() == other.identities.len()
                && one
                    .identities
                    .iter()
                    .zip(&other.identities)
                    .all(|(one, other)| {
                        Arc::ptr_eq(&one.svid, &other.svid)
                            && one.entry.hint == other.entry.hint
                            && one.entry.version.created_at == other.entry.version.created_at
                    })
        }
        (View::Waiting(_), View::Ready(_)) | (View::Ready(_), View::Waiting(_)) => false,
    }
}

#[cfg(test)]
mod tests;
