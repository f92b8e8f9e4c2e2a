//! Small files that others write: evidence, bundles, root certificates.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use zeroize::Zeroizing;

/// The content of a regular file of at most `limit` bytes, in a buffer that is zeroised: it may be a key. The error does not name the file.
pub(super) fn read(path: &Path, limit: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    // Opening a pipe would wait for its writer, and nobody could stop the agent meanwhile.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() && !found.is_dir() {
        return Err(io::Error::other("not a regular file"));
    }
    let length = found.len().min(limit);
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pipe_in_place_of_a_file_is_refused_without_waiting_for_its_writer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0).unwrap();
        let (tell, told) = mpsc::channel();

        std::thread::spawn(move || tell.send(read(&path, 100).map_err(|error| error.to_string())));

        let outcome = told.recv_timeout(Duration::from_secs(5)).unwrap();
        assert_eq!(outcome.unwrap_err(), "not a regular file");
    }
}
