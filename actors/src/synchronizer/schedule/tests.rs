//! The whole schedule as one table of scenes. Time is an argument: a scene is a list of what happened when, and what must follow.

use super::*;
use crate::bundle::JwtAuthority;
use crate::testing::certificates::Ca;
use crate::testing::epoch;

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(boot: Duration) -> Now {
    Now {
        wall: epoch() + boot,
        boot,
    }
}

/// What happens to a schedule.
enum Step {
    /// A sync succeeds and the cache then holds this many SVIDs.
    Success(usize),
    /// A sync fails.
    Failure,
}
use Step::{Failure, Success};

/// Plays steps one after the other, each when the entry sync is due, and returns the gaps that follow each of them.
fn gaps(interval: Duration, seed: u64, steps: &[Step]) -> Vec<Duration> {
    let mut random = Random::from_seed(seed);
    let mut schedule = Schedule::new(interval);
    let mut now = seconds(100);
    schedule.attested(at(now));
    assert!(
        schedule.work(at(now)).entries,
        "the first sync runs at once"
    );
    let mut gaps = Vec::new();
    for step in steps {
        match step {
            Success(svids) => schedule.sync_succeeded(at(now), *svids, &mut random),
            Failure => schedule.sync_failed(at(now), &mut random),
        }
        let due = schedule.entry_sync.due().unwrap();
        gaps.push(due.checked_sub(now).unwrap());
        now = due;
    }
    gaps
}

fn assert_about(gap: Duration, expected: f64, case: &str) {
    let gap = gap.as_secs_f64();
    assert!(
        gap >= expected * 0.899 && gap <= expected * 1.101,
        "{case}: {gap} s, expected {expected} s ± 10 %"
    );
}

#[test]
fn gaps_follow_the_seed_rule() {
    type Case = (&'static str, u64, &'static [Step], &'static [f64]);
    let cases: &[Case] = &[
        (
            "empty and successful: 5 s",
            60,
            &[Success(0), Success(0), Success(0)],
            &[5.0, 5.0, 5.0],
        ),
        (
            "first tick at most 5 s, then the full interval",
            60,
            &[Success(1), Success(1), Success(1)],
            &[5.0, 60.0, 60.0],
        ),
        (
            "an SVID ends the clamp",
            60,
            &[Success(0), Success(0), Success(1)],
            &[5.0, 5.0, 60.0],
        ),
        (
            "no SVID any more brings it back",
            60,
            &[Success(1), Success(1), Success(0)],
            &[5.0, 60.0, 5.0],
        ),
        (
            "empty and failing: grows, never clamped",
            8,
            &[
                Success(0),
                Success(0),
                Failure,
                Failure,
                Failure,
                Failure,
                Failure,
                Success(0),
            ],
            &[5.0, 5.0, 12.0, 18.0, 27.0, 40.5, 60.75, 5.0],
        ),
        (
            "one failure of a long interval",
            60,
            &[Success(0), Success(0), Failure, Success(0)],
            &[5.0, 5.0, 90.0, 5.0],
        ),
        (
            "a success resets the back-off",
            60,
            &[
                Success(1),
                Success(1),
                Failure,
                Failure,
                Success(1),
                Failure,
            ],
            &[5.0, 60.0, 90.0, 135.0, 60.0, 90.0],
        ),
        (
            "a failure right after the start",
            60,
            &[Success(0), Failure, Failure],
            &[5.0, 90.0, 135.0],
        ),
        (
            "a day: failures wait 8 minutes",
            DAY,
            &[Success(1), Success(1), Failure, Failure],
            &[5.0, 86_400.0, 480.0, 480.0],
        ),
        (
            "an interval under 5 s is never stretched",
            2,
            &[Success(0), Success(0), Success(1)],
            &[2.0, 2.0, 2.0],
        ),
        (
            "an interval under 5 s, failing",
            2,
            &[Success(0), Failure, Failure],
            &[2.0, 3.0, 4.5],
        ),
        (
            "before the first success: from 5 s to 2 min",
            30 * DAY,
            &[Failure, Failure, Failure, Success(0)],
            &[5.0, 7.5, 11.25, 5.0],
        ),
    ];

    for (name, interval, steps, expected) in cases {
        for seed in 0..50 {
            let gaps = gaps(seconds(*interval), seed, steps);
            assert_eq!(gaps.len(), expected.len());
            for (gap, expected) in gaps.iter().zip(*expected) {
                assert_about(*gap, *expected, name);
            }
        }
    }
}

#[test]
fn the_clamp_is_never_longer_than_five_seconds() {
    for seed in 0..200 {
        let gaps = gaps(seconds(60), seed, &[Success(0), Success(0), Success(0)]);

        assert!(gaps.iter().all(|gap| *gap <= EMPTY_WAIT), "{gaps:?}");
    }
}

#[test]
fn every_failure_of_an_empty_agent_waits_longer_than_the_clamp_and_than_the_one_before() {
    for interval in [6, 8, 30, 60, 300] {
        for seed in 0..50 {
            let gaps = gaps(
                seconds(interval),
                seed,
                &[Success(0), Failure, Failure, Failure],
            );

            assert!(
                gaps[1..].iter().all(|gap| *gap > EMPTY_WAIT),
                "interval {interval}: {gaps:?}"
            );
            assert!(
                interval > 100 || gaps[1] < gaps[2] && gaps[2] < gaps[3],
                "interval {interval}: {gaps:?}"
            );
        }
    }
}

/// A schedule after its first good sync: next sync in an hour, give or take.
fn running(now: Now, random: &mut Random) -> Schedule {
    let mut schedule = Schedule::new(seconds(HOUR));
    schedule.attested(now);
    schedule.sync_succeeded(now, 1, random);
    schedule.sync_succeeded(now, 1, random);
    schedule
}

#[test]
fn a_renewal_wakes_for_itself_and_makes_no_entry_sync() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    let mut schedule = running(start, &mut random);
    schedule.renew_at(Some(start.wall + seconds(25)));

    assert_eq!(schedule.nap(start), seconds(25));
    assert_eq!(schedule.work(at(seconds(24))), Work::default());
    assert_eq!(
        schedule.work(at(seconds(25))),
        Work {
            renewals: true,
            ..Work::default()
        }
    );
}

