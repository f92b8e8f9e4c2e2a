//! The stored identity in memory and on disk, kept equal. Blocking: for the store's own thread.

use std::path::Path;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

use super::disk::{Directory, FileSystem, Os};
use super::files::{self, AgentData, FileError, Keys};
use super::{BootstrapState, KeySlot, SetAside, StoreConfig, StoreError, StoredIdentity};
use crate::clock::Clock;
use crate::keys::PrivateKey;
use crate::svid::Certificate;

/// Mode of a data directory that is made, under the umask.
pub(super) const DATA_DIR_MODE: u32 = 0o755;
/// Mode of a keys directory that is made.
const KEYS_DIR_MODE: u32 = 0o700;

/// What is on disk, as far as the agent knows.
#[derive(Debug)]
pub(super) struct State<F: FileSystem = Os> {
    fs: F,
    data: AgentData,
    keys: Keys,
    data_on_disk: OnDisk,
    keys_on_disk: OnDisk,
}

/// SHA-256 of a file's text; none if it is unknown, so that the next write is not skipped.
#[derive(Debug, Default)]
struct OnDisk(Option<Vec<u8>>);

impl<F: FileSystem> State<F> {
    /// Reads both files, makes the directories, sets unreadable files aside.
    pub(super) fn load(
        fs: &F,
        config: &StoreConfig,
        clock: &Clock,
    ) -> Result<(Self, Vec<SetAside>), StoreError> {
        let data_dir = Directory::open_or_create(fs, &config.data_dir, DATA_DIR_MODE)?;
        let keys_dir = config
            .keys_dir
            .as_deref()
            .map(|path| Directory::open_or_create(fs, path, KEYS_DIR_MODE))
            .transpose()?;
        let keys_elsewhere = keys_dir
            .as_ref()
            .filter(|keys_dir| keys_dir.path() != data_dir.path());
        for directory in std::iter::once(&data_dir).chain(keys_elsewhere) {
            if directory.is_group_writable() {
                tracing::warn!(path = %directory.path().display(), "state directory can be written by its group");
            }
            directory.sweep(&[files::AGENT_DATA, files::KEYS, "probe"]);
        }

        let stamp = stamp(clock);
        let mut set_aside = Vec::new();
        let (data, data_on_disk) = read(
            &data_dir,
            files::AGENT_DATA,
            AgentData::decode,
            &stamp,
            &mut set_aside,
        )?;
        let (keys, keys_on_disk) = match &keys_dir {
            Some(directory) => read(
                directory,
                files::KEYS,
                files::decode_keys,
                &stamp,
                &mut set_aside,
            )?,
            None => (Keys::new(), OnDisk::default()),
        };
        let state = Self {
            fs: fs.clone(),
            data,
            keys,
            data_on_disk,
            keys_on_disk,
        };
        let keys_elsewhere = keys_dir
            .as_ref()
            .filter(|keys_dir| keys_dir.path() != data_dir.path());
        for directory in std::iter::once(&data_dir).chain(keys_elsewhere) {
            state.check_writable(directory)?;
        }
        Ok((state, set_aside))
    }

    pub(super) fn identity(&self, set_aside: Vec<SetAside>) -> StoredIdentity {
        StoredIdentity {
            chain: self.data.svid.clone(),
            bundle: self.data.bundle.clone(),
            reattestable: self.data.reattestable,
            keys: self
                .keys
                .iter()
                .map(|(slot, key)| (*slot, Arc::clone(key)))
                .collect(),
            bootstrap: self.data.bootstrap,
            set_aside,
        }
    }

    /// On an error the slot keeps what it held.
    pub(super) fn save_key(
        &mut self,
        keys_dir: &Path,
        slot: KeySlot,
        key: Arc<PrivateKey>,
    ) -> Result<(), StoreError> {
        let mut keys = self.keys.clone();
        keys.insert(slot, key);
        let text = files::encode_keys(&keys);
        self.keys_on_disk.write(files::KEYS, &text, || {
            Directory::open_or_create(&self.fs, keys_dir, KEYS_DIR_MODE)
        })?;
        self.keys = keys;
        Ok(())
    }

    pub(super) fn save_svid(
        &mut self,
        data_dir: &Path,
        chain: Vec<Certificate>,
        reattestable: bool,
        bundle: Option<Vec<Certificate>>,
    ) -> Result<(), StoreError> {
        let mut data = self.data.clone();
        data.svid = chain;
        data.bundle = bundle.unwrap_or(data.bundle);
        data.reattestable = reattestable;
        data.attested();
        self.replace(data_dir, data)
    }

    pub(super) fn save_bundle(
        &mut self,
        data_dir: &Path,
        bundle: Vec<Certificate>,
    ) -> Result<(), StoreError> {
        let mut data = self.data.clone();
        data.bundle = bundle;
        self.replace(data_dir, data)
    }

    pub(super) fn save_bootstrap(
        &mut self,
        data_dir: &Path,
        bootstrap: BootstrapState,
    ) -> Result<(), StoreError> {
        let mut data = self.data.clone();
        data.bootstrap = bootstrap;
        self.replace(data_dir, data)
    }

