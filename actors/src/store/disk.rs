//! Reading and durable writing of small files in one directory, hostile neighbours assumed (design 5, D19).
//!
//! Everything goes through the open directory, so that nobody can swap it underneath. A file is never written in place: a new one is made
//! under a random name, filled, synced and renamed over the old one. Nothing that is not a regular file is followed, read or replaced.
//! What is written is on disk with every directory on the way to it; what is read is put there too, since whoever wrote it may have been killed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FileType;
use rustix::io::{Errno, retry_on_intr};
use zeroize::Zeroizing;

use super::StoreError;

mod filesystem;
#[cfg(test)]
pub(super) mod simulated;

pub use filesystem::{FileSystem, Os, Stat};

/// Largest state file that is read or written, in bytes: thousands of authorities fit.
pub const MAX_FILE_BYTES: usize = 16 << 20;

/// How many names of a directory are looked at for left-over temporary files.
const MAX_NAMES_SWEPT: usize = 4096;
/// How often a random name may be taken already, or a file set aside have a name-sake.
const MAX_NAME_TRIES: u32 = 100;
/// How often it is looked whether another agent has left the directory.
const LOCK_STEP: Duration = Duration::from_millis(50);
const TEMPORARY_SUFFIX: &str = ".tmp";
/// The directory of a path without one.
const HERE: &str = ".";
/// Random part of a temporary name, in hexadecimal digits.
const RANDOM_DIGITS: usize = 16;

/// An open directory.
#[derive(Debug)]
pub struct Directory<F: FileSystem = Os> {
    fs: F,
    path: PathBuf,
    handle: F::Handle,
    group_writable: bool,
}

/// A file's content.
#[derive(Debug)]
pub struct Content {
    /// All of it.
    pub bytes: Zeroizing<Vec<u8>>,
    /// It will outlast a power cut. If not, only a new write can see to that: a disk that failed to sync once says so once.
    pub is_durable: bool,
}

/// Keeps other agents away from a directory until it is dropped or the process has ended, however it ends.
#[derive(Debug)]
pub struct DirectoryLock<F: FileSystem = Os> {
    _handle: F::Handle,
}

impl<F: FileSystem> Directory<F> {
    /// Opens a directory. One that everybody can write is refused.
    pub fn open(fs: &F, path: &Path) -> Result<Self, StoreError> {
        let handle = open_directory(fs, path)?;
        let mode = fs
            .stat(&handle)
            .map_err(|error| io_error("open", path, error))?
            .mode;
        if mode & 0o002 != 0 {
            return Err(StoreError::Unsafe {
                path: path.display().to_string(),
                problem: "is a directory that everybody can write",
            });
        }
        Ok(Self {
            fs: fs.clone(),
            path: path.to_owned(),
            handle,
            group_writable: mode & 0o020 != 0,
        })
    }

    /// Opens a directory, made with its missing parents (with `mode` under the umask) if there is none. Those that are made are on disk when
    /// this returns.
    pub fn open_or_create(fs: &F, path: &Path, mode: u32) -> Result<Self, StoreError> {
        match is_there(fs, path) {
            Ok(true) => {}
            Ok(false) => make_directories(fs, path, mode)?,
            Err(error) => return Err(io_error("open", path, error)),
        }
        Self::open(fs, path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its group can write it.
    pub fn is_group_writable(&self) -> bool {
        self.group_writable
    }

    /// Takes the directory for this process alone, waiting for so long for another to leave it. A file system without locks gives none.
    pub fn lock(&self, patience: Duration) -> Result<Option<DirectoryLock<F>>, StoreError> {
        // Opened once more: the lock is the open file's.
        let handle = open_directory(&self.fs, &self.path)?;
        let mut tries = patience.as_millis() / LOCK_STEP.as_millis();
        loop {
            match retry_on_intr(|| self.fs.lock(&handle)) {
                Ok(()) => return Ok(Some(DirectoryLock { _handle: handle })),
                Err(Errno::WOULDBLOCK) if tries > 0 => std::thread::sleep(LOCK_STEP),
                Err(Errno::WOULDBLOCK) => {
                    return Err(StoreError::Unsafe {
                        path: self.path.display().to_string(),
                        problem: "is in use by another agent",
                    });
                }
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "state directory cannot be locked, a second agent on it would go unnoticed");
                    return Ok(None);
                }
            }
            tries -= 1;
        }
    }

