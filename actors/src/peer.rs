//! The process at the other end of a local connection, as the kernel names it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use tokio::net::UnixStream;

use crate::sys;

/// How often a process without pidfd is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Room for a line of `/proc/PID/stat`: 52 numbers of at most 20 digits, and the name.
const STAT_BYTES_MAX: usize = 1536;
/// The fields of `/proc/PID/stat` behind the command name, in every kernel of this century.
const STAT_FIELDS_MIN: usize = 36;
/// The start time among them: field 22 of all, the third being the first behind the name.
const STAT_START_TIME: usize = 19;

/// The states of a process that has ended and is not reaped yet.
const ENDED: [&str; 3] = ["Z", "X", "x"];

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

/// Why a connection's process cannot be named. The connection is closed then.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The kernel does not say who connected.
    #[error("peer credentials cannot be read: {0}")]
    Credentials(io::Error),
    /// The process is outside the agent's PID namespace.
    #[error("caller is not visible in the agent's PID namespace")]
    Invisible,
    /// The process has ended.
    #[error("caller {pid} has ended: {source}")]
    Gone {
        /// Its number.
        pid: i32,
        /// How that was noticed.
        source: io::Error,
    },
    /// `/proc/PID/stat` is not what it should be.
    #[error("start time of caller {0} cannot be read")]
    StartTime(i32),
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    has_ended: bool,
    /// Clock ticks since boot (field 22).
    start_time: u64,
}

impl Peer {
    /// Finds out who connected: credentials of the time of `connect` (`SO_PEERCRED`), a descriptor of the process
    /// (`SO_PEERPIDFD`, Linux 6.5; else `pidfd_open`), and its start time.
    pub fn of(stream: &UnixStream) -> Result<Self, PeerError> {
        let credentials = stream.peer_cred().map_err(PeerError::Credentials)?;
        let pid = credentials
            .pid()
            .filter(|pid| *pid > 0)
            .ok_or(PeerError::Invisible)?;
        let gone = |source| PeerError::Gone { pid, source };
        let pidfd = pidfd_of(stream, pid).map_err(gone)?;
        // Read after the descriptor was taken and looked at below: a number reused in between is noticed.
        let stat = Stat::of(pid)
            .map_err(gone)?
            .ok_or(PeerError::StartTime(pid))?;
        let peer = Self {
            pid,
            uid: credentials.uid(),
            gid: credentials.gid(),
            start_time: stat.start_time,
            pidfd,
        };
        if peer.is_alive() {
            Ok(peer)
        } else {
            Err(gone(io::ErrorKind::NotFound.into()))
        }
    }

    /// Whether the process that connected still runs. Its number alone proves nothing: it may name another one by now.
    pub fn is_alive(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => !has_exited(pidfd),
            None => Stat::of(self.pid).is_ok_and(|found| {
                found.is_some_and(|stat| !stat.has_ended && stat.start_time == self.start_time)
            }),
        }
    }

    /// Waits until the process has ended.
    pub async fn exited(&self) {
        let watch = self
            .pidfd
            .as_ref()
            .and_then(|pidfd| sys::watch_readable(pidfd.as_fd()).ok());
        while self.is_alive() {
            let noticed = match &watch {
                // Spurious or not is for `is_alive` to say.
                Some(watch) => watch.readable().await.map(|mut guard| guard.clear_ready()),
                None => Err(io::ErrorKind::Unsupported.into()),
            };
            if noticed.is_err() {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        }
    }
}

fn pidfd_of(stream: &UnixStream, pid: i32) -> io::Result<Option<OwnedFd>> {
    if let Some(pidfd) = sys::peer_pidfd(stream.as_fd())? {
        return Ok(Some(pidfd));
    }
    let Some(pid) = Pid::from_raw(pid) else {
        return Ok(None);
    };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Some(pidfd)),
        // A seccomp filter may refuse what it does not know.
        Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A pidfd is readable once its process has ended, reaped or not (`pidfd_open(2)`).
fn has_exited(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    let now = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&now)));
    // A descriptor that cannot be polled says nothing: refuse rather than trust.
    !ready.is_ok_and(|ready| ready == 0)
}

impl Stat {
    /// What the kernel says now; `None` if that is not of its form.
    fn of(pid: i32) -> io::Result<Option<Self>> {
        // The kernel hands the whole line over in one read; the command name in it has at most 64 bytes.
        let mut line = [0; STAT_BYTES_MAX];
        let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut line)?;
        Ok(line.get(..length).and_then(parse_stat))
    }
}