    /// Forgotten in memory even if the disk refuses, so that the next write of anything drops it there too.
    pub(super) fn delete_svid(&mut self, data_dir: &Path) -> Result<(), StoreError> {
        self.data.svid.clear();
        self.data.reattestable = false;
        self.replace(data_dir, self.data.clone())
    }

    fn replace(&mut self, data_dir: &Path, data: AgentData) -> Result<(), StoreError> {
        self.data_on_disk
            .write(files::AGENT_DATA, &data.encode(), || {
                Directory::open_or_create(&self.fs, data_dir, DATA_DIR_MODE)
            })?;
        self.data = data;
        Ok(())
    }

    /// A stored identity serves from a read-only disk; without one the agent would attest only to lose what it gets.
    fn check_writable(&self, directory: &Directory<F>) -> Result<(), StoreError> {
        match directory.probe() {
            Err(error) if self.has_identity() => {
                tracing::warn!(path = %directory.path().display(), %error, "state directory cannot be written, serving the stored identity");
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn has_identity(&self) -> bool {
        self.data.svid.first().is_some_and(|leaf| {
            self.keys
                .values()
                .any(|key| key.public_key_der() == leaf.public_key_der())
        })
    }
}

impl OnDisk {
    fn of(text: &[u8]) -> Self {
        Self(Some(hash(text)))
    }

    /// Writes unless the same text is there already.
    fn write<F: FileSystem>(
        &mut self,
        name: &str,
        text: &[u8],
        open: impl FnOnce() -> Result<Directory<F>, StoreError>,
    ) -> Result<(), StoreError> {
        let hash = hash(text);
        if self.0.as_ref() == Some(&hash) {
            return Ok(());
        }
        // After a failure nobody knows which of the two texts a power cut would leave.
        self.0 = None;
        open()?.write(name, text)?;
        self.0 = Some(hash);
        Ok(())
    }
}

fn hash(text: &[u8]) -> Vec<u8> {
    digest(&SHA256, text).as_ref().to_vec()
}

fn read<T: Default, F: FileSystem>(
    directory: &Directory<F>,
    name: &str,
    decode: impl FnOnce(&[u8]) -> Result<T, FileError>,
    stamp: &str,
    set_aside: &mut Vec<SetAside>,
) -> Result<(T, OnDisk), StoreError> {
    let reason = match directory.read(name) {
        Ok(None) => return Ok((T::default(), OnDisk::default())),
        Ok(Some(text)) => match decode(&text.bytes) {
            Ok(content) if text.is_durable => return Ok((content, OnDisk::of(&text.bytes))),
            Ok(content) => return Ok((content, OnDisk::default())),
            Err(error) => error.to_string(),
        },
        Err(error @ StoreError::TooLarge { .. }) => error.to_string(),
        Err(error) => return Err(error),
    };
    let path = directory.path().join(name);
    let kept_as = directory.set_aside(name, stamp)?;
    tracing::warn!(path = %path.display(), kept_as = %kept_as.display(), error = %reason, "state file is unreadable and has been set aside");
    set_aside.push(SetAside {
        path,
        kept_as,
        reason,
    });
    Ok((T::default(), OnDisk::default()))
}

/// The date as `yyyymmddThhmmssZ`.
fn stamp(clock: &Clock) -> String {
    humantime::format_rfc3339_seconds(clock.wall())
        .to_string()
        .replace(['-', ':'], "")
}

#[cfg(test)]
mod crashes;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_unix_seconds;
    use crate::testing::certificates::Ca;

    /// A directory in which nothing can be made, even by root: it is open but has been removed.
    fn unwritable() -> Directory {
        let parent = tempfile::tempdir().unwrap();
        Directory::open(&Os, parent.path()).unwrap()
    }

    fn state(chain: Vec<Certificate>, keys: Keys) -> State {
        let data = AgentData {
            svid: chain,
            ..AgentData::default()
        };
        State {
            fs: Os,
            data,
            keys,
            data_on_disk: OnDisk::default(),
            keys_on_disk: OnDisk::default(),
        }
    }

    #[test]
    fn only_a_stored_svid_with_its_key_makes_up_for_an_unwritable_directory() {
        let (from, until) = (
            from_unix_seconds(1_790_000_000),
            from_unix_seconds(1_790_003_600),
        );
        let [own, other] =
            [(); 2].map(|()| Ca::new(from).svid("spiffe://domain.test/agent", from, until));
        let chain = own.chain().to_vec();
        let keys = |key| Keys::from([(KeySlot::B, key)]);
        let directory = unwritable();

        let nothing = state(vec![], Keys::new()).check_writable(&directory);
        let no_key = state(chain.clone(), Keys::new()).check_writable(&directory);
        let foreign_key = state(chain.clone(), keys(other.key)).check_writable(&directory);
        let whole = state(chain, keys(own.key)).check_writable(&directory);

        for refused in [nothing, no_key, foreign_key] {
            let text = refused.unwrap_err().to_string();
            assert!(
                text.contains(&directory.path().display().to_string()),
                "{text}"
            );
        }
        assert_eq!(whole, Ok(()));
    }
}
