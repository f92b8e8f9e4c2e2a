//! The exchange of entries, message by message.

use proptest::prelude::*;
use proto::spire::api::types::Spiffeid;
use proto::spire::api::types::entry::AdditionalAttributes;

use super::*;

fn own() -> TrustDomain {
    TrustDomain::parse("domain.test").unwrap()
}

fn entry(id: &str) -> types::Entry {
    types::Entry {
        id: id.into(),
        spiffe_id: Some(Spiffeid {
            trust_domain: "domain.test".into(),
            path: format!("/{id}"),
        }),
        selectors: vec![types::Selector {
            r#type: "unix".into(),
            value: "uid:1".into(),
        }],
        revision_number: 1,
        created_at: 1,
        ..types::Entry::default()
    }
}

fn full(ids: &[&str], more: bool) -> SyncAuthorizedEntriesResponse {
    SyncAuthorizedEntriesResponse {
        entries: ids.iter().map(|id| entry(id)).collect(),
        more,
        ..Default::default()
    }
}

fn revision(id: &str, revision_number: i64, created_at: i64) -> EntryRevision {
    EntryRevision {
        id: id.into(),
        revision_number,
        created_at,
    }
}

fn page(revisions: &[EntryRevision], more: bool) -> SyncAuthorizedEntriesResponse {
    SyncAuthorizedEntriesResponse {
        entry_revisions: revisions.to_vec(),
        more,
        ..Default::default()
    }
}

fn known(entries: &[(&str, i64, i64)]) -> KnownEntries {
    entries
        .iter()
        .map(|(id, revision, created_at)| {
            (
                EntryId::new(id).unwrap(),
                EntryVersion {
                    revision: *revision,
                    created_at: *created_at,
                },
            )
        })
        .collect()
}

fn names(sync: &EntrySync) -> (Vec<&str>, Vec<&str>) {
    let mut changed: Vec<_> = sync.changed.iter().map(|entry| entry.id.as_str()).collect();
    let mut present: Vec<_> = sync.present.iter().map(EntryId::as_str).collect();
    changed.sort_unstable();
    present.sort_unstable();
    (changed, present)
}

fn request(ids: &[&str]) -> Next {
    Next::Request(ids.iter().map(ToString::to_string).collect())
}

#[test]
fn a_first_message_without_revisions_is_the_complete_list() {
    let (known, own) = (known(&[("a", 1, 1), ("gone", 1, 1)]), own());

    for ids in [&["a", "b"][..], &[]] {
        let mut exchange = Exchange::new(&known, &own, SyncLimits::default());

        assert_eq!(exchange.receive(full(ids, false)), Ok(Next::Done));

        assert_eq!(names(&exchange.finish()), (ids.to_vec(), ids.to_vec()));
    }
}

#[test]
fn only_what_is_new_or_changed_is_asked_for_sorted_and_a_page_at_a_time() {
    let (known, own) = (
        known(&[
            ("same", 3, 7),
            ("no-date", 3, 7),
            ("revised", 3, 7),
            ("made-anew", 3, 7),
            ("gone", 1, 1),
        ]),
        own(),
    );
    let mut exchange = Exchange::new(&known, &own, SyncLimits::default());

    let first = exchange.receive(page(
        &[
            revision("same", 3, 7),
            revision("revised", 4, 7),
            revision("no-date", 3, 0),
        ],
        true,
    ));
    let second = exchange.receive(page(
        &[
            revision("made-anew", 3, 8),
            revision("new", 0, 1),
            revision("a", 0, 1),
        ],
        false,
    ));
    let third = exchange.receive(full(&["a", "made-anew"], true));
    let fourth = exchange.receive(full(&["new"], false));
    let fifth = exchange.receive(full(&[], false));

    assert_eq!(first, Ok(Next::Receive));
    assert_eq!(second, Ok(request(&["a", "made-anew", "new"])));
    assert_eq!(third, Ok(Next::Receive));
    assert_eq!(fourth, Ok(request(&["revised"])));
    assert_eq!(fifth, Ok(Next::Done));
    let expected = (
        vec!["a", "made-anew", "new"],
        vec!["a", "made-anew", "new", "no-date", "revised", "same"],
    );
    assert_eq!(names(&exchange.finish()), expected);
}

