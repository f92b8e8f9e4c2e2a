//! Agents whose only way in was a join token, and which are not let in again.

use interop::agent::Agent;
use interop::agent_options::AgentOptions;
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{now, own_selector, seconds, tools};

use crate::join_token::agent_with_token;
use crate::restored::{rotate_past_a_backup, short_lived_agents};

#[test]
fn an_agent_with_a_used_token_ends_within_75_s_and_says_so() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let token = server.token(None);
    let mut first = agent_with_token(&world, &server, "first", &token);
    first.start();

    let mut second = agent_with_token(&world, &server, "second", &token);
    second.launch(&tools::agent());

    assert_eq!(second.wait_end(seconds(75)), Some(1), "{}", second.log());
    let started = second.process().started;
    assert!(started.elapsed() >= seconds(30), "{}", second.log());
    assert!(
        second
            .log()
            .contains("join token does not exist or has already been used"),
        "{}",
        second.log()
    );
    assert!(!second.log().contains(&token), "no token in the log");
    assert_eq!(second.stored_serial(), None);
    assert!(first.alive());
}

#[test]
fn an_evicted_token_agent_serves_until_the_last_svid_ends_and_starts_anew_with_a_new_token() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = agent_with_token(&world, &server, "agent", &server.token(None));
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 30);
    agent.wait_served(&["w"]);

    server.evict(&agent.id);

    ends_after_the_last_svid(&mut agent);
    let token = server.token(None);
    agent.id = AgentOptions::join_token(&server, &token).id;
    agent.reconfigure(|options| options.flags = vec!["-joinToken".to_owned(), token]);
    agent.start();
    server.register(&agent.id, "again", &own_selector(), 0);
    agent.wait_served(&["again"]);
}

#[test]
fn a_token_agent_that_a_restored_server_does_not_know_serves_until_the_last_svid_ends() {
    let world = World::new();
    let mut server = world.server(short_lived_agents());
    let mut agent = agent_with_token(&world, &server, "agent", &server.token(None));
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 60);
    agent.wait_served(&["w"]);

    let backup = rotate_past_a_backup(&world, &mut server, &agent);
    server.stop();
    server.restore(&backup);
    server.launch();

    ends_after_the_last_svid(&mut agent);
    assert_eq!(server.attestations(), 0);
}

/// The server does not know the agent any more, and the agent has no other way in.
fn ends_after_the_last_svid(agent: &mut Agent) {
    if tools::agent_is_the_go_one() {
        assert_eq!(agent.wait_end(seconds(30)), Some(1), "{}", agent.log());
        return;
    }
    agent.wait_log("Synchronize failed", seconds(20));
    let last = agent.wait_served(&["w"]).identities[0].not_after;

    assert_eq!(agent.wait_end(seconds(75)), Some(1), "{}", agent.log());

    assert!(
        (last..last + 15).contains(&now()),
        "it ended {} s after its last SVID did:\n{}",
        now() - last,
        agent.log()
    );
    assert_eq!(agent.stored_serial(), None, "no SVID is left on disk");
}