#[test]
fn a_retry_of_a_renewal_wakes_for_itself() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    let mut schedule = running(start, &mut random);
    schedule.renew_at(Some(start.wall + seconds(HOUR)));

    schedule.retry_renewal(start, Some(seconds(12)));

    assert_eq!(schedule.nap(start), seconds(12));
    assert_eq!(
        schedule.work(at(seconds(12))),
        Work {
            renewals: true,
            ..Work::default()
        }
    );
    schedule.retry_renewal(at(seconds(12)), None);
    assert_eq!(schedule.work(at(seconds(12))), Work::default());
}

#[test]
fn after_a_signing_call_that_failed_nothing_is_signed_before_its_gap() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    let mut schedule = running(start, &mut random);
    schedule.renew_at(Some(start.wall + seconds(3)));

    schedule.rest_signing(start, Some(seconds(12)));
    schedule.renew_now(start);

    assert_eq!(schedule.nap(start), seconds(12));
    assert_eq!(schedule.work(at(seconds(3))), Work::default());
    assert!(schedule.work(at(seconds(12))).renewals);
    schedule.attested(at(seconds(5)));
    assert_eq!(
        schedule.work(at(seconds(5))),
        Work {
            entries: true,
            ..Work::default()
        },
        "entries are synced meanwhile"
    );
    schedule.rest_signing(at(seconds(6)), None);
    assert!(schedule.work(at(seconds(6))).renewals);
}

#[test]
fn the_first_good_sync_after_an_outage_ends_the_gap_of_signing() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    let mut schedule = running(start, &mut random);
    schedule.sync_failed(start, &mut random);
    schedule.rest_signing(start, Some(seconds(120)));

    schedule.sync_succeeded(at(seconds(20)), 1, &mut random);
    assert!(schedule.work(at(seconds(20))).renewals);

    schedule.rest_signing(at(seconds(20)), Some(seconds(120)));
    schedule.sync_succeeded(at(seconds(30)), 1, &mut random);
    assert!(
        !schedule.work(at(seconds(30))).renewals,
        "signing alone fails: its gap holds"
    );
}

#[test]
fn a_caller_that_waits_for_an_svid_is_served_at_once() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    let mut schedule = running(start, &mut random);

    schedule.renew_now(start);

    assert_eq!(
        schedule.work(start),
        Work {
            renewals: true,
            ..Work::default()
        }
    );
}

#[test]
fn the_bundle_has_a_timer_only_where_the_entry_sync_is_rarer() {
    let cases = [
        (DAY, Some(HOUR), Some(HOUR)),
        (DAY, Some(1), Some(MINUTE)),
        (5, Some(HOUR), None),
        (DAY, Some(2 * DAY), None),
        (DAY, None, None),
    ];

    for (interval, advice, expected) in cases {
        let mut schedule = Schedule::new(seconds(interval));
        schedule.attested(at(seconds(0)));
        schedule.refresh_bundles_every(advice.map(seconds), at(seconds(10)));

        assert_eq!(
            schedule.bundle_due,
            expected.map(|expected| seconds(10 + expected)),
            "interval {interval}, advice {advice:?}"
        );
    }
}

