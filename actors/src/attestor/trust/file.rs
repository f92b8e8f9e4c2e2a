//! A bundle in a file.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{BundleSourceError, bundle_of};
use crate::bundle::{Bundle, BundleFormat};
use crate::spiffe_id::TrustDomain;

/// Larger bundle files are refused: no real bundle comes near.
const MAX_BUNDLE_BYTES: u64 = 4 << 20;
/// Time for reading it: a pipe or a dead network file system may never answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Reads the bundle, off the actors' thread.
pub(super) async fn read(
    path: &Path,
    format: Option<BundleFormat>,
    trust_domain: &TrustDomain,
) -> Result<Bundle, BundleSourceError> {
    let (file, owner): (PathBuf, TrustDomain) = (path.to_owned(), trust_domain.clone());
    let reading = tokio::task::spawn_blocking(move || read_now(&file, format, &owner));
    let late = || unreadable(path, &format_args!("no answer within {LIMIT:?}"));
    match tokio::time::timeout(LIMIT, reading).await {
        Ok(Ok(read)) => read,
        Ok(Err(stopped)) => Err(unreadable(path, &stopped)),
        Err(_) => Err(late()),
    }
}

/// Reads the bundle here and now. Blocks.
fn read_now(
    path: &Path,
    format: Option<BundleFormat>,
    trust_domain: &TrustDomain,
) -> Result<Bundle, BundleSourceError> {
    let text = read_text(path).map_err(|error| unreadable(path, &error))?;
    bundle_of(trust_domain, &text, format).map_err(|reason| BundleSourceError::Unusable {
        path: path.display().to_string(),
        reason,
    })
}

fn read_text(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?
        .take(MAX_BUNDLE_BYTES)
        .read_to_end(&mut text)?;
    Ok(text)
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> BundleSourceError {
    BundleSourceError::Unreadable {
        path: path.display().to_string(),
        reason: reason.to_string(),
    }
}
