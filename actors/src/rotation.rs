//! When a certificate is replaced. Pure: the instant is drawn once, when the certificate is issued (design 4).

use std::time::{Duration, SystemTime};

use crate::random::Random;
use crate::svid::Certificate;
use crate::synchronizer::schedule::slack;

/// Share of the half-life by which a renewal may come sooner or later.
const JITTER: f64 = 0.1;
/// No certificate is replaced sooner than this after its issue.
const SOONEST: Duration = Duration::from_secs(5);
/// `availability_target` counts only for certificates that outlive it by this much (node-side 3.4).
const AVAILABILITY_GRACE: Duration = Duration::from_hours(12);
/// Renewals by `availability_target` are spread over this time.
const AVAILABILITY_JITTER: Duration = Duration::from_mins(10);
/// Retries of a renewal start here.
pub const RETRY_INITIAL: Duration = Duration::from_secs(5);
/// Retries of a renewal grow to this.
pub const RETRY_CAP: Duration = Duration::from_mins(2);
/// Once a certificate has ended, its renewal is tried at most this often.
const RETRY_AFTER_END: Duration = Duration::from_mins(1);

/// When a certificate is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// The instant.
    pub at: SystemTime,
    /// How much sooner it may be taken along when something else is done anyway: a tenth of the wait, at most 30 s.
    pub slack: Duration,
}

/// Draws when a certificate issued at `issued` is replaced: when half of its life is left, a tenth sooner or later; sooner with an
/// `availability_target`. The lifetime is that from `NotBefore` to `NotAfter`.
pub fn draw_renewal(
    certificate: &Certificate,
    issued: SystemTime,
    availability_target: Option<Duration>,
    random: &mut Random,
) -> Renewal {
    let end = certificate.not_after();
    let lifetime = end
        .duration_since(certificate.not_before())
        .unwrap_or_default();
    let left_at_half_life = random.around(lifetime / 2, JITTER);
    let left_for_target = availability_target
        .filter(|target| lifetime.saturating_sub(*target) > AVAILABILITY_GRACE)
        .map_or(Duration::ZERO, |target| {
            target + random.up_to(AVAILABILITY_JITTER)
        });
    let at = end
        .checked_sub(left_at_half_life.max(left_for_target))
        .unwrap_or(issued);
    let at = at.max(issued + SOONEST);
    Renewal {
        at,
        slack: slack(at.duration_since(issued).unwrap_or_default()),
    }
}

/// How long to wait before a failed renewal is tried again. `step` is what its back-off drew; `left` is what is left of the certificate that
/// it replaces, nothing if there is none.
pub fn retry_wait(step: Duration, left: Option<Duration>) -> Duration {
    match left {
        None => step,
        Some(Duration::ZERO) => step.max(RETRY_AFTER_END),
        Some(left) => step.min(left / 2),
    }
    .max(RETRY_INITIAL)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::certificates::Ca;
    use crate::testing::epoch;

    /// What is left of a certificate of this life when it is replaced; back-dated by 10 s, as servers do.
    fn left(life: Duration, target: Option<Duration>, seed: u64) -> Duration {
        let back_dated = Duration::from_secs(10);
        let svid = Ca::new(epoch()).svid(
            "spiffe://domain.test/web",
            epoch() - back_dated,
            epoch() + life,
        );
        let renewal = draw_renewal(svid.leaf(), epoch(), target, &mut Random::from_seed(seed));
        svid.not_after()
            .duration_since(renewal.at)
            .unwrap_or_default()
    }

    #[test]
    fn a_certificate_is_replaced_at_half_of_its_life_a_tenth_sooner_or_later() {
        for seed in 0..20 {
            let left = left(Duration::from_mins(1), None, seed).as_secs_f64();

            assert!((31.4..=38.6).contains(&left), "{left}");
        }
    }

    #[test]
    fn instants_are_spread_over_the_whole_window() {
        let all: Vec<f64> = (0..200)
            .map(|seed| left(Duration::from_hours(1), None, seed).as_secs_f64())
            .collect();

        let (least, most) = all.iter().fold((f64::MAX, 0.0_f64), |(least, most), left| {
            (least.min(*left), most.max(*left))
        });
        assert!(most - least > 300.0, "a window of 361 s: {least} to {most}");
    }

    #[test]
    fn an_availability_target_moves_a_renewal_earlier_only() {
        let day = Duration::from_hours(24);

        assert!(left(3 * day, Some(2 * day), 1) >= 2 * day);
        assert!(
            left(10 * day, Some(day), 1) > 4 * day,
            "half-life is earlier"
        );
        assert!(
            left(day, Some(day), 1) < 14 * day / 24,
            "a certificate that does not outlive it by 12 h"
        );
    }

    #[test]
    fn no_certificate_is_replaced_sooner_than_five_seconds_after_its_issue() {
        let svid = Ca::new(epoch()).svid(
            "spiffe://domain.test/web",
            epoch() - Duration::from_secs(10),
            epoch() + Duration::from_secs(6),
        );

        let renewal = draw_renewal(svid.leaf(), epoch(), None, &mut Random::from_seed(1));

        assert_eq!(renewal.at, epoch() + Duration::from_secs(5));
    }

    #[test]
    fn retries_hurry_as_the_end_comes_near_but_never_below_five_seconds() {
        let seconds = Duration::from_secs;
        let table = [
            (seconds(90), None, seconds(90)),
            (seconds(90), Some(seconds(3600)), seconds(90)),
            (seconds(90), Some(seconds(60)), seconds(30)),
            (seconds(90), Some(seconds(4)), seconds(5)),
            (seconds(2), Some(seconds(3600)), seconds(5)),
            (seconds(5), Some(seconds(0)), seconds(60)),
            (seconds(120), Some(seconds(0)), seconds(120)),
        ];

        for (step, left, expected) in table {
            assert_eq!(retry_wait(step, left), expected, "{step:?}, {left:?}");
        }
    }

    proptest! {
        #[test]
        fn a_certificate_is_replaced_before_its_end_and_not_before_its_issue(seed: u64, life in 20_u64..10_000_000) {
            let left = left(Duration::from_secs(life), None, seed);

            prop_assert!(left > Duration::ZERO && left < Duration::from_secs(life));
        }
    }
}
