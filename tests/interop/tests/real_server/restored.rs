//! A server whose database was restored from a backup: it has never heard of the agent SVIDs that it has signed since.

use std::path::PathBuf;

use interop::agent::Agent;
use interop::server::Server;
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{own_selector, seconds, wait_for};

#[test]
fn an_agent_that_a_restored_server_does_not_know_attests_again_in_the_same_process() {
    let world = World::new();
    let mut server = world.server(short_lived_agents());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    let process = agent.process().id();

    let backup = rotate_past_a_backup(&world, &mut server, &agent);
    server.stop();
    server.restore(&backup);
    server.launch();

    server.register(&agent.id, "late", &own_selector(), 0);
    agent.wait_served(&["late", "w"]);
    assert!(server.attestations() >= 1);
    assert!(agent.alive());
    assert_eq!(agent.process().id(), process);
}

/// Long enough that the SVID of the backup is still good when it is restored: the server then says "not active" and not "expired".
pub(crate) fn short_lived_agents() -> ServerOptions {
    ServerOptions {
        agent_ttl: "30s",
        ..ServerOptions::default()
    }
}

/// Backs the server up, and waits until the agent has used an SVID that is not in the backup.
pub(crate) fn rotate_past_a_backup(world: &World, server: &mut Server, agent: &Agent) -> PathBuf {
    let backup = world.path("backup");
    server.stop();
    server.back_up(&backup);
    server.launch();
    let known = server.agent_serial(&agent.id);
    wait_for(
        "the server takes another agent SVID for current",
        seconds(30),
        || (server.agent_serial(&agent.id) != known).then_some(()),
    );
    backup
}
