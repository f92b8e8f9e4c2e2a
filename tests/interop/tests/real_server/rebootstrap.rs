//! A server that was set up anew, with other authorities, at the address of the old one.

use std::fs;

use interop::agent_options::{AgentOptions, bundle_file};
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{own_selector, seconds, tools, wait_for};

#[test]
fn an_unknown_authority_is_said_once_while_it_lasts() {
    let world = World::new();
    let mut server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);

    server.stop();
    let _impostor = server.impostor(&world.path("impostor"), &world.nodes);
    agent.wait_log("unknown authority", seconds(60));
    let lines = |log: &str, look: &dyn Fn(&str) -> bool| {
        log.lines()
            .filter(|line| line.contains("unknown authority") && look(line))
            .count()
    };
    wait_for("further attempts", seconds(30), || {
        (lines(&agent.log(), &|_| true) >= 3).then_some(())
    });

    let log = agent.log();
    let said = lines(&log, &|line| !line.contains("level=debug"));
    assert_eq!(said, 1, "{log}");
}

#[test]
fn an_agent_that_may_starts_over_with_a_new_server_in_the_same_process() {
    let world = World::new();
    let mut server = world.server(ServerOptions::default());
    let bundle = world.path("trusted.pem");
    fs::copy(server.bundle(), &bundle).unwrap();
    let mut agent = world.agent_with(
        "agent",
        AgentOptions {
            trust: bundle_file(&bundle),
            settings: "rebootstrap_mode = \"auto\"\n  rebootstrap_delay = \"10s\"".to_owned(),
            ..AgentOptions::x509pop(&server, &world.node("node"))
        },
    );
    agent.start();
    server.register(&agent.id, "old", &own_selector(), 0);
    agent.wait_served(&["old"]);
    let process = agent.process().id();

    server.stop();
    let successor = server.impostor(&world.path("successor"), &world.nodes);
    successor.register(&agent.id, "new", &own_selector(), 0);
    fs::copy(successor.bundle(), &bundle).unwrap();
    agent.wait_log("unknown authority", seconds(30));
    if tools::agent_is_the_go_one() {
        // The Go agent forgets what it has, ends, and relies on its supervisor.
        agent.wait_end(seconds(60));
        agent.start();
        agent.wait_served(&["new"]);
        return;
    }
    agent.wait_served(&["old"]);

    wait_for("identities of the new server", seconds(60), || {
        assert!(agent.alive(), "the agent ended:\n{}", agent.log());
        agent
            .fetch()
            .ok()
            .filter(|update| update.ids() == ["spiffe://domain.test/new"])
    });
    assert_eq!(successor.attestations(), 1);
    assert_eq!(agent.process().id(), process);
    agent.stop();
    agent.start();
    agent.wait_served(&["new"]);
    assert_eq!(successor.attestations(), 1, "the new SVID is on disk");
}
