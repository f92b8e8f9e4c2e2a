//! How many local connections are held at once. [`Caps`] is pure.

use rustix::process::{Resource, getrlimit, setrlimit};

/// The most connections in all, where descriptors allow.
const CONNECTIONS_MAX: usize = 10_000;
/// What one user gets in any case, where descriptors allow.
const PER_UID_MIN: usize = 1_024;
/// A connection's socket and its process's pidfd.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Kept back for the server connection, state files, attestors and logs.
const DESCRIPTORS_RESERVED: u64 = 64;

/// Bounds on connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Caps {
    /// In all.
    pub(super) total: usize,
    /// Of one user.
    pub(super) per_uid: usize,
}

impl Caps {
    /// What fits into a limit of open descriptors. One user never gets everything.
    pub(super) fn for_descriptors(limit: u64) -> Self {
        let reserved = DESCRIPTORS_RESERVED.min(limit / 2);
        let fitting = (limit - reserved) / DESCRIPTORS_PER_CONNECTION;
        let total = usize::try_from(fitting)
            .unwrap_or(CONNECTIONS_MAX)
            .clamp(1, CONNECTIONS_MAX);
        let per_uid = (total / 2).max(PER_UID_MIN).min(total - total / 4);
        Self { total, per_uid }
    }
}

/// Raises the soft limit of open descriptors to the hard one and returns what it is now.
pub fn raise_descriptor_limit() -> u64 {
    let before = getrlimit(Resource::Nofile);
    let wanted = rustix::process::Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::warn!(%error, "limit of open descriptors cannot be raised");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_leave_descriptors_for_the_agent_and_room_for_other_users() {
        let table = [
            (0, 1, 1),
            (16, 4, 3),
            (128, 32, 24),
            (1_024, 480, 360),
            (4_096, 2_016, 1_024),
            (1_048_576, 10_000, 5_000),
            (u64::MAX, 10_000, 5_000),
        ];

        for (limit, total, per_uid) in table {
            assert_eq!(
                Caps::for_descriptors(limit),
                Caps { total, per_uid },
                "{limit}"
            );
        }
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let limit = raise_descriptor_limit();

        assert_eq!(
            limit,
            getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
        );
    }
}
