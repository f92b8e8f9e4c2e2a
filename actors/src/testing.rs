//! What tests are made of: probes, a scripted server, a store in memory, certificate fixtures.

pub mod certificates;
pub mod probe;
pub mod scripted_server;

use std::time::{Duration, SystemTime};

/// The date at which tests begin: some day in 2027.
pub fn epoch() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
}
