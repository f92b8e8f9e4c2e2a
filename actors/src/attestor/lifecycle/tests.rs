//! Start, failure and acceptance as tables.

use super::*;
use crate::keys::KeyType;
use crate::server::DeniedReason;
use crate::testing::certificates::Ca;
use crate::testing::epoch;

const AGENT: &str = "spiffe://domain.test/spire/agent/x509pop/abc";

fn hours(hours: u64) -> Duration {
    Duration::from_hours(hours)
}

fn domain() -> TrustDomain {
    TrustDomain::parse("domain.test").unwrap()
}

fn stored(svid: &X509Svid, keys: Vec<(KeySlot, Arc<PrivateKey>)>) -> StoredIdentity {
    StoredIdentity {
        chain: svid.chain().to_vec(),
        keys,
        reattestable: true,
        ..StoredIdentity::default()
    }
}

fn status(code: tonic::Code, reason: Option<DeniedReason>) -> ServerError {
    ServerError::Status {
        call: "AttestAgent",
        code,
        message: "told to fail".into(),
        reason,
    }
}

#[test]
fn a_valid_stored_svid_with_its_key_needs_no_attestation() {
    let svid = Ca::new(epoch()).svid(AGENT, epoch(), epoch() + hours(1));
    let other = Arc::new(PrivateKey::generate(KeyType::EcP256).unwrap());
    let stored = stored(
        &svid,
        vec![(KeySlot::A, other), (KeySlot::B, Arc::clone(&svid.key))],
    );

    let Start::Warm {
        svid: found,
        slot,
        reattestable,
    } = at_start(&stored, &domain(), epoch())
    else {
        panic!("warm")
    };

    assert_eq!(
        (found.id.as_str(), slot, reattestable),
        (AGENT, KeySlot::B, true)
    );
}

#[test]
fn everything_else_on_disk_means_a_new_attestation() {
    let ca = Ca::new(epoch());
    let svid = ca.svid(AGENT, epoch() - hours(2), epoch() + Duration::from_secs(1));
    let foreign = ca.svid(
        "spiffe://other.test/spire/agent/x",
        epoch(),
        epoch() + hours(1),
    );
    let workload = ca.svid("spiffe://domain.test/web", epoch(), epoch() + hours(1));
    let good = ca.svid(AGENT, epoch(), epoch() + hours(1));
    let other = Arc::new(PrivateKey::generate(KeyType::EcP256).unwrap());
    let own = |svid: &X509Svid| vec![(KeySlot::A, Arc::clone(&svid.key))];
    let table = [
        ("nothing", StoredIdentity::default()),
        ("a second of life left", stored(&svid, own(&svid))),
        ("keys in memory: none", stored(&good, vec![])),
        ("another key", stored(&good, vec![(KeySlot::A, other)])),
        ("another trust domain", stored(&foreign, own(&foreign))),
        ("not an agent", stored(&workload, own(&workload))),
    ];

    for (name, stored) in table {
        assert!(
            matches!(at_start(&stored, &domain(), epoch()), Start::Cold { .. }),
            "{name}"
        );
    }
}

#[test]
fn a_new_key_never_takes_the_slot_in_use() {
    assert_eq!(free_slot(None), KeySlot::A);
    assert_eq!(free_slot(Some(KeySlot::A)), KeySlot::B);
    assert_eq!(free_slot(Some(KeySlot::B)), KeySlot::A);
}

#[test]
fn an_svid_is_replaced_as_the_server_says_while_that_has_a_chance() {
    let svid = |reattestable, is_spent, may_attest_again| {
        way(Some(Replacing {
            reattestable,
            is_spent,
            may_attest_again,
        }))
    };

    assert_eq!(way(None), Way::Attest);
    assert_eq!(svid(true, false, true), Way::Attest);
    assert_eq!(svid(false, false, true), Way::Renew);
    assert_eq!(svid(false, true, true), Way::Attest);
    assert_eq!(svid(false, true, false), Way::Renew, "a spent token");
}

#[test]
fn the_key_of_an_expired_svid_is_not_overwritten() {
    let svid = Ca::new(epoch()).svid(AGENT, epoch() - hours(2), epoch() - hours(1));
    let stored = stored(&svid, vec![(KeySlot::A, Arc::clone(&svid.key))]);

    let Start::Cold { slot, .. } = at_start(&stored, &domain(), epoch()) else {
        panic!("cold")
    };

    assert_eq!(free_slot(slot), KeySlot::B);
}

