//! Two machines that were copied from one: each has the node's key and takes the agent SVID from the other whenever it attests.

use std::thread;
use std::time::Instant;

use interop::agent_options::AgentOptions;
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{now, own_selector, seconds, tools, wait_for};

#[test]
fn two_agents_with_one_node_certificate_settle_down_and_both_go_on_serving() {
    const WATCHED: u64 = 90;
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let node = world.node("node");
    let mut agents = ["first", "second"].map(|name| {
        let options = AgentOptions {
            sync_interval: "5s",
            ..AgentOptions::x509pop(&server, &node)
        };
        world.agent_with(name, options)
    });
    server.register(&node.agent_id, "w", &own_selector(), 0);
    for agent in &mut agents {
        agent.launch(&tools::agent());
    }
    for agent in &agents {
        agent.wait_served(&["w"]);
    }
    let began = Instant::now();
    // The quarrel of the first minute is allowed.
    thread::sleep(seconds(60));

    let before = server.attestation_calls();
    server.register(&node.agent_id, "late", &own_selector(), 0);
    for agent in &agents {
        let what = "each agent gets a sync through now and then";
        wait_for(what, seconds(WATCHED), || {
            agent.fetch().ok().filter(|update| update.ids().len() == 2)
        });
    }
    thread::sleep(seconds(60 + WATCHED).saturating_sub(began.elapsed()));

    let calls = server.attestation_calls() - before;
    println!("{calls} attestations in {WATCHED} s");
    assert!(
        calls * 60 <= 6 * WATCHED,
        "{calls} attestations in {WATCHED} s"
    );
    for agent in &mut agents {
        assert!(agent.alive(), "{}", agent.log());
        let update = agent.wait_served(&["late", "w"]);
        assert!(
            update
                .identities
                .iter()
                .all(|identity| identity.not_after > now())
        );
    }
}
