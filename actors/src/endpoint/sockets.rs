//! Local sockets and their directories, made in the order of workload-side 1.2 by `system.rs`: the public directory, the
//! umask, private directories, then the sockets. A path that somebody else uses is never taken over (design D12).

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The longest path of a Unix socket in bytes (`sun_path` less its final zero).
pub const PATH_BYTES_MAX: usize = 107;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
const PUBLIC_MODE: u32 = 0o777;
const ADMIN_MODE: u32 = 0o770;
const DIRECTORY_MODE: u32 = 0o755;
/// What group and others lose by the umask.
const UMASK_MIN: u32 = 0o027;

/// A bound socket, not yet accepting. Dropping it closes the socket and removes its file.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    file: SocketFile,
}

/// The file of a socket of ours; dropping it removes the file, if it is still ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

/// Why a socket or its directory cannot be made. Names the path.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path does not fit into a socket address.
    #[error("socket path {} is {length} bytes long; the limit is {PATH_BYTES_MAX}", .path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// Something that is no socket is at the path.
    #[error("socket path {} is taken by something that is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// Another process accepts connections there.
    #[error("socket {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The operating system refuses.
    #[error("cannot {action} {}", .path.display())]
    Refused {
        /// What was tried.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Binds the socket for workloads: everybody may connect.
pub fn bind_public(path: &Path) -> Result<LocalListener, SocketError> {
    bind(path, PUBLIC_MODE)
}

/// Binds a socket for operators: owner and group may connect.
pub fn bind_admin(path: &Path) -> Result<LocalListener, SocketError> {
    bind(path, ADMIN_MODE)
}

/// Makes the directory of a public socket where it is missing, with mode 0755 under the inherited umask: to be called before
/// [`raise_umask`]. An existing directory keeps its mode.
pub fn prepare_public_directory(socket: &Path) -> Result<(), SocketError> {
    prepare_directory(socket)
}

/// Makes the directory of a private socket where it is missing, with mode 0750 thanks to [`raise_umask`]. An existing
/// directory keeps its mode.
pub fn prepare_private_directory(socket: &Path) -> Result<(), SocketError> {
    prepare_directory(socket)
}

/// Takes write permission from the group and every permission from others on whatever the process makes from now on.
pub fn raise_umask() {
    let minimum = Mode::from_raw_mode(UMASK_MIN);
    let before = rustix::process::umask(minimum);
    rustix::process::umask(before | minimum);
    if !before.contains(minimum) {
        tracing::warn!(
            current = format_args!("{:04o}", before.as_raw_mode()),
            "Current umask is too permissive; setting umask 0027"
        );
    }
}

impl LocalListener {
    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// The socket, and the file that is to go with it.
    pub(super) fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours =
            rustix::fs::lstat(&self.path).is_ok_and(|found| identity(&found) == self.identity);
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "socket file cannot be removed");
        }
    }
}

fn prepare_directory(socket: &Path) -> Result<(), SocketError> {
    match socket.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(directory)
            .map_err(|source| refused("create directory", directory, source)),
        _ => Ok(()),
    }
}

fn bind(path: &Path, mode: u32) -> Result<LocalListener, SocketError> {
    let length = path.as_os_str().len();
    if length > PATH_BYTES_MAX {
        return Err(SocketError::TooLong {
            path: path.into(),
            length,
        });
    }
    make_way(path)?;
    let socket =
        bind_narrow(path, mode).map_err(|error| refused("bind socket", path, error.into()))?;
    let file =
        open_up(path, mode).map_err(|source| refused("set the mode of socket", path, source))?;
    // Nobody can connect before this, and by now the mode is right.
    rustix::net::listen(&socket, BACKLOG)
        .map_err(|error| refused("listen on socket", path, error.into()))?;
    Ok(LocalListener {
        listener: socket.into(),
        file,
    })
}

/// Removes a socket that nobody listens on. Anything else at the path is an error.
fn make_way(path: &Path) -> Result<(), SocketError> {
    match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(refused("look at socket path", path, error.into())),
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Socket => {
            return Err(SocketError::NotASocket(path.into()));
        }
        Ok(_) => {}
    }
    match knock(path) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // Its queue is full: somebody listens, if slowly.
        Ok(()) | Err(Errno::AGAIN) => return Err(SocketError::InUse(path.into())),
        Err(error) => return Err(refused("probe socket", path, error.into())),
    }
    std::fs::remove_file(path).map_err(|source| refused("remove stale socket", path, source))
}

