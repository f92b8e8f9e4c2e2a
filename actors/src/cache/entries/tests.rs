//! What a caller is told, scene by scene. Dates are arguments.

use std::time::Duration;

use super::*;
use crate::entry::EntryVersion;
use crate::testing::certificates::Ca;
use crate::testing::epoch;
use crate::testing::scripted_server::{TRUST_DOMAIN, entry, entry_id, uid_selectors};

struct World {
    entries: Entries,
    ca: Ca,
    now: SystemTime,
}

fn world(prefetch_limit: usize) -> World {
    let now = epoch();
    let ca = Ca::new(now);
    let mut entries = Entries::new(TrustDomain::parse(TRUST_DOMAIN).unwrap(), prefetch_limit);
    entries.apply_bundles(vec![Arc::new(ca.bundle(TRUST_DOMAIN))], epoch());
    World { entries, ca, now }
}

impl World {
    fn sync(&mut self, entries: impl IntoIterator<Item = Entry>) -> Changes {
        let changed: Vec<_> = entries.into_iter().map(Arc::new).collect();
        let present = changed.iter().map(|entry| entry.id.clone()).collect();
        self.entries.apply(EntrySync {
            changed,
            present,
            skipped: Vec::new(),
        })
    }

    fn svid(&self, entry: &Entry, life: Duration) -> Signed {
        let svid = Arc::new(self.ca.svid(
            entry.spiffe_id.as_str(),
            self.now - Duration::from_secs(10),
            self.now + life,
        ));
        let renewal = Renewal {
            at: self.now + life / 2,
            slack: life / 20,
        };
        Signed {
            entry: Arc::new(entry.clone()),
            svid,
            renewal,
        }
    }

    fn sign(&mut self, entry: &Entry, life: Duration) -> Changes {
        let signed = self.svid(entry, life);
        let now = self.now;
        self.entries.install(vec![signed], now)
    }

    fn view(&self, uid: u32, before: Option<&View>) -> View {
        self.entries.view(&uid_selectors(uid), self.now, before)
    }

    fn ids(&self, uid: u32) -> Vec<String> {
        ids(&self.view(uid, None))
    }

    fn due(&self) -> Vec<String> {
        self.entries
            .due(self.now)
            .due
            .iter()
            .map(|due| due.entry.id.to_string())
            .collect()
    }
}

fn ids(view: &View) -> Vec<String> {
    match view {
        View::Ready(update) => update
            .identities
            .iter()
            .map(|identity| identity.entry.id.to_string())
            .collect(),
        View::Waiting(why) => vec![format!("{why:?}")],
    }
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_mins(minutes)
}

fn with_revision(entry: Entry, revision: i64) -> Entry {
    Entry {
        version: EntryVersion {
            revision,
            ..entry.version
        },
        ..entry
    }
}

#[test]
fn callers_wait_until_the_first_sync() {
    let mut world = world(10);
    assert_eq!(world.ids(1000), ["FirstSync"]);

    world.sync([]);

    assert_eq!(
        world.ids(1000),
        Vec::<String>::new(),
        "nothing matches: no identity issued"
    );
}

#[test]
fn d09_a_set_is_never_partial() {
    let mut world = world(10);
    let (a, b) = (entry("a", 1000), entry("b", 1000));
    world.sync([a.clone(), b.clone()]);

    world.sign(&b, minutes(60));
    assert_eq!(world.ids(1000), ["Signing"]);
    world.sign(&a, minutes(60));
    let complete = world.view(1000, None);
    assert_eq!(ids(&complete), ["a", "b"], "in entry-ID order");

    world.sync([a, b, entry("c", 1000)]);
    assert_eq!(
        ids(&world.view(1000, Some(&complete))),
        ["a", "b"],
        "the complete set stays until the next one is complete"
    );
}

#[test]
fn a_withdrawn_identity_goes_at_once_even_while_another_is_being_signed() {
    let mut world = world(10);
    let (a, b) = (entry("a", 1000), entry("b", 1000));
    world.sync([a.clone(), b.clone()]);
    world.sign(&a, minutes(60));
    world.sign(&b, minutes(60));
    let before = world.view(1000, None);

    world.sync([a, entry("c", 1000)]);

    assert_eq!(ids(&world.view(1000, Some(&before))), ["a"]);
}

