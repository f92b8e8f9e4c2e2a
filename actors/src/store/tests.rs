use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use actix::SyncArbiter;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::clock::Clock;
use crate::keys::KeyType;

/// A date whose stamp is easy to read.
const NOON: Duration = Duration::from_secs(1_790_000_000);

struct Room {
    _directory: tempfile::TempDir,
    data_dir: PathBuf,
    keys_dir: Option<PathBuf>,
}

impl Room {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (data_dir, keys_dir) = (
            directory.path().join("data"),
            Some(directory.path().join("keys")),
        );
        Self {
            _directory: directory,
            data_dir,
            keys_dir,
        }
    }

    fn with_directories() -> Self {
        let room = Self::new();
        for directory in [&room.data_dir, room.keys_dir.as_ref().unwrap()] {
            fs::create_dir(directory).unwrap();
        }
        room
    }

    fn data(&self) -> PathBuf {
        self.data_dir.join(files::AGENT_DATA)
    }

    fn keys(&self) -> PathBuf {
        self.keys_dir.as_ref().unwrap().join(files::KEYS)
    }

    fn config(&self) -> StoreConfig {
        StoreConfig {
            data_dir: self.data_dir.clone(),
            keys_dir: self.keys_dir.clone(),
        }
    }

    fn load(&self) -> Result<(State, Vec<SetAside>), StoreError> {
        State::load(
            &Os,
            &self.config(),
            &Clock::virtual_from(std::time::UNIX_EPOCH + NOON),
        )
    }

    /// A store on a thread of its own.
    fn store(&self) -> Addr<Store> {
        let config = self.config();
        SyncArbiter::start(1, move || Store::new(config.clone(), Clock::system()))
    }
}

struct Identity {
    certificate: Certificate,
    key: Arc<PrivateKey>,
}

fn identity() -> Identity {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec![])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    Identity {
        certificate: Certificate::from_der(certificate.der()).unwrap(),
        key: Arc::new(PrivateKey::from_pkcs8(&key.serialize_der()).unwrap()),
    }
}

