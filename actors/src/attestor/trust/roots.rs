//! The authorities of the Web PKI that this machine trusts: PEM files, found as Go and OpenSSL find them. They go to rustls and nowhere else.

use crate::attestor::node_file;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// Files that distributions keep all authorities in: Debian, Red Hat (old, new), SUSE, Alpine.
const USUAL_FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Directories with one authority a file, asked when none of the files is there.
const USUAL_DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];
/// Largest file in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most files that are read of one directory, and most authorities in all.
const MAX_FILES: usize = 2000;
const MAX_ROOTS: usize = 2000;

/// Where authorities are looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RootPlaces {
    /// `SSL_CERT_FILE`.
    file: Option<PathBuf>,
    /// `SSL_CERT_DIR`, several separated by colons.
    directories: Vec<PathBuf>,
}

impl RootPlaces {
    /// Where either variable is set, the usual places do not count.
    pub(super) fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let directories = variable("SSL_CERT_DIR").unwrap_or_default();
        Self {
            file: variable("SSL_CERT_FILE")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            directories: directories
                .split(':')
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
                .collect(),
        }
    }

    /// Reads the authorities. What is no certificate is passed over, what cannot be read too. Blocks.
    pub(super) fn load(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        if self.is_named() {
            self.file.iter().for_each(|file| add_file(file, &mut roots));
            for directory in &self.directories {
                add_directory(directory, &mut roots);
            }
            return roots;
        }
        for file in USUAL_FILES {
            add_file(Path::new(file), &mut roots);
            if !roots.is_empty() {
                return roots;
            }
        }
        for directory in USUAL_DIRECTORIES {
            add_directory(Path::new(directory), &mut roots);
        }
        roots
    }

    /// The places in words.
    pub(super) fn describe(&self) -> String {
        if !self.is_named() {
            return "the usual places; SSL_CERT_FILE may name a file".to_owned();
        }
        let places = self.file.iter().chain(&self.directories);
        let places: Vec<_> = places.map(|path| path.display().to_string()).collect();
        places.join(", ")
    }

    fn is_named(&self) -> bool {
        self.file.is_some() || !self.directories.is_empty()
    }
}

fn add_directory(directory: &Path, roots: &mut RootCertStore) {
    let Ok(entries) = directory.read_dir() else {
        return;
    };
    for entry in entries.flatten().take(MAX_FILES) {
        let path = entry.path();
        if path.is_file() {
            add_file(&path, roots);
        }
    }
}

fn add_file(path: &Path, roots: &mut RootCertStore) {
    let Ok(text) = node_file::read(path, MAX_FILE_BYTES) else {
        return;
    };
    let found = CertificateDer::pem_slice_iter(&text).flatten();
    let room = MAX_ROOTS.saturating_sub(roots.len());
    roots.add_parsable_certificates(found.take(room));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::certificates::Ca;
    use crate::testing::epoch;

    fn places(file: Option<&str>, directories: Option<&str>) -> RootPlaces {
        RootPlaces::from_environment(&|name| match name {
            "SSL_CERT_FILE" => file.map(str::to_owned),
            "SSL_CERT_DIR" => directories.map(str::to_owned),
            _ => None,
        })
    }

    #[test]
    fn file_and_directories_come_from_the_environment() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let pem = || Ca::new(epoch()).certificate().to_pem();
        std::fs::create_dir(path("one")).unwrap();
        std::fs::create_dir(path("two")).unwrap();
        std::fs::write(path("file"), pem() + "noise\n" + &pem()).unwrap();
        std::fs::write(path("one/a.0"), pem()).unwrap();
        std::fs::write(path("one/b"), "no certificate").unwrap();
        std::fs::write(path("two/c"), pem().replace("MII", "AAA") + &pem()).unwrap();
        let directories = format!("{}:{}:", path("one"), path("two"));

        let count = |file: Option<&str>, directories| places(file, directories).load().len();
        assert_eq!(count(Some(&path("file")), None), 2);
        assert_eq!(count(None, Some(&directories)), 2);
        assert_eq!(count(Some(&path("file")), Some(&directories)), 4);
        assert_eq!(count(Some(&path("none")), None), 0);
        assert_eq!(places(Some(""), Some(":")), RootPlaces::default());
    }
}