#[test]
fn entries_match_callers_that_have_all_their_selectors() {
    let mut world = world(10);
    world.sync([entry("mine", 1000), entry("other", 1001)]);
    for id in ["mine", "other"] {
        world.sign(
            &entry(id, if id == "mine" { 1000 } else { 1001 }),
            minutes(60),
        );
    }

    assert_eq!(
        (world.ids(1000), world.ids(1001), world.ids(1002)),
        (vec!["mine".to_owned()], vec!["other".to_owned()], vec![])
    );
}

#[test]
fn d06_an_expired_svid_is_never_served_and_the_rest_is() {
    let mut world = world(10);
    let (short, long) = (entry("short", 1000), entry("long", 1000));
    world.sync([short.clone(), long.clone()]);
    world.sign(&short, minutes(1));
    world.sign(&long, minutes(60));
    assert_eq!(world.ids(1000), ["long", "short"]);

    world.now += minutes(2);
    assert_eq!(
        world.ids(1000),
        ["long"],
        "by its date alone, before the cache has noticed"
    );
    world.entries.age(world.now);
    assert_eq!(
        (world.ids(1000), world.entries.svid_count()),
        (vec!["long".to_owned()], 1)
    );
    world.now += minutes(120);
    world.entries.age(world.now);

    assert_eq!(
        world.ids(1000),
        ["Expired"],
        "not `no identity issued`: the caller is entitled"
    );
    assert_eq!(world.due(), ["long", "short"], "renewal goes on");
}

/// An SVID that becomes valid a minute from now.
fn early(world: &World, entry: &Entry) -> Signed {
    let start = world.now + minutes(1);
    Signed {
        svid: Arc::new(
            world
                .ca
                .svid(entry.spiffe_id.as_str(), start, start + minutes(60)),
        ),
        renewal: Renewal {
            at: world.now + minutes(30),
            slack: minutes(0),
        },
        entry: Arc::new(entry.clone()),
    }
}

#[test]
fn an_svid_of_the_future_is_not_handed_out_before_its_time() {
    let mut world = world(10);
    let web = entry("web", 1000);
    world.sync([web.clone()]);

    let signed = early(&world, &web);
    world.entries.install(vec![signed], world.now);

    assert_eq!(world.ids(1000), ["Signing"]);
    assert_eq!(world.entries.next_turn(), Some(world.now + minutes(1)));
    world.now += minutes(1);
    assert!(
        world.entries.age(world.now).concern(&uid_selectors(1000)),
        "open streams hear of it"
    );
    assert_eq!(world.ids(1000), ["web"]);
}

#[test]
fn the_svid_before_is_served_until_its_successor_becomes_valid() {
    let mut world = world(10);
    let web = entry("web", 1000);
    world.sync([web.clone()]);
    world.sign(&web, minutes(10));
    let old = world.view(1000, None);

    for _ in 0..2 {
        let signed = early(&world, &web);
        world.entries.install(vec![signed], world.now);
        assert!(is_same(&old, &world.view(1000, None)));
    }
    world.now += minutes(1);
    world.entries.age(world.now);

    assert_eq!(world.ids(1000), ["web"]);
    assert!(!is_same(&old, &world.view(1000, None)));
}

#[test]
fn an_entry_that_becomes_a_store_entry_holds_up_nobody() {
    let mut world = world(10);
    let (a, b) = (entry("a", 1000), entry("b", 1000));
    world.sync([a.clone(), b.clone()]);
    world.sign(&a, minutes(60));
    world.sign(&b, minutes(60));

    world.sync([
        Entry {
            store_svid: true,
            ..with_revision(a, 1)
        },
        b,
    ]);

    assert_eq!(world.ids(1000), ["b"]);
}