/// Reads `/proc/PID/stat`. The command name, in parentheses, may hold blanks and parentheses itself (proc(5)).
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let opens = stat.iter().position(|byte| *byte == b'(')?;
    let closes = stat.iter().rposition(|byte| *byte == b')')?;
    if closes < opens {
        return None;
    }
    let fields: Vec<_> = std::str::from_utf8(stat.get(closes + 1..)?)
        .ok()?
        .split_ascii_whitespace()
        .collect();
    if fields.len() < STAT_FIELDS_MIN {
        return None;
    }
    Some(Stat {
        has_ended: fields.first().is_some_and(|state| ENDED.contains(state)),
        start_time: fields.get(STAT_START_TIME)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use proptest::prelude::*;

    use super::*;

    const BEHIND_NAME: &str = "S 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 17 1 0 0 0";

    #[expect(
        clippy::unnecessary_wraps,
        reason = "compared with what the parser returns"
    )]
    fn running(start_time: u64) -> Option<Stat> {
        Some(Stat {
            has_ended: false,
            start_time,
        })
    }

    fn child() -> (Child, Peer) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let pidfd =
            rustix::process::pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let start_time = Stat::of(pid).unwrap().unwrap().start_time;
        (
            child,
            Peer {
                pid,
                uid: 0,
                gid: 0,
                start_time,
                pidfd: Some(pidfd),
            },
        )
    }

    #[tokio::test]
    async fn a_connection_names_the_process_that_made_it() {
        let (client, server) = UnixStream::pair().unwrap();

        let peer = Peer::of(&server).unwrap();

        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(
            (peer.pid, peer.uid),
            (own, rustix::process::geteuid().as_raw())
        );
        assert_eq!(
            Stat::of(own).unwrap().map(|stat| stat.start_time),
            Some(peer.start_time)
        );
        assert!(peer.is_alive());
        drop(client);
    }

    #[tokio::test]
    async fn d10_the_end_of_the_process_is_noticed_before_it_is_reaped() {
        let (mut child, peer) = child();
        assert!(peer.is_alive());

        child.kill().unwrap();
        tokio::time::timeout(Duration::from_secs(5), peer.exited())
            .await
            .unwrap();

        assert!(!peer.is_alive());
        child.wait().unwrap();
        assert!(!peer.is_alive());
    }

    #[tokio::test]
    async fn a_process_that_runs_is_waited_for() {
        let (mut child, peer) = child();

        let waited = tokio::time::timeout(Duration::from_millis(50), peer.exited()).await;

        assert!(waited.is_err());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_reused_number_is_told_by_the_start_time() {
        let (mut child, mut peer) = child();
        peer.pidfd = None;
        assert!(peer.is_alive());

        peer.start_time += 1;

        assert!(!peer.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn without_a_pidfd_a_process_that_waits_to_be_reaped_has_ended() {
        let (mut child, mut peer) = child();
        let pidfd = peer.pidfd.take().unwrap();

        child.kill().unwrap();
        let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();

        assert!(Stat::of(peer.pid).unwrap().is_some());
        assert!(!peer.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn the_start_time_is_found_behind_any_command_name() {
        for name in ["sh", "a b", "(", ")", "a) S 1 (", "\u{1b}[31m\n"] {
            let stat = format!("123 ({name}) {BEHIND_NAME}\n");

            assert_eq!(parse_stat(stat.as_bytes()), running(987_654), "{name:?}");
        }
        let raw = [b"1 (\xff\xfe) ", BEHIND_NAME.as_bytes()].concat();
        assert_eq!(parse_stat(&raw), running(987_654));
    }

    #[test]
    fn a_short_or_odd_stat_has_no_start_time() {
        let number = BEHIND_NAME.replace("987654", "x");
        for stat in [
            "",
            "1",
            "1 (sh",
            "1 sh) S",
            ")(",
            "1 (sh) S 1 2",
            &format!("1 (sh) {number}"),
        ] {
            assert_eq!(parse_stat(stat.as_bytes()), None, "{stat:?}");
        }
    }

    proptest! {
        #[test]
        fn any_name_keeps_the_start_time(name in proptest::collection::vec(any::<u8>(), 0..64), start: u64) {
            let behind = BEHIND_NAME.replace("987654", &start.to_string());
            let stat = [b"42 (", name.as_slice(), b") ", behind.as_bytes()].concat();

            prop_assert_eq!(parse_stat(&stat), running(start));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            // Random bytes that happen to hold 36 fields behind a parenthesis are not worth fearing.
            prop_assert_eq!(parse_stat(&bytes), None);
        }
    }
}
