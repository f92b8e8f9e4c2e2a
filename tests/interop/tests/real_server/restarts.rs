//! An agent that starts while its server is away.

use interop::server_options::ServerOptions;
use interop::tools;
use interop::watcher::Sdk;
use interop::world::World;
use interop::{now, own_selector, seconds, wait_for};

#[test]
fn a_restart_with_a_valid_svid_while_the_server_is_down_waits_for_it_and_does_not_attest() {
    let world = World::new();
    let mut server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    agent.stop();
    server.stop();

    agent.launch(&tools::agent());
    agent.wait_log("SVID loaded", seconds(10));
    if tools::agent_is_the_go_one() {
        // The Go agent offers no Workload API before its first sync, and ends after a minute.
        server.launch();
        agent.wait_served(&["w"]);
        return;
    }
    wait_for("the socket", seconds(10), || {
        agent.socket().exists().then_some(())
    });
    let stream = crate::watch(&world, &agent, Sdk::Rust);
    agent.wait_log("Synchronize failed", seconds(30));
    assert_eq!(
        stream.text(),
        "",
        "nothing is served before the first sync, and the stream waits"
    );
    server.launch();

    wait_for("the stream that waited delivers", seconds(30), || {
        (!stream.serials("w").is_empty()).then_some(())
    });
    assert!(stream.errors().is_empty(), "{}", stream.text());
    assert!(agent.alive());
    assert_eq!(
        server.attestation_calls(),
        0,
        "the new process has seen no attestation"
    );
}

#[test]
fn a_restart_with_an_expired_svid_while_the_server_is_down_attests_once_it_is_back() {
    let world = World::new();
    let mut server = world.server(ServerOptions {
        agent_ttl: "10s",
        ..ServerOptions::default()
    });
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    agent.stop();
    server.stop();
    let not_after = agent.stored_not_after().unwrap();
    wait_for("the end of the stored SVID", seconds(20), || {
        (now() > not_after).then_some(())
    });

    agent.launch(&tools::agent());
    agent.wait_log("Failed to retrieve attestation result", seconds(10));
    server.launch();

    agent.wait_served(&["w"]);
    assert!(agent.alive());
    assert!(server.attestations() >= 1);
    assert!(agent.stored_not_after().unwrap() > not_after);
}

#[test]
fn an_agent_whose_authority_was_revoked_while_it_was_stopped_attests_again_in_the_same_process() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    let prepared = server.prepare_authority();
    wait_for("the next authority on disk", seconds(90), || {
        (agent.stored_authorities() == 2).then_some(())
    });
    agent.stop();

    server.replace_authority(&prepared);
    agent.launch(&tools::agent());
    if tools::agent_is_the_go_one() {
        // The Go agent takes the server's alert for an outage.
        assert_eq!(agent.wait_end(seconds(90)), Some(1), "{}", agent.log());
        return;
    }

    agent.wait_served(&["w"]);
    assert!(agent.alive());
    assert_eq!(server.attestations(), 2);
}
