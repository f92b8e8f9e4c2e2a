//! Attestation by x509pop.

use interop::agent::Agent;
use interop::agent_options::AgentOptions;
use interop::node::Encoding::{Pkcs8, Traditional};
use interop::node::KeyKind::{Ec, Rsa};
use interop::server_options::ServerOptions;
use interop::tools;
use interop::world::World;
use interop::{TRUST_DOMAIN, own_selector, seconds, wait_for};

#[test]
fn every_kind_of_node_key_attests_in_every_encoding() {
    let kinds = [
        ("rsa2048-pkcs8", Rsa(2048), Pkcs8),
        ("rsa2048-pkcs1", Rsa(2048), Traditional),
        ("rsa4096-pkcs8", Rsa(4096), Pkcs8),
        ("rsa4096-pkcs1", Rsa(4096), Traditional),
        ("p256-pkcs8", Ec("prime256v1"), Pkcs8),
        ("p256-sec1", Ec("prime256v1"), Traditional),
        ("p384-pkcs8", Ec("secp384r1"), Pkcs8),
        ("p384-sec1", Ec("secp384r1"), Traditional),
        ("p521-pkcs8", Ec("secp521r1"), Pkcs8),
        ("p521-sec1", Ec("secp521r1"), Traditional),
    ];
    let world = World::new();
    let server = world.server(ServerOptions::default());

    let agents = kinds.map(|(name, kind, encoding)| {
        let node = world.nodes.node(name, kind, encoding);
        let mut agent = world.agent_with(name, AgentOptions::x509pop(&server, &node));
        agent.launch(&tools::agent());
        server.register(&agent.id, name, &own_selector(), 0);
        (name, agent)
    });

    for (name, agent) in &agents {
        let update = agent.wait_served(&[name]);
        assert_eq!(update.bundles, 1, "{name}");
    }
    assert_eq!(server.attestations(), kinds.len() as u64);
}

#[test]
fn a_restart_uses_the_stored_svid_and_does_not_attest_again() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    let serial = agent.stored_serial();

    agent.stop();
    agent.start();

    agent.wait_served(&["w"]);
    assert!(serial.is_some());
    assert_eq!(agent.stored_serial(), serial);
    assert_eq!(server.attestations(), 1);
}

#[test]
fn an_agent_takes_its_id_from_the_servers_path_template_and_a_server_may_have_rsa_authorities() {
    let world = World::new();
    let server = world.server(ServerOptions {
        agent_path_template: Some("/x509pop/cn/{{ .Subject.CommonName }}"),
        ca_key_type: "rsa-2048",
        ..ServerOptions::default()
    });
    let mut options = AgentOptions::x509pop(&server, &world.node("node"));
    options.id = format!("spiffe://{TRUST_DOMAIN}/spire/agent/x509pop/cn/node");
    let mut agent = world.agent_with("agent", options);
    server.register(&agent.id, "w", &own_selector(), 0);

    agent.start();
    agent.wait_served(&["w"]);
    agent.stop();
    agent.start();

    agent.wait_served(&["w"]);
    assert_eq!(server.agents(), [agent.id.as_str()]);
    assert_eq!(server.attestations(), 1);
}

#[test]
fn an_agent_without_a_bundle_attests_with_insecure_bootstrap() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent_with(
        "agent",
        AgentOptions {
            trust: "insecure_bootstrap = true".to_owned(),
            ..AgentOptions::x509pop(&server, &world.node("node"))
        },
    );

    agent.start();

    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    agent.stop();
    agent.start();
    agent.wait_served(&["w"]);
    assert_eq!(
        server.attestations(),
        1,
        "the bundle of the first start serves the second"
    );
}

#[test]
fn an_evicted_agent_attests_again_in_the_same_process_and_its_streams_stay_open() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    let stream = crate::watch(&world, &agent, interop::watcher::Sdk::Go);
    wait_for("the stream delivers", seconds(10), || {
        (!stream.serials("w").is_empty()).then_some(())
    });
    let process = agent.process().id();

    server.evict(&agent.id);

    wait_for("a second attestation", seconds(20), || {
        (server.attestations() == 2).then_some(())
    });
    server.register(&agent.id, "late", &own_selector(), 0);
    wait_for("the same stream carries the new entry", seconds(20), || {
        (!stream.serials("late").is_empty()).then_some(())
    });
    assert!(stream.errors().is_empty(), "{}", stream.text());
    assert!(agent.alive());
    assert_eq!(agent.process().id(), process);
}

#[test]
fn an_agent_evicted_while_it_was_stopped_attests_at_its_next_start() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    let serial = agent.stored_serial();
    agent.stop();

    server.evict(&agent.id);
    restart_as_a_supervisor_would(&mut agent);

    agent.wait_served(&["w"]);
    assert_eq!(server.attestations(), 2);
    assert_ne!(agent.stored_serial(), serial);
}

/// Starts the agent until it answers. The Go agent ends once after an eviction and relies on its supervisor; the agent under test
/// may not end.
fn restart_as_a_supervisor_would(agent: &mut Agent) {
    if tools::agent_is_the_go_one() {
        agent.launch(&tools::agent());
        wait_for("the Go agent ends", seconds(20), || {
            (!agent.alive()).then_some(())
        });
    }
    agent.start();
}
