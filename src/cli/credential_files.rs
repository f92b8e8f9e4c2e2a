//! Writes identities to files for `api fetch x509 -write`: whole or not at all, keys for their owner only.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::identities::Identity;
use crate::telemetry::plain_words;

/// Mode of certificates, less the umask.
const PUBLIC: u32 = 0o644;

/// Mode of keys.
const SECRET: u32 = 0o600;

/// How many names are tried for a temporary file before somebody must be in the way on purpose.
const TRIES: usize = 8;

/// A file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("unable to write {}: {}", path.display(), plain_words(source))]
pub(super) struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Writes every identity into the directory and tells `say` of each file before it is written.
pub(super) fn write_all(
    directory: &Path,
    identities: &[Identity],
    mut say: impl FnMut(&str),
) -> Result<(), WriteError> {
    for (index, identity) in identities.iter().enumerate() {
        let mut write = |what: String, name: String, content: &str, mode: u32| {
            let path = directory.join(name);
            say(&format!("Writing {what} to file {}.\n", path.display()));
            replace(&path, content.as_bytes(), mode).map_err(|source| WriteError { path, source })
        };
        let chain = pem_of(identity.svid.chain());
        let key = key_pem(identity.svid.key.expose_pkcs8());
        let bundle = pem_of(&identity.bundle);
        write(
            format!("SVID #{index}"),
            format!("svid.{index}.pem"),
            &chain,
            PUBLIC,
        )?;
        write(
            format!("key #{index}"),
            format!("svid.{index}.key"),
            &key,
            SECRET,
        )?;
        write(
            format!("bundle #{index}"),
            format!("bundle.{index}.pem"),
            &bundle,
            PUBLIC,
        )?;
        for (number, federated) in identity.federated.iter().enumerate() {
            let trust_domain = federated.trust_domain.id_string();
            let what = format!("federated bundle #{number} for trust domain {trust_domain}");
            let name = format!("federated_bundle.{index}.{number}.pem");
            write(what, name, &pem_of(&federated.authorities), PUBLIC)?;
        }
    }
    Ok(())
}

/// Puts a new file in the place of whatever has the name; its mode is the given one, less the umask.
fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let (mut file, temporary) = create_beside(path, mode)?;
    let written = file
        .write_all(content)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // What is left over holds at most a part of the content, and the error in hand says more than another one would.
        drop(fs::remove_file(&temporary));
    }
    written
}

/// A new file with a name that nobody can foresee, in the same directory.
fn create_beside(path: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for attempt in 0..TRIES {
        let random = RandomState::new().hash_one(attempt);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{random:016x}.tmp"));
        let temporary = path.with_file_name(name);
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)
        {
            Ok(file) => return Ok((file, temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn pem_of(certificates: &[actors::svid::Certificate]) -> String {
    certificates
        .iter()
        .map(actors::svid::Certificate::to_pem)
        .collect()
}

/// A PKCS#8 key as PEM (RFC 7468 10).
fn key_pem(pkcs8: &[u8]) -> String {
    let text = STANDARD.encode(pkcs8);
    let mut pem = String::from("-----BEGIN PRIVATE KEY-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().copied().map(char::from));
        pem.push('\n');
    }
    pem.push_str("-----END PRIVATE KEY-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_key_is_readable_by_its_owner_only_whatever_was_there_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("svid.0.key");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();

        replace(&path, b"new", SECRET).unwrap();

        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), mode(&path)),
            ("new", 0o600)
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_planted_link_is_replaced_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (
            directory.path().join("svid.0.key"),
            directory.path().join("victim"),
        );
        fs::write(&victim, "untouched").unwrap();
        symlink(&victim, &path).unwrap();

        replace(&path, b"secret", SECRET).unwrap();

        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert!(path.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let directory = tempfile::tempdir().unwrap();

        let outcome = replace(&directory.path().join("none/svid.0.key"), b"x", SECRET);

        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_key_becomes_pem_with_short_lines() {
        let pem = key_pem(&[7; 60]);

        let lines: Vec<&str> = pem.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(
            (lines[0], lines[3]),
            ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----")
        );
        assert_eq!((lines[1].len(), lines[2].len()), (64, 16));
    }
}
