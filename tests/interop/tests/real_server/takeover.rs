//! One data directory under both agents, in turn.

use interop::own_selector;
use interop::server_options::ServerOptions;
use interop::world::World;

#[test]
fn a_data_directory_of_the_go_agent_is_taken_over_and_given_back_without_attesting() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    server.register(&agent.id, "w", &own_selector(), 0);

    agent.start_go();
    agent.wait_served(&["w"]);
    let serial = agent.stored_serial();
    agent.stop();
    agent.start();
    agent.wait_served(&["w"]);
    agent.stop();
    agent.start_go();
    agent.wait_served(&["w"]);

    assert!(serial.is_some());
    assert_eq!(agent.stored_serial(), serial);
    assert_eq!(server.attestations(), 1);
}

#[test]
fn a_data_directory_of_this_agent_serves_the_go_agent_and_comes_back_without_attesting() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    server.register(&agent.id, "w", &own_selector(), 0);

    agent.start();
    agent.wait_served(&["w"]);
    let serial = agent.stored_serial();
    agent.stop();
    agent.start_go();
    agent.wait_served(&["w"]);
    agent.stop();
    agent.start();
    agent.wait_served(&["w"]);

    assert!(serial.is_some());
    assert_eq!(agent.stored_serial(), serial);
    assert_eq!(server.attestations(), 1);
}
