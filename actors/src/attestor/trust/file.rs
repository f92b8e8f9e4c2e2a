//! A bundle in a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{BundleSourceError, bundle_of};
use crate::attestor::node_file;
use crate::bundle::{Bundle, BundleFormat};
use crate::spiffe_id::TrustDomain;

/// Larger bundle files are refused: no real bundle comes near.
const MAX_BUNDLE_BYTES: u64 = 4 << 20;
/// Time for reading it: a dead network file system may never answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Reads the bundle, off the actors' thread. `busy` keeps a file that never answers from taking one thread after the other.
pub(super) async fn read(
    path: &Path,
    format: Option<BundleFormat>,
    trust_domain: &TrustDomain,
    busy: &Arc<AtomicBool>,
) -> Result<Bundle, BundleSourceError> {
    if busy.swap(true, Ordering::AcqRel) {
        return Err(unreadable(path, &"an earlier try to read it has not ended"));
    }
    let ended = Arc::clone(busy);
    let (file, owner): (PathBuf, TrustDomain) = (path.to_owned(), trust_domain.clone());
    let reading = tokio::task::spawn_blocking(move || {
        let read = read_now(&file, format, &owner);
        ended.store(false, Ordering::Release);
        read
    });
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
    let text = node_file::read(path, MAX_BUNDLE_BYTES).map_err(|error| unreadable(path, &error))?;
    bundle_of(trust_domain, &text, format).map_err(|reason| BundleSourceError::Unusable {
        path: path.display().to_string(),
        reason,
    })
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> BundleSourceError {
    BundleSourceError::Unreadable {
        path: path.display().to_string(),
        reason: reason.to_string(),
    }
}
