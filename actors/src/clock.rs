//! The only reader of clocks. There are two kinds of time and they answer different questions.
//!
//! *What date is it?* Certificates and tokens are valid by the wall clock, which may step in both directions.
//! *How long has it been?* Intervals and back-offs are measured by the boot clock, which never steps and goes on while the
//! machine is suspended. A schedule takes both as one [`Now`]: what hangs on a date is compared anew at each wake-up, so a step of the wall
//! clock moves it and nothing else.
//!
//! `main` makes [`Clock::system`] and hands it down. A test makes [`Clock::virtual_from`] under `tokio::time::pause()`
//! and then simply sleeps: timers, intervals and certificate lifetimes move together.

use std::time::{Duration, SystemTime};

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The date, by which certificates are valid.
    pub wall: SystemTime,
    /// Time since the machine started, suspended time included.
    pub boot: Duration,
}

/// A source of [`Now`]. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Virtual {
        epoch: SystemTime,
        started: tokio::time::Instant,
    },
}

impl Clock {
    /// The clocks of the machine.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that shows `epoch` now and then follows tokio's time, paused or not.
    pub fn virtual_from(epoch: SystemTime) -> Self {
        Self(Source::Virtual {
            epoch,
            started: tokio::time::Instant::now(),
        })
    }

    /// Reads both clocks.
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::System => Now {
                wall: wall_clock(),
                boot: boot_clock(),
            },
            Source::Virtual { epoch, started } => {
                let elapsed = started.elapsed();
                Now {
                    wall: *epoch + elapsed,
                    boot: elapsed,
                }
            }
        }
    }

    /// Reads the wall clock.
    pub fn wall(&self) -> SystemTime {
        self.now().wall
    }
}

impl Now {
    /// How long from now until `date`; nothing when it has passed.
    pub fn until(&self, date: SystemTime) -> Duration {
        date.duration_since(self.wall).unwrap_or_default()
    }
}

/// Seconds since the Unix epoch, as the server counts them; dates before it are negative.
pub fn unix_seconds(date: SystemTime) -> i64 {
    match date.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
    }
}

/// The date of a number of seconds since the Unix epoch; dates that no clock can show are cut to the epoch.
pub fn from_unix_seconds(seconds: i64) -> SystemTime {
    let offset = Duration::from_secs(seconds.unsigned_abs());
    let date = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(offset)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(offset)
    };
    date.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the wall clock"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

fn boot_clock() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_hour_of_virtual_time_moves_both_clocks() {
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);

        tokio::time::sleep(Duration::from_hours(1)).await;

        let now = clock.now();
        assert_eq!(now.boot.as_secs(), 3600);
        assert_eq!(unix_seconds(now.wall), 3600);
    }

    #[test]
    fn the_system_clocks_move() {
        let clock = Clock::system();

        let first = clock.now();
        while clock.now().boot == first.boot {}

        assert!(clock.now().boot > first.boot);
        assert!(unix_seconds(first.wall) > 1_700_000_000);
    }

    #[test]
    fn seconds_and_dates_round_trip() {
        for seconds in [0, 1, -1, 1_790_000_000, -62_135_596_800] {
            assert_eq!(unix_seconds(from_unix_seconds(seconds)), seconds);
        }
    }
}
