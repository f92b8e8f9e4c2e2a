//! A server that goes away, answers wrongly or not at all, or is not the one it was: identity outlasts all of it.

use std::time::Duration;

use devserver::{Code, Fault, SignTwist, rpc};

use tokio::time::Instant;

use crate::client::{Stream, fetch_jwt};
use crate::harness::{Agent, SOON, World, eventually, seconds, throughout};

/// All codes that a failing call can have.
const CODES: [Code; 16] = [
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

/// The RPCs of one round of syncing, in order.
const ROUND: [&str; 3] = [
    rpc::SYNC_AUTHORIZED_ENTRIES,
    rpc::GET_BUNDLE,
    rpc::BATCH_NEW_X509_SVID,
];

/// An entry that is made after the trouble.
const LATE: &str = "late";

/// What is left in the log of an agent whose sync has failed.
const FAILED: &str = "Synchronize failed";

/// An agent that serves `/web` to an open stream.
fn serving(world: &World) -> (Agent, Stream) {
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    let stream = agent.stream();
    (agent, stream)
}

/// Makes an entry and waits until the stream, open since before the trouble, brings it.
fn wait_recovered(world: &World, agent: &mut Agent, stream: &Stream, limit: Duration) {
    world.entry(LATE);
    wait_for_late(agent, stream, limit);
}

fn wait_for_late(agent: &mut Agent, stream: &Stream, limit: Duration) {
    eventually("the stream brings a new entry", limit, || {
        assert!(agent.is_running(), "the agent has ended");
        stream.has_seen("/late").then_some(())
    });
    assert!(stream.ended().is_none());
    agent.wait_served(&["/late", "/web"]);
}

#[test]
fn streams_and_fetches_go_on_without_the_server_and_it_is_found_again() {
    let world = World::new();
    let (mut agent, stream) = serving(&world);
    let before = agent.fetch().unwrap();

    world.control.stop();
    agent.wait_logged(FAILED, 2);
    assert_eq!(agent.fetch().unwrap(), before);
    world.control.start();

    wait_recovered(&world, &mut agent, &stream, SOON);
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
}

#[test]
fn d02_an_agent_that_is_to_end_without_the_server_ends_after_that_time_and_says_so() {
    let limit = seconds(5);
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.options.settings = "edge { exit_if_unreachable_for = \"5s\" }".to_owned();
    agent.start_serving(&["/web"]);
    throughout(limit + seconds(2), || {
        assert!(agent.is_running(), "ended although the server answers");
    });

    world.control.stop();
    let gone = Instant::now();
    let code = agent.wait_ended(SOON);

    assert_eq!(code, Some(1));
    assert!(gone.elapsed() >= limit, "{:?}", gone.elapsed());
    let reason = "server was out of reach for 5s (exit_if_unreachable_for)";
    assert!(agent.log().contains(reason));
    assert!(agent.has_stored_svid());
}

#[test]
fn d02_one_failure_and_nothing_to_ask_for_days_is_no_server_that_is_gone() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.options.settings = "edge { exit_if_unreachable_for = \"5s\" }".to_owned();
    agent.options.sync_interval = "30d";
    agent.start_serving(&["/web"]);

    world.control.stop();
    // The first tick comes within 5 s.
    agent.wait_logged(FAILED, 1);
    world.control.start();

    throughout(seconds(9), || assert!(agent.is_running(), "ended early"));
    assert_eq!(agent.log().matches(FAILED).count(), 1);
}

#[test]
fn d06_in_an_outage_longer_than_an_svid_streams_wait_and_new_callers_are_refused() {
    let world = World::with(|settings| settings.svid_ttl = 15);
    let (mut agent, stream) = serving(&world);

    world.control.stop();
    let refusal = eventually("the SVID has ended", SOON, || agent.fetch().err());
    assert_eq!(refusal.code(), Code::Unavailable, "{refusal:?}");
    assert!(refusal.message().contains("has expired"), "{refusal:?}");
    assert_eq!(fetch_jwt(agent.socket()).code(), Code::Unavailable);
    assert!(stream.ended().is_none());
    let seen = stream.updates().len();
    world.control.start();

    // A retry after the end of a certificate comes within a minute.
    eventually("the stream goes on", seconds(80), || {
        assert!(agent.is_running(), "the agent has ended");
        assert!(stream.ended().is_none());
        (stream.updates().len() > seen).then_some(())
    });
    agent.wait_served(&["/web"]);
}

#[test]
fn d06_an_svid_that_ended_is_left_out_and_the_rest_is_served() {
    let world = World::with(|settings| settings.svid_ttl = 12);
    world.entry("fresh");
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/fresh", "/web"]);
    let refusal = SignTwist::Fail(Code::Internal, "not today".to_owned());
    world.control.twist_signing("web", Some(refusal));

    agent.wait_served(&["/fresh"]);

    agent.wait_logged("X509-SVID has expired and could not be renewed", 1);
    agent.wait_logged("not today", 1);
}

