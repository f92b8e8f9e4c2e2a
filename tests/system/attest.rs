//! How an agent gets its own identity: the first start, later ones, and what goes wrong with them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use devserver::{AttestTwist, Code, DevServer, Fault, KeyKind, NodeCa, Settings, SvidTwist, rpc};

use crate::harness::{Agent, DOMAIN, SOON, World, eventually, seconds, throughout};

fn mode(path: &Path) -> u32 {
    let metadata = fs::metadata(path).expect("the file is there");
    metadata.permissions().mode() & 0o7777
}

fn wait_denied(agent: &mut Agent, reason: &str) {
    agent.start();

    let code = agent.wait_ended(SOON);

    assert_eq!(code, Some(1));
    assert!(agent.log().contains(reason), "{reason} is not named");
    assert!(!agent.has_stored_svid());
}

#[test]
fn elliptic_node_keys_attest_and_the_workload_is_served() {
    let world = World::new();
    world.entry("web");
    let kinds = [KeyKind::EcP256, KeyKind::EcP384, KeyKind::EcP521];

    for kind in kinds {
        let mut agent = world.agent_of(&format!("{kind:?}"), kind);
        agent.start_serving(&["/web"]);
    }

    assert_eq!(world.control.agents().len(), kinds.len());
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), kinds.len());
}

#[test]
fn an_rsa_node_key_attests_and_the_workload_is_served() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent_of("node", KeyKind::Rsa2048);

    agent.start_serving(&["/web"]);

    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
}

#[test]
fn the_identity_is_on_disk_before_anybody_is_served_and_nobody_else_can_read_it() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();

    agent.start_serving(&["/web"]);

    let stored = agent.stored().expect("the state is on disk");
    assert_eq!(stored.svid.len(), 1);
    assert_eq!(stored.bundle, world.control.bundle_pem());
    let data = agent.data();
    let names = fs::read_dir(&data).expect("the folder is there");
    let names: BTreeSet<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        names,
        ["agent-data.json", "keys.json"].map(str::to_owned).into(),
        "no temporary file is left"
    );
    for name in names {
        assert_eq!(mode(&data.join(&name)), 0o600, "{name}");
    }
    assert_eq!(mode(&data) & 0o027, 0, "the data directory is closed");
    assert_eq!(mode(agent.socket()), 0o777);
    assert_eq!(mode(&agent.admin_socket()), 0o770);
}

#[test]
fn a_restart_uses_what_is_stored_and_does_not_attest_again() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    let stored = agent.stored();

    for end in [Agent::stop, Agent::kill] {
        end(&mut agent);
        agent.start_serving(&["/web"]);
    }

    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
    assert_eq!(agent.stored(), stored);
}

#[test]
fn an_agent_that_keeps_its_keys_in_memory_attests_at_each_start() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.options.keeps_keys = false;
    agent.start_serving(&["/web"]);

    agent.stop();
    agent.start_serving(&["/web"]);

    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 2);
    assert!(!agent.data().join("keys.json").exists());
}

#[test]
fn d02_a_server_that_the_bundle_does_not_vouch_for_is_tried_until_a_new_bundle_comes() {
    let world = World::new();
    world.entry("web");
    let stranger = DevServer::start(Settings::new(DOMAIN)).unwrap();
    let mut agent = world.agent();
    let bundle = agent.options.bundle.clone().unwrap();
    fs::write(&bundle, stranger.bundle_pem()).unwrap();
    agent.start();

    eventually("a second try", SOON, || {
        (world.control.handshake_failures().len() >= 2).then_some(())
    });
    assert!(agent.is_running());
    assert!(!agent.has_stored_svid());
    assert_eq!(world.control.all_calls(), []);
    fs::write(&bundle, world.server.bundle_pem()).unwrap();

    agent.wait_served(&["/web"]);
}

#[test]
fn a_server_that_comes_late_is_found() {
    let world = World::new();
    world.entry("web");
    world.control.stop();
    let mut agent = world.agent();
    agent.start();
    agent.wait_logged("Failed to retrieve attestation result", 1);

    world.control.start();

    agent.wait_served(&["/web"]);
}

#[test]
fn a_bundle_file_that_comes_late_is_read() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    let bundle = agent.options.bundle.clone().unwrap();
    fs::remove_file(&bundle).unwrap();
    agent.start();
    agent.wait_logged(bundle.to_str().unwrap(), 1);

    fs::write(&bundle, world.server.bundle_pem()).unwrap();

    agent.wait_served(&["/web"]);
}

#[test]
fn d04_a_denied_attestation_ends_the_agent_with_the_reason() {
    let world = World::new();
    let denial = Fault::code(rpc::ATTEST_AGENT, Code::PermissionDenied);
    world.control.add_fault(denial.message("not on the list"));
    let mut agent = world.agent();

    wait_denied(&mut agent, "not on the list");

    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
}

#[test]
fn d04_a_node_certificate_of_a_foreign_authority_ends_the_agent() {
    let world = World::new();
    world
        .control
        .configure(|settings| settings.x509pop.roots_pem = NodeCa::new().root_pem());
    let mut agent = world.agent();

    wait_denied(&mut agent, "x509pop certificate: ");
}

#[test]
fn insecure_bootstrap_stores_the_bundle_and_verifies_the_server_from_then_on() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.options.bundle = None;
    agent.start_serving(&["/web"]);
    let stored = agent.stored().unwrap();
    let warning = "Insecure bootstrap enabled; skipping server certificate verification";
    let warnings = agent.log().matches(warning).count();

    agent.stop();
    agent.start_serving(&["/web"]);

    assert_eq!(stored.bundle, world.control.bundle_pem());
    assert_eq!(warnings, 1);
    assert_eq!(agent.log().matches(warning).count(), 1);
}

