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
    /// Too many calls are open.
    TooManyCalls,
    /// The process at the other end cannot be told.
    FailedAccept,
}

/// Recent refusals. Bounded.
#[derive(Debug, Default)]
pub(super) struct Denials {
    tallies: HashMap<(u32, Reason), Tally>,
    /// All those for whom there is no room, together.
    others: Option<Tally>,
}

#[derive(Debug, Clone, Copy)]
struct Tally {
    since: Duration,
    silent: u64,
}

/// A line is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Report {
    /// Refusals of this user and reason since the last line; of all users without a tally of their own, for one of those.
    pub(super) silent: u64,
}

impl Denials {
    /// Counts one refusal at `now` (boot time): a report if a line is due.
    pub(super) fn note(&mut self, uid: u32, reason: Reason, now: Duration) -> Option<Report> {
        let key = (uid, reason);
        if let Some(tally) = self.tallies.get_mut(&key) {
            return tally.count(now);
        }
        if self.tallies.len() >= REMEMBERED_MAX {
            self.tallies.retain(|_, tally| tally.is_open(now));
        }
        if self.tallies.len() < REMEMBERED_MAX {
            self.tallies.insert(key, Tally::since(now));
            return Some(Report { silent: 0 });
        }
        if let Some(others) = &mut self.others {
            return others.count(now);
        }
        self.others = Some(Tally::since(now));
        Some(Report { silent: 0 })
    }
}

impl Tally {
    fn since(now: Duration) -> Self {
        Self {
            since: now,
            silent: 0,
        }
    }

    fn is_open(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) < WINDOW
    }

    /// Counts one more; a report begins a new window.
    fn count(&mut self, now: Duration) -> Option<Report> {
        if self.is_open(now) {
            self.silent += 1;
            return None;
        }
        let silent = self.silent;
        *self = Self::since(now);
        Some(Report { silent })
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
    fn a_flood_of_users_grows_neither_the_table_nor_the_log() {
        let mut denials = Denials::default();
        let mut note = |uid, second| {
            let now = START + Duration::from_secs(second);
            denials.note(uid, Reason::NoIdentity, now)
        };

        let first: Vec<_> = (0..10_000).filter_map(|uid| note(uid, 0)).collect();
        let later = note(20_000, 59);
        let next_minute: Vec<_> = (10_000..20_000).filter_map(|uid| note(uid, 60)).collect();

        assert_eq!(first.len(), REMEMBERED_MAX + 1);
        assert_eq!(later, None);
        let others = 10_000 - u64::try_from(REMEMBERED_MAX).unwrap();
        assert_eq!(next_minute.len(), REMEMBERED_MAX + 1);
        assert_eq!(next_minute.last(), Some(&Report { silent: others }));
        assert!(denials.tallies.len() <= REMEMBERED_MAX);
    }
}