#[test]
fn any_failing_call_leaves_the_agent_up_and_serving() {
    let of_codes = CODES.map(|code| ROUND.map(|name| Fault::code(name, code)));
    let others =
        [Fault::garbage, Fault::close_connection, Fault::go_away].map(|fault| ROUND.map(fault));
    let oversized = [ROUND.map(|name| Fault::oversized(name, 80 << 20))];
    let cases = of_codes.into_iter().chain(others).chain(oversized);
    let begin = |faults: [Fault; 3]| {
        let world = World::new();
        world.entry("web");
        let mut agent = world.agent();
        agent.start();
        (faults, agent, world)
    };
    let started: Vec<_> = cases.map(begin).collect();
    let break_down = |(faults, mut agent, world): ([Fault; 3], Agent, World)| {
        agent.wait_served(&["/web"]);
        let stream = agent.stream();
        for fault in faults {
            world.control.add_fault(fault.times(1));
        }
        world.entry(LATE);
        (agent, stream, world)
    };
    let broken: Vec<_> = started.into_iter().map(break_down).collect();

    for mut run in broken {
        let (agent, stream, world) = &mut run;
        wait_for_late(agent, stream, SOON);
        assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
    }
}

#[test]
fn a_call_that_is_never_answered_is_given_up() {
    let stall = |name| {
        let world = World::new();
        let (agent, stream) = serving(&world);
        world.control.add_fault(Fault::stall(name).times(1));
        world.entry(LATE);
        (name, agent, stream, world)
    };
    let runs = ROUND.map(stall);

    for mut run in runs {
        let (name, agent, stream, _) = &mut run;
        agent.fetch().expect("the workload is served");
        wait_for_late(agent, stream, seconds(75));
        let line = format!("{name} was not answered within");
        assert!(agent.log().contains(&line), "{line}");
    }
}

#[test]
fn a_connection_that_swallows_everything_is_replaced() {
    let world = World::new();
    let (mut agent, stream) = serving(&world);
    let connections = world.control.connections();

    world.control.freeze_connections(true);

    wait_recovered(&world, &mut agent, &stream, seconds(75));
    assert!(world.control.connections() > connections);
}

#[test]
fn connections_that_the_server_ends_by_age_go_unnoticed() {
    let world = World::with(|settings| settings.connection_age = Some(seconds(1)));
    let (mut agent, stream) = serving(&world);
    let connections = world.control.connections();

    eventually("several connections", SOON, || {
        agent.fetch().expect("the workload is served");
        (world.control.connections() >= connections + 4).then_some(())
    });

    wait_recovered(&world, &mut agent, &stream, SOON);
    assert!(!agent.log().contains(FAILED));
}

#[test]
fn an_evicted_agent_attests_again_and_its_streams_stay_open() {
    let world = World::new();
    let (mut agent, stream) = serving(&world);
    let stored = agent.stored();
    let id = world.control.agents().pop().unwrap().id;

    world.control.evict_agent(&id);

    wait_recovered(&world, &mut agent, &stream, SOON);
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 2);
    assert_ne!(agent.stored(), stored, "the new SVID is on disk");
}

#[test]
fn d05_a_ban_ends_streams_with_its_reason_deletes_the_svid_and_ends_the_agent() {
    let world = World::new();
    let (mut agent, stream) = serving(&world);
    let id = world.control.agents().pop().unwrap().id;

    world.control.ban_agent(&id);
    let code = agent.wait_ended(SOON);

    assert_eq!(code, Some(1));
    let ended = eventually("the stream ends", SOON, || stream.ended());
    assert_eq!(ended.code(), Code::PermissionDenied, "{ended:?}");
    assert!(!agent.has_stored_svid());
    assert!(!agent.socket().exists());
    let line = "Agent is banned: removing SVID and shutting down";
    assert!(agent.log().contains(line));
}

#[test]
fn d02_a_server_under_an_unknown_authority_is_refused_and_the_workload_is_served() {
    let world = World::new();
    let (mut agent, stream) = serving(&world);
    let before = agent.fetch().unwrap();
    world.control.stop();
    let impostor = world.control.prepare_x509_authority();
    world.control.revoke_x509_authority(impostor);
    world
        .control
        .configure(|settings| settings.server_generation = Some(impostor));
    world.control.clear_calls();
    world.control.start();

    eventually("the impostor is met twice", SOON, || {
        (world.control.handshake_failures().len() >= 2).then_some(())
    });
    throughout(seconds(1), || assert_eq!(agent.fetch().unwrap(), before));
    assert!(agent.log().contains("unknown authority"));
    assert_eq!(world.control.all_calls(), []);
    world
        .control
        .configure(|settings| settings.server_generation = None);

    wait_recovered(&world, &mut agent, &stream, SOON);
}

#[test]
fn a_restart_without_the_server_waits_and_goes_on_where_it_was() {
    let world = World::new();
    let (mut agent, _) = serving(&world);
    let stored = agent.stored();
    agent.stop();
    world.control.stop();

    agent.start();
    agent.wait_logged(FAILED, 1);
    let stream = agent.stream();
    let refusal = fetch_jwt(agent.socket());
    assert_eq!(refusal.code(), Code::Unavailable);
    assert!(
        refusal
            .message()
            .contains("not synced with the server yet: "),
        "{refusal:?}"
    );
    assert_eq!(agent.stored(), stored);
    world.control.start();

    wait_recovered(&world, &mut agent, &stream, SOON);
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
}

#[test]
fn d02_an_agent_whose_svid_ended_in_an_outage_attests_again_and_goes_on() {
    let world = World::with(|settings| settings.agent_ttl = 12);
    let (mut agent, stream) = serving(&world);

    world.control.stop();
    throughout(seconds(14), || {
        assert!(agent.is_running(), "the agent has ended");
        agent
            .fetch()
            .expect("workload SVIDs outlive the agent's own");
    });
    world.control.start();

    // A retry after the end of a certificate comes within a minute.
    wait_recovered(&world, &mut agent, &stream, seconds(80));
    assert!(agent.log().contains("Unable to rotate the agent SVID"));
}
