//! Many agents behind one address: the server admits one attestation a second and lets the others wait (design 4, "Arrival"). Pure.

use std::time::{Duration, SystemTime};

use crate::random::Random;
use crate::server::ServerError;

/// Gaps start here and are never shorter.
const SHORTEST_GAP: Duration = Duration::from_secs(5);
/// Gaps grow to this.
const LONGEST_GAP: Duration = Duration::from_mins(10);
/// A queue takes at most this part of an SVID's life away from its use.
const QUEUE_SHARE: u32 = 8;

/// What is known of the server's queue.
#[derive(Debug)]
pub struct Arrival {
    gap: Duration,
    queue: Duration,
    /// Boot time of the first try in a row that was put off.
    crowded_since: Option<Duration>,
}

impl Default for Arrival {
    fn default() -> Self {
        Self {
            gap: SHORTEST_GAP,
            queue: Duration::ZERO,
            crowded_since: None,
        }
    }
}

impl Arrival {
    /// Whether an attestation failed only because too many others want in.
    pub fn is_crowded(error: &ServerError) -> bool {
        if let ServerError::TimedOut { call, limit } = error {
            // The deadline that goes with the call is longer than any wait but for a turn.
            return *call == "AttestAgent" && *limit >= LONGEST_GAP;
        }
        matches!(error, ServerError::Status { call: "AttestAgent", code, .. } if *code == tonic::Code::ResourceExhausted)
    }

    /// How long to wait before the next try: anything up to a bound that doubles, so that agents that came together part.
    pub fn wait(&mut self, boot: Duration, random: &mut Random) -> Duration {
        self.crowded_since.get_or_insert(boot);
        self.gap = (self.gap * 2).min(LONGEST_GAP);
        SHORTEST_GAP + random.up_to(self.gap.saturating_sub(SHORTEST_GAP))
    }

    /// An attestation was admitted at `boot`, `queued` after it was asked for; tries that were put off before count too.
    pub fn admitted(&mut self, queued: Duration, boot: Duration) {
        let asked = boot.saturating_sub(queued);
        let first_asked = self.crowded_since.take().unwrap_or(asked).min(asked);
        self.gap = SHORTEST_GAP;
        self.queue = boot.saturating_sub(first_asked);
    }

    /// A rotation drawn for `at`, moved forward by the queue last seen: it is to be over when it was meant to begin.
    pub fn ahead_of_queue(&self, at: SystemTime, lifetime: Duration) -> SystemTime {
        let queue = self.queue.min(lifetime / QUEUE_SHARE);
        at.checked_sub(queue).unwrap_or(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::epoch;

    fn status(call: &'static str, code: tonic::Code) -> ServerError {
        ServerError::Status {
            call,
            code,
            message: "rate limit".into(),
            reason: None,
        }
    }

    #[test]
    fn only_a_crowded_server_means_later() {
        let late = |call, limit| ServerError::TimedOut { call, limit };
        let table = [
            (status("AttestAgent", tonic::Code::ResourceExhausted), true),
            (late("AttestAgent", Duration::from_mins(10)), true),
            (late("AttestAgent", Duration::from_secs(30)), false),
            (status("RenewAgent", tonic::Code::ResourceExhausted), false),
            (status("AttestAgent", tonic::Code::Unavailable), false),
        ];
        for (error, expected) in table {
            assert_eq!(Arrival::is_crowded(&error), expected, "{error}");
        }
    }

    #[test]
    fn agents_that_are_turned_away_together_come_back_apart() {
        let mut random = Random::from_seed(5);
        let mut waits = Vec::new();
        for _ in 0..1000 {
            let mut arrival = Arrival::default();
            for _ in 0..9 {
                arrival.wait(Duration::ZERO, &mut random);
            }
            waits.push(arrival.wait(Duration::ZERO, &mut random));
        }

        let (shortest, longest) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!(*shortest >= SHORTEST_GAP && *shortest < Duration::from_secs(15));
        assert!(*longest <= LONGEST_GAP && *longest > Duration::from_secs(580));
        let mut first: Vec<u128> = (0..100)
            .map(|_| {
                Arrival::default()
                    .wait(Duration::ZERO, &mut random)
                    .as_millis()
            })
            .collect();
        first.sort_unstable();
        assert!(first[0] >= 5000 && first[99] <= 10_000, "{first:?}");
        first.dedup();
        assert!(
            first.len() > 90,
            "no two in a hundred need come together: {first:?}"
        );
    }

    #[test]
    fn a_rotation_starts_earlier_by_the_queue_last_seen() {
        let (at, hour) = (epoch() + Duration::from_mins(30), Duration::from_hours(1));
        let mut arrival = Arrival::default();
        assert_eq!(arrival.ahead_of_queue(at, hour), at);

        arrival.admitted(Duration::from_mins(3), Duration::from_hours(1));
        assert_eq!(
            arrival.ahead_of_queue(at, hour),
            epoch() + Duration::from_mins(27)
        );
        arrival.wait(Duration::from_mins(90), &mut Random::from_seed(1));
        arrival.admitted(Duration::from_secs(1), Duration::from_mins(95));
        assert_eq!(
            arrival.ahead_of_queue(at, hour),
            epoch() + Duration::from_mins(25),
            "what was put off counts"
        );
        arrival.admitted(Duration::from_hours(5), Duration::from_hours(9));

        let earliest = arrival.ahead_of_queue(at, hour);
        assert_eq!(
            earliest,
            epoch() + Duration::from_secs(30 * 60 - 450),
            "an eighth of its life at most"
        );
    }
}
