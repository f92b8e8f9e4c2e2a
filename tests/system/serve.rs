//! What callers see of the agent's life: sockets, readiness, bundles, signals.

use std::fs;
use std::os::unix::net::UnixStream;

use devserver::{Code, DevServer, Fault, FederatedBundle, Settings, rpc};
use rustix::process::Signal;

use crate::client::fetch_jwt;
use crate::harness::{Agent, SOON, World, eventually, own_entry, seconds};

/// How long the end of the process may take after a signal.
const END_LIMIT: std::time::Duration = seconds(3);

#[test]
fn before_readiness_streams_wait_and_other_callers_are_told_why() {
    let world = World::new();
    world.entry("web");
    world.control.stop();
    let mut agent = world.agent();
    agent.start();
    agent.wait_socket();
    agent.wait_logged("Failed to retrieve attestation result", 1);

    let stream = agent.stream();
    let refusal = fetch_jwt(agent.socket());
    let health = agent.ask(&["healthcheck"]);

    assert_eq!(refusal.code(), Code::Unavailable);
    assert!(
        refusal.message().contains("not attested yet: "),
        "{refusal:?}"
    );
    assert_eq!(health.status.code(), Some(1));
    assert_eq!(stream.events().len(), 0);
    world.control.start();
    eventually("the stream begins", SOON, || {
        stream.has_seen("/web").then_some(())
    });
    assert_eq!(agent.ask(&["healthcheck"]).status.code(), Some(0));
}

#[test]
fn the_command_line_shows_what_is_served() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    let update = agent.start_serving(&["/web"]);

    let shown = agent.ask(&["api", "fetch", "x509", "-output", "json"]);

    assert!(shown.status.success());
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["svids"][0]["spiffe_id"], "spiffe://domain.test/web");
    assert_eq!(update.identities.len(), 1);
}

#[test]
fn a_caller_without_an_entry_is_denied() {
    let world = World::new();
    let mut agent = world.agent();
    agent.start();

    let refusal = eventually("an answer", SOON, || {
        let refusal = agent.fetch().err()?;
        (refusal.code() == Code::PermissionDenied).then_some(refusal)
    });

    assert_eq!(refusal.message(), "no identity issued");
}

#[test]
fn d18_a_denial_names_process_and_method_but_no_selector() {
    let world = World::new();
    let mut entry = own_entry("other");
    entry.selectors.push("unix:user:nobody-else".to_owned());
    world.control.add_entry(entry);
    let mut agent = world.agent();
    agent.start();

    agent.wait_socket();
    eventually("a denial", SOON, || {
        let refusal = agent.fetch().err()?;
        (refusal.code() == Code::PermissionDenied).then_some(())
    });

    agent.wait_logged("No identity issued", 1);
    let log = agent.log();
    let line = log.lines().find(|line| line.contains("No identity issued"));
    let line = line.unwrap();
    assert!(line.contains("level=error"), "{line}");
    assert!(line.contains("method=FetchX509SVID"), "{line}");
    assert!(
        line.contains(&format!("pid={}", std::process::id())),
        "{line}"
    );
    assert!(!log.contains("unix:"), "selectors are in the log");
    assert!(!log.contains("nobody-else"), "selectors are in the log");
}

#[test]
fn d13_a_program_too_large_to_be_hashed_has_all_its_other_selectors() {
    let world = World::new();
    let program = std::env::current_exe().unwrap();
    let selector = format!("unix:path:{}", program.display());
    let entry = devserver::Entry::new("by-path", "/by-path", &[&selector]);
    world.control.add_entry(entry);
    let mut agent = world.agent();
    agent.options.unix = "discover_workload_path = true, workload_size_limit = 1024";

    agent.start_serving(&["/by-path"]);
}

#[test]
fn d16_a_key_that_the_reference_ignores_is_a_warning_with_its_nearest_known_name() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.options.unix = "discover_workload_paht = true";

    agent.start_serving(&["/web"]);

    let log = agent.log();
    let line = log
        .lines()
        .find(|line| line.contains("discover_workload_paht"));
    let line = line.expect("the key is named");
    assert!(line.contains("level=warning"), "{line}");
    assert!(line.contains("discover_workload_path"), "{line}");
}