#[test]
fn rejections_are_acted_upon_in_growing_gaps_until_one_svid_has_lasted() {
    let mut rejections = Rejections::default();
    let mut random = Random::from_seed(3);
    let at = |seconds| Now {
        wall: epoch(),
        boot: Duration::from_secs(seconds),
    };

    assert_eq!(rejections.wait(at(100), None), Duration::ZERO);
    rejections.acted(at(100), &mut random);
    let first = rejections.wait(at(100), None);
    rejections.acted(at(200), &mut random);
    let second = rejections.wait(at(200), None);
    for _ in 0..20 {
        rejections.acted(at(300), &mut random);
    }
    let last = rejections.wait(at(300), None).as_secs_f64();

    assert!(first >= Duration::from_millis(4500) && first < second);
    assert!((269.0..=331.0).contains(&last), "{last}");
    rejections.accepted(at(301));
    assert!(
        rejections.wait(at(301), None) > Duration::from_mins(4),
        "too soon"
    );
    rejections.accepted(at(300 + 600));
    rejections.acted(at(900), &mut random);
    assert!(rejections.wait(at(900), None) < Duration::from_secs(6));
}

#[test]
fn a_granted_svid_is_checked_against_key_name_and_date() {
    let ca = Ca::new(epoch());
    let key = Arc::new(PrivateKey::generate(KeyType::EcP256).unwrap());
    let chain = |id: &str, until| ca.chain_for_key(&key, id, epoch(), until);
    let check = |chain, key: &Arc<PrivateKey>| {
        accept(chain, Arc::clone(key), &domain(), epoch() + hours(1))
    };
    let other_key = Arc::new(PrivateKey::generate(KeyType::EcP256).unwrap());

    assert_eq!(
        check(chain(AGENT, epoch() + hours(2)), &key)
            .unwrap()
            .id
            .as_str(),
        AGENT
    );
    assert_eq!(
        check(vec![], &key).unwrap_err(),
        RefusedAgentSvid::Certificate(CertificateError::Missing)
    );
    assert_eq!(
        check(chain(AGENT, epoch() + hours(2)), &other_key).unwrap_err(),
        RefusedAgentSvid::Certificate(CertificateError::ForeignKey)
    );
    assert_eq!(
        check(chain(AGENT, epoch() + hours(1)), &key).unwrap_err(),
        RefusedAgentSvid::Expired
    );
    for id in [
        "spiffe://domain.test/web",
        "spiffe://other.test/spire/agent/x",
        "spiffe://domain.test/spire/agent",
        "spiffe://domain.test/spire/server",
    ] {
        assert!(
            matches!(
                check(chain(id, epoch() + hours(2)), &key).unwrap_err(),
                RefusedAgentSvid::ForeignId(_)
            ),
            "{id}"
        );
    }
}

const NOTHING_HELD: Attempted = Attempted {
    way: Way::Attest,
    left: None,
    is_rejected: false,
    may_attest_again: true,
};

fn at(seconds: u64) -> Now {
    Now {
        wall: epoch(),
        boot: Duration::from_secs(seconds),
    }
}

#[test]
fn d04_only_an_agent_without_a_valid_svid_gives_up_when_it_is_denied() {
    let denied = status(tonic::Code::PermissionDenied, None);
    let later = status(tonic::Code::ResourceExhausted, None);
    let invalid = status(tonic::Code::InvalidArgument, None);
    let unknown = ServerError::UnknownAuthority {
        peer: "127.0.0.1:1".into(),
    };
    let valid = Attempted {
        left: Some(hours(1)),
        ..NOTHING_HELD
    };
    let expired = Attempted {
        left: Some(Duration::ZERO),
        ..NOTHING_HELD
    };
    let rejected = Attempted {
        is_rejected: true,
        ..valid
    };
    let renewing = |of: Attempted| Attempted {
        way: Way::Renew,
        may_attest_again: false,
        ..of
    };
    let table = [
        ("denied, no SVID", &denied, NOTHING_HELD, true),
        ("denied, expired SVID", &denied, expired, true),
        ("denied, rejected SVID", &denied, rejected, true),
        ("denied, valid SVID", &denied, valid, false),
        ("later, no SVID", &later, NOTHING_HELD, false),
        ("x509pop called invalid", &invalid, NOTHING_HELD, false),
        ("unknown authority, no SVID", &unknown, NOTHING_HELD, false),
        (
            "renewal denied, valid SVID",
            &denied,
            renewing(valid),
            false,
        ),
        (
            "renewal of an expired SVID",
            &unknown,
            renewing(expired),
            true,
        ),
    ];

    for (name, error, attempted, gives_up) in table {
        let outcome = Retries::default().after(error, attempted, at(0), &mut Random::from_seed(1));
        assert_eq!(
            matches!(outcome, AfterFailure::Hopeless(_)),
            gives_up,
            "{name}: {outcome:?}"
        );
    }
}

