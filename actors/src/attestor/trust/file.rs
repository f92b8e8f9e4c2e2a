//! A bundle in a file, or in a pipe.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use zeroize::Zeroizing;

use super::{BundleSourceError, bundle_of};
use crate::attestor::node_file;
use crate::bundle::{Bundle, BundleFormat};
use crate::spiffe_id::TrustDomain;

/// Larger bundle files are refused: no real bundle comes near.
const MAX_BUNDLE_BYTES: u64 = 4 << 20;
/// Time for reading it: a dead network file system may never answer.
const LIMIT: Duration = Duration::from_secs(10);

/// What a path leads to.
enum Opened {
    /// The content of a file.
    Text(Zeroizing<Vec<u8>>),
    /// A pipe: whoever is to write into it may never come.
    Pipe(File),
}

/// Reads the bundle, off the actors' thread. `busy` keeps a file that never answers from taking one thread after the other.
pub(super) async fn read(
    path: &Path,
    format: Option<BundleFormat>,
    trust_domain: &TrustDomain,
    busy: &Arc<AtomicBool>,
) -> Result<Bundle, BundleSourceError> {
    let text = tokio::time::timeout(LIMIT, read_text(path, busy))
        .await
        .map_err(|_| unreadable(path, &format_args!("no answer within {LIMIT:?}")))?
        .map_err(|error| unreadable(path, &error))?;
    bundle_of(trust_domain, &text, format).map_err(|reason| BundleSourceError::Unusable {
        path: path.display().to_string(),
        reason,
    })
}

async fn read_text(path: &Path, busy: &Arc<AtomicBool>) -> io::Result<Zeroizing<Vec<u8>>> {
    if busy.swap(true, Ordering::AcqRel) {
        return Err(io::Error::other("an earlier try to read it has not ended"));
    }
    let (file, ended) = (path.to_owned(), Arc::clone(busy));
    let opened = tokio::task::spawn_blocking(move || {
        let opened = open(&file);
        ended.store(false, Ordering::Release);
        opened
    });
    match opened.await.map_err(io::Error::other)?? {
        Opened::Text(text) => Ok(text),
        // Not in a thread: it would be lost for as long as nobody writes.
        Opened::Pipe(file) => {
            let mut text = Zeroizing::default();
            pipe::Receiver::from_file(file)?
                .take(MAX_BUNDLE_BYTES)
                .read_to_end(&mut text)
                .await?;
            Ok(text)
        }
    }
}

/// Opens the file and reads it unless it is a pipe. Blocks, but never for a writer.
fn open(path: &Path) -> io::Result<Opened> {
    if std::fs::metadata(path)?.file_type().is_fifo() {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut options = OpenOptions::new();
        return options
            .read(true)
            .custom_flags(flags)
            .open(path)
            .map(Opened::Pipe);
    }
    node_file::read(path, MAX_BUNDLE_BYTES).map(Opened::Text)
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> BundleSourceError {
    BundleSourceError::Unreadable {
        path: path.display().to_string(),
        reason: reason.to_string(),
    }
}
