//! Which entries are signed now, and when those that failed are tried again. Pure.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::backoff::Backoff;
use crate::cache::Due;
use crate::clock::Now;
use crate::entry::EntryId;
use crate::random::Random;
use crate::rotation::{RETRY_CAP, RETRY_INITIAL, retry_wait};

/// Entries that could not be signed, each with a gap of its own: one bad entry costs neither its neighbours nor the server.
#[derive(Debug, Clone, Default)]
pub struct Failures {
    by_entry: HashMap<EntryId, Failure>,
}

#[derive(Debug, Clone)]
struct Failure {
    backoff: Backoff,
    /// Boot time of the next try.
    next_try: Duration,
    /// Asked for together with others, it would spoil their call.
    is_apart: bool,
}

impl Failures {
    /// What to ask for in one call, `limit` entries at most: none whose gap is not over. Those set apart come alone, after all others.
    pub fn batch(&self, due: Vec<Due>, limit: usize, now: Now) -> Vec<Due> {
        let (mut apart, mut together): (Vec<Due>, Vec<Due>) = due
            .into_iter()
            .filter(|due| {
                self.by_entry
                    .get(&due.entry.id)
                    .is_none_or(|failure| failure.next_try <= now.boot)
            })
            .partition(|due| self.is_apart(&due.entry.id));
        if together.is_empty() {
            apart.truncate(1);
            return apart;
        }
        together.truncate(limit);
        together
    }

    /// Whether the entry is to be asked for alone.
    pub fn is_apart(&self, id: &EntryId) -> bool {
        self.by_entry
            .get(id)
            .is_some_and(|failure| failure.is_apart)
    }

    /// An entry that has failed is asked for alone from now on.
    pub fn set_apart(&mut self, id: &EntryId) {
        if let Some(failure) = self.by_entry.get_mut(id) {
            failure.is_apart = true;
        }
    }

    /// An entry failed; `expires_at` is the end of the SVID that it has or had.
    pub fn failed(
        &mut self,
        id: &EntryId,
        expires_at: Option<SystemTime>,
        now: Now,
        random: &mut Random,
    ) {
        let failure = self.by_entry.entry(id.clone()).or_insert_with(|| Failure {
            backoff: Backoff::new(RETRY_INITIAL, RETRY_CAP),
            next_try: now.boot,
            is_apart: false,
        });
        let step = failure.backoff.next(random);
        failure.next_try = now.boot + retry_wait(step, expires_at.map(|end| now.until(end)));
    }

    /// An entry was signed.
    pub fn succeeded(&mut self, id: &EntryId) {
        self.by_entry.remove(id);
    }

    /// Forgets entries that are not due any more: they were removed, or signed.
    pub fn retain_due(&mut self, due: &[Due]) {
        if !self.by_entry.is_empty() {
            let ids: std::collections::HashSet<&EntryId> =
                due.iter().map(|due| &due.entry.id).collect();
            self.by_entry.retain(|id, _| ids.contains(id));
        }
    }

    /// How long until the next try; `None` = nothing has failed.
    pub fn next_try(&self, now: Now) -> Option<Duration> {
        self.by_entry
            .values()
            .map(|failure| failure.next_try.saturating_sub(now.boot))
            .min()
    }
}
