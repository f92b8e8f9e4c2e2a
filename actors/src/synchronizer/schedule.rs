//! When the synchronizer wakes, and what for (design 4). Pure: named timers, each with a due time; the next wake is the minimum.
//!
//! | timer | due |
//! |---|---|
//! | entry sync | until the first success: retries from 5 s to 2 min. Then the rule: first tick `min(next(), 5 s)`; after a failure `next()`, never clamped; after a success the back-off starts again and the wait is `next()`, at most 5 s if the cache holds no SVID |
//! | renewal | the earliest instant drawn for an SVID when it was issued, or the retry of an entry that failed; after a call that failed as a whole nothing is signed before the gap of that call |
//! | bundle refresh | the server's hint or a tenth of the shortest authority lifetime, where that is sooner than the entry sync |
//!
//! Intervals are measured by the boot clock, certificates by the wall clock.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::backoff::Backoff;
use crate::bundle::Bundle;
use crate::clock::Now;
use crate::random::Random;

/// Longest wait of an agent that has no SVID, after a successful sync; longest wait for the first tick.
pub const EMPTY_WAIT: Duration = Duration::from_secs(5);
/// Retries of the first sync grow from this.
const FIRST_SYNC_RETRY: Duration = Duration::from_secs(5);
/// Retries of the first sync grow to this.
const FIRST_SYNC_RETRY_CAP: Duration = Duration::from_mins(2);
/// A wake-up takes along what is due within this share of its own interval.
const SLACK_SHARE: u32 = 10;
/// A wake-up takes along nothing that is due later than this.
const MAX_SLACK: Duration = Duration::from_secs(30);
/// Longest nap: clocks step and machines are suspended, so the schedule is looked at again.
pub const MAX_NAP: Duration = Duration::from_mins(1);
/// A bundle is never asked for more often than this on its own account.
const MIN_BUNDLE_REFRESH: Duration = Duration::from_mins(1);

/// Share of an authority's life after which the bundle is looked at again.
const REFRESH_SHARE: u32 = 10;

/// How often a bundle is to be looked at. Remembers how long each JWT key had to live when it was first seen: a key says when it ends, not when
/// it began.
#[derive(Debug, Default)]
pub struct BundleAdvice {
    jwt_lives: HashMap<String, Duration>,
}

/// The schedule. Nothing is due before [`Schedule::attested`].
#[derive(Debug)]
pub struct Schedule {
    sync_interval: Duration,
    backoff: Backoff,
    entry_sync: EntrySync,
    renewal: Option<SystemTime>,
    renewal_retry: Option<Duration>,
    /// Signing as a whole fails: nothing is signed before this.
    signing_gate: Option<Duration>,
    bundle_interval: Option<Duration>,
    bundle_due: Option<Duration>,
}

/// How the entry sync stands.
#[derive(Debug)]
enum EntrySync {
    /// Not attested yet: nothing can be asked.
    Off,
    /// No sync has succeeded in this process; retried with a back-off of its own.
    First { retry: Backoff, due: Duration },
    /// The last sync succeeded; `wait` is how long the gap was meant to be.
    Ticking { due: Duration, wait: Duration },
    /// The last sync failed: the gap is never shortened.
    Failing { due: Duration },
}

/// What is to be done on one wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Ask for entries, then bundles.
    pub entries: bool,
    /// Sign what is due.
    pub renewals: bool,
    /// Ask for bundles alone.
    pub bundles: bool,
}

impl Work {
    /// Whether there is anything to do.
    pub fn is_some(self) -> bool {
        self.entries || self.renewals || self.bundles
    }
}

impl Schedule {
    /// A schedule that waits for the attestation.
    pub fn new(sync_interval: Duration) -> Self {
        Self {
            sync_interval,
            backoff: Backoff::for_sync(sync_interval),
            entry_sync: EntrySync::Off,
            renewal: None,
            renewal_retry: None,
            signing_gate: None,
            bundle_interval: None,
            bundle_due: None,
        }
    }

    /// The agent has credentials: sync at once.
    pub fn attested(&mut self, now: Now) {
        self.entry_sync = match std::mem::replace(&mut self.entry_sync, EntrySync::Off) {
            EntrySync::Off | EntrySync::First { .. } => EntrySync::First {
                retry: Backoff::new(FIRST_SYNC_RETRY, FIRST_SYNC_RETRY_CAP),
                due: now.boot,
            },
            EntrySync::Ticking { wait, .. } => EntrySync::Ticking {
                due: now.boot,
                wait,
            },
            EntrySync::Failing { .. } => EntrySync::Failing { due: now.boot },
        };
    }

    /// A sync succeeded and the cache, asked after it, holds `svid_count` SVIDs.
    pub fn sync_succeeded(&mut self, now: Now, svid_count: usize, random: &mut Random) {
        let is_first = matches!(self.entry_sync, EntrySync::Off | EntrySync::First { .. });
        if matches!(self.entry_sync, EntrySync::Failing { .. })
            && self.signing_gate.take().is_some()
        {
            // The server is back: what could not be signed meanwhile is not to wait for its gap.
            self.renewal_retry = Some(now.boot);
        }
        self.backoff.reset();
        let next = self.backoff.next(random);
        let wait = if is_first || svid_count == 0 {
            next.min(EMPTY_WAIT)
        } else {
            next
        };
        self.entry_sync = EntrySync::Ticking {
            due: now.boot + wait,
            wait,
        };
        self.bundles_refreshed(now);
    }

