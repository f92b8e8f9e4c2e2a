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
pub fn draw_renewal(certificate: &Certificate, issued: SystemTime, availability_target: Option<Duration>, random: &mut Random) -> Renewal {
    let end = certificate.not_after();
    let lifetime = end.duration_since(certificate.not_before()).unwrap_or_default();
    let left_at_half_life = random.around(lifetime / 2, JITTER);
    let left_for_target = availability_target
        .filter(|target| lifetime.saturating_sub(*target) > AVAILABILITY_GRACE)
        .map_or(Duration::ZERO, |target| target + random.up_to(AVAILABILITY_JITTER));
    let at = end.checked_sub(left_at_half_life.max(left_for_target)).unwrap_or(issued);
    let at = at.max(issued + SOONEST);
    Renewal { at, slack: slack(at.duration_since(issued).unwrap_or_default()) }
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