#[test]
fn d21_an_entry_made_anew_under_its_id_never_shows_the_old_certificate() {
    let mut world = world(10);
    let old = entry("web", 1000);
    world.sync([old.clone()]);
    world.sign(&old, minutes(60));
    let remade = [
        Entry {
            spiffe_id: crate::spiffe_id::SpiffeId::parse("spiffe://domain.test/other").unwrap(),
            ..old.clone()
        },
        Entry {
            version: EntryVersion {
                created_at: 2,
                ..old.version
            },
            ..old.clone()
        },
    ];

    for new in remade {
        world.sync([old.clone()]);
        world.sign(&old, minutes(60));
        world.sync([new.clone()]);
        assert_eq!(world.ids(1000), ["Signing"], "{new:?}");

        world.sign(&old, minutes(60));
        assert_eq!(
            world.ids(1000),
            ["Signing"],
            "an answer to the old question comes too late"
        );
        world.sign(&new, minutes(60));
        assert_eq!(world.ids(1000), ["web"]);
    }
}

#[test]
fn a_new_revision_is_signed_anew_while_the_old_svid_serves() {
    let mut world = world(10);
    let web = entry("web", 1000);
    world.sync([web.clone()]);
    world.sign(&web, minutes(60));
    assert_eq!(world.due(), Vec::<String>::new());

    let changed = with_revision(web.clone(), 1);
    world.sync([changed.clone()]);

    assert_eq!(
        (world.ids(1000), world.due()),
        (vec!["web".to_owned()], vec!["web".to_owned()])
    );
    world.sign(&web, minutes(60));
    assert_eq!(world.due(), ["web"], "signed for the revision before");
    world.sign(&changed, minutes(60));
    assert_eq!(world.due(), Vec::<String>::new());
}

#[test]
fn renewals_are_due_at_their_instant_or_within_their_slack() {
    let mut world = world(10);
    let web = entry("web", 1000);
    world.sync([web.clone()]);
    world.sign(&web, minutes(60));
    let start = world.now;

    assert_eq!(world.entries.due(start).next, Some(start + minutes(30)));
    assert!(world.entries.due(start + minutes(26)).due.is_empty());
    assert_eq!(
        world.entries.due(start + minutes(27)).due.len(),
        1,
        "within the slack of 3 minutes"
    );
    assert_eq!(world.entries.due(start + minutes(27)).next, None);
}

#[test]
fn svids_are_signed_ahead_up_to_the_limit_and_beyond_it_for_callers() {
    let mut world = world(2);
    world.sync([
        entry("a", 1),
        entry("b", 2),
        entry("c", 3),
        Entry {
            disable_x509_svid_prefetch: true,
            ..entry("d", 4)
        },
    ]);
    assert_eq!(world.due(), ["a", "b"]);
    world.sign(&entry("a", 1), minutes(60));
    world.sign(&entry("b", 2), minutes(60));
    assert_eq!(world.due(), Vec::<String>::new());

    assert!(world.entries.subscribed(&uid_selectors(3)));
    assert!(world.entries.subscribed(&uid_selectors(4)));

    assert_eq!(world.due(), ["c", "d"]);
    world.entries.recount_subscriptions(std::iter::empty());
    assert_eq!(world.due(), Vec::<String>::new(), "the callers have gone");
}

#[test]
fn store_entries_are_counted_and_never_served() {
    let mut world = world(10);
    world.sync([Entry {
        store_svid: true,
        ..entry("stored", 1000)
    }]);

    assert_eq!((world.ids(1000), world.due()), (vec![], vec![]));
    assert_eq!(world.entries.facts().store_records, 1);
}

#[test]
fn an_entry_that_is_refused_again_and_again_does_not_hold_up_its_neighbours() {
    let mut world = world(10);
    let (bad, good) = (entry("bad", 1000), entry("good", 1000));
    world.sync([bad.clone(), good.clone()]);
    world.sign(&good, minutes(60));

    for _ in 1..REFUSALS_BEFORE_SERVING_WITHOUT {
        assert!(world.entries.refused(&[entry_id("bad")]).is_empty());
        assert_eq!(world.ids(1000), ["Signing"]);
    }
    assert!(
        world
            .entries
            .refused(&[entry_id("bad")])
            .concern(&uid_selectors(1000))
    );
    assert_eq!(world.ids(1000), ["good"]);
    world.sign(&bad, minutes(60));

    assert_eq!(world.ids(1000), ["bad", "good"]);
}

