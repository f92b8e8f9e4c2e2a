//! Attestation by SSH host certificates and by an answer over HTTP.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use interop::agent_options::{AgentOptions, node_attestor};
use interop::process::run;
use interop::server::free_port;
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{TRUST_DOMAIN, own_selector, seconds, tools, wait_for};

#[test]
fn every_kind_of_ssh_host_key_attests_and_is_back_after_an_eviction() {
    const KINDS: [(&str, &str, &str); 6] = [
        ("ed25519", "ed25519", "256"),
        ("p256", "ecdsa", "256"),
        ("p384", "ecdsa", "384"),
        ("p521", "ecdsa", "521"),
        ("rsa2048", "rsa", "2048"),
        ("rsa3072", "rsa", "3072"),
    ];
    let world = World::new();
    let authority = ssh_key(&world.path("ssh-ca"), "ed25519", "256");
    let public = fs::read_to_string(authority.with_extension("pub")).unwrap();
    let settings = format!("cert_authorities = [\"{}\"]", public.trim());
    let server = world.server(ServerOptions {
        node_attestors: node_attestor("sshpop", &settings),
        ..ServerOptions::default()
    });

    let mut agents = KINDS.map(|(name, kind, bits)| {
        let key = ssh_key(&world.path(name), kind, bits);
        run(Command::new("ssh-keygen")
            .args(["-q", "-h", "-I", name, "-n", "node.test", "-s"])
            .arg(&authority)
            .arg(key.with_extension("pub")));
        let settings = format!(
            "host_key_path = \"{key}\"\n      host_cert_path = \"{key}-cert.pub\"",
            key = key.display()
        );
        let options = AgentOptions::new(&server, "", node_attestor("sshpop", &settings));
        let mut agent = world.agent_with(&format!("agent-{name}"), options);
        agent.launch(&tools::agent());
        agent.id = wait_for("the agent attests", seconds(30), || agent.stored_id());
        assert!(agent.id.contains("/spire/agent/sshpop/"), "{}", agent.id);
        server.register(&agent.id, name, &own_selector(), 0);
        (name, agent)
    });

    for (name, agent) in &agents {
        agent.wait_served(&[name]);
        server.evict(&agent.id);
    }
    wait_for("every agent attests again", seconds(30), || {
        (server.attestations() == 2 * KINDS.len() as u64).then_some(())
    });
    for (name, agent) in &mut agents {
        server.register(&agent.id, &format!("{name}-late"), &own_selector(), 0);
        agent.wait_served(&[name, &format!("{name}-late")]);
    }
}

#[test]
fn the_server_fetches_the_answer_to_its_http_challenge_and_the_svid_is_renewed() {
    let world = World::new();
    let hosts = world.hosts_file("node.test");
    // The server trusts this attestor at first use alone, unless the port is one of root's.
    let settings = "allowed_dns_patterns = [\"node[.]test\"]";
    let server = world.server(ServerOptions {
        agent_ttl: "20s",
        node_attestors: node_attestor("http_challenge", settings),
        hosts: Some(hosts),
        ..ServerOptions::default()
    });
    let settings = format!("hostname = \"node.test\"\n      port = {}", free_port());
    let id = format!("spiffe://{TRUST_DOMAIN}/spire/agent/http_challenge/node.test");
    let options = AgentOptions::new(&server, &id, node_attestor("http_challenge", &settings));
    let mut agent = world.agent_with("agent", options);
    server.register(&agent.id, "w", &own_selector(), 0);

    agent.start();
    agent.wait_served(&["w"]);

    wait_for("a renewal", seconds(30), || {
        (server.renewals() >= 1).then_some(())
    });
    assert_eq!(server.attestation_calls(), 1);
    server.evict(&agent.id);
    if tools::agent_is_the_go_one() {
        // The Go agent ends and relies on its supervisor.
        assert_eq!(agent.wait_end(seconds(20)), Some(1), "{}", agent.log());
        return;
    }
    wait_for("a second attestation", seconds(20), || {
        (server.attestations() == 2).then_some(())
    });
    assert!(agent.alive(), "{}", agent.log());
    assert_eq!(server.agents(), [agent.id.as_str()]);
}

/// A new key without a passphrase.
fn ssh_key(path: &Path, kind: &str, bits: &str) -> PathBuf {
    run(Command::new("ssh-keygen")
        .args(["-q", "-N", "", "-C", "test", "-t", kind, "-b", bits, "-f"])
        .arg(path));
    path.to_owned()
}
