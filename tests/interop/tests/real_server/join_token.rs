//! Join tokens: a way in that works once.

use std::fs;

use interop::agent::Agent;
use interop::agent_options::AgentOptions;
use interop::server::Server;
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{own_selector, seconds, tools, wait_for};

#[test]
fn a_token_is_taken_from_the_flag_the_option_and_the_file_and_goes_before_the_configured_plugin() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let node = world.node("node");
    let configure = |name: &str, say: &dyn Fn(&mut AgentOptions, &str)| {
        let token = server.token(None);
        let id = AgentOptions::join_token(&server, &token).id;
        let mut options = AgentOptions {
            id,
            ..AgentOptions::x509pop(&server, &node)
        };
        say(&mut options, &token);
        let agent = world.agent_with(name, options);
        server.register(&agent.id, name, &own_selector(), 0);
        agent
    };
    let file = world.path("token");

    let mut agents = [
        configure("flag", &|options, token| {
            options.flags = vec!["-joinToken".to_owned(), token.to_owned()];
        }),
        configure("option", &|options, token| {
            options.settings = format!("join_token = \"{token}\"");
        }),
        configure("file", &|options, token| {
            fs::write(&file, format!("  {token} \n")).unwrap();
            options.settings = format!("join_token_file = \"{}\"", file.display());
        }),
    ];
    for agent in &mut agents {
        agent.launch(&tools::agent());
    }

    for (agent, name) in agents.iter().zip(["flag", "option", "file"]) {
        agent.wait_served(&[name]);
    }
    let mut expected: Vec<&str> = agents.iter().map(|agent| agent.id.as_str()).collect();
    let mut known = server.agents();
    expected.sort_unstable();
    known.sort_unstable();
    assert_eq!(known, expected);
}

#[test]
fn entries_below_the_alias_of_a_token_are_served() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let token = server.token(Some("host"));
    let mut agent = agent_with_token(&world, &server, "agent", &token);
    server.register("spiffe://domain.test/host", "w", &own_selector(), 0);

    agent.start();

    agent.wait_served(&["w"]);
}

#[test]
fn a_token_agent_renews_its_svid_and_never_attests_again() {
    let world = World::new();
    let server = world.server(ServerOptions {
        agent_ttl: "20s",
        ..ServerOptions::default()
    });
    let mut agent = agent_with_token(&world, &server, "agent", &server.token(None));
    agent.start();
    let known = server.agent_serial(&agent.id);

    wait_for("two renewals", seconds(50), || {
        (server.renewals() >= 2).then_some(())
    });

    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    assert_ne!(server.agent_serial(&agent.id), known);
    assert_eq!(server.attestation_calls(), 1);
    agent.stop();
    agent.start();
    agent.wait_served(&["w"]);
    assert_eq!(server.attestation_calls(), 1);
}

/// An agent that takes this token from its command line.
pub(crate) fn agent_with_token(world: &World, server: &Server, name: &str, token: &str) -> Agent {
    let mut options = AgentOptions::join_token(server, token);
    options.flags = vec!["-joinToken".to_owned(), token.to_owned()];
    world.agent_with(name, options)
}
