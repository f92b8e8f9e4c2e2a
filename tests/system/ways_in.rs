//! Ways in other than a node certificate.

use std::fs;
use std::time::Duration;

use devserver::{Fault, KeyKind, rpc};

use rustix::process::Signal;

use crate::harness::{Agent, DOMAIN, SOON, World, eventually, seconds};

/// Long enough for a test, in seconds.
pub(crate) const TOKEN_TTL: i64 = 600;
/// What the server says to a token that is not good any more.
const SPENT: &str = "join token does not exist, has expired or was used";

/// An agent that is given a token in the configuration.
pub(crate) fn token_agent(world: &World, name: &str, token: &str) -> Agent {
    let mut agent = world.agent_of(name, KeyKind::EcP256);
    agent.options.way_in = Some("NodeAttestor \"join_token\" {}");
    agent.options.settings = format!("join_token = \"{token}\"");
    agent
}

fn assert_ended(agent: &mut Agent, reason: &str) {
    agent.start();

    let code = agent.wait_ended(SOON);

    assert_eq!(code, Some(1));
    assert!(agent.log().contains(reason), "{reason} is not named");
}

#[test]
fn a_join_token_is_taken_from_a_flag_an_option_or_a_file_whatever_attestor_is_configured() {
    let world = World::new();
    world.entry("web");
    let tokens = [(); 3].map(|()| world.control.create_join_token(TOKEN_TTL));
    let [flag, option, file] = &tokens;
    let mut by_flag = world.agent_of("flag", KeyKind::EcP256);
    by_flag.options.arguments = vec!["-joinToken".to_owned(), flag.clone()];
    let by_option = token_agent(&world, "option", option);
    let mut by_file = token_agent(&world, "file", "none");
    let path = by_file.options.node.private_key.with_extension("token");
    fs::write(&path, format!(" {file}\n")).expect("the folder is ours");
    by_file.options.settings = format!("join_token_file = \"{}\"", path.display());

    for mut agent in [by_flag, by_option, by_file] {
        agent.start_serving(&["/web"]);
    }

    let agents: Vec<String> = world
        .control
        .agents()
        .into_iter()
        .map(|agent| agent.id)
        .collect();
    let mut expected =
        tokens.map(|token| format!("spiffe://{DOMAIN}/spire/agent/join_token/{token}"));
    expected.sort();
    assert_eq!(agents, expected);
}

#[test]
fn a_token_agent_renews_instead_of_attesting_again() {
    let world = World::with(|settings| settings.agent_ttl = 20);
    world.entry("web");
    let mut agent = token_agent(&world, "node", &world.control.create_join_token(TOKEN_TTL));
    agent.start_serving(&["/web"]);
    let first = agent.stored();

    eventually("a new agent SVID is stored", seconds(15), || {
        agent.fetch().expect("the workload is served throughout");
        (agent.stored() != first).then_some(())
    });

    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
    assert_eq!(world.control.count(rpc::RENEW_AGENT), 1);
    world.entry("with-the-new-one");
    agent.wait_served(&["/web", "/with-the-new-one"]);
}

#[test]
fn a_restarted_token_agent_uses_what_is_stored_and_leaves_its_spent_token_alone() {
    let world = World::new();
    world.entry("web");
    let mut agent = token_agent(&world, "node", &world.control.create_join_token(TOKEN_TTL));
    agent.start_serving(&["/web"]);
    agent.stop();

    agent.start_serving(&["/web"]);

    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
}

#[test]
fn a_stop_during_the_one_attestation_of_a_token_leaves_the_svid_on_disk() {
    let world = World::new();
    world.entry("web");
    let delay = Fault::delay(rpc::ATTEST_AGENT, seconds(1));
    world.control.add_fault(delay.times(1));
    let mut agent = token_agent(&world, "node", &world.control.create_join_token(TOKEN_TTL));
    agent.start();
    assert!(world.control.wait_for_calls(rpc::ATTEST_AGENT, 1, SOON));
    // Not a wait: the instant of the stop.
    std::thread::sleep(Duration::from_millis(500));

    let (code, took) = agent.stop_with(Signal::TERM);

    assert_eq!(code, Some(0));
    assert!(took < seconds(3), "{took:?}");
    assert!(agent.has_stored_svid());
    agent.start_serving(&["/web"]);
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
}

#[test]
fn a_stop_during_an_attestation_that_is_never_answered_ends_in_time() {
    let world = World::new();
    world.control.add_fault(Fault::stall(rpc::ATTEST_AGENT));
    let mut agent = token_agent(&world, "node", &world.control.create_join_token(TOKEN_TTL));
    agent.start();
    assert!(world.control.wait_for_calls(rpc::ATTEST_AGENT, 1, SOON));

    let (code, took) = agent.stop_with(Signal::TERM);

    assert_eq!(code, Some(0));
    assert!(took < seconds(5), "{took:?}");
}

#[test]
fn a_token_brings_in_one_agent_and_no_second() {
    let world = World::new();
    world.entry("web");
    let token = world.control.create_join_token(TOKEN_TTL);
    let mut first = token_agent(&world, "first", &token);
    first.start_serving(&["/web"]);

    let mut second = token_agent(&world, "second", &token);
    second.start();

    second.wait_logged(SPENT, 1);
    assert!(!second.has_stored_svid());
    first.fetch().expect("the first is served as before");
    assert_eq!(world.control.agents().len(), 1);
}

#[test]
fn the_join_token_attestor_without_a_token_says_so_and_asks_nothing() {
    let world = World::new();
    let mut agent = world.agent();
    agent.options.way_in = Some("NodeAttestor \"join_token\" { plugin_data {} }");

    agent.start();

    agent.wait_logged("join token was not provided", 1);
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 0);
}

#[test]
fn an_operator_is_warned_of_keys_in_memory_beside_a_token_and_of_nothing_else() {
    let world = World::new();
    world.entry("web");
    let warning = "The memory key manager loses the agent's identity at a restart";
    let mut token = token_agent(&world, "token", &world.control.create_join_token(TOKEN_TTL));
    token.options.keeps_keys = false;
    let mut x509pop = world.agent();
    x509pop.options.keeps_keys = false;
    let kept = token_agent(&world, "kept", &world.control.create_join_token(TOKEN_TTL));

    for (mut agent, count) in [(token, 1), (x509pop, 0), (kept, 0)] {
        agent.start_serving(&["/web"]);
        assert_eq!(agent.log().matches(warning).count(), count);
    }
}

#[test]
fn a_way_in_that_cannot_work_ends_the_start() {
    let world = World::new();
    for (name, way_in, reason) in [
        (
            "sshpop",
            "NodeAttestor \"sshpop\" { plugin_data { host_key_path = \"none\" host_cert_path = \"none\" } }",
            "failed to configure NodeAttestor \\\"sshpop\\\"",
        ),
        (
            "http_challenge",
            "NodeAttestor \"http_challenge\" { plugin_data { hostname = \"localhost\" } }",
            "every host has that name",
        ),
    ] {
        let mut agent = world.agent_of(name, KeyKind::EcP256);
        agent.options.way_in = Some(way_in);

        assert_ended(&mut agent, reason);
    }

    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 0);
}
