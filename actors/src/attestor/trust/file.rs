//! A bundle in a file, or in a pipe.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::{BundleSourceError, bundle_of};
use crate::bundle::{Bundle, BundleFormat};
use crate::spiffe_id::TrustDomain;

/// Larger bundle files are refused: no real bundle comes near.
const MAX_BUNDLE_BYTES: u64 = 4 << 20;
/// Time for reading it: a pipe or a dead network file system may never answer.
const LIMIT: Duration = Duration::from_secs(10);

/// What a path leads to.
enum Opened {
    /// The content of a file.
    Text(Vec<u8>),
    /// A pipe: whoever is to write into it may never come.
    Pipe(File),
}

/// Reads the bundle, off the actors' thread.
pub(super) async fn read(
    path: &Path,
    format: Option<BundleFormat>,
    trust_domain: &TrustDomain,
) -> Result<Bundle, BundleSourceError> {
    let text = tokio::time::timeout(LIMIT, read_text(path))
        .await
        .map_err(|_| unreadable(path, &format_args!("no answer within {LIMIT:?}")))?
        .map_err(|error| unreadable(path, &error))?;
    bundle_of(trust_domain, &text, format).map_err(|reason| BundleSourceError::Unusable {
        path: path.display().to_string(),
        reason,
    })
}

async fn read_text(path: &Path) -> io::Result<Vec<u8>> {
    let file = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || open(&file)).await;
    match opened.map_err(io::Error::other)?? {
        Opened::Text(text) => Ok(text),
        // Not in a thread: it would be lost for as long as nobody writes.
        Opened::Pipe(file) => {
            let mut text = Vec::new();
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
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return Ok(Opened::Pipe(file));
    }
    let mut text = Vec::new();
    file.take(MAX_BUNDLE_BYTES).read_to_end(&mut text)?;
    Ok(Opened::Text(text))
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> BundleSourceError {
    BundleSourceError::Unreadable {
        path: path.display().to_string(),
        reason: reason.to_string(),
    }
}