    /// A sync failed.
    pub fn sync_failed(&mut self, now: Now, random: &mut Random) {
        match &mut self.entry_sync {
            EntrySync::Off => {}
            EntrySync::First { retry, due } => *due = now.boot + retry.next(random),
            EntrySync::Ticking { .. } | EntrySync::Failing { .. } => {
                self.entry_sync = EntrySync::Failing {
                    due: now.boot + self.backoff.next(random),
                };
            }
        }
    }

    /// The next SVID is to be replaced at `at`.
    pub fn renew_at(&mut self, at: Option<SystemTime>) {
        self.renewal = at;
    }

    /// Entries that could not be signed are tried again after `wait`; `None` = there are none.
    pub fn retry_renewal(&mut self, now: Now, wait: Option<Duration>) {
        self.renewal_retry = wait.map(|wait| now.boot + wait);
    }

    /// Signing as a whole failed and rests for `wait`; `None` = it works.
    pub fn rest_signing(&mut self, now: Now, wait: Option<Duration>) {
        self.signing_gate = wait.map(|wait| now.boot + wait);
    }

    /// Something is to be signed now: a caller waits for it. Before the first success nothing can be signed, and that sync signs anyway.
    pub fn renew_now(&mut self, now: Now) {
        if matches!(
            self.entry_sync,
            EntrySync::Ticking { .. } | EntrySync::Failing { .. }
        ) {
            self.renewal_retry = Some(now.boot);
        }
    }

    /// How often the bundle is to be looked at on its own account: no timer where the entry sync is as frequent.
    pub fn refresh_bundles_every(&mut self, advice: Option<Duration>, now: Now) {
        self.bundle_interval = advice
            .map(|advice| advice.max(MIN_BUNDLE_REFRESH))
            .filter(|advice| *advice < self.sync_interval);
        self.bundles_refreshed(now);
    }

    /// Bundles came, or were asked for in vain: the next look is an interval away.
    pub fn bundles_refreshed(&mut self, now: Now) {
        self.bundle_due = self.bundle_interval.map(|interval| now.boot + interval);
    }

    /// How long to sleep.
    pub fn nap(&self, now: Now) -> Duration {
        let until = |due: Duration| due.saturating_sub(now.boot);
        let others = [self.entry_sync.due(), self.bundle_due]
            .into_iter()
            .flatten()
            .map(until);
        let soonest = others.chain(self.until_signing(now)).min();
        soonest.unwrap_or(MAX_NAP).min(MAX_NAP)
    }

    /// How long until something is to be signed on its own account.
    fn until_signing(&self, now: Now) -> Option<Duration> {
        let gate = self.signing_gate.map(|gate| gate.saturating_sub(now.boot));
        let retry = self.renewal_retry.map(|due| due.saturating_sub(now.boot));
        let renewal = self.renewal.map(|at| now.until(at));
        // What failed as a whole is still to be done, though nothing else names it.
        let wanted = [retry, renewal, gate].into_iter().flatten().min();
        wanted.map(|wanted| wanted.max(gate.unwrap_or_default()))
    }

    /// What is to be done now: nothing before something is due, then also what is due soon.
    pub fn work(&self, now: Now) -> Work {
        if matches!(self.entry_sync, EntrySync::Off) || !self.nap(now).is_zero() {
            return Work::default();
        }
        let reached =
            |due: Option<Duration>, slack: Duration| due.is_some_and(|due| due <= now.boot + slack);
        let entries = reached(self.entry_sync.due(), self.entry_sync.slack());
        let bundles = !entries
            && reached(
                self.bundle_due,
                slack(self.bundle_interval.unwrap_or_default()),
            );
        let is_resting = self.signing_gate.is_some_and(|gate| gate > now.boot);
        let is_due = self.until_signing(now).is_some_and(|wait| wait.is_zero());
        let renewals = !is_resting && (entries || is_due);
        Work {
            entries,
            renewals,
            bundles,
        }
    }
}

impl BundleAdvice {
    /// The server's hint, or a tenth of the shortest authority's life; none if the bundle says nothing.
    pub fn of(&mut self, bundle: &Bundle, now: SystemTime) -> Option<Duration> {
        let mut lives = HashMap::new();
        for authority in &bundle.jwt_authorities {
            if let Some(end) = authority.expires_at {
                let seen = self.jwt_lives.get(&authority.key_id).copied();
                let life = seen.unwrap_or_else(|| end.duration_since(now).unwrap_or_default());
                lives.insert(authority.key_id.clone(), life);
            }
        }
        self.jwt_lives = lives;
        if !bundle.refresh_hint.is_zero() {
            return Some(bundle.refresh_hint);
        }
        let x509 = bundle
            .x509_authorities()
            .iter()
            .map(|authority| &authority.certificate);
        let x509 = x509.filter_map(|certificate| {
            certificate
                .not_after()
                .duration_since(certificate.not_before())
                .ok()
        });
        let shortest = x509.chain(self.jwt_lives.values().copied()).min();
        shortest.map(|life| life / REFRESH_SHARE)
    }
}

impl EntrySync {
    fn due(&self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::First { due, .. } | Self::Ticking { due, .. } | Self::Failing { due } => {
                Some(*due)
            }
        }
    }

    fn slack(&self) -> Duration {
        match self {
            Self::Ticking { wait, .. } => slack(*wait),
            Self::Off | Self::First { .. } | Self::Failing { .. } => Duration::ZERO,
        }
    }
}

/// How much sooner than its due time a timer of this interval may be taken along by another's wake-up.
pub fn slack(interval: Duration) -> Duration {
    (interval / SLACK_SHARE).min(MAX_SLACK)
}

#[cfg(test)]
mod tests;