    /// The whole content of a file; none if there is no such file. Anything but a regular file of bounded size is an error.
    pub fn read(&self, name: &str) -> Result<Option<Content>, StoreError> {
        let path = self.path.join(name);
        let failed = |error| io_error("read", &path, error);
        match self.fs.stat_at(&self.handle, name) {
            Ok(stat) => refuse_odd_file(&path, stat)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        // Looked at before it is opened: opening a device or a pipe has effects. Looked at again after, because it may have been swapped.
        let file = retry_on_intr(|| self.fs.open(&self.handle, name)).map_err(failed)?;
        let stat = self.fs.stat(&file).map_err(failed)?;
        refuse_odd_file(&path, stat)?;

        // One byte more than there should be: only a read of nothing is the end. Nothing of a key is left behind by growing.
        let size = usize::try_from(stat.size).unwrap_or(MAX_FILE_BYTES);
        let mut bytes = Zeroizing::new(vec![0; size + 1]);
        let mut length = 0;
        loop {
            match retry_on_intr(|| self.fs.read(&file, &mut bytes[length..])).map_err(failed)? {
                0 => break,
                count => length += count,
            }
            if length > size {
                return Err(StoreError::Unsafe {
                    path: path.display().to_string(),
                    problem: "changes while it is read",
                });
            }
        }
        bytes.truncate(length);
        let synced = retry_on_intr(|| self.fs.sync(&file))
            .and_then(|()| self.sync())
            .and_then(|()| sync_entry(&self.fs, &self.handle));
        if let Err(error) = synced {
            tracing::warn!(path = %path.display(), %error, "state file cannot be synced");
        }
        Ok(Some(Content {
            bytes,
            is_durable: synced.is_ok(),
        }))
    }

    /// Replaces a file, or makes it, with mode 0600. It is on disk when this returns; on an error the old file is whole, or the new one is in
    /// its place and may be lost with the power.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        let path = self.path.join(name);
        if content.len() > MAX_FILE_BYTES {
            return Err(too_large(&path));
        }
        let failed = |error| io_error("write", &path, error);
        sync_entry(&self.fs, &self.handle).map_err(failed)?;
        let (temporary, file) = self.create_temporary(name).map_err(failed)?;
        let replaced = self
            .fill(&file, content)
            .and_then(|()| self.fs.rename(&self.handle, &temporary, name));
        if let Err(error) = replaced {
            self.remove(&temporary);
            return Err(failed(error));
        }
        self.sync().map_err(failed)
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
        let Ok(found) = self.fs.names(&self.handle, MAX_NAMES_SWEPT) else {
            return;
        };
        let own = rustix::process::geteuid().as_raw();
        for name in found {
            if !names.iter().any(|of| is_temporary_name(&name, of)) {
                continue;
            }
            let is_ours = self
                .fs
                .stat_at(&self.handle, &name)
                .is_ok_and(|stat| stat.kind == FileType::RegularFile && stat.uid == own);
            if is_ours {
                self.remove(&name);
            }
        }
    }

