//! Small files that others write: evidence, bundles, root certificates.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

/// The content of a file of at most `limit` bytes, in a buffer that is zeroised: it may be a key. The error does not name the file.
pub(super) fn read(path: &Path, limit: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    // Opening a pipe would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    let length = metadata.len().min(limit);
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
