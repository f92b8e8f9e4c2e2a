//! The workload attestor `unix`: user, groups and executable of a process (workload-side 2.2).

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::account_table::AccountTable;
use super::accounts::{AccountFile, Accounts};
use super::executable::{HashError, Hasher};
use super::proc_status::ProcStatus;
use super::process::ProcessDir;
use super::{AttestorError, AttestorFuture, WorkloadAttestor};
use crate::clock::Clock;
use crate::peer::Peer;
use crate::selector::Selector;

const NAME: &str = "unix";
/// How long a hash may take; less than the attestor's own deadline, so that the other selectors are kept.
const HASH_DEADLINE: Duration = Duration::from_secs(4);

/// Configuration of the attestor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixConfig {
    /// Whether `path` and `sha256` are found (`discover_workload_path`).
    pub discover_workload_path: bool,
    /// Largest executable that is hashed, in bytes; 0 = any, negative = none (`workload_size_limit`).
    pub workload_size_limit: i64,
    /// Where the process file system is mounted (`HOST_PROC`).
    pub proc_root: PathBuf,
}

/// The attestor. Cheap to clone.
#[derive(Debug, Clone)]
pub struct UnixAttestor(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    config: UnixConfig,
    users: AccountTable,
    groups: AccountTable,
    /// None if nothing is to be hashed.
    hasher: Option<Hasher>,
}

impl Default for UnixConfig {
    fn default() -> Self {
        Self {
            discover_workload_path: false,
            workload_size_limit: 0,
            proc_root: PathBuf::from("/proc"),
        }
    }
}

impl UnixAttestor {
    /// Names come from the agent's own `/etc/passwd` and `/etc/group`.
    pub fn new(config: UnixConfig, clock: Clock) -> Self {
        let limit = u64::try_from(config.workload_size_limit).ok();
        let hashes = config.discover_workload_path && limit.is_some();
        Self(Rc::new(Inner {
            users: AccountTable::new(PathBuf::from("/etc/passwd"), AccountFile::Passwd),
            groups: AccountTable::new(PathBuf::from("/etc/group"), AccountFile::Group),
            hasher: hashes.then(|| Hasher::new(clock, limit.filter(|limit| *limit > 0))),
            config,
        }))
    }
}

impl WorkloadAttestor for UnixAttestor {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attest(&self, peer: Arc<Peer>) -> AttestorFuture {
        let inner = Rc::clone(&self.0);
        Box::pin(async move { inner.attest(&peer).await })
    }
}

impl Inner {
    async fn attest(&self, peer: &Peer) -> Result<Vec<Selector>, AttestorError> {
        let process = ProcessDir::open(&self.config.proc_root, peer.pid)?;
        let status = process.status()?;
        // The very reading that the selectors are made of: between two others the user may change and change back.
        if !status.runs_as(peer.uid, peer.gid) {
            return Err(AttestorError::AnotherUser);
        }
        let mut selectors =
            account_selectors(&status, &self.users.accounts(), &self.groups.accounts());
        if self.config.discover_workload_path {
            // A path that is no text cannot be written in an entry.
            if let Ok(path) = String::from_utf8(process.executable_path()?) {
                selectors.push(selector("path", &path));
            }
        }
        if let Some(hasher) = &self.hasher {
            match tokio::time::timeout(HASH_DEADLINE, hasher.sha256(&process, status.uid)).await {
                Ok(Ok(hash)) => selectors.push(selector("sha256", &hash)),
                Ok(Err(HashError::Unreadable(error))) => return Err(error),
                // The reference loses every selector here (design D13).
                Ok(Err(error @ (HashError::TooLarge | HashError::Changed))) => {
                    tracing::warn!(pid = peer.pid, %error, "workload is attested without sha256");
                }
                Err(_) => tracing::warn!(
                    pid = peer.pid,
                    error = "hashing takes too long",
                    "workload is attested without sha256"
                ),
            }
        }
        Ok(selectors)
    }
}

fn account_selectors(status: &ProcStatus, users: &Accounts, groups: &Accounts) -> Vec<Selector> {
    let mut selectors = vec![
        selector("uid", &status.uid.to_string()),
        selector("gid", &status.gid.to_string()),
    ];
    selectors.extend(users.name(status.uid).map(|name| selector("user", name)));
    selectors.extend(groups.name(status.gid).map(|name| selector("group", name)));
    for group in &status.groups {
        selectors.push(selector("supplementary_gid", &group.to_string()));
        selectors.extend(
            groups
                .name(*group)
                .map(|name| selector("supplementary_group", name)),
        );
    }
    selectors
}

fn selector(key: &str, value: &str) -> Selector {
    Selector::new(NAME, &format!("{key}:{value}")).expect("type and value are not empty")
}
