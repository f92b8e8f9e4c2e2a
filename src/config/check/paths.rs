//! Paths and the few looks at files that checking takes. Nothing is created.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::path::{Component, Path, PathBuf};

use super::super::describe_io;

/// Makes a path absolute without touching its `..`, which may lead through links.
pub(super) fn absolute(cwd: &Path, text: &str) -> PathBuf {
    match text {
        "" | "." => cwd.to_owned(),
        text => cwd.join(text),
    }
}

/// Removes `.` and `..` by their letters alone, as the reference does for socket paths.
pub(in super::super) fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                clean.push(component);
            }
        }
    }
    clean
}

/// Whether `path` lies in the directory of `public`, or below it. The root directory is exempt, as it is in the reference.
pub(super) fn is_beside_or_below(path: &Path, public: &Path) -> bool {
    let directory = public
        .parent()
        .filter(|directory| directory.parent().is_some());
    directory.is_some_and(|directory| path.starts_with(directory))
}

/// Reads a small text file, or says why not.
pub(super) fn read_text(path: &Path, limit: u64) -> Result<String, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit.saturating_add(1)).read_to_end(&mut bytes))
        .map_err(|error| describe_io(&error))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        return Err(format!("larger than {limit} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())
}

/// Whether a log file could be opened, without creating it.
pub(super) fn check_appendable(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err("is a directory".to_owned()),
        // Opening a pipe would wait for its reader.
        Ok(found) if !found.is_file() => Ok(()),
        Ok(_) => match OpenOptions::new().append(true).open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(describe_io(&error)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => check_parent(path),
        Err(error) => Err(describe_io(&error)),
    }
}

fn check_parent(path: &Path) -> Result<(), String> {
    let parent = path.parent().unwrap_or(path);
    let found = std::fs::metadata(parent).map_err(|error| describe_io(&error))?;
    if !found.is_dir() {
        return Err("not a directory".to_owned());
    }
    let wanted = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(parent, wanted).map_err(|error| describe_io(&error.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_log_directory_is_judged_by_what_the_agent_may_do_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let (asked, made) = (directory.path().join("log"), directory.path().join("made"));
        for mode in [0o755, 0o555, 0o222, 0o277] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory.path(), permissions).unwrap();

            let said = check_appendable(&asked);

            let can = File::create(&made);
            assert_eq!(said.is_ok(), can.is_ok(), "{mode:o}: {said:?} {can:?}");
            std::fs::remove_file(&made).ok();
        }
    }
}