#[test]
fn a_ban_ends_every_agent() {
    let banned = status(
        tonic::Code::PermissionDenied,
        Some(DeniedReason::AgentBanned),
    );
    for left in [None, Some(hours(1))] {
        let attempted = Attempted {
            left,
            ..NOTHING_HELD
        };
        let outcome =
            Retries::default().after(&banned, attempted, at(0), &mut Random::from_seed(1));
        assert_eq!(outcome, AfterFailure::Banned);
    }
}

#[test]
fn d04_a_refused_token_is_tried_for_a_minute_and_only_without_a_valid_svid() {
    let refused = status(tonic::Code::InvalidArgument, None);
    let token = Attempted {
        may_attest_again: false,
        ..NOTHING_HELD
    };
    let valid = Attempted {
        left: Some(hours(1)),
        ..token
    };
    let (mut retries, mut random, mut now) = (Retries::default(), Random::from_seed(4), 0);

    let gave_up_at = loop {
        match retries.after(&refused, token, at(now), &mut random) {
            AfterFailure::Retry(wait) => now += wait.as_secs(),
            AfterFailure::Hopeless(_) => break now,
            AfterFailure::Banned => panic!("banned"),
        }
    };

    assert!((30..=60).contains(&gave_up_at), "{gave_up_at}");
    assert!(matches!(
        retries.after(&refused, valid, at(now + 600), &mut random),
        AfterFailure::Retry(_)
    ));
}

#[test]
fn retries_grow_from_five_seconds_to_two_minutes_and_start_again_after_a_success() {
    let mut retries = Retries::default();
    let mut random = Random::from_seed(3);
    let error = ServerError::UnknownAuthority {
        peer: "127.0.0.1:1".into(),
    };
    let mut wait = || match retries.after(&error, NOTHING_HELD, at(0), &mut random) {
        AfterFailure::Retry(wait) => wait.as_secs_f64(),
        other @ (AfterFailure::Hopeless(_) | AfterFailure::Banned) => panic!("{other:?}"),
    };

    let waits: Vec<f64> = (0..12).map(|_| wait()).collect();

    assert!(waits[0] >= 5.0 && waits[0] <= 5.5, "{waits:?}");
    assert!(waits[1] > 6.7 && waits[1] < 8.3, "{waits:?}");
    assert!(waits[11] > 107.0 && waits[11] < 133.0, "{waits:?}");
    retries.reset();
    assert!(
        matches!(retries.after(&error, NOTHING_HELD, at(0), &mut random), AfterFailure::Retry(wait) if wait < Duration::from_secs(6))
    );
}

#[test]
fn the_third_svid_in_a_row_that_another_attestation_ended_reveals_a_clone_once() {
    let mut rejections = Rejections::default();
    let not_active = Some(DeniedReason::AgentNotActive);
    let soon = Duration::from_secs(20);

    let evicted = rejections.reveals_clone(Some(DeniedReason::AgentNotAttested), soon);
    let late = rejections.reveals_clone(not_active, hours(1));
    let in_turn: Vec<bool> = (0..5)
        .map(|_| rejections.reveals_clone(not_active, soon))
        .collect();

    assert!(!evicted && !late);
    assert_eq!(in_turn, [false, false, true, false, false]);
}

#[test]
fn a_replacement_that_was_put_off_comes_before_the_svid_ends() {
    let mut rejections = Rejections::default();
    let now = Now {
        wall: epoch(),
        boot: Duration::from_secs(100),
    };
    let minutes = Duration::from_mins;
    for _ in 0..20 {
        rejections.acted(now, &mut Random::from_seed(3));
    }

    assert!(rejections.wait(now, Some(minutes(60))) > minutes(4));
    assert_eq!(rejections.wait(now, Some(minutes(4))), minutes(2));
    assert_eq!(
        Rejections::default().wait(now, Some(minutes(4))),
        Duration::ZERO
    );
}

#[test]
fn only_an_svid_that_follows_a_good_one_of_its_id_is_no_news() {
    let ca = Ca::new(epoch());
    let end = epoch() + Duration::from_mins(1);
    let held = ca.svid("spiffe://domain.test/spire/agent/test/a", epoch(), end);
    let other = SpiffeId::parse("spiffe://domain.test/spire/agent/test/b").unwrap();
    let late = end + Duration::from_secs(2);
    let table = [
        (Some(&held), false, &held.id, epoch(), true),
        (None, false, &held.id, epoch(), false),
        (Some(&held), true, &held.id, epoch(), false),
        (Some(&held), false, &other, epoch(), false),
        (Some(&held), false, &held.id, late, false),
    ];

    for (before, is_rejected, new, now, expected) in table {
        assert_eq!(is_planned(before, is_rejected, new, now), expected);
    }
}