/// Connects without waiting and hangs up.
fn knock(path: &Path) -> Result<(), Errno> {
    rustix::net::connect(new_socket()?, &SocketAddrUnix::new(path)?)
}

/// Binds so that the file never has a wider mode than meant: Linux takes it from the socket, less the umask.
fn bind_narrow(path: &Path, mode: u32) -> Result<OwnedFd, Errno> {
    let socket = new_socket()?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Sets the mode of the socket just bound through a descriptor, so that nothing put in its place meanwhile is changed.
fn open_up(path: &Path, mode: u32) -> io::Result<SocketFile> {
    let held = rustix::fs::open(
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let found = rustix::fs::fstat(held.as_fd())?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(io::Error::other(
            "it was replaced by something that is not a socket",
        ));
    }
    rustix::fs::chmod(
        format!("/proc/self/fd/{}", held.as_raw_fd()),
        Mode::from_raw_mode(mode),
    )?;
    Ok(SocketFile {
        path: path.into(),
        identity: identity(&found),
    })
}

fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

fn refused(action: &'static str, path: &Path, source: io::Error) -> SocketError {
    SocketError::Refused {
        action,
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// A socket file that a killed process has left behind.
    fn leave_stale(path: &Path) {
        drop(UnixListener::bind(path).unwrap());
    }

    #[test]
    fn modes_are_those_of_the_reference_whatever_the_umask() {
        let directory = tempfile::tempdir().unwrap();
        let (public, admin) = (directory.path().join("p"), directory.path().join("a"));

        let _bound = (bind_public(&public).unwrap(), bind_admin(&admin).unwrap());

        assert_eq!((mode(&public), mode(&admin)), (0o777, 0o770));
        UnixStream::connect(&public).unwrap();
    }

    #[test]
    fn d12_a_stale_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        leave_stale(&path);

        let _bound = bind_public(&path).unwrap();

        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn d12_nothing_else_at_the_path_is_touched() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "precious").unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        leave_stale(&at("stale"));
        std::os::unix::fs::symlink(at("stale"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
        let _live = UnixListener::bind(at("live")).unwrap();

        for name in ["file", "directory", "link", "dangling"] {
            let error = bind_public(&at(name)).unwrap_err();

            assert!(
                matches!(error, SocketError::NotASocket(_)),
                "{name}: {error}"
            );
            assert!(error.to_string().contains(at(name).to_str().unwrap()));
        }
        let error = bind_admin(&at("live")).unwrap_err();

        assert!(matches!(error, SocketError::InUse(_)), "{error}");
        assert_eq!(std::fs::read(at("file")).unwrap(), b"precious");
        assert!(
            std::fs::symlink_metadata(at("stale"))
                .unwrap()
                .file_type()
                .is_socket()
        );
        assert!(std::fs::symlink_metadata(at("nowhere")).is_err());
        UnixStream::connect(at("live")).unwrap();
    }

    #[test]
    fn d12_only_the_own_socket_is_removed_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let (own, other) = (directory.path().join("own"), directory.path().join("other"));
        let (bound, replaced) = (bind_public(&own).unwrap(), bind_public(&other).unwrap());
        std::fs::remove_file(&other).unwrap();
        leave_stale(&other);

        drop((bound, replaced));

        assert!(!own.exists());
        assert!(other.exists());
    }

    #[test]
    fn a_path_that_is_too_long_is_named_with_the_limit() {
        let path = PathBuf::from(format!("/{}", "l".repeat(PATH_BYTES_MAX)));

        let error = bind_public(&path).unwrap_err().to_string();

        assert!(
            error.contains(path.to_str().unwrap()) && error.contains("107"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_directory_is_made_and_an_existing_one_keeps_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let existing = root.path().join("existing");
        std::fs::create_dir(&existing).unwrap();
        std::fs::set_permissions(&existing, std::fs::Permissions::from_mode(0o711)).unwrap();
        let missing = root.path().join("a/b/c");

        prepare_public_directory(&missing.join("s")).unwrap();
        prepare_private_directory(&existing.join("s")).unwrap();

        assert!(missing.is_dir());
        assert_eq!(mode(&missing) & !DIRECTORY_MODE, 0);
        assert_eq!(mode(&existing), 0o711);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();

        let error = prepare_public_directory(&file.join("below/s"))
            .unwrap_err()
            .to_string();

        assert!(
            error.contains(file.join("below").to_str().unwrap()),
            "{error}"
        );
    }
}
