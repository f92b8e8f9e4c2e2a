//! An agent that an operator has banned, and what lifts the ban.

use interop::agent::Agent;
use interop::server::Server;
use interop::server_options::ServerOptions;
use interop::tools;
use interop::watcher::Sdk;
use interop::world::World;
use interop::{own_selector, seconds, wait_for};

#[test]
fn an_agent_banned_while_it_runs_ends_its_streams_and_itself_and_comes_back_when_the_ban_is_lifted()
{
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    let stream = crate::watch(&world, &agent, Sdk::Rust);
    wait_for("the stream delivers", seconds(10), || {
        (!stream.serials("w").is_empty()).then_some(())
    });

    server.ban(&agent.id);

    assert_eq!(agent.wait_end(seconds(20)), Some(1), "{}", agent.log());
    assert!(
        agent
            .log()
            .contains("Agent is banned: removing SVID and shutting down"),
        "{}",
        agent.log()
    );
    assert_eq!(agent.stored_serial(), None);
    let errors = wait_for("the stream ends", seconds(10), || {
        Some(stream.errors()).filter(|errors| !errors.is_empty())
    });
    if !tools::agent_is_the_go_one() {
        assert!(errors[0].contains("permission denied"), "{errors:?}");
    }

    a_start_is_denied_with_one_question(&server, &mut agent);

    server.evict(&agent.id);
    agent.start();
    agent.wait_served(&["w"]);
    assert_eq!(server.attestations(), 2);
}

#[test]
fn an_agent_banned_while_it_was_stopped_removes_its_svid_and_ends() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    agent.stop();

    server.ban(&agent.id);
    agent.launch(&tools::agent());

    assert_eq!(agent.wait_end(seconds(20)), Some(1), "{}", agent.log());
    assert_eq!(agent.stored_serial(), None);
    assert_eq!(
        server.attestation_calls(),
        1,
        "a banned agent that has an SVID does not ask for another"
    );
    a_start_is_denied_with_one_question(&server, &mut agent);
}

/// Starts a banned agent that has no SVID: it asks once and ends.
fn a_start_is_denied_with_one_question(server: &Server, agent: &mut Agent) {
    let before = server.attestation_calls();

    agent.launch(&tools::agent());

    assert_eq!(agent.wait_end(seconds(5)), Some(1), "{}", agent.log());
    assert!(agent.log().contains("banned"), "{}", agent.log());
    assert_eq!(server.attestation_calls(), before + 1);
}
