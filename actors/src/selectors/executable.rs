//! SHA-256 of executables, each content hashed once.
//!
//! A workload chooses its executable and the file system that it lies on, which may be huge or never answer. So each hash has a thread of
//! its own (a hung one must not hold up the runtime's few blocking threads), a user has one of them at a time, and all users together
//! have [`MAX_THREADS`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring::digest::{Context, SHA256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::AttestorError;
use super::process::{FileVersion, ProcessDir, unreadable};
use crate::clock::{Clock, unix_seconds};

/// Hashes under way at once, hung ones included.
const MAX_THREADS: usize = 8;
/// Most hashes that are kept; all are dropped when one more comes.
const MAX_KEPT: usize = 1024;
/// Clock grain of change times, generously: a file changed this recently, in seconds, may change again without showing it.
const SETTLED_AFTER: i64 = 2;
const CHUNK_BYTES: usize = 64 << 10;
const STACK_BYTES: usize = 256 << 10;

/// Why there is no hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HashError {
    /// The file is larger than `workload_size_limit`.
    #[error("executable is larger than workload_size_limit")]
    TooLarge,
    /// The operating system refused.
    #[error(transparent)]
    Unreadable(#[from] AttestorError),
    /// It changed while it was read.
    #[error("executable changed while it was read")]
    Changed,
}

/// Hashes executables and remembers.
#[derive(Debug)]
pub(super) struct Hasher {
    clock: Clock,
    /// In bytes; none = any size.
    size_limit: Option<u64>,
    kept: RefCell<HashMap<FileVersion, Rc<str>>>,
    threads: Arc<Semaphore>,
    users: RefCell<HashMap<u32, Arc<Semaphore>>>,
}

/// Ends a hash whose caller has stopped waiting, at its next chunk.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Hasher {
    /// The clock tells settled files from those just written.
    pub(super) fn new(clock: Clock, size_limit: Option<u64>) -> Self {
        Self {
            clock,
            size_limit,
            kept: RefCell::default(),
            threads: Arc::new(Semaphore::new(MAX_THREADS)),
            users: RefCell::default(),
        }
    }

    /// The hash of a process's executable in lower-case hexadecimal. Waits its turn; dropping the future gives the turn up.
    pub(super) async fn sha256(
        &self,
        process: &ProcessDir,
        uid: u32,
    ) -> Result<Rc<str>, HashError> {
        if let Some(known) = self.look_up(process)? {
            return Ok(known);
        }
        let user = self.user(uid);
        let turn = user.acquire_owned().await.expect("never closed");
        // Whoever had the turn before may have hashed the same file.
        if let Some(known) = self.look_up(process)? {
            return Ok(known);
        }
        let thread = Arc::clone(&self.threads)
            .acquire_owned()
            .await
            .expect("never closed");

        let (version, hash) = self.hash_in_thread(process, [turn, thread]).await?;
        let hash: Rc<str> = hash.into();
        if unix_seconds(self.clock.wall()) - version.changed.0 > SETTLED_AFTER {
            let mut kept = self.kept.borrow_mut();
            if kept.len() >= MAX_KEPT {
                kept.clear();
            }
            kept.insert(version, Rc::clone(&hash));
        }
        Ok(hash)
    }

    fn look_up(&self, process: &ProcessDir) -> Result<Option<Rc<str>>, HashError> {
        let version = process.executable_version()?;
        if self.size_limit.is_some_and(|limit| version.size > limit) {
            return Err(HashError::TooLarge);
        }
        Ok(self.kept.borrow().get(&version).map(Rc::clone))
    }

    /// The turns of one user. Users without a hash under way are forgotten.
    fn user(&self, uid: u32) -> Arc<Semaphore> {
        let mut users = self.users.borrow_mut();
        users.retain(|_, turns| Arc::strong_count(turns) > 1);
        Arc::clone(
            users
                .entry(uid)
                .or_insert_with(|| Arc::new(Semaphore::new(1))),
        )
    }

    /// The permits are given back when the thread ends, not when nobody waits for it any more.
    async fn hash_in_thread(
        &self,
        process: &ProcessDir,
        permits: [OwnedSemaphorePermit; 2],
    ) -> Result<(FileVersion, String), HashError> {
        let process = process.try_clone().map_err(failed)?;
        let (answer, answered) = oneshot::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let _cancel_on_drop = CancelOnDrop(Arc::clone(&cancelled));
        let limit = self.size_limit;
        let work = move || {
            let hash = hash_executable(&process, limit, &cancelled);
            drop(permits);
            // Nobody is left to tell if the deadline has passed.
            answer.send(hash).ok();
        };
        std::thread::Builder::new()
            .name("hash".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(failed)?;
        answered.await.unwrap_or_else(|_| Err(failed(given_up())))
    }
}

fn hash_executable(
    process: &ProcessDir,
    limit: Option<u64>,
    cancelled: &AtomicBool,
) -> Result<(FileVersion, String), HashError> {
    let (mut file, version) = process.open_executable().map_err(failed)?;
    if limit.is_some_and(|limit| version.size > limit) {
        return Err(HashError::TooLarge);
    }
    let mut context = Context::new(&SHA256);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut left = version.size;
    loop {
        if cancelled.load(Ordering::Relaxed) {
            return Err(failed(given_up()));
        }
        match file.read(&mut chunk) {
            Ok(0) => break,
            // More than it said that it has: it would go on for ever.
            Ok(count) if u64::try_from(count).is_ok_and(|count| count > left) => {
                return Err(HashError::Changed);
            }
            Ok(count) => {
                left -= u64::try_from(count).unwrap_or(left);
                context.update(
                    chunk
                        .get(..count)
                        .expect("a reader fills no more than it is given"),
                );
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    if FileVersion::of_open(&file).map_err(failed)? != version {
        return Err(HashError::Changed);
    }
    Ok((version, hex(context.finish().as_ref())))
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            write!(text, "{byte:02x}").expect("text takes everything");
            text
        })
}

fn given_up() -> std::io::Error {
    std::io::Error::other("hashing was given up")
}

fn failed(error: impl Into<std::io::Error>) -> HashError {
    unreadable("executable", error).into()
}
