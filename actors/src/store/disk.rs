//! Reading and durable writing of small files in one directory, hostile neighbours assumed (design 5, D19).
//!
//! Everything goes through the open directory, so that nobody can swap it underneath. A file is never written in place: a new one is made
//! under a random name, filled, synced and renamed over the old one. Nothing that is not a regular file is followed, read or replaced.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ring::rand::SecureRandom as _;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use zeroize::Zeroizing;

use super::StoreError;

/// Largest state file that is read or written, in bytes: thousands of authorities fit.
pub const MAX_FILE_BYTES: usize = 16 << 20;

/// How many names of a directory are looked at for left-over temporary files.
const MAX_NAMES_SWEPT: usize = 4096;
/// How often a random name may be taken already, or a file set aside have a name-sake.
const MAX_NAME_TRIES: u32 = 100;
const TEMPORARY_SUFFIX: &str = ".tmp";
/// Random part of a temporary name, in hexadecimal digits.
const RANDOM_DIGITS: usize = 16;

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    fd: OwnedFd,
    group_writable: bool,
}

impl Directory {
    /// Opens a directory. One that everybody can write is refused.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_if_there(path)?.ok_or_else(|| io_error("open", path, Errno::NOENT))
    }

    /// Opens a directory, made with its missing parents (with `mode` under the umask) if there is none.
    pub fn open_or_create(path: &Path, mode: u32) -> Result<Self, StoreError> {
        if let Some(directory) = Self::open_if_there(path)? {
            return Ok(directory);
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(path)
            .map_err(|error| io_error("create", path, error))?;
        Self::open(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its group can write it.
    pub fn is_group_writable(&self) -> bool {
        self.group_writable
    }

    /// The whole content of a file; none if there is no such file. Anything but a regular file of bounded size is an error.
    pub fn read(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        let path = self.path.join(name);
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => refuse_odd_file(&path, &stat)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(io_error("read", &path, error)),
        }
        // Looked at before it is opened: opening a device or a pipe has effects. Looked at again after, because it may have been swapped.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())
            .map_err(|error| io_error("read", &path, error))?;
        let stat = rustix::fs::fstat(&fd).map_err(|error| io_error("read", &path, error))?;
        refuse_odd_file(&path, &stat)?;

        let size = usize::try_from(stat.st_size).unwrap_or(MAX_FILE_BYTES);
        let mut content = Zeroizing::new(Vec::with_capacity(size + 1));
        let limit = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX);
        std::fs::File::from(fd)
            .take(limit + 1)
            .read_to_end(&mut content)
            .map_err(|error| io_error("read", &path, error))?;
        if content.len() > MAX_FILE_BYTES {
            return Err(too_large(&path));
        }
        Ok(Some(content))
    }

    /// Replaces a file, or makes it, with mode 0600. It is on disk when this returns; on an error the old file is whole.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        let path = self.path.join(name);
        if content.len() > MAX_FILE_BYTES {
            return Err(too_large(&path));
        }
        let (temporary, file) = self
            .create_temporary(name)
            .map_err(|error| io_error("write", &path, error))?;
        let replaced = fill(file, content)
            .and_then(|()| Ok(rustix::fs::renameat(&self.fd, &temporary, &self.fd, name)?));
        if let Err(error) = replaced {
            self.remove(&temporary);
            return Err(io_error("write", &path, error));
        }
        self.sync().map_err(|error| io_error("write", &path, error))
    }

    /// Tries whether files can be made here.
    pub fn probe(&self) -> Result<(), StoreError> {
        let (temporary, _) = self
            .create_temporary("probe")
            .map_err(|error| io_error("write to", &self.path, error))?;
        self.remove(&temporary);
        Ok(())
    }

    /// Renames a file to `NAME.corrupt-STAMP`, or to that with a number if there is one already. The new path is returned.
    pub fn set_aside(&self, name: &str, stamp: &str) -> Result<PathBuf, StoreError> {
        let path = self.path.join(name);
        for attempt in 0..MAX_NAME_TRIES {
            let kept_as = if attempt == 0 {
                format!("{name}.corrupt-{stamp}")
            } else {
                format!("{name}.corrupt-{stamp}-{attempt}")
            };
            match self.rename_without_replacing(name, &kept_as) {
                Ok(()) => {
                    self.sync()
                        .map_err(|error| io_error("set aside", &path, error))?;
                    return Ok(self.path.join(kept_as));
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(io_error("set aside", &path, error)),
            }
        }
        Err(io_error("set aside", &path, Errno::EXIST))
    }

    /// Removes temporary files of `name` that a killed agent left: only regular files of this user under a name of our making.
    /// Errors are passed over: they do no harm where they are.
    pub fn sweep(&self, names: &[&str]) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.fd) else {
            return;
        };
        let own = rustix::process::geteuid().as_raw();
        for entry in entries.flatten().take(MAX_NAMES_SWEPT) {
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if !names.iter().any(|of| is_temporary_name(name, of)) {
                continue;
            }
            let is_ours =
                rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
                    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                        && stat.st_uid == own
                });
            if is_ours {
                self.remove(name);
            }
        }
    }

    fn open_if_there(path: &Path) -> Result<Option<Self>, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(io_error("open", path, error)),
        };
        let mode = rustix::fs::fstat(&fd)
            .map_err(|error| io_error("open", path, error))?
            .st_mode;
        if mode & 0o002 != 0 {
            return Err(StoreError::Unsafe {
                path: path.display().to_string(),
                problem: "is a directory that everybody can write",
            });
        }
        Ok(Some(Self {
            path: path.to_owned(),
            fd,
            group_writable: mode & 0o020 != 0,
        }))
    }

    fn create_temporary(&self, name: &str) -> std::io::Result<(String, std::fs::File)> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..MAX_NAME_TRIES {
            let temporary = temporary_name(name, random_number()?);
            match rustix::fs::openat(&self.fd, &temporary, flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => return Ok((temporary, std::fs::File::from(fd))),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    fn rename_without_replacing(&self, from: &str, to: &str) -> Result<(), Errno> {
        match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            // Some file systems do not know the flag.
            Err(Errno::INVAL | Errno::NOSYS) => {
                match rustix::fs::statat(&self.fd, to, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(_) => Err(Errno::EXIST),
                    Err(Errno::NOENT) => rustix::fs::renameat(&self.fd, from, &self.fd, to),
                    Err(error) => Err(error),
                }
            }
            outcome => outcome,
        }
    }

    /// A file that stays is swept at the next start.
    fn remove(&self, name: &str) {
        if let Err(error) = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            tracing::debug!(path = %self.path.join(name).display(), %error, "temporary file stays");
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        match rustix::fs::fsync(&self.fd) {
            // Some file systems cannot sync a directory; they have no more to give.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn fill(mut file: std::fs::File, content: &[u8]) -> std::io::Result<()> {
    file.write_all(content)?;
    file.sync_all()
}

fn refuse_odd_file(path: &Path, stat: &Stat) -> Result<(), StoreError> {
    let problem = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile
            if usize::try_from(stat.st_size).is_ok_and(|size| size <= MAX_FILE_BYTES) =>
        {
            return Ok(());
        }
        FileType::RegularFile => return Err(too_large(path)),
        FileType::Symlink => "is a symbolic link",
        FileType::Directory
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => "is not a regular file",
    };
    Err(StoreError::Unsafe {
        path: path.display().to_string(),
        problem,
    })
}

fn too_large(path: &Path) -> StoreError {
    StoreError::Unsafe {
        path: path.display().to_string(),
        problem: "is larger than 16 MiB",
    }
}

fn io_error(action: &'static str, path: &Path, error: impl Into<std::io::Error>) -> StoreError {
    StoreError::Io {
        action,
        path: path.display().to_string(),
        reason: error.into().to_string(),
    }
}

fn random_number() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    ring::rand::SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| std::io::Error::other("no random numbers"))?;
    Ok(u64::from_ne_bytes(bytes))
}

fn temporary_name(of: &str, number: u64) -> String {
    format!(".{of}.{number:0RANDOM_DIGITS$x}{TEMPORARY_SUFFIX}")
}

fn is_temporary_name(name: &str, of: &str) -> bool {
    let random = name
        .strip_prefix('.')
        .and_then(|rest| rest.strip_prefix(of))
        .and_then(|rest| rest.strip_prefix('.'))
        .and_then(|rest| rest.strip_suffix(TEMPORARY_SUFFIX));
    random.is_some_and(|random| {
        random.len() == RANDOM_DIGITS
            && random
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}