fn key() -> Arc<PrivateKey> {
    Arc::new(PrivateKey::generate(KeyType::EcP256).unwrap())
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn base64_of_pem(certificate: &Certificate) -> String {
    STANDARD.encode(certificate.to_pem())
}

#[actix::test]
async fn what_is_saved_is_loaded_again() {
    let (room, identity, authority) = (Room::new(), identity(), identity());
    let store = room.store();
    let first = store.send(LoadIdentity).await.unwrap().unwrap();

    store
        .send(SaveKey {
            slot: KeySlot::B,
            key: Arc::clone(&identity.key),
        })
        .await
        .unwrap()
        .unwrap();
    store
        .send(SaveSvid {
            chain: vec![identity.certificate.clone()],
            reattestable: true,
            bundle: None,
        })
        .await
        .unwrap()
        .unwrap();
    store
        .send(SaveBundle {
            authorities: vec![authority.certificate.clone()],
        })
        .await
        .unwrap()
        .unwrap();
    drop(store);
    let second = room.store().send(LoadIdentity).await.unwrap().unwrap();

    assert!(first.chain.is_empty() && first.keys.is_empty() && first.set_aside.is_empty());
    assert_eq!(
        (second.chain, second.bundle, second.reattestable),
        (
            vec![identity.certificate],
            vec![authority.certificate],
            true
        )
    );
    let keys: Vec<_> = second
        .keys
        .iter()
        .map(|(slot, key)| (*slot, key.public_key_der()))
        .collect();
    assert_eq!(keys, [(KeySlot::B, identity.key.public_key_der())]);
    assert_eq!(
        (
            mode(&room.data()),
            mode(&room.keys()),
            mode(room.keys_dir.as_ref().unwrap())
        ),
        (0o600, 0o600, 0o700)
    );
    assert_eq!(
        (
            names(&room.data_dir),
            names(room.keys_dir.as_ref().unwrap())
        ),
        (
            vec![files::AGENT_DATA.to_owned()],
            vec![files::KEYS.to_owned()]
        )
    );
}

#[actix::test]
async fn a_write_before_any_load_loses_nothing() {
    let (room, identity) = (Room::new(), identity());
    let store = room.store();
    store
        .send(SaveSvid {
            chain: vec![identity.certificate.clone()],
            reattestable: true,
            bundle: None,
        })
        .await
        .unwrap()
        .unwrap();

    drop(store);
    let other = room.store();
    other
        .send(SaveBundle {
            authorities: vec![identity.certificate.clone()],
        })
        .await
        .unwrap()
        .unwrap();
    let loaded = other.send(LoadIdentity).await.unwrap().unwrap();

    assert_eq!(
        (loaded.chain.len(), loaded.bundle.len(), loaded.reattestable),
        (1, 1, true)
    );
}

#[test]
fn the_data_file_is_one_line_as_go_writes_it() {
    let (room, identity) = (Room::new(), identity());
    let (mut state, _) = room.load().unwrap();

    state
        .save_svid(
            &room.data_dir,
            vec![identity.certificate.clone()],
            true,
            None,
        )
        .unwrap();

    let pem = base64_of_pem(&identity.certificate);
    let expected = format!(
        r#"{{"svid":["{pem}"],"bundle":null,"reattestable":true,"bootstrap_use":2,"bootstrap_start_time":"0001-01-01T00:00:00Z","connection_attempts":0}}"#
    );
    assert_eq!(fs::read_to_string(room.data()).unwrap(), expected);
}

#[test]
fn the_keys_file_is_indented_by_tabs_and_holds_two_keys_at_most() {
    let room = Room::new();
    let (mut state, _) = room.load().unwrap();
    let directory = room.keys_dir.clone().unwrap();
    let keys = [key(), key(), key()];

    state
        .save_key(&directory, KeySlot::A, Arc::clone(&keys[0]))
        .unwrap();
    state
        .save_key(&directory, KeySlot::B, Arc::clone(&keys[1]))
        .unwrap();
    state
        .save_key(&directory, KeySlot::A, Arc::clone(&keys[2]))
        .unwrap();

    let [_, b, a] = keys.map(|key| STANDARD.encode(key.expose_pkcs8()));
    let expected = format!(
        "{{\n\t\"keys\": {{\n\t\t\"agent-svid-A\": \"{a}\",\n\t\t\"agent-svid-B\": \"{b}\"\n\t}}\n}}"
    );
    assert_eq!(fs::read_to_string(room.keys()).unwrap(), expected);
}

#[test]
fn bootstrap_progress_of_the_reference_is_kept_until_the_agent_is_attested() {
    let (room, identity) = (Room::with_directories(), identity());
    let text = r#"{"svid":null,"bundle":null,"reattestable":false,"bootstrap_use":1,"bootstrap_start_time":"2026-05-06T07:08:09.1234+02:00","connection_attempts":7}"#;
    fs::write(room.data(), text).unwrap();
    let (mut state, _) = room.load().unwrap();

    state
        .save_bundle(&room.data_dir, vec![identity.certificate.clone()])
        .unwrap();
    let before = fs::read_to_string(room.data()).unwrap();
    state
        .save_svid(
            &room.data_dir,
            vec![identity.certificate.clone()],
            true,
            None,
        )
        .unwrap();
    let after = fs::read_to_string(room.data()).unwrap();

    // The same instant, in UTC.
    assert!(before.ends_with(r#""reattestable":false,"bootstrap_use":1,"bootstrap_start_time":"2026-05-06T05:08:09.123400000Z","connection_attempts":7}"#), "{before}");
    assert!(after.ends_with(r#""bootstrap_use":2,"bootstrap_start_time":"0001-01-01T00:00:00Z","connection_attempts":0}"#), "{after}");
}

#[test]
fn unusable_files_are_set_aside_with_their_bytes() {
    let identity = identity();
    let good = format!(r#"{{"svid":["{}"]}}"#, base64_of_pem(&identity.certificate));
    let bad_pem =
        STANDARD.encode("-----BEGIN CERTIFICATE-----\nbm9wZQ==\n-----END CERTIFICATE-----\n");
    let cases: BTreeMap<&str, Vec<u8>> = BTreeMap::from([
        (
            "garbage",
            (0..300_u16).map(|n| (n * 7 % 251) as u8).collect(),
        ),
        ("shape", br#"["a", 1]"#.to_vec()),
        (
            "types",
            br#"{"svid": 7, "bundle": {"a": 1}, "reattestable": "yes"}"#.to_vec(),
        ),
        ("pem", format!(r#"{{"svid":["{bad_pem}"]}}"#).into_bytes()),
        ("empty", vec![]),
        ("truncated", good.as_bytes()[..good.len() / 2].to_vec()),
    ]);
    for (kind, bytes) in cases {
        let room = Room::with_directories();
        fs::write(room.data(), &bytes).unwrap();

        let (state, set_aside) = room.load().unwrap();

        let kept_as = room
            .data_dir
            .join("agent-data.json.corrupt-20260921T141320Z");
        assert_eq!(
            set_aside
                .iter()
                .map(|file| (&file.path, &file.kept_as))
                .collect::<Vec<_>>(),
            [(&room.data(), &kept_as)],
            "{kind}"
        );
        assert_eq!(fs::read(&kept_as).unwrap(), bytes, "{kind}");
        assert!(
            !room.data().exists() && state.identity(vec![]).chain.is_empty(),
            "{kind}"
        );
    }
}

#[test]
fn an_unusable_keys_file_leaves_the_svid_alone() {
    let (room, identity) = (Room::with_directories(), identity());
    fs::write(
        room.data(),
        format!(r#"{{"svid":["{}"]}}"#, base64_of_pem(&identity.certificate)),
    )
    .unwrap();
    fs::write(room.keys(), r#"{"keys":{"agent-svid-A":"bm9wZQ=="}}"#).unwrap();

    let (state, set_aside) = room.load().unwrap();

    assert_eq!(
        (
            state.identity(vec![]).chain.len(),
            state.identity(vec![]).keys.len()
        ),
        (1, 0)
    );
    assert_eq!(
        set_aside
            .iter()
            .map(|file| file.path.clone())
            .collect::<Vec<_>>(),
        [room.keys()]
    );
}

#[test]
fn files_set_aside_in_the_same_second_do_not_replace_each_other() {
    let room = Room::with_directories();
    for text in ["one", "two", "three"] {
        fs::write(room.data(), text).unwrap();
        room.load().unwrap();
    }

    let texts: Vec<_> = names(&room.data_dir)
        .iter()
        .map(|name| fs::read_to_string(room.data_dir.join(name)).unwrap())
        .collect();

    assert_eq!(texts, ["one", "two", "three"]);
}

#[test]
fn odd_things_at_a_state_files_name_are_refused_by_name_and_not_touched() {
    for make in ["symlink", "dangling", "directory", "fifo"] {
        for file in [files::AGENT_DATA, files::KEYS] {
            let mut room = Room::with_directories();
            room.keys_dir = Some(room.data_dir.clone());
            let (path, victim) = (room.data_dir.join(file), room.data_dir.join("victim"));
            fs::write(&victim, "not yours").unwrap();
            match make {
                "symlink" => symlink(&victim, &path).unwrap(),
                "dangling" => symlink(room.data_dir.join("nothing"), &path).unwrap(),
                "directory" => fs::create_dir(&path).unwrap(),
                _ => rustix::fs::mkfifoat(
                    rustix::fs::CWD,
                    &path,
                    rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                )
                .unwrap(),
            }
            let before = fs::symlink_metadata(&path).unwrap().ino();

            let error = room.load().map(|_| ()).unwrap_err();

            assert!(
                matches!(&error, StoreError::Unsafe { path: named, .. } if *named == path.display().to_string()),
                "{make} {file}: {error}"
            );
            assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before);
            assert_eq!(fs::read_to_string(&victim).unwrap(), "not yours");
            assert_eq!(names(&room.data_dir).len(), 2);
        }
    }
}

#[test]
fn a_file_without_end_is_set_aside_unread() {
    let room = Room::with_directories();
    let file = fs::File::create(room.data()).unwrap();
    let size = u64::try_from(disk::MAX_FILE_BYTES).unwrap() + 1;
    file.set_len(size).unwrap();

    let (_, set_aside) = room.load().unwrap();

    let [file] = set_aside.as_slice() else {
        panic!("one file is set aside: {set_aside:?}")
    };
    let reason = format!("{} is larger than 16 MiB", room.data().display());
    assert_eq!((&file.path, &file.reason), (&room.data(), &reason));
    assert_eq!(fs::metadata(&file.kept_as).unwrap().len(), size);
    assert!(!room.data().exists());
}

#[test]
fn a_directory_that_everybody_can_write_is_refused_by_name() {
    for which in ["data", "keys"] {
        let room = Room::with_directories();
        let open = if which == "data" {
            room.data_dir.clone()
        } else {
            room.keys_dir.clone().unwrap()
        };
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();

        let error = room.load().map(|_| ()).unwrap_err();

        assert_eq!(
            error.to_string(),
            format!("{} is a directory that everybody can write", open.display())
        );
    }
}

#[test]
fn a_directory_that_its_group_can_write_is_used() {
    let room = Room::with_directories();
    fs::set_permissions(&room.data_dir, fs::Permissions::from_mode(0o770)).unwrap();

    assert!(room.load().is_ok());
    assert_eq!(mode(&room.data_dir), 0o770);
}

#[test]
fn a_data_directory_that_is_a_file_is_named() {
    let room = Room::new();
    fs::write(&room.data_dir, "not a directory").unwrap();

    let error = room.load().map(|_| ()).unwrap_err();

    assert!(
        error
            .to_string()
            .contains(&room.data_dir.display().to_string()),
        "{error}"
    );
    assert_eq!(
        fs::read_to_string(&room.data_dir).unwrap(),
        "not a directory"
    );
}

#[test]
fn missing_directories_are_made_with_their_parents() {
    let mut room = Room::new();
    room.data_dir = room.data_dir.join("one").join("two");

    room.load().unwrap();

    assert!(room.data_dir.is_dir());
    assert_eq!(mode(&room.data_dir) & 0o700, 0o700);
    assert_eq!(names(&room.data_dir), [""; 0]);
}

#[test]
fn own_left_over_temporary_files_are_swept_and_nothing_else() {
    let room = Room::with_directories();
    let stale = [
        ".agent-data.json.0123456789abcdef.tmp",
        ".probe.0123456789abcdef.tmp",
        ".keys.json.fedcba9876543210.tmp",
    ];
    let others = [
        ".agent-data.json.tmp",
        ".agent-data.json.0123456789ABCDEF.tmp",
        ".other.0123456789abcdef.tmp",
        "agent-data.json.tmp",
    ];
    for name in stale.iter().chain(&others) {
        fs::write(room.data_dir.join(name), "x").unwrap();
    }
    let link = ".keys.json.0123456789abcdef.tmp";
    symlink(room.data_dir.join(others[0]), room.data_dir.join(link)).unwrap();

    room.load().unwrap();

    let mut expected = others.map(str::to_owned).to_vec();
    expected.push(link.to_owned());
    expected.sort();
    assert_eq!(names(&room.data_dir), expected);
}

#[test]
fn with_keys_in_memory_no_keys_file_is_read_or_written() {
    let mut room = Room::with_directories();
    fs::write(room.keys(), "garbage").unwrap();
    let keys = room.keys();
    room.keys_dir = None;

    let (state, set_aside) = room.load().unwrap();

    assert!(set_aside.is_empty() && state.identity(vec![]).keys.is_empty());
    assert_eq!(fs::read_to_string(keys).unwrap(), "garbage");
}

#[test]
fn the_same_content_is_not_written_twice() {
    let (room, identity) = (Room::new(), identity());
    let (mut state, _) = room.load().unwrap();
    let directory = room.keys_dir.clone().unwrap();
    let save = |state: &mut State| {
        state
            .save_svid(
                &room.data_dir,
                vec![identity.certificate.clone()],
                true,
                None,
            )
            .unwrap();
        state
            .save_key(&directory, KeySlot::A, Arc::clone(&identity.key))
            .unwrap();
        (
            fs::metadata(room.data()).unwrap().ino(),
            fs::metadata(room.keys()).unwrap().ino(),
        )
    };

    let first = save(&mut state);
    let second = save(&mut state);
    let (mut reloaded, _) = room.load().unwrap();
    let third = save(&mut reloaded);

    assert_eq!((second, third), (first, first));
}

#[test]
fn a_failed_write_leaves_the_old_file_whole_and_the_old_key_in_its_slot() {
    let (room, identity) = (Room::new(), identity());
    let (mut state, _) = room.load().unwrap();
    let directory = room.keys_dir.clone().unwrap();
    state
        .save_key(&directory, KeySlot::A, Arc::clone(&identity.key))
        .unwrap();
    let before = fs::read(room.keys()).unwrap();
    let elsewhere = directory.with_extension("moved");
    fs::rename(&directory, &elsewhere).unwrap();
    fs::write(&directory, "in the way").unwrap();

    let failed = state.save_key(&directory, KeySlot::A, key());
    fs::remove_file(&directory).unwrap();
    fs::rename(&elsewhere, &directory).unwrap();
    let unchanged = fs::read(room.keys()).unwrap();
    state.save_key(&directory, KeySlot::B, key()).unwrap();

    assert!(matches!(failed, Err(StoreError::Io { .. })));
    assert_eq!(unchanged, before);
    let kept = room.load().unwrap().0.identity(vec![]);
    assert_eq!(kept.keys.len(), 2);
    assert_eq!(
        kept.keys[0].1.public_key_der(),
        identity.key.public_key_der()
    );
}

#[test]
fn a_write_that_cannot_replace_its_file_leaves_no_temporary_file() {
    let room = Room::with_directories();
    fs::create_dir(room.data()).unwrap();
    let directory = Directory::open(&Os, &room.data_dir).unwrap();

    let error = directory.write(files::AGENT_DATA, b"text").unwrap_err();

    assert!(
        error
            .to_string()
            .contains(&room.data().display().to_string()),
        "{error}"
    );
    assert_eq!(names(&room.data_dir), [files::AGENT_DATA]);
}

#[test]
fn a_forgotten_svid_leaves_bundle_and_keys() {
    let (room, identity) = (Room::new(), identity());
    let (mut state, _) = room.load().unwrap();
    state
        .save_key(
            room.keys_dir.as_ref().unwrap(),
            KeySlot::A,
            Arc::clone(&identity.key),
        )
        .unwrap();
    state
        .save_svid(
            &room.data_dir,
            vec![identity.certificate.clone()],
            true,
            None,
        )
        .unwrap();
    state
        .save_bundle(&room.data_dir, vec![identity.certificate.clone()])
        .unwrap();

    state.delete_svid(&room.data_dir).unwrap();

    let loaded = room.load().unwrap().0.identity(vec![]);
    assert_eq!(
        (
            loaded.chain.len(),
            loaded.reattestable,
            loaded.bundle.len(),
            loaded.keys.len()
        ),
        (0, false, 1, 1)
    );
}

#[test]
fn a_second_agent_on_a_data_directory_is_refused_by_name_until_the_first_is_gone() {
    let room = Room::with_directories();
    let directory = Directory::open(&Os, &room.data_dir).unwrap();
    let first = directory.lock(Duration::ZERO).unwrap();

    let second = directory.lock(Duration::ZERO).map(|_| ()).unwrap_err();
    drop(first);
    let third = directory.lock(Duration::ZERO).unwrap();

    assert_eq!(
        second.to_string(),
        format!("{} is in use by another agent", room.data_dir.display())
    );
    assert!(third.is_some());
}

#[test]
fn keys_of_other_names_are_dropped_by_the_next_write() {
    let (room, [a, other]) = (Room::with_directories(), [key(), key()]);
    let [a_text, other_text] = [&a, &other].map(|key| STANDARD.encode(key.expose_pkcs8()));
    let text = format!(r#"{{"keys":{{"agent-svid-A":"{a_text}","other":"{other_text}"}}}}"#);
    fs::write(room.keys(), text).unwrap();
    let (mut state, _) = room.load().unwrap();

    state
        .save_key(room.keys_dir.as_ref().unwrap(), KeySlot::B, key())
        .unwrap();

    let text = fs::read_to_string(room.keys()).unwrap();
    assert!(text.contains(&a_text) && !text.contains(&other_text));
}
