//! Which refusals are worth a line in the log: the first of a user and reason in a minute (design D20). Pure.

use std::collections::HashMap;
use std::time::Duration;

/// Refusals of the same user for the same reason are counted this long.
const WINDOW: Duration = Duration::from_mins(1);
/// Users and reasons remembered at once.
const REMEMBERED_MAX: usize = 512;

/// Why somebody was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Reason {
    /// No entry matches.
    NoIdentity,
    /// The workload attestors failed.
    AttestationFailed,
    /// Two entries carry the same hint.
    RepeatedHint,
    /// Too many connections are open.
    TooManyConnections,
}

/// Recent refusals. Bounded.
#[derive(Debug, Default)]
pub(super) struct Denials(HashMap<(u32, Reason), Tally>);

#[derive(Debug, Clone, Copy)]
struct Tally {
    since: Duration,
    silent: u64,
}

/// A line is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Report {
    /// Refusals of this user and reason since the last line.
    pub(super) silent: u64,
}

impl Denials {
    /// Counts one refusal at `now` (boot time): a report if a line is due.
    pub(super) fn note(&mut self, uid: u32, reason: Reason, now: Duration) -> Option<Report> {
        let key = (uid, reason);
        if let Some(tally) = self.0.get_mut(&key) {
            if now.saturating_sub(tally.since) < WINDOW {
                tally.silent += 1;
                return None;
            }
            let silent = tally.silent;
            *tally = Tally {
                since: now,
                silent: 0,
            };
            return Some(Report { silent });
        }
        self.make_room(now);
        self.0.insert(
            key,
            Tally {
                since: now,
                silent: 0,
            },
        );
        Some(Report { silent: 0 })
    }

    fn make_room(&mut self, now: Duration) {
        if self.0.len() < REMEMBERED_MAX {
            return;
        }
        self.0
            .retain(|_, tally| now.saturating_sub(tally.since) < WINDOW);
        while self.0.len() >= REMEMBERED_MAX {
            let oldest = self
                .0
                .iter()
                .min_by_key(|(_, tally)| tally.since)
                .map(|(key, _)| *key);
            let Some(key) = oldest else { return };
            self.0.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    #[test]
    fn d20_the_first_denial_in_a_minute_is_written_and_later_ones_are_counted() {
        let mut denials = Denials::default();

        let written: Vec<_> = (0..=60)
            .map(|second| denials.note(1, Reason::NoIdentity, START + Duration::from_secs(second)))
            .collect();

        assert_eq!(written[0], Some(Report { silent: 0 }));
        assert!(written[1..60].iter().all(Option::is_none));
        assert_eq!(written[60], Some(Report { silent: 59 }));
    }

    #[test]
    fn users_and_reasons_are_told_apart() {
        let mut denials = Denials::default();

        for (uid, reason) in [
            (1, Reason::NoIdentity),
            (2, Reason::NoIdentity),
            (1, Reason::AttestationFailed),
        ] {
            assert!(denials.note(uid, reason, START).is_some());
            assert!(denials.note(uid, reason, START).is_none());
        }
    }

    #[test]
    fn a_flood_of_users_does_not_grow_the_table() {
        let mut denials = Denials::default();

        for uid in 0..10_000 {
            assert!(
                denials
                    .note(
                        uid,
                        Reason::NoIdentity,
                        START + Duration::from_millis(uid.into())
                    )
                    .is_some()
            );
        }

        assert!(denials.0.len() <= REMEMBERED_MAX);
        assert!(
            denials
                .note(9_999, Reason::NoIdentity, START + Duration::from_secs(10))
                .is_none()
        );
    }
}
