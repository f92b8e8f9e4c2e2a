//! What the interop tests are made of: node certificates, the real `spire-server`, an agent (the one under test or the Go one), clients
//! that watch the Workload API through foreign SDKs, and stand-ins for what lies between agent and server.
//!
//! Every process belongs to a value that ends it, by its own pid, when dropped. Nothing waits a fixed time: [`wait_for`] polls.

pub mod agent;
pub mod agent_options;
pub mod api;
pub mod arrival;
pub mod bundle_host;
pub mod connect_proxy;
pub mod node;
pub mod process;
pub mod server;
pub mod server_options;
pub mod tools;
pub mod update;
pub mod watcher;
pub mod world;

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The trust domain of every test.
pub const TRUST_DOMAIN: &str = "domain.test";

/// Polls `look` until it gives something; panics with `what` after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Seconds, for limits.
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The wall clock, Unix seconds.
pub fn now() -> i64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock is set");
    i64::try_from(since_epoch.as_secs()).expect("this age has fewer seconds")
}

/// The uid of this process, which every `unix:uid` selector of the tests names.
pub fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The selector that matches every process of the test's own user.
pub fn own_selector() -> String {
    format!("unix:uid:{}", own_uid())
}