#[test]
fn identities_come_in_the_order_of_entry_ids() {
    let world = World::new();
    for (id, path) in [("b", "/first"), ("a", "/second"), ("c", "/aaa")] {
        let mut entry = own_entry(id);
        path.clone_into(&mut entry.path);
        world.control.add_entry(entry);
    }
    let mut agent = world.agent();

    agent.start_serving(&["/second", "/first", "/aaa"]);

    world.control.remove_entry("b");
    agent.wait_served(&["/second", "/aaa"]);
}

#[test]
fn a_stream_ends_with_permission_denied_when_its_last_entry_goes() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    let stream = agent.stream();
    eventually("the stream begins", SOON, || {
        stream.has_seen("/web").then_some(())
    });

    world.control.remove_entry("web");

    let ended = eventually("the stream ends", SOON, || stream.ended());
    assert_eq!(ended.code(), Code::PermissionDenied);
}

#[test]
fn d11_a_federated_bundle_that_fails_keeps_its_last_good_version_and_holds_nobody_up() {
    let foreign = |name: &str| DevServer::start(Settings::new(name)).unwrap();
    let (good, bad) = (foreign("good.test"), foreign("bad.test"));
    let world = World::new();
    let set = |name: &str, bundle| world.control.set_federated_bundle(name, Some(bundle));
    set(
        "good.test",
        FederatedBundle::Bundle(good.control().bundle()),
    );
    set("bad.test", FederatedBundle::Bundle(bad.control().bundle()));
    let entry = own_entry("web").with_federation(&["good.test", "bad.test", "none.test"]);
    world.control.add_entry(entry);
    let mut agent = world.agent();
    let before = agent.start_serving(&["/web"]);
    let failure = FederatedBundle::Fail(Code::Internal, "told to fail".to_owned());

    set("bad.test", failure);
    good.control().prepare_x509_authority();
    set(
        "good.test",
        FederatedBundle::Bundle(good.control().bundle()),
    );

    let domain = |name: &str| format!("spiffe://{name}");
    let after = eventually("the good bundle is renewed", SOON, || {
        let update = agent.fetch().expect("the workload is served");
        let changed =
            update.federated[&domain("good.test")] != before.federated[&domain("good.test")];
        changed.then_some(update)
    });
    assert_eq!(
        after.federated.keys().collect::<Vec<_>>(),
        [&domain("bad.test"), &domain("good.test")]
    );
    assert_eq!(
        after.federated[&domain("bad.test")],
        before.federated[&domain("bad.test")]
    );
    assert_eq!(after.identities, before.identities);
}

#[test]
fn a_second_agent_on_a_live_socket_ends_and_the_first_goes_on() {
    let world = World::new();
    world.entry("web");
    let mut first = world.agent();
    first.start_serving(&["/web"]);
    let mut second = world.agent_of("second", devserver::KeyKind::EcP256);
    second.options.socket = first.socket().to_owned();

    second.start();
    let code = second.wait_ended(SOON);

    assert_eq!(code, Some(1));
    assert!(second.log().contains(first.socket().to_str().unwrap()));
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 1);
    first.wait_served(&["/web"]);
}

#[test]
fn a_file_that_is_no_socket_stays_and_ends_the_start() {
    let world = World::new();
    let mut agent = world.agent();
    let socket = agent.socket().to_owned();
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    fs::write(&socket, "precious").unwrap();

    agent.start();
    let code = agent.wait_ended(SOON);

    assert_eq!(code, Some(1));
    assert!(agent.log().contains(socket.to_str().unwrap()));
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
}