#[test]
fn nothing_is_asked_for_when_all_is_known() {
    let (known, own) = (known(&[("a", 1, 1)]), own());
    let mut exchange = Exchange::new(&known, &own, SyncLimits::default());

    assert_eq!(
        exchange.receive(page(&[revision("a", 1, 1)], false)),
        Ok(Next::Done)
    );
}

#[test]
fn a_mix_of_both_shapes_is_a_breach() {
    let (known, own) = (KnownEntries::new(), own());
    let both = SyncAuthorizedEntriesResponse {
        entries: vec![entry("x")],
        ..page(&[revision("a", 1, 1)], false)
    };
    let table = [
        (vec![both.clone()], "entries in a page of revisions"),
        (
            vec![page(&[revision("a", 1, 1)], true), full(&["a"], false)],
            "entries in a page of revisions",
        ),
        (
            vec![page(&[revision("a", 1, 1)], false), both],
            "revisions in a page of entries",
        ),
    ];

    for (messages, problem) in table {
        let mut exchange = Exchange::new(&known, &own, SyncLimits::default());
        let outcome = messages
            .into_iter()
            .map(|message| exchange.receive(message))
            .find(Result::is_err);

        assert_eq!(outcome, Some(Err(problem.to_owned())));
    }
}

#[test]
fn a_flood_ends_the_sync() {
    let (known, own) = (KnownEntries::new(), own());
    let few = SyncLimits {
        entries: 2,
        ..SyncLimits::default()
    };
    let small = SyncLimits {
        bytes: 100,
        ..SyncLimits::default()
    };

    assert!(
        Exchange::new(&known, &own, few)
            .receive(full(&["a", "b"], false))
            .is_ok()
    );
    assert!(
        Exchange::new(&known, &own, few)
            .receive(full(&["a", "b", "c"], false))
            .is_err()
    );
    assert!(
        Exchange::new(&known, &own, few)
            .receive(page(
                &[
                    revision("a", 1, 1),
                    revision("b", 1, 1),
                    revision("c", 1, 1)
                ],
                true
            ))
            .is_err()
    );
    assert!(
        Exchange::new(&known, &own, small)
            .receive(full(&["a", "b", "c", "d", "e"], false))
            .is_err()
    );
}

#[test]
fn odd_revisions_are_passed_over() {
    let (known, own) = (KnownEntries::new(), own());
    let mut exchange = Exchange::new(&known, &own, SyncLimits::default());

    let next = exchange.receive(page(
        &[
            revision("", 1, 1),
            revision("a", -1, 1),
            revision("b\n", 1, 1),
            revision("c", 0, 0),
        ],
        false,
    ));

    assert_eq!(next, Ok(request(&["c"])));
    let sync = exchange.finish();
    assert_eq!(sync.skipped.len(), 3);
    assert_eq!(names(&sync).1, ["c"]);
}

#[test]
fn every_field_of_an_entry_is_taken_over() {
    let entry = types::Entry {
        federates_with: vec![
            "td2".into(),
            "domain.test".into(),
            "spiffe://td1".into(),
            "td2".into(),
        ],
        hint: "internal".into(),
        admin: true,
        downstream: true,
        store_svid: true,
        revision_number: 9,
        created_at: 8,
        additional_attributes: Some(AdditionalAttributes {
            disable_x509_svid_prefetch: true,
            jwt_svid_include_jti: true,
        }),
        ..entry("web")
    };

    let sync = complete_list(vec![entry], &own());

    let taken = sync.changed.first().unwrap();
    assert_eq!(taken.spiffe_id.as_str(), "spiffe://domain.test/web");
    assert_eq!(
        taken
            .federates_with
            .iter()
            .map(TrustDomain::name)
            .collect::<Vec<_>>(),
        ["td2", "td1"]
    );
    assert_eq!(
        taken.version,
        EntryVersion {
            revision: 9,
            created_at: 8
        }
    );
    assert_eq!(
        (taken.hint.as_str(), taken.selectors.len()),
        ("internal", 1)
    );
    assert!(taken.admin && taken.downstream && taken.store_svid);
    assert!(taken.disable_x509_svid_prefetch && taken.jwt_svid_include_jti);
}

