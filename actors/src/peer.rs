//! The process at the other end of a local connection, as the kernel names it.

use std::os::fd::OwnedFd;

/// A caller: taken once, when its connection is accepted (design D10). Shared as `Arc<Peer>`.
#[derive(Debug)]
pub struct Peer {
    /// Process ID in the agent's PID namespace; never 0.
    pub pid: i32,
    /// Effective user ID at the time of `connect`.
    pub uid: u32,
    /// Effective group ID at the time of `connect`.
    pub gid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat` field 22).
    pub start_time: u64,
    /// Refers to that very process, whatever becomes of its number; kernels before 5.3 have none.
    pub pidfd: Option<OwnedFd>,
}
