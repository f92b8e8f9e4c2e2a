//! A server that goes away, comes back, or is not the one it was.

use interop::server_options::ServerOptions;
use interop::tools;
use interop::watcher::Sdk;
use interop::world::World;
use interop::{own_selector, seconds, wait_for};

#[test]
fn a_server_restart_is_survived_and_entries_made_later_arrive() {
    let world = World::new();
    let mut server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    let stream = crate::watch(&world, &agent, Sdk::Go);

    server.stop();
    agent.wait_served(&["w"]);
    server.launch();
    server.register(&agent.id, "late", &own_selector(), 0);

    wait_for("the stream carries the new entry", seconds(60), || {
        (!stream.serials("late").is_empty()).then_some(())
    });
    assert!(stream.errors().is_empty(), "{}", stream.text());
    assert_eq!(
        server.attestations(),
        0,
        "the new process has seen no attestation"
    );
}

#[test]
fn a_server_under_an_unknown_authority_is_refused_and_the_agent_goes_on_serving() {
    let world = World::new();
    let mut server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    let before = agent.wait_served(&["w"]);

    server.stop();
    let mut impostor = server.impostor(&world.path("impostor"), &world.nodes);
    wait_for("the agent names the unknown authority", seconds(60), || {
        agent.log().contains("unknown authority").then_some(())
    });

    if tools::agent_is_the_go_one() {
        // The Go agent ends at the first such answer.
        wait_for("the Go agent ends", seconds(20), || {
            (!agent.alive()).then_some(())
        });
        return;
    }
    assert!(agent.alive(), "{}", agent.log());
    assert_eq!(
        agent.wait_served(&["w"]).identities[0].serial,
        before.identities[0].serial
    );
    assert_eq!(impostor.attestations(), 0);
    impostor.stop();
    server.launch();
    server.register(&agent.id, "late", &own_selector(), 0);
    wait_for(
        "the agent follows its own server again",
        seconds(60),
        || agent.fetch().ok().filter(|update| update.ids().len() == 2),
    );
}
