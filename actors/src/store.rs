//! The only writer of disk state. Runs on a `SyncArbiter` thread, so that fsync never blocks the others.
//! Takes [`LoadIdentity`], [`SaveKey`], [`SaveSvid`], [`SaveBundle`], [`SaveBootstrap`], [`DeleteSvid`]. Sends nothing. File formats are in [`files`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::{Actor, Addr, Handler, Message, Recipient, SyncContext};

pub mod disk;
pub mod files;
mod state;

use disk::{Directory, DirectoryLock, Os};
use state::{DATA_DIR_MODE, State};

use crate::clock::Clock;
use crate::keys::PrivateKey;
use crate::svid::Certificate;

/// How long a start waits for another agent to leave the data directory: twice as long as an agent takes to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Where state is kept.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Holds `agent-data.json`; made with its parents (0755 under the umask) if missing.
    pub data_dir: PathBuf,
    /// Holds `keys.json`; none with the memory key manager.
    pub keys_dir: Option<PathBuf>,
}

/// The actor. Started by `SyncArbiter` with one thread: two would write over each other.
#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    clock: Clock,
    /// None until the files have been read, and where the file system knows no locks.
    lock: Option<DirectoryLock>,
    /// None until the files have been read.
    state: Option<State>,
}

/// One of the two places for agent keys (node-side 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeySlot {
    /// `agent-svid-A`.
    A,
    /// `agent-svid-B`.
    B,
}

/// What was found on disk.
#[derive(Debug, Default)]
pub struct StoredIdentity {
    /// The agent SVID's chain, leaf first; empty if there is none.
    pub chain: Vec<Certificate>,
    /// X.509 authorities of the agent's own trust domain.
    pub bundle: Vec<Certificate>,
    /// Whether the agent renews by attesting again.
    pub reattestable: bool,
    /// Agent keys by slot.
    pub keys: Vec<(KeySlot, Arc<PrivateKey>)>,
    /// How far a bootstrap was.
    pub bootstrap: BootstrapState,
    /// Files that were unreadable and have been set aside, with their new names and the reason.
    pub set_aside: Vec<SetAside>,
}

/// How far a bootstrap or rebootstrap is; outlives restarts (node-side 1.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BootstrapState {
    /// What the next bundle is fetched for; none in files of older agents.
    pub purpose: Option<Purpose>,
    /// When the trouble began; none = there is none.
    pub started: Option<SystemTime>,
    /// How often a source was asked since then.
    pub attempts: i64,
}

/// What a bundle is fetched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To attest for the first time.
    Bootstrap,
    /// To find a server again whose authority has become unknown.
    Rebootstrap,
}

impl BootstrapState {
    /// The server has accepted the agent: nothing is left to bootstrap.
    pub fn succeeded() -> Self {
        Self {
            purpose: Some(Purpose::Rebootstrap),
            started: None,
            attempts: 0,
        }
    }
}

/// A file that could not be used (design 5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Where it was.
    pub path: PathBuf,
    /// Where it is now: `*.corrupt-<time>`.
    pub kept_as: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// Why state cannot be read or written. Names the path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("unable to {action} {path}: {reason}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory.
        path: String,
        /// The operating system's words.
        reason: String,
    },
    /// The file is larger than any state of an agent.
    #[error("{path} is larger than 16 MiB")]
    TooLarge {
        /// The file.
        path: String,
    },
    /// The directory or file is not safe to use.
    #[error("{path} {problem}")]
    Unsafe {
        /// The file or directory.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Reads what is on disk; makes the directories.
#[derive(Debug, Message)]
#[rtype(result = "Result<StoredIdentity, StoreError>")]
pub struct LoadIdentity;

/// Puts a key into a slot and has it on disk before answering. With the memory key manager nothing is written.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct SaveKey {
    /// Which slot it replaces.
    pub slot: KeySlot,
    /// The new key.
    pub key: Arc<PrivateKey>,
}

/// Has the agent SVID on disk before answering.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct SaveSvid {
    /// Leaf first.
    pub chain: Vec<Certificate>,
    /// Whether the agent renews by attesting again.
    pub reattestable: bool,
    /// Authorities that vouch for it, written in the same step where they are new: neither is of use without the other.
    pub bundle: Option<Vec<Certificate>>,
}

/// Has the own trust domain's X.509 authorities on disk before answering.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct SaveBundle {
    /// In the server's order.
    pub authorities: Vec<Certificate>,
}

/// Has the state of a bootstrap on disk before answering.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct SaveBootstrap(pub BootstrapState);

/// Forgets the agent SVID (evicted, banned); keys and bundle stay.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct DeleteSvid;

