//! One process as `/proc` shows it. The directory is held open, so that everything read through it is of one and the same process:
//! once that has ended, reading fails, even if its number is given to another.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::AttestorError;
use super::proc_status::ProcStatus;

/// Largest file of `/proc` that is read, in bytes: 65,536 groups of ten digits and all the rest.
const MAX_PROC_BYTES: u64 = 1 << 20;

/// An ordinary file of `/proc` is shorter than this.
const PROC_BYTES_USUAL: usize = 4096;

/// An open `/proc/PID`.
#[derive(Debug)]
pub(super) struct ProcessDir(OwnedFd);

/// A version of a file's content: whatever is written or replaced shows in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FileVersion {
    /// File system, then inode.
    pub(super) place: (u64, u64),
    /// In bytes.
    pub(super) size: u64,
    /// Seconds and nanoseconds since the Unix epoch.
    pub(super) modified: (i64, u32),
    /// Seconds and nanoseconds since the Unix epoch.
    pub(super) changed: (i64, u32),
}

impl ProcessDir {
    /// Opens `PROC_ROOT/PID`.
    pub(super) fn open(proc_root: &Path, pid: i32) -> Result<Self, AttestorError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(proc_root.join(pid.to_string()), flags, Mode::empty());
        opened
            .map(Self)
            .map_err(|error| unreadable("process", error))
    }

    /// Effective user and group and the supplementary groups.
    pub(super) fn status(&self) -> Result<ProcStatus, AttestorError> {
        ProcStatus::parse(&self.read("status")?).ok_or(AttestorError::Malformed("status"))
    }

    /// The path of its executable inside its own mount namespace, as the kernel words it. Needs the right to trace the process.
    pub(super) fn executable_path(&self) -> Result<Vec<u8>, AttestorError> {
        let link = rustix::fs::readlinkat(&self.0, "exe", Vec::new())
            .map_err(|error| unreadable("executable", error))?;
        Ok(link.into_bytes())
    }

    /// Which content its executable has. Needs the right to trace the process.
    pub(super) fn executable_version(&self) -> Result<FileVersion, AttestorError> {
        // The executable may lie on a file system that its owner serves and that never answers: take what the kernel knows already.
        let found = rustix::fs::statx(
            &self.0,
            "exe",
            AtFlags::STATX_DONT_SYNC,
            StatxFlags::BASIC_STATS,
        );
        found
            .as_ref()
            .map(FileVersion::of)
            .map_err(|error| unreadable("executable", *error))
    }

    /// A handle of its own for another thread.
    pub(super) fn try_clone(&self) -> std::io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Opens the executable itself, whatever its path names by now. May block for as long as its file system likes.
    pub(super) fn open_executable(&self) -> Result<(std::fs::File, FileVersion), Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::openat(&self.0, "exe", flags, Mode::empty())?);
        let version = FileVersion::of_open(&file)?;
        Ok((file, version))
    }

    fn read(&self, name: &'static str) -> Result<Vec<u8>, AttestorError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.0, name, flags, Mode::empty())
            .map_err(|error| unreadable(name, error))?;
        // Room for all of an ordinary file: the kernel hands it over in one read.
        let mut text = Vec::with_capacity(PROC_BYTES_USUAL);
        let read = std::fs::File::from(fd)
            .take(MAX_PROC_BYTES)
            .read_to_end(&mut text);
        read.map(|_| text).map_err(|error| unreadable(name, error))
    }
}

impl FileVersion {
    /// The version of an open file.
    pub(super) fn of_open(file: &std::fs::File) -> Result<Self, Errno> {
        rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
            .map(|found| Self::of(&found))
    }

    fn of(found: &rustix::fs::Statx) -> Self {
        Self {
            place: (
                rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
                found.stx_ino,
            ),
            size: found.stx_size,
            modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        }
    }
}

/// The error of a read that failed.
pub(super) fn unreadable(what: &'static str, error: impl Into<std::io::Error>) -> AttestorError {
    AttestorError::Unreadable {
        what,
        reason: error.into().to_string(),
    }
}
