//! The few calls that the operating system offers only unsafely.
#![expect(
    unsafe_code,
    reason = "libc calls without a safe wrapper; each states why it is sound"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Gives freed heap back to the operating system: glibc keeps it after a burst of closes (measured). Takes microseconds when there is nothing to give.
#[cfg(target_env = "gnu")]
pub fn trim_heap() {
    // SAFETY: malloc_trim takes no pointer and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives freed heap back to the operating system, where the allocator can.
#[cfg(not(target_env = "gnu"))]
pub fn trim_heap() {}

/// From now on a write beyond the limit on file sizes (`RLIMIT_FSIZE`) is an error like that of a full disk, and not the end of the process.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal runs no code in a handler. It fails only for signals that do not exist.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// The size of a descriptor, as `getsockopt` counts.
#[expect(clippy::cast_possible_truncation, reason = "four bytes")]
const PIDFD_BYTES: libc::socklen_t = size_of::<libc::c_int>() as libc::socklen_t;

/// A descriptor of the process that connected to, or was connected by, the other end of a Unix socket (`SO_PEERPIDFD`,
/// Linux 6.5). `None` where the kernel has no such option; an error where the process has ended.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut pidfd: libc::c_int = -1;
    let mut length = PIDFD_BYTES;
    // SAFETY: the socket is open as long as it is borrowed; `pidfd` and `length` are valid for writes, and `length` is the size of `pidfd`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut length,
        )
    };
    if outcome == 0 {
        // SAFETY: the kernel has just opened this descriptor for us alone.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(pidfd) }));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOPROTOOPT) {
        Ok(None)
    } else {
        Err(error)
    }
}

/// Lets tokio's reactor tell when a descriptor becomes readable.
pub fn watch_readable(descriptor: BorrowedFd<'_>) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
    // SAFETY: a borrowed descriptor stays open, and the same, for the lifetime that the watch carries.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}