#[test]
fn sockets_are_removed_at_the_end_and_those_of_a_killed_agent_are_replaced() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    let sockets = [agent.socket().to_owned(), agent.admin_socket()];
    agent.start_serving(&["/web"]);
    agent.kill();
    assert!(sockets.iter().all(|socket| socket.exists()));
    assert!(UnixStream::connect(&sockets[0]).is_err(), "it is stale");

    agent.start_serving(&["/web"]);
    agent.stop();

    assert!(!sockets.iter().any(|socket| socket.exists()));
}

/// A phase of an agent's life: what brings it about, and what shows that it is there.
type Phase = (&'static str, fn(&World), fn(&World, &Agent));

#[test]
fn a_signal_ends_the_agent_in_order_in_every_phase_of_its_life() {
    let phases: [Phase; 6] = [
        (
            "no server",
            |world| assert!(world.control.stop()),
            |_, agent| agent.wait_logged("Failed to retrieve attestation result", 1),
        ),
        (
            "a TLS handshake that hangs",
            |world| {
                let silent = devserver::ConnectionFault::Silent;
                world.control.set_connection_fault(silent);
            },
            |_, agent| agent.wait_socket(),
        ),
        (
            "attesting",
            |world| world.control.add_fault(Fault::stall(rpc::ATTEST_AGENT)),
            |world, _| wait_called(world, rpc::ATTEST_AGENT),
        ),
        (
            "fetching the bundle",
            |world| world.control.add_fault(Fault::stall(rpc::GET_BUNDLE)),
            |world, _| wait_called(world, rpc::GET_BUNDLE),
        ),
        (
            "syncing",
            |world| {
                let stall = Fault::stall(rpc::SYNC_AUTHORIZED_ENTRIES);
                world.control.add_fault(stall);
            },
            |world, _| wait_called(world, rpc::SYNC_AUTHORIZED_ENTRIES),
        ),
        (
            "serving",
            |world| world.entry("web"),
            |_, agent| {
                eventually("the workload is served", SOON, || agent.fetch().ok());
            },
        ),
    ];

    for (phase, bring_about, wait) in phases {
        for signal in [Signal::TERM, Signal::INT] {
            let world = World::new();
            bring_about(&world);
            let mut agent = world.agent();
            agent.start();
            wait(&world, &agent);
            agent.wait_socket();
            let stream = agent.stream();

            let (code, time) = agent.stop_with(signal);

            assert_eq!(code, Some(0), "{phase}");
            assert!(time <= END_LIMIT, "{phase}: {time:?}");
            let ended = eventually("the stream ends", SOON, || stream.ended());
            assert_ne!(ended.code(), Code::PermissionDenied, "{phase}");
            assert!(!agent.socket().exists(), "{phase}");
        }
    }
}

fn wait_called(world: &World, name: &str) {
    assert!(world.control.wait_for_calls(name, 1, SOON), "{name}");
}

#[test]
fn d17_a_connection_that_nothing_is_asked_over_is_closed_after_half_a_minute() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.options.sync_interval = "24h";
    agent.start_serving(&["/web"]);
    let ticked = world
        .control
        .wait_for_calls(rpc::SYNC_AUTHORIZED_ENTRIES, 2, SOON);
    assert!(ticked);
    assert!(is_connected(&world));

    let time = eventually("the connection is closed", seconds(40), || {
        let last = world.control.all_calls().pop().unwrap().at;
        let now = actors::clock::Clock::system().wall();
        (!is_connected(&world)).then(|| now.duration_since(last).unwrap())
    });

    assert!(time >= seconds(25), "closed after {time:?} already");
    agent.wait_served(&["/web"]);
    assert!(!agent.log().contains("level=error"), "closing is no error");
}

/// Whether any connection to the server is established, as the kernel lists it.
fn is_connected(world: &World) -> bool {
    const ESTABLISHED: &str = "01";
    let port = format!(":{:04X}", world.server.addr().port());
    let table = fs::read_to_string("/proc/net/tcp").expect("the kernel lists its connections");
    table.lines().any(|line| {
        let mut columns = line.split_whitespace().skip(2);
        let remote = columns.next().unwrap_or_default();
        remote.ends_with(&port) && columns.next() == Some(ESTABLISHED)
    })
}