/// The store as its clients hold it: one recipient per message.
#[derive(Debug, Clone)]
pub struct StoreHandle {
    /// For [`LoadIdentity`].
    pub load: Recipient<LoadIdentity>,
    /// For [`SaveKey`].
    pub save_key: Recipient<SaveKey>,
    /// For [`SaveSvid`].
    pub save_svid: Recipient<SaveSvid>,
    /// For [`SaveBundle`].
    pub save_bundle: Recipient<SaveBundle>,
    /// For [`SaveBootstrap`].
    pub save_bootstrap: Recipient<SaveBootstrap>,
    /// For [`DeleteSvid`].
    pub delete_svid: Recipient<DeleteSvid>,
}

impl StoreHandle {
    /// Hands out recipients of any actor that takes the store's messages.
    pub fn of<A>(store: &Addr<A>) -> Self
    where
        A: Actor
            + Handler<LoadIdentity>
            + Handler<SaveKey>
            + Handler<SaveSvid>
            + Handler<SaveBundle>
            + Handler<SaveBootstrap>
            + Handler<DeleteSvid>,
        A::Context: actix::dev::ToEnvelope<A, LoadIdentity>
            + actix::dev::ToEnvelope<A, SaveKey>
            + actix::dev::ToEnvelope<A, SaveSvid>
            + actix::dev::ToEnvelope<A, SaveBundle>
            + actix::dev::ToEnvelope<A, SaveBootstrap>
            + actix::dev::ToEnvelope<A, DeleteSvid>,
    {
        Self {
            load: store.clone().recipient(),
            save_key: store.clone().recipient(),
            save_svid: store.clone().recipient(),
            save_bundle: store.clone().recipient(),
            save_bootstrap: store.clone().recipient(),
            delete_svid: store.clone().recipient(),
        }
    }
}

impl Store {
    /// Touches nothing before the first message. The clock names files that are set aside.
    pub fn new(config: StoreConfig, clock: Clock) -> Self {
        Self {
            config,
            clock,
            lock: None,
            state: None,
        }
    }

    /// What was loaded, loading it first if nobody asked for it: a write must not lose what the file holds.
    fn state(&mut self) -> Result<&mut State, StoreError> {
        let state = match self.state.take() {
            Some(state) => state,
            None => self.load()?.0,
        };
        Ok(self.state.insert(state))
    }

    /// Two agents on one data directory would replace each other's identity, and sweep each other's files.
    fn load(&mut self) -> Result<(State, Vec<SetAside>), StoreError> {
        if self.lock.is_none() {
            let directory = Directory::open_or_create(&Os, &self.config.data_dir, DATA_DIR_MODE)?;
            self.lock = directory.lock(LOCK_PATIENCE)?;
        }
        State::load(&Os, &self.config, &self.clock)
    }
}

impl Actor for Store {
    type Context = SyncContext<Self>;
}

impl Handler<LoadIdentity> for Store {
    type Result = Result<StoredIdentity, StoreError>;

    fn handle(&mut self, _: LoadIdentity, _: &mut Self::Context) -> Self::Result {
        let (state, set_aside) = self.load()?;
        Ok(self.state.insert(state).identity(set_aside))
    }
}

impl Handler<SaveKey> for Store {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, SaveKey { slot, key }: SaveKey, _: &mut Self::Context) -> Self::Result {
        match self.config.keys_dir.clone() {
            Some(directory) => self.state()?.save_key(&directory, slot, key),
            None => Ok(()),
        }
    }
}

impl Handler<SaveSvid> for Store {
    type Result = Result<(), StoreError>;

    fn handle(
        &mut self,
        SaveSvid {
            chain,
            reattestable,
            bundle,
        }: SaveSvid,
        _: &mut Self::Context,
    ) -> Self::Result {
        let directory = self.config.data_dir.clone();
        self.state()?
            .save_svid(&directory, chain, reattestable, bundle)
    }
}

impl Handler<SaveBundle> for Store {
    type Result = Result<(), StoreError>;

    fn handle(
        &mut self,
        SaveBundle { authorities }: SaveBundle,
        _: &mut Self::Context,
    ) -> Self::Result {
        let directory = self.config.data_dir.clone();
        self.state()?.save_bundle(&directory, authorities)
    }
}

impl Handler<SaveBootstrap> for Store {
    type Result = Result<(), StoreError>;

    fn handle(
        &mut self,
        SaveBootstrap(bootstrap): SaveBootstrap,
        _: &mut Self::Context,
    ) -> Self::Result {
        let directory = self.config.data_dir.clone();
        self.state()?.save_bootstrap(&directory, bootstrap)
    }
}

impl Handler<DeleteSvid> for Store {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, _: DeleteSvid, _: &mut Self::Context) -> Self::Result {
        let directory = self.config.data_dir.clone();
        self.state()?.delete_svid(&directory)
    }
}

#[cfg(test)]
mod tests;
