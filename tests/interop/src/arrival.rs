//! Many agents that start at once behind one address, before a server that admits one attestation per second and address.

use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::agent_options::AgentOptions;
use crate::server_options::ServerOptions;
use crate::world::World;
use crate::{seconds, tools, wait_for};

/// What an arrival cost.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// How many agents came.
    pub agents: usize,
    /// From the first start to the last attestation.
    pub took: Duration,
    /// Attestations that the server answered, be it with a refusal.
    pub calls: u64,
    /// Attempts that agents gave up and put off.
    pub postponed: usize,
}

/// Starts `count` agents with no entries at once and waits at most `limit` until the server knows all of them. No agent may end.
pub fn arrive(count: usize, limit: Duration) -> Arrival {
    let world = World::new();
    let server = world.server(ServerOptions {
        limits_attestations: true,
        ..ServerOptions::default()
    });
    let configure = |number: usize| {
        let name = format!("n{number}");
        let options = AgentOptions {
            sync_interval: "5s",
            ..AgentOptions::x509pop(&server, &world.node(&name))
        };
        world.agent_with(&name, options)
    };
    let mut agents: Vec<Agent> = (0..count).map(configure).collect();

    let began = Instant::now();
    for agent in &mut agents {
        agent.launch(&tools::agent());
    }
    wait_for("all agents are attested", limit, || {
        (server.attestations() >= count as u64 && server.agents().len() == count).then_some(())
    });
    let took = began.elapsed();

    for agent in &mut agents {
        let what = "the agent holds its SVID";
        wait_for(what, seconds(10), || agent.stored_serial());
        assert!(agent.alive(), "an agent ended:\n{}", agent.log());
    }
    let postponed = |agent: &Agent| {
        agent
            .log()
            .matches("Failed to retrieve attestation result")
            .count()
    };
    Arrival {
        agents: count,
        took,
        calls: server.attestation_calls(),
        postponed: agents.iter().map(postponed).sum(),
    }
}
