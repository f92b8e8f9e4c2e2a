//! The back-off of SPIRE: grows by half, jitter of a tenth, a cap (spec node-side 4.1). Pure.

use std::time::Duration;

use crate::random::Random;

/// How much a step grows.
const FACTOR: f64 = 1.5;
/// Share of a step by which it may be shorter or longer.
const JITTER: f64 = 0.1;

/// A series of waits. The first is always the initial one, even where the cap is lower.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    cap: Duration,
    current: Duration,
}

impl Backoff {
    /// Waits from `initial`, growing to `cap`.
    pub fn new(initial: Duration, cap: Duration) -> Self {
        Self {
            initial,
            cap,
            current: initial,
        }
    }

    /// The back-off of the entry sync: from the interval up to the smaller of 8 minutes and 48 intervals (node-side 4.1).
    pub fn for_sync(interval: Duration) -> Self {
        Self::new(
            interval,
            Duration::from_mins(8).min(interval.saturating_mul(48)),
        )
    }

    /// The next wait, within a tenth of the current step; the step grows.
    pub fn next(&mut self, random: &mut Random) -> Duration {
        let wait = random.around(self.current, JITTER);
        self.current = if self.current >= self.cap.div_f64(FACTOR) {
            self.cap
        } else {
            self.current.mul_f64(FACTOR)
        };
        wait
    }

    /// Starts again from the initial wait.
    pub fn reset(&mut self) {
        self.current = self.initial;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The undisturbed step that a wait was drawn from, in whole milliseconds.
    fn steps(mut backoff: Backoff, count: usize) -> Vec<u128> {
        let mut random = Random::from_seed(1);
        (0..count)
            .map(|_| {
                let step = backoff.current.as_millis();
                backoff.next(&mut random);
                step
            })
            .collect()
    }

    #[test]
    fn steps_are_those_of_the_reference() {
        let seconds = Duration::from_secs;

        assert_eq!(
            steps(Backoff::for_sync(seconds(8)), 6),
            [8_000, 12_000, 18_000, 27_000, 40_500, 60_750]
        );
        assert_eq!(
            steps(Backoff::for_sync(seconds(5)), 12)[9..],
            [192_216, 240_000, 240_000]
        );
        assert_eq!(
            steps(Backoff::for_sync(seconds(60)), 8)[5..],
            [455_625, 480_000, 480_000]
        );
        assert_eq!(
            steps(Backoff::for_sync(seconds(86_400)), 3),
            [86_400_000, 480_000, 480_000]
        );
        assert_eq!(
            steps(Backoff::new(seconds(5), seconds(120)), 10)[8..],
            [120_000, 120_000]
        );
    }

    #[test]
    fn a_reset_brings_the_first_step_back() {
        let mut random = Random::from_seed(1);
        let mut backoff = Backoff::for_sync(Duration::from_secs(8));
        for _ in 0..5 {
            backoff.next(&mut random);
        }

        backoff.reset();

        assert_eq!(steps(backoff, 2), [8_000, 12_000]);
    }

    proptest! {
        #[test]
        fn every_wait_lies_within_a_tenth_of_its_step(seed: u64, initial_ms in 1_u64..10_000_000, cap_ms in 1_u64..10_000_000) {
            let mut random = Random::from_seed(seed);
            let mut backoff = Backoff::new(Duration::from_millis(initial_ms), Duration::from_millis(cap_ms));
            for turn in 0..40 {
                let step = backoff.current;
                let wait = backoff.next(&mut random);
                prop_assert!(wait >= step.mul_f64(0.899) && wait <= step.mul_f64(1.101), "{wait:?} of {step:?}");
                prop_assert!(turn == 0 || step <= Duration::from_millis(cap_ms.max(initial_ms)));
            }
            prop_assert_eq!(backoff.current, Duration::from_millis(cap_ms));
        }
    }
}