#[test]
fn a_sync_without_news_changes_nothing_and_forgets_no_refusal() {
    let mut world = world(10);
    let (bad, good) = (entry("bad", 1000), entry("good", 1000));
    world.sync([bad.clone(), good.clone()]);
    world.sign(&good, minutes(60));

    for _ in 0..REFUSALS_BEFORE_SERVING_WITHOUT {
        world.entries.refused(&[entry_id("bad")]);
        let changes = world.sync([bad.clone(), good.clone()]);
        assert!(changes.is_empty());
    }

    assert_eq!(world.ids(1000), ["good"]);
}

#[test]
fn federated_bundles_come_with_the_identities_that_name_them() {
    let mut world = world(10);
    let other = TrustDomain::parse("other.test").unwrap();
    let web = Entry {
        federates_with: vec![other.clone(), TrustDomain::parse("unknown.test").unwrap()],
        ..entry("web", 1000)
    };
    world.sync([web.clone(), entry("plain", 1001)]);
    world.sign(&web, minutes(60));
    world.sign(&entry("plain", 1001), minutes(60));

    let changes = world.entries.apply_bundles(
        vec![Arc::new(Ca::new(world.now).bundle("other.test"))],
        world.now,
    );

    assert!(changes.concern(&uid_selectors(1000)) && !changes.concern(&uid_selectors(1001)));
    let federated = |uid| match world.view(uid, None) {
        View::Ready(update) => update.federated.keys().cloned().collect::<Vec<_>>(),
        View::Waiting(why) => panic!("{why:?}"),
    };
    assert_eq!((federated(1000), federated(1001)), (vec![other], vec![]));
}

#[test]
fn a_bundle_that_no_entry_names_any_more_is_dropped_and_the_own_one_never() {
    let mut world = world(10);
    let web = Entry {
        federates_with: vec![TrustDomain::parse("other.test").unwrap()],
        ..entry("web", 1000)
    };
    world.sync([web]);
    world.entries.apply_bundles(
        vec![Arc::new(Ca::new(world.now).bundle("other.test"))],
        world.now,
    );
    assert_eq!(world.entries.bundles.len(), 2);

    world.sync([entry("web", 1000)]);
    world.entries.apply_bundles(Vec::new(), world.now);

    assert_eq!(world.entries.bundles.len(), 1);
    assert!(world.entries.own_bundle().is_some());
}

#[test]
fn only_those_concerned_hear_of_a_change() {
    let mut world = world(10);
    let web = entry("web", 1000);

    let created = world.sync([web.clone()]);
    let signed = world.sign(&web, minutes(60));
    let unchanged = world
        .entries
        .apply_bundles(vec![Arc::new(world.ca.bundle(TRUST_DOMAIN))], world.now);
    let rotated = world.entries.apply_bundles(
        vec![Arc::new(Ca::new(world.now).bundle(TRUST_DOMAIN))],
        world.now,
    );

    for changes in [created, signed] {
        assert!(changes.concern(&uid_selectors(1000)) && !changes.concern(&uid_selectors(1001)));
    }
    assert!(unchanged.is_empty());
    assert!(rotated.everybody);
}

#[test]
fn a_list_that_comes_again_whole_concerns_nobody() {
    let mut world = world(10);
    world.sync([entry("a", 1), entry("b", 2)]);

    assert!(world.sync([entry("a", 1), entry("b", 2)]).is_empty());
    assert!(
        world
            .sync([entry("a", 1), with_revision(entry("b", 2), 1)])
            .concern(&uid_selectors(2))
    );
}

#[test]
fn the_same_words_are_not_said_twice() {
    let mut world = world(10);
    let web = entry("web", 1000);
    world.sync([web.clone()]);
    world.sign(&web, minutes(60));
    let first = world.view(1000, None);

    assert!(is_same(&first, &world.view(1000, None)));
    world.sync([with_revision(web.clone(), 1)]);
    assert!(
        is_same(&first, &world.view(1000, None)),
        "a new revision alone changes nothing for the caller"
    );
    let renamed = Entry {
        hint: "front".into(),
        ..with_revision(web.clone(), 2)
    };
    world.sync([renamed.clone()]);
    assert!(
        is_same(&first, &world.view(1000, None)),
        "told once, with the new certificate"
    );
    world.sign(&renamed, minutes(60));
    assert!(!is_same(&first, &world.view(1000, None)));
}

