//! What may be said to a caller at a given time: validity, hints, and whether it differs from what was said before. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::bundle::Bundle;
use crate::cache::view::{Identity, WorkloadUpdate};

/// The longest nap before validity is looked at again: the clock may step.
const RECHECK_MAX: Duration = Duration::from_mins(1);

/// The identities that may be served now.
#[derive(Debug)]
pub(super) struct Served {
    /// In entry-ID order, valid, one for each hint.
    pub(super) identities: Vec<Identity>,
    /// Left out because another entry has the same hint.
    pub(super) repeated_hints: Vec<Identity>,
    /// When to look again, because something becomes valid later.
    pub(super) recheck: Option<Duration>,
}

/// Picks what is valid at `now` (design D6), then one identity for each hint (workload-side 1.7): a hint whose preferred
/// entry has expired is worth more than none.
pub(super) fn served(update: &WorkloadUpdate, now: SystemTime) -> Served {
    let starts = |identity: &Identity| identity.svid.leaf().not_before();
    let valid = update
        .identities
        .iter()
        .filter(|identity| identity.svid.leaf().is_valid_at(now))
        .cloned();
    let (identities, repeated_hints) = filter_hints(valid.collect());
    let recheck = update
        .identities
        .iter()
        .filter_map(|identity| starts(identity).duration_since(now).ok())
        .filter(|wait| !wait.is_zero())
        .min()
        .map(|wait| wait.min(RECHECK_MAX));
    Served {
        identities,
        repeated_hints,
        recheck,
    }
}

/// Keeps of several identities with the same hint the one whose entry is oldest, then the one with the smaller entry ID; empty
/// hints are all kept. The order stays. Returns what is kept and what is not.
pub(super) fn filter_hints(identities: Vec<Identity>) -> (Vec<Identity>, Vec<Identity>) {
    let rank = |identity: &Identity| (identity.entry.version.created_at, identity.entry.id.clone());
    let mut best = HashMap::new();
    for identity in identities
        .iter()
        .filter(|identity| !identity.entry.hint.is_empty())
    {
        let held = best
            .entry(identity.entry.hint.clone())
            .or_insert_with(|| rank(identity));
        *held = rank(identity).min(held.clone());
    }
    identities.into_iter().partition(|identity| {
        best.get(&identity.entry.hint)
            .is_none_or(|(_, id)| *id == identity.entry.id)
    })
}

/// Whether two answers of `FetchX509SVID` would be the same.
pub(super) fn same_x509_svids(
    a: (&[Identity], &WorkloadUpdate),
    b: (&[Identity], &WorkloadUpdate),
) -> bool {
    let same_identity = |(a, b): (&Identity, &Identity)| {
        a.entry.spiffe_id == b.entry.spiffe_id
            && a.entry.hint == b.entry.hint
            && (Arc::ptr_eq(&a.svid, &b.svid) || a.svid.chain_der() == b.svid.chain_der())
    };
    a.0.len() == b.0.len()
        && a.0.iter().zip(b.0).all(same_identity)
        && same_x509_bundles(&bundles(a.1), &bundles(b.1))
}

/// The bundles that a caller gets, its own trust domain's first; federated ones only if it has an identity (workload-side 1.9).
pub(super) fn bundles(update: &WorkloadUpdate) -> Vec<Arc<Bundle>> {
    let federated = update
        .federated
        .values()
        .filter(|_| !update.identities.is_empty())
        .cloned();
    std::iter::once(Arc::clone(&update.bundle))
        .chain(federated)
        .collect()
}

/// Whether two lists of bundles hold the same X.509 authorities.
pub(super) fn same_x509_bundles(a: &[Arc<Bundle>], b: &[Arc<Bundle>]) -> bool {
    let same = |(a, b): (&Arc<Bundle>, &Arc<Bundle>)| {
        Arc::ptr_eq(a, b) || a.trust_domain == b.trust_domain && a.x509_der() == b.x509_der()
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}
