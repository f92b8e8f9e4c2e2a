//! The only reader of the wall clock in this crate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A span or an instant of Unix time, in seconds. Negative spans make things that have already ended.
pub type Seconds = i64;

/// The current wall-clock time.
#[expect(
    clippy::disallowed_methods,
    reason = "the server stands for another machine: its clock is the real one plus a settable offset"
)]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// The current Unix time, `offset` seconds ahead of the real one.
pub(crate) fn unix_now(offset: Seconds) -> Seconds {
    let since_epoch = now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Seconds::try_from(since_epoch.as_secs()).unwrap_or(Seconds::MAX) + offset
}