#[test]
fn a_change_whose_certificate_is_refused_is_told_with_the_old_one() {
    let mut world = world(10);
    let web = entry("web", 1000);
    world.sync([web.clone()]);
    world.sign(&web, minutes(60));
    let first = world.view(1000, None);

    world.sync([Entry {
        hint: "front".into(),
        ..with_revision(web, 1)
    }]);
    let changes = world.entries.refused(&[entry_id("web")]);

    assert!(changes.concern(&uid_selectors(1000)));
    assert!(!is_same(&first, &world.view(1000, None)));
}

/// The server has another CA from now on, and the bundle names no other.
fn replace_ca(world: &mut World) {
    world.ca = Ca::new(world.now);
    let bundle = Arc::new(world.ca.bundle(TRUST_DOMAIN));
    let now = world.now;
    world.entries.apply_bundles(vec![bundle], now);
}

/// Fails if a caller is shown an SVID that the bundle beside it does not vouch for; gives the number of authorities.
fn authorities(world: &World, uid: u32) -> usize {
    let View::Ready(update) = world.view(uid, None) else {
        panic!("nothing is served");
    };
    for identity in &update.identities {
        let verdict = update.bundle.verify(identity.svid.chain(), world.now);
        assert_eq!(verdict, Ok(()), "{}", identity.entry.id);
    }
    update.bundle.x509_authorities().len()
}

#[test]
fn nobody_is_shown_an_svid_that_the_bundle_beside_it_does_not_vouch_for() {
    let mut world = world(10);
    let (a, b, other) = (entry("a", 1000), entry("b", 1000), entry("other", 1));
    world.sync([a.clone(), b.clone(), other.clone()]);
    for entry in [&a, &b, &other] {
        world.sign(entry, minutes(60));
    }
    assert_eq!(authorities(&world, 1000), 1);

    replace_ca(&mut world);
    assert_eq!(world.ids(1000), ["a", "b"]);
    assert_eq!(authorities(&world, 1000), 2);
    assert_eq!(authorities(&world, 2), 1, "of no concern to others");
    assert_eq!(world.due(), ["a", "b", "other"]);
    world.sign(&a, minutes(60));
    assert_eq!(authorities(&world, 1000), 2);
    world.sign(&b, minutes(60));

    assert_eq!(authorities(&world, 1000), 1);
    assert_eq!(authorities(&world, 1), 2);
    assert_eq!(world.due(), ["other"]);
}

#[test]
fn a_bundle_that_changes_again_before_svids_are_replaced_leaves_none_without_its_authority() {
    let mut world = world(10);
    let a = entry("a", 1000);
    world.sync([a.clone()]);
    world.sign(&a, minutes(60));

    replace_ca(&mut world);
    replace_ca(&mut world);
    assert_eq!(authorities(&world, 1000), 2);
    world.sign(&a, minutes(60));

    assert_eq!(authorities(&world, 1000), 1);
}

#[test]
fn an_svid_of_the_future_from_a_new_authority_leaves_the_old_one_its_own_until_then() {
    let mut world = world(10);
    let a = entry("a", 1000);
    world.sync([a.clone()]);
    world.sign(&a, minutes(60));

    replace_ca(&mut world);
    let (signed, now) = (early(&world, &a), world.now);
    let begins = signed.svid.leaf().not_before();
    world.entries.install(vec![signed], now);
    assert_eq!(authorities(&world, 1000), 2);
    world.now = begins;
    world.entries.age(begins);

    assert_eq!(authorities(&world, 1000), 1);
}

#[test]
fn an_svid_of_a_dropped_authority_that_the_server_will_not_replace_is_let_go() {
    let mut world = world(10);
    let (a, b) = (entry("a", 1000), entry("b", 1000));
    world.sync([a.clone(), b.clone()]);
    world.sign(&a, minutes(60));
    world.sign(&b, minutes(60));
    replace_ca(&mut world);
    world.sign(&a, minutes(60));

    for _ in 0..REFUSALS_BEFORE_SERVING_WITHOUT {
        assert_eq!(world.ids(1000), ["a", "b"]);
        world.entries.refused(std::slice::from_ref(&b.id));
    }

    assert_eq!(world.ids(1000), ["a"]);
    assert_eq!(authorities(&world, 1000), 1);
}
