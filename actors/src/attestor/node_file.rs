//! Files that a node's evidence is in.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use zeroize::Zeroizing;

/// The content of a file of at most `limit` bytes, in a buffer that is zeroised: it may be a key. The error does not name the file.
pub(super) fn read(path: &Path, limit: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len().min(limit);
    // Room for all of it and the end: growing would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(
        usize::try_from(length).unwrap_or_default() + 64,
    ));
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let message = format!("larger than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}