#[test]
fn d11_a_damaged_entry_is_skipped_alone_and_still_counts_as_present() {
    let selector = |kind: &str, value: &str| {
        vec![types::Selector {
            r#type: kind.into(),
            value: value.into(),
        }]
    };
    let path = |path: &str| {
        Some(Spiffeid {
            trust_domain: "domain.test".into(),
            path: path.into(),
        })
    };
    let damaged = [
        types::Entry {
            spiffe_id: None,
            ..entry("d")
        },
        types::Entry {
            spiffe_id: path("/../up"),
            ..entry("d")
        },
        types::Entry {
            spiffe_id: path("no-slash"),
            ..entry("d")
        },
        types::Entry {
            spiffe_id: path("/a\u{1b}[31mred"),
            ..entry("d")
        },
        types::Entry {
            spiffe_id: Some(Spiffeid {
                trust_domain: "UPPER".into(),
                path: "/a".into(),
            }),
            ..entry("d")
        },
        types::Entry {
            selectors: vec![],
            ..entry("d")
        },
        types::Entry {
            selectors: selector("", "uid:1"),
            ..entry("d")
        },
        types::Entry {
            selectors: selector("a:b", "uid:1"),
            ..entry("d")
        },
        types::Entry {
            selectors: selector("unix", ""),
            ..entry("d")
        },
        types::Entry {
            federates_with: vec!["not a name".into()],
            ..entry("d")
        },
        types::Entry {
            hint: "internal\u{1b}[31m".into(),
            ..entry("d")
        },
        types::Entry {
            hint: "internal\u{202e}".into(),
            ..entry("d")
        },
        types::Entry {
            hint: "x".repeat(MAX_HINT + 1),
            ..entry("d")
        },
    ];

    for bad in damaged {
        let sync = complete_list(vec![bad.clone(), entry("good")], &own());

        assert_eq!(names(&sync), (vec!["good"], vec!["d", "good"]), "{bad:?}");
        assert_eq!(sync.skipped.len(), 1);
    }
}

#[test]
fn an_entry_without_a_usable_name_is_skipped() {
    for id in ["", "a\u{1b}[31m\n", "a\u{202e}b", &"x".repeat(2000)] {
        let sync = complete_list(
            vec![
                types::Entry {
                    id: id.into(),
                    ..entry("d")
                },
                entry("good"),
            ],
            &own(),
        );

        assert_eq!(names(&sync), (vec!["good"], vec!["good"]), "{id:?}");
        let (name, _) = sync.skipped.first().unwrap();
        assert!(!name.chars().any(char::is_control));
    }
}

/// A server that pages revisions and entries by `size`; returns the ids it was asked for.
fn drive(exchange: &mut Exchange<'_>, all: &[EntryRevision], size: usize) -> Vec<String> {
    let mut asked = Vec::new();
    let mut next = Ok(Next::Receive);
    for (turn, revisions) in all.chunks(size).enumerate() {
        assert_eq!(next, Ok(Next::Receive));
        next = exchange.receive(page(revisions, (turn + 1) * size < all.len()));
    }
    while let Ok(Next::Request(ids)) = next {
        assert!(ids.len() <= size);
        next = exchange.receive(full(
            &ids.iter().map(String::as_str).collect::<Vec<_>>(),
            false,
        ));
        asked.extend(ids);
    }
    assert_eq!(next, Ok(Next::Done));
    asked
}

proptest! {
    #[test]
    fn each_unknown_entry_is_asked_for_once_whatever_the_page(count in 1_usize..60, size in 1_usize..20, known_every in 1_usize..5) {
        let all: Vec<_> = (0..count).map(|number| revision(&format!("e{number:03}"), 1, 1)).collect();
        let known: KnownEntries = all.iter().step_by(known_every)
            .map(|revision| (EntryId::new(&revision.id).unwrap(), EntryVersion { revision: 1, created_at: 1 })).collect();
        let own = own();
        let mut exchange = Exchange::new(&known, &own, SyncLimits::default());

        let asked = drive(&mut exchange, &all, size);

        let unknown: Vec<_> = all.iter().filter(|revision| !known.contains_key(&EntryId::new(&revision.id).unwrap())).map(|revision| revision.id.clone()).collect();
        prop_assert_eq!(asked, unknown);
        prop_assert_eq!(exchange.finish().present.len(), count);
    }
}