    fn create_temporary(&self, name: &str) -> Result<(String, F::Handle), Errno> {
        for _ in 0..MAX_NAME_TRIES {
            let temporary = temporary_name(name, self.fs.random()?);
            match retry_on_intr(|| self.fs.create(&self.handle, &temporary)) {
                Ok(file) => return Ok((temporary, file)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EXIST)
    }

    fn fill(&self, file: &F::Handle, mut content: &[u8]) -> Result<(), Errno> {
        while !content.is_empty() {
            match retry_on_intr(|| self.fs.write(file, content))? {
                // A disk that takes nothing and names no error would be asked for ever.
                0 => return Err(Errno::NOSPC),
                count => content = &content[count..],
            }
        }
        retry_on_intr(|| self.fs.sync(file))
    }

    fn rename_without_replacing(&self, from: &str, to: &str) -> Result<(), Errno> {
        match self.fs.rename_new(&self.handle, from, to) {
            // Some file systems do not know the flag.
            Err(Errno::INVAL | Errno::NOSYS) => match self.fs.stat_at(&self.handle, to) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => self.fs.rename(&self.handle, from, to),
                Err(error) => Err(error),
            },
            outcome => outcome,
        }
    }

    /// A file that stays is swept at the next start.
    fn remove(&self, name: &str) {
        if let Err(error) = retry_on_intr(|| self.fs.unlink(&self.handle, name)) {
            tracing::debug!(path = %self.path.join(name).display(), %error, "temporary file stays");
        }
    }

    fn sync(&self) -> Result<(), Errno> {
        sync_directory(&self.fs, &self.handle)
    }
}

fn open_directory<F: FileSystem>(fs: &F, path: &Path) -> Result<F::Handle, StoreError> {
    retry_on_intr(|| fs.open_directory(path)).map_err(|error| io_error("open", path, error))
}

fn is_there<F: FileSystem>(fs: &F, path: &Path) -> Result<bool, Errno> {
    match retry_on_intr(|| fs.open_directory(path)) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a directory and what is missing above it, from the top, each on disk before the next. The one that is there may be the last that a
/// killed agent made, so its own name is put on disk too.
fn make_directories<F: FileSystem>(fs: &F, path: &Path, mode: u32) -> Result<(), StoreError> {
    let mut missing = vec![path];
    let above = loop {
        let above = parent_of(missing.last().expect("there is the first"));
        match is_there(fs, above) {
            Ok(true) => break above,
            Ok(false) if above != Path::new(HERE) => missing.push(above),
            Ok(false) => return Err(io_error("open", above, Errno::NOENT)),
            Err(error) => return Err(io_error("open", above, error)),
        }
    };
    let mut above = open_directory(fs, above)?;
    sync_entry(fs, &above).map_err(|error| io_error("create", path, error))?;
    for directory in missing.into_iter().rev() {
        let failed = |error| io_error("create", path, error);
        match retry_on_intr(|| fs.make_directory(directory, mode)) {
            // Another process, or a call that was interrupted, was faster.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        if let Err(error) = sync_directory(fs, &above) {
            // A disk says once that it has lost a name; made anew it is on its way again.
            if let Err(error) = fs.remove_directory(directory) {
                tracing::debug!(path = %directory.display(), %error, "new directory stays");
            }
            return Err(failed(error));
        }
        above = open_directory(fs, directory)?;
    }
    Ok(())
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new(HERE),
    }
}

fn sync_directory<F: FileSystem>(fs: &F, handle: &F::Handle) -> Result<(), Errno> {
    match retry_on_intr(|| fs.sync(handle)) {
        // Some file systems cannot sync a directory; they have no more to give.
        Err(Errno::INVAL) => Ok(()),
        outcome => outcome,
    }
}

/// Has the name of an open directory on disk.
fn sync_entry<F: FileSystem>(fs: &F, directory: &F::Handle) -> Result<(), Errno> {
    let parent = match retry_on_intr(|| fs.open_parent(directory)) {
        Ok(parent) => parent,
        // One that this user may not look into was not written by this user.
        Err(Errno::ACCESS | Errno::PERM) => return Ok(()),
        Err(error) => return Err(error),
    };
    match sync_directory(fs, &parent) {
        // Nothing is on its way to a disk that cannot be written: a volume in a read-only image.
        Err(Errno::ROFS) => Ok(()),
        outcome => outcome,
    }
}

fn refuse_odd_file(path: &Path, stat: Stat) -> Result<(), StoreError> {
    let problem = match stat.kind {
        FileType::RegularFile
            if usize::try_from(stat.size).is_ok_and(|size| size <= MAX_FILE_BYTES) =>
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
    StoreError::TooLarge {
        path: path.display().to_string(),
    }
}

fn io_error(action: &'static str, path: &Path, error: Errno) -> StoreError {
    StoreError::Io {
        action,
        path: path.display().to_string(),
        reason: std::io::Error::from(error).to_string(),
    }
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