#[test]
fn a_bundle_refresh_asks_for_bundles_alone() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    let mut schedule = Schedule::new(seconds(DAY));
    schedule.attested(start);
    schedule.sync_succeeded(start, 1, &mut random);
    schedule.sync_succeeded(start, 1, &mut random);

    schedule.refresh_bundles_every(Some(seconds(HOUR)), start);

    assert_eq!(
        schedule.work(at(seconds(HOUR))),
        Work {
            bundles: true,
            ..Work::default()
        }
    );
    schedule.bundles_refreshed(at(seconds(HOUR)));
    assert_eq!(schedule.work(at(seconds(HOUR))), Work::default());
}

#[test]
fn an_entry_sync_takes_the_renewals_along_and_the_bundles_come_with_it() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    let mut schedule = running(start, &mut random);
    schedule.refresh_bundles_every(Some(seconds(MINUTE)), start);
    let due = schedule.entry_sync.due().unwrap();

    assert_eq!(
        schedule.work(at(due)),
        Work {
            entries: true,
            renewals: true,
            bundles: false
        }
    );
}

#[test]
fn a_wake_up_takes_along_an_entry_sync_that_is_due_soon_but_never_one_that_backs_off() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    let mut schedule = running(start, &mut random);
    let due = schedule.entry_sync.due().unwrap();
    let shortly_before = at(due.checked_sub(seconds(20)).unwrap());
    schedule.renew_at(Some(shortly_before.wall));

    assert!(
        schedule.work(shortly_before).entries,
        "an hour's sync may come 30 s early"
    );
    schedule.sync_failed(start, &mut random);
    let due = schedule.entry_sync.due().unwrap();
    let shortly_before = at(due.checked_sub(seconds(20)).unwrap());
    schedule.renew_at(Some(shortly_before.wall));
    assert_eq!(
        schedule.work(shortly_before),
        Work {
            renewals: true,
            ..Work::default()
        }
    );
}

#[test]
fn nothing_is_due_before_the_attestation() {
    let mut schedule = Schedule::new(seconds(5));
    schedule.renew_now(at(seconds(0)));
    schedule.renew_at(Some(SystemTime::UNIX_EPOCH));

    assert_eq!(schedule.work(at(seconds(DAY))), Work::default());
}

#[test]
fn a_new_attestation_syncs_at_once_and_keeps_the_back_off() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    let mut schedule = running(start, &mut random);
    schedule.sync_failed(start, &mut random);

    schedule.attested(at(seconds(30)));

    assert!(schedule.work(at(seconds(30))).entries);
    schedule.sync_failed(at(seconds(30)), &mut random);
    let gap = schedule
        .entry_sync
        .due()
        .unwrap()
        .checked_sub(seconds(30))
        .unwrap();
    assert!(
        gap > seconds(400),
        "the back-off of an hour's interval goes on at its cap: {gap:?}"
    );
}

#[test]
fn no_nap_is_longer_than_a_minute() {
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));

    assert_eq!(running(start, &mut random).nap(start), MAX_NAP);
    assert_eq!(Schedule::new(seconds(DAY)).nap(start), MAX_NAP);
}

#[test]
fn the_bundle_is_looked_at_by_the_hint_or_a_tenth_of_the_shortest_life() {
    let now = epoch();
    let ca = Ca::valid(now, now + seconds(1000));
    let mut bundle = ca.bundle("domain.test");
    let key = |id: &str, life| JwtAuthority {
        key_id: id.into(),
        public_key: bytes::Bytes::new(),
        expires_at: Some(now + seconds(life)),
        tainted: false,
    };
    let mut advice = BundleAdvice::default();

    assert_eq!(advice.of(&bundle, now), Some(seconds(100)));
    bundle.jwt_authorities = vec![key("short", 600), key("long", 6000)];
    assert_eq!(advice.of(&bundle, now), Some(seconds(60)));
    assert_eq!(
        advice.of(&bundle, now + seconds(590)),
        Some(seconds(60)),
        "what counts is what was left when the key was first seen"
    );
    bundle.jwt_authorities = vec![key("long", 6000)];
    assert_eq!(advice.of(&bundle, now + seconds(600)), Some(seconds(100)));
    bundle.refresh_hint = seconds(30);
    assert_eq!(advice.of(&bundle, now), Some(seconds(30)));
}

#[test]
fn a_caller_before_the_first_good_sync_makes_no_work() {
    let mut schedule = Schedule::new(seconds(60));
    let mut random = Random::from_seed(7);
    let start = at(seconds(0));
    schedule.attested(start);
    schedule.sync_failed(start, &mut random);

    schedule.renew_now(start);

    assert_eq!(schedule.work(start), Work::default());
    assert!(schedule.nap(start) > seconds(4));
}