#[test]
fn an_unusable_bundle_file_ends_the_agent_and_is_named() {
    let table = [
        "",
        "no PEM at all",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ];

    for text in table {
        let world = World::new();
        let mut agent = world.agent();
        let bundle = agent.options.bundle.clone().unwrap();
        fs::write(&bundle, text).unwrap();

        wait_denied(&mut agent, bundle.to_str().unwrap());

        assert_eq!(world.control.connections(), 0, "{text:?}");
    }
}

#[test]
fn unusable_node_key_files_end_the_agent_and_are_named() {
    let world = World::new();
    let other_key = world.nodes.leaf("other", KeyKind::EcP256).key_pem;
    let table = [
        ("certificate-missing", "node.crt", None),
        ("certificate-garbage", "node.crt", Some("garbage")),
        ("key-missing", "node.key", None),
        ("key-garbage", "node.key", Some("garbage")),
        ("key-other", "node.key", Some(other_key.as_str())),
    ];

    for (name, file, text) in table {
        let mut agent = world.agent_of(name, KeyKind::EcP256);
        let path = agent.options.node.certificate.with_file_name(file);
        match text {
            None => fs::remove_file(&path).unwrap(),
            Some(text) => fs::write(&path, text).unwrap(),
        }

        wait_denied(&mut agent, path.to_str().unwrap());
    }
    assert_eq!(world.control.connections(), 0);
}

#[test]
fn d22_what_is_no_agent_svid_is_not_stored_and_attestation_is_tried_again() {
    let table = [
        AttestTwist::Close,
        AttestTwist::GarbageChallenge,
        AttestTwist::CloseAfterChallenge,
        AttestTwist::Svid(SvidTwist::Missing),
        AttestTwist::Svid(SvidTwist::EmptyChain),
        AttestTwist::Svid(SvidTwist::GarbageChain),
        AttestTwist::Svid(SvidTwist::WrongKey),
        AttestTwist::Svid(SvidTwist::NoUri),
        AttestTwist::Svid(SvidTwist::ForeignAuthority),
        AttestTwist::Svid(SvidTwist::Lifetime(-5)),
    ];
    let begin = |twist| {
        let world = World::new();
        world.entry("web");
        world.control.twist_attestation(Some(twist));
        let mut agent = world.agent();
        agent.start();
        (twist, agent, world)
    };
    let mut runs: Vec<_> = table.into_iter().map(begin).collect();

    for (twist, agent, world) in &mut runs {
        agent.wait_logged("Failed to retrieve attestation result", 1);
        assert!(agent.is_running(), "{twist:?}");
        assert!(!agent.has_stored_svid(), "{twist:?}");
        world.control.twist_attestation(None);
    }

    for (twist, agent, world) in &mut runs {
        agent.wait_served(&["/web"]);
        assert!(world.control.count(rpc::ATTEST_AGENT) >= 2, "{twist:?}");
    }
}

#[test]
fn an_agent_evicted_while_it_was_stopped_attests_again_in_the_same_process() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    agent.stop();
    let id = world.control.agents().pop().unwrap().id;

    world.control.evict_agent(&id);
    agent.start_serving(&["/web"]);

    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 2);
}

#[test]
fn the_first_sync_follows_the_attestation_at_once_and_the_second_within_five_seconds() {
    let world = World::new();
    let mut agent = world.agent();
    agent.options.sync_interval = "24h";
    agent.start();
    let synced = |count| {
        world
            .control
            .wait_for_calls(rpc::SYNC_AUTHORIZED_ENTRIES, count, SOON)
    };
    assert!(synced(2));

    world.entry("web");

    agent.wait_served(&["/web"]);
    let calls = world.control.calls(rpc::SYNC_AUTHORIZED_ENTRIES);
    for pair in calls.windows(2) {
        let gap = pair[1].at.duration_since(pair[0].at).unwrap();
        assert!(gap < seconds(8), "an agent without SVIDs waited {gap:?}");
    }
}

#[test]
fn what_is_on_disk_survives_a_kill_at_any_instant() {
    let world = World::with(|settings| settings.agent_ttl = 20);
    world.entry("web");
    let mut agent = world.agent();

    for milliseconds in (0..400).step_by(40) {
        agent.start();
        throughout(Duration::from_millis(milliseconds), || drop(agent.stored()));
        agent.kill();
        agent.stored();
    }

    agent.start_serving(&["/web"]);
    assert!(!agent.log().contains("set aside"));
    assert!(!agent.log().contains("level=error"));
}

#[test]
fn d19_a_file_or_link_at_a_temporary_name_is_left_alone() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    let data = agent.data();
    let victim = data.with_file_name("victim");
    fs::write(&victim, "precious").unwrap();
    fs::create_dir(&data).unwrap();
    for name in ["agent-data.json", "keys.json"] {
        symlink(&victim, data.join(format!("{name}.tmp"))).unwrap();
    }

    agent.start_serving(&["/web"]);

    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(mode(&data.join("keys.json")), 0o600);
}

#[test]
fn d19_a_data_directory_that_the_world_can_write_is_refused_by_name() {
    let world = World::new();
    let mut agent = world.agent();
    let data = agent.data();
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();

    wait_denied(&mut agent, data.to_str().unwrap());

    assert_eq!(world.control.connections(), 0);
}
