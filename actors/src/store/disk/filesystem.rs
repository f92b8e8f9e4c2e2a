//! The system calls that durable files are made of, as a port: the operating system is behind it, and in tests a disk that fails and loses power.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use ring::rand::SecureRandom as _;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// What is known of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u32,
    /// In bytes.
    pub size: u64,
    /// The owner.
    pub uid: u32,
}

/// One call each, without a retry or a judgement: those are [`Directory`](super::Directory)'s. Errors are the operating system's.
pub trait FileSystem: Clone + fmt::Debug {
    /// An open file or directory.
    type Handle: fmt::Debug;

    /// Opens a directory, through symbolic links.
    fn open_directory(&self, path: &Path) -> Result<Self::Handle, Errno>;

    /// Opens the directory that an open one is in.
    fn open_parent(&self, directory: &Self::Handle) -> Result<Self::Handle, Errno>;

    /// Makes a directory, under the umask; its parent must be there.
    fn make_directory(&self, path: &Path, mode: u32) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> Result<(), Errno>;

    /// Locks an open directory against other holders until the handle is dropped; `WOULDBLOCK` if somebody has it.
    fn lock(&self, directory: &Self::Handle) -> Result<(), Errno>;

    /// Describes what is open.
    fn stat(&self, handle: &Self::Handle) -> Result<Stat, Errno>;

    /// Describes what is in a directory under a name, a symbolic link as such.
    fn stat_at(&self, directory: &Self::Handle, name: &str) -> Result<Stat, Errno>;

    /// Opens a file for reading, without following a symbolic link and without waiting for a pipe's other end.
    fn open(&self, directory: &Self::Handle, name: &str) -> Result<Self::Handle, Errno>;

    /// Makes a file that nobody else can read and opens it for writing; `EXIST` if anything has the name.
    fn create(&self, directory: &Self::Handle, name: &str) -> Result<Self::Handle, Errno>;

    /// Reads on; 0 at the end.
    fn read(&self, file: &Self::Handle, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Writes a part, and says how much.
    fn write(&self, file: &Self::Handle, bytes: &[u8]) -> Result<usize, Errno>;

    /// Has a file's content, or a directory's names, on disk.
    fn sync(&self, handle: &Self::Handle) -> Result<(), Errno>;

    /// Renames within a directory; what has the new name is replaced.
    fn rename(&self, directory: &Self::Handle, from: &str, to: &str) -> Result<(), Errno>;

    /// Renames within a directory; `EXIST` if anything has the new name.
    fn rename_new(&self, directory: &Self::Handle, from: &str, to: &str) -> Result<(), Errno>;

    /// Removes a file.
    fn unlink(&self, directory: &Self::Handle, name: &str) -> Result<(), Errno>;

    /// The names in a directory, the first `limit` of them; those that are not UTF-8 are left out.
    fn names(&self, directory: &Self::Handle, limit: usize) -> Result<Vec<String>, Errno>;

    /// A number that nobody can guess.
    fn random(&self) -> Result<u64, Errno>;
}

/// The operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Os;

impl FileSystem for Os {
    type Handle = OwnedFd;

    fn open_directory(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
    }

    fn open_parent(&self, directory: &OwnedFd) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(directory, "..", flags, Mode::empty())
    }

    fn make_directory(&self, path: &Path, mode: u32) -> Result<(), Errno> {
        rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(mode))
    }

    fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR)
    }

    fn lock(&self, directory: &OwnedFd) -> Result<(), Errno> {
        rustix::fs::flock(
            directory,
            rustix::fs::FlockOperation::NonBlockingLockExclusive,
        )
    }

    fn stat(&self, handle: &OwnedFd) -> Result<Stat, Errno> {
        rustix::fs::fstat(handle).map(|stat| Stat::of(&stat))
    }

    fn stat_at(&self, directory: &OwnedFd, name: &str) -> Result<Stat, Errno> {
        rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Stat::of(&stat))
    }

    fn open(&self, directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(directory, name, flags, Mode::empty())
    }

    fn create(&self, directory: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
    }

    fn read(&self, file: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(file, buffer)
    }

    fn write(&self, file: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::io::write(file, bytes)
    }

    fn sync(&self, handle: &OwnedFd) -> Result<(), Errno> {
        rustix::fs::fsync(handle)
    }

    fn rename(&self, directory: &OwnedFd, from: &str, to: &str) -> Result<(), Errno> {
        rustix::fs::renameat(directory, from, directory, to)
    }

    fn rename_new(&self, directory: &OwnedFd, from: &str, to: &str) -> Result<(), Errno> {
        rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE)
    }

    fn unlink(&self, directory: &OwnedFd, name: &str) -> Result<(), Errno> {
        rustix::fs::unlinkat(directory, name, AtFlags::empty())
    }

    fn names(&self, directory: &OwnedFd, limit: usize) -> Result<Vec<String>, Errno> {
        let entries = rustix::fs::Dir::read_from(directory)?;
        let names = entries
            .flatten()
            .take(limit)
            .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        Ok(names.collect())
    }

    fn random(&self) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        ring::rand::SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| Errno::IO)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

impl Stat {
    fn of(stat: &rustix::fs::Stat) -> Self {
        Self {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: Mode::from_raw_mode(stat.st_mode).bits(),
            // A negative size is no size of a file that is read.
            size: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
            uid: stat.st_uid,
        }
    }
}
