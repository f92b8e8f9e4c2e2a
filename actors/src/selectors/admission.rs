//! Who may be attested now, who waits and who is turned away. No user gets more than its share while others wait. Pure.

use std::collections::{HashMap, VecDeque};

/// How much goes on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Attestations under way.
    pub running: usize,
    /// Of these, of one user.
    pub running_per_user: usize,
    /// Attestations that wait for their turn.
    pub waiting: usize,
    /// Of these, of one user.
    pub waiting_per_user: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            running: 64,
            running_per_user: 32,
            waiting: 1024,
            waiting_per_user: 512,
        }
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// It starts now.
    Now,
    /// It starts when [`Admission::finished`] names it.
    Later,
    /// Too much waits already.
    Refused,
}

/// Attestations under way and waiting, by user.
#[derive(Debug)]
pub struct Admission<T> {
    limits: Limits,
    running: HashMap<u32, usize>,
    waiting: VecDeque<(u32, T)>,
}

impl<T> Admission<T> {
    /// Nothing is under way.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            running: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Asks for a turn. `make` gives what is kept of a request that has to wait.
    pub fn ask(&mut self, uid: u32, make: impl FnOnce() -> T) -> Admitted {
        if self.may_run(uid) {
            self.start(uid);
            return Admitted::Now;
        }
        let of_user = self
            .waiting
            .iter()
            .filter(|(waiting, _)| *waiting == uid)
            .count();
        if self.waiting.len() >= self.limits.waiting || of_user >= self.limits.waiting_per_user {
            return Admitted::Refused;
        }
        self.waiting.push_back((uid, make()));
        Admitted::Later
    }

    /// One of a user's attestations is over. Returns the one whose turn it is.
    pub fn finished(&mut self, uid: u32) -> Option<T> {
        if let Some(count) = self.running.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.running.remove(&uid);
            }
        }
        let next = self
            .waiting
            .iter()
            .position(|(uid, _)| self.may_run(*uid))?;
        let (uid, request) = self.waiting.remove(next)?;
        self.start(uid);
        Some(request)
    }

    fn may_run(&self, uid: u32) -> bool {
        let all: usize = self.running.values().sum();
        all < self.limits.running
            && self.running.get(&uid).copied().unwrap_or_default() < self.limits.running_per_user
    }

    fn start(&mut self, uid: u32) {
        *self.running.entry(uid).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Admitted::{Later, Now, Refused};
    use super::*;

    const LIMITS: Limits = Limits {
        running: 3,
        running_per_user: 2,
        waiting: 4,
        waiting_per_user: 2,
    };

    #[test]
    fn a_user_over_its_share_waits_while_others_start() {
        let mut admission = Admission::new(LIMITS);

        let answers: Vec<_> = [
            (1, 'a'),
            (1, 'b'),
            (1, 'c'),
            (2, 'd'),
            (2, 'e'),
            (1, 'f'),
            (1, 'g'),
        ]
        .map(|(uid, request)| admission.ask(uid, || request))
        .into();

        assert_eq!(answers, [Now, Now, Later, Now, Later, Later, Refused]);
        assert_eq!(admission.finished(2), Some('e'));
        assert_eq!(admission.finished(1), Some('c'));
        assert_eq!(admission.finished(2), None);
        assert_eq!(admission.finished(1), Some('f'));
    }

    #[test]
    fn the_queue_is_bounded_for_all_together() {
        let mut admission = Admission::new(LIMITS);

        let answers: Vec<_> = (0..8).map(|uid| admission.ask(uid, || uid)).collect();

        assert_eq!(answers.iter().filter(|answer| **answer == Now).count(), 3);
        assert_eq!(answers.iter().filter(|answer| **answer == Later).count(), 4);
        assert_eq!(answers.last(), Some(&Refused));
    }

    proptest! {
        #[test]
        fn everyone_let_in_gets_a_turn_and_no_bound_is_passed(steps in proptest::collection::vec((any::<bool>(), 0..4u32), 0..200)) {
            let mut admission = Admission::new(LIMITS);
            let mut running = Vec::new();
            let mut owed = 0;
            for (asks, uid) in steps {
                if asks {
                    match admission.ask(uid, || uid) {
                        Now => running.push(uid),
                        Later => owed += 1,
                        Refused => {}
                    }
                } else if let Some(done) = running.pop() && let Some(next) = admission.finished(done) {
                    running.push(next);
                    owed -= 1;
                }

                prop_assert!(running.len() <= LIMITS.running && owed <= LIMITS.waiting);
                prop_assert!(running.iter().filter(|other| **other == uid).count() <= LIMITS.running_per_user);
            }
            while let Some(done) = running.pop() {
                if let Some(next) = admission.finished(done) {
                    running.push(next);
                    owed -= 1;
                }
            }
            prop_assert_eq!(owed, 0);
        }
    }
}
