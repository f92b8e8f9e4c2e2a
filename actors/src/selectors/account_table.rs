//! A file of users or groups that is read again when it changes.

use std::cell::RefCell;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::rc::Rc;

use super::accounts::{AccountFile, Accounts};

/// Largest file that is read, in bytes; of a larger one the beginning counts.
const MAX_BYTES: u64 = 16 << 20;

/// One of `/etc/passwd` and `/etc/group`.
#[derive(Debug)]
pub(super) struct AccountTable {
    path: PathBuf,
    file: AccountFile,
    read: RefCell<(Option<Version>, Rc<Accounts>)>,
}

/// What changes when a file is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl AccountTable {
    /// Reads nothing yet.
    pub(super) fn new(path: PathBuf, file: AccountFile) -> Self {
        Self {
            path,
            file,
            read: RefCell::default(),
        }
    }

    /// The accounts of now; none at all if the file cannot be read.
    pub(super) fn accounts(&self) -> Rc<Accounts> {
        let version = std::fs::metadata(&self.path).ok().map(|found| Version {
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        });
        let mut read = self.read.borrow_mut();
        if read.0 != version || version.is_none() {
            *read = (version, Rc::new(self.load()));
        }
        Rc::clone(&read.1)
    }

    fn load(&self) -> Accounts {
        let mut text = Vec::new();
        let loaded = std::fs::File::open(&self.path)
            .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut text));
        match loaded {
            Ok(_) => Accounts::parse(&text, self.file),
            Err(error) => {
                tracing::debug!(path = %self.path.display(), %error, "accounts cannot be read, their names give no selectors");
                Accounts::default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        let table = AccountTable::new(path.clone(), AccountFile::Passwd);

        let missing = table.accounts();
        std::fs::write(&path, "a:x:7:7::/:/x\n").unwrap();
        let first = table.accounts();
        let unchanged = table.accounts();
        std::fs::write(&path, "other:x:7:7::/:/x\n").unwrap();
        let second = table.accounts();

        assert_eq!(
            (missing.name(7), first.name(7), second.name(7)),
            (None, Some("a"), Some("other"))
        );
        assert!(Rc::ptr_eq(&first, &unchanged));
    }
}
