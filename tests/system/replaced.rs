//! What the agent relies on is replaced while it runs: the node's certificate, the server's CA.

use std::fs;

use devserver::{KeyKind, Parent, rpc};

use crate::client::Stream;
use crate::harness::{Agent, SOON, World, eventually, own_entry, seconds};

/// The ID of the agent that attested last with these files; the server forgets it.
fn id_of_next(world: &World, mut agent: Agent) -> String {
    let known = world.control.agents();
    agent.start();
    let found = eventually("another agent", SOON, || {
        let mut agents = world.control.agents().into_iter();
        agents.find(|agent| !known.contains(agent))
    });
    agent.stop();
    world.control.evict_agent(&found.id);
    found.id
}

#[test]
fn a_renewed_node_certificate_is_used_at_the_next_attestation_and_the_new_id_has_its_entries_at_once()
 {
    let world = World::with(|settings| settings.agent_ttl = 16);
    let renewed = world.agent_of("renewed", KeyKind::EcP256);
    let renewed_files = renewed.options.node.clone();
    let new_id = id_of_next(&world, renewed);
    let mut agent = world.agent();
    agent.options.sync_interval = "30d";
    world.entry("any");
    let mine = own_entry("new").with_parent(Parent::Id(new_id.clone()));
    world.control.add_entry(mine);
    agent.start_serving(&["/any"]);
    let old_id = world.control.agents().pop().expect("one agent").id;
    let mine = own_entry("old").with_parent(Parent::Id(old_id.clone()));
    world.control.add_entry(mine);
    agent.wait_served(&["/any", "/old"]);
    let (pid, stream) = (agent.pid(), agent.stream());

    let node = &agent.options.node;
    for (from, to) in [
        (&renewed_files.private_key, &node.private_key),
        (&renewed_files.certificate, &node.certificate),
    ] {
        fs::copy(from, to).expect("the folder is ours");
    }
    let is_in = || {
        let mut agents = world.control.agents().into_iter();
        agents.any(|agent| agent.id == new_id).then_some(())
    };
    eventually("the agent attests with the new leaf", SOON, || {
        agent.fetch().expect("the workload is served throughout");
        is_in()
    });

    eventually("the entries are those of the new ID", seconds(4), || {
        let update = agent.fetch().expect("the workload is served throughout");
        (update.paths() == ["/any", "/new"]).then_some(())
    });
    assert_eq!(agent.pid(), pid);
    assert!(agent.is_running() && stream.ended().is_none());
    assert!(stream.has_seen("/new"));
}

/// The server comes back as another one: with a CA that nobody has heard of, and without a memory of any agent.
fn replace_server(world: &World) {
    let control = &world.control;
    control.stop();
    let new = control.prepare_x509_authority();
    control.activate_x509_authority(new);
    control.revoke_x509_authority(0);
    for agent in control.agents() {
        control.evict_agent(&agent.id);
    }
    control.start();
}

/// The server's authorities as DER.
fn bundle_der(world: &World) -> Vec<u8> {
    let authorities = world.control.bundle().x509_authorities.into_iter();
    authorities.flat_map(|authority| authority.asn1).collect()
}

/// Every message was found sound on arrival: its bundle vouches for its SVIDs.
fn serials(stream: &Stream, path: &str) -> Vec<String> {
    let updates = stream.updates();
    let identities = updates.iter().filter_map(|update| update.identity(path));
    identities.map(|found| found.serial.clone()).collect()
}

#[test]
fn a_server_with_another_ca_is_found_by_the_bootstrap_bundle_and_open_streams_go_over_to_it() {
    let world = World::new();
    world.entry("api");
    world.entry("web");
    let mut agent = world.agent();
    agent.options.settings = "rebootstrap_mode = \"auto\"\n  rebootstrap_delay = \"2s\"".to_owned();
    agent.start_serving(&["/api", "/web"]);
    let (pid, stream) = (agent.pid(), agent.stream());
    let first = eventually("a first message", SOON, || {
        serials(&stream, "/web").into_iter().next()
    });

    replace_server(&world);
    let bundle = agent.options.bundle.clone().expect("a bundle file");
    fs::write(&bundle, world.server.bundle_pem()).expect("the folder is ours");

    eventually("the stream has SVIDs of the new CA", seconds(60), || {
        assert!(agent.is_running(), "the agent has ended");
        agent.fetch().expect("the workload is served throughout");
        let newest = stream.updates().pop()?;
        let web = newest.identity("/web")?;
        (web.serial != first && web.bundle == bundle_der(&world)).then_some(())
    });
    assert_eq!(agent.pid(), pid);
    assert!(stream.ended().is_none());
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 2);
    let stored = agent.stored().expect("the state is on disk");
    assert_eq!(stored.bundle, world.control.bundle_pem());
    world.entry("late");
    agent.wait_served(&["/api", "/late", "/web"]);
    agent.stop();
    agent.start_serving(&["/api", "/late", "/web"]);
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 2);
}
