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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, EntryId, EntryVersion};
    use crate::selector::SelectorSet;
    use crate::svid::X509Svid;
    use crate::testing::certificates::Ca;

    const START: SystemTime = SystemTime::UNIX_EPOCH;
    /// Entries as (ID, hint, creation), and which of them stay.
    type Row<'a> = (&'a [(&'a str, &'a str, i64)], &'a [&'a str]);

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> SystemTime {
        START + Duration::from_secs(1_790_000_000 + seconds)
    }

    fn identity(id: &str, hint: &str, created_at: i64, svid: X509Svid) -> Identity {
        let entry = Entry {
            id: EntryId::new(id).unwrap(),
            spiffe_id: svid.id.clone(),
            selectors: SelectorSet::default(),
            federates_with: Vec::new(),
            version: EntryVersion {
                revision: 0,
                created_at,
            },
            hint: hint.into(),
            admin: false,
            downstream: false,
            store_svid: false,
            disable_x509_svid_prefetch: false,
            jwt_svid_include_jti: false,
        };
        Identity {
            entry: Arc::new(entry),
            svid: Arc::new(svid),
        }
    }

    fn names(identities: &[Identity]) -> Vec<&str> {
        identities
            .iter()
            .map(|identity| identity.entry.id.as_str())
            .collect()
    }

    #[test]
    fn of_entries_with_the_same_hint_the_oldest_then_the_smallest_stays() {
        let ca = Ca::new(at(0));
        let entries = |list: &[(&str, &str, i64)]| {
            let one = |(id, hint, created_at): &(&str, &str, i64)| {
                identity(
                    id,
                    hint,
                    *created_at,
                    ca.svid("spiffe://domain.test/x", at(0), at(9)),
                )
            };
            list.iter().map(one).collect()
        };
        let table: [Row<'_>; 5] = [
            (&[], &[]),
            (&[("a", "", 1), ("b", "", 1)], &["a", "b"]),
            (&[("a", "h", 2), ("b", "h", 1)], &["b"]),
            (&[("a", "h", 1), ("b", "h", 1), ("c", "H", 1)], &["a", "c"]),
            (
                &[
                    ("a", "x", 3),
                    ("b", "y", 3),
                    ("c", "x", 1),
                    ("d", "", 0),
                    ("e", "y", 2),
                ],
                &["c", "d", "e"],
            ),
        ];

        for (list, kept) in table {
            let (stays, goes) = filter_hints(entries(list));

            assert_eq!(names(&stays), kept, "{list:?}");
            assert_eq!(stays.len() + goes.len(), list.len());
        }
    }

    #[test]
    fn only_what_is_valid_now_is_served_and_the_next_start_is_known() {
        let ca = Ca::new(at(0));
        let svid = |from, until| ca.svid("spiffe://domain.test/x", at(from), at(until));
        let update = WorkloadUpdate {
            identities: vec![
                identity("a", "h", 1, svid(0, 10)),
                identity("b", "h", 2, svid(0, 100)),
                identity("c", "", 1, svid(50, 100)),
                identity("d", "", 1, svid(99, 100)),
            ],
            bundle: Arc::new(ca.bundle("domain.test")),
            federated: std::collections::BTreeMap::new(),
        };
        let table: [(u64, &[&str], Option<Duration>); 5] = [
            (0, &["a"], Some(50 * SECOND)),
            (10, &["a"], Some(40 * SECOND)),
            (11, &["b"], Some(39 * SECOND)),
            (50, &["b", "c"], Some(49 * SECOND)),
            (101, &[], None),
        ];

        for (now, ids, recheck) in table {
            let served = served(&update, at(now));

            assert_eq!(
                (names(&served.identities).as_slice(), served.recheck),
                (ids, recheck),
                "{now}"
            );
        }
    }

    #[test]
    fn a_start_far_away_is_looked_at_every_minute() {
        let ca = Ca::new(at(0));
        let far = identity(
            "a",
            "",
            1,
            ca.svid("spiffe://domain.test/x", at(7_200), at(9_000)),
        );
        let update = WorkloadUpdate {
            identities: vec![far],
            bundle: Arc::new(ca.bundle("domain.test")),
            federated: std::collections::BTreeMap::new(),
        };

        assert_eq!(served(&update, at(0)).recheck, Some(RECHECK_MAX));
    }

    #[test]
    fn what_a_caller_would_notice_makes_two_answers_differ() {
        let (ca, other) = (Ca::new(at(0)), Ca::new(at(0)));
        let svid = Arc::new(ca.svid("spiffe://domain.test/x", at(0), at(9)));
        let with = |id: &str, hint: &str, svid: &Arc<X509Svid>, bundle: Bundle| {
            let mut one = identity(id, hint, 1, ca.svid("spiffe://domain.test/x", at(0), at(9)));
            one.svid = Arc::clone(svid);
            WorkloadUpdate {
                identities: vec![one],
                bundle: Arc::new(bundle),
                federated: std::collections::BTreeMap::new(),
            }
        };
        let same = |a: &WorkloadUpdate, b: &WorkloadUpdate| {
            same_x509_svids((&a.identities, a), (&b.identities, b))
        };
        let base = with("a", "h", &svid, ca.bundle("domain.test"));
        let renewed = Arc::new(ca.svid("spiffe://domain.test/x", at(0), at(9)));
        let mut federated = with("a", "h", &svid, ca.bundle("domain.test"));
        let foreign = Arc::new(other.bundle("other.test"));
        federated
            .federated
            .insert(foreign.trust_domain.clone(), foreign);

        assert!(
            same(&base, &with("b", "h", &svid, ca.bundle("domain.test"))),
            "the entry's name is not sent"
        );
        assert!(!same(
            &base,
            &with("a", "i", &svid, ca.bundle("domain.test"))
        ));
        assert!(!same(
            &base,
            &with("a", "h", &renewed, ca.bundle("domain.test"))
        ));
        assert!(!same(
            &base,
            &with("a", "h", &svid, other.bundle("domain.test"))
        ));
        assert!(!same(&base, &federated));
        assert!(!same_x509_svids((&base.identities, &base), (&[], &base)));
    }
}
