//! Rotation of agent SVIDs and workload SVIDs, as the server and foreign clients see it.

use interop::server_options::ServerOptions;
use interop::tools;
use interop::watcher::{Sdk, Watcher};
use interop::world::World;
use interop::{now, own_selector, seconds, wait_for};

#[test]
fn the_agent_svid_is_replaced_in_time_and_the_server_takes_the_new_one() {
    let world = World::new();
    let server = world.server(ServerOptions {
        agent_ttl: "20s",
        ..ServerOptions::default()
    });
    let mut agent = world.agent(&server);
    agent.start();
    let (stored, known) = (
        agent.stored_serial().unwrap(),
        server.agent_serial(&agent.id),
    );

    wait_for("another agent SVID on disk", seconds(20), || {
        agent.stored_serial().filter(|serial| *serial != stored)
    });

    // The server takes a new SVID for current at its first use.
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    assert_ne!(server.agent_serial(&agent.id), known);
    assert!(agent.alive());
}

#[test]
fn an_x509pop_agent_attests_again_when_half_of_its_svids_life_is_left_and_never_renews() {
    // The server dates certificates back by 10 s.
    const LIFETIME: i64 = 60 + 10;
    let world = World::new();
    let server = world.server(ServerOptions {
        agent_ttl: "60s",
        ..ServerOptions::default()
    });
    let mut agent = world.agent(&server);
    agent.start();
    let (stored, not_after) = (
        agent.stored_serial().unwrap(),
        agent.stored_not_after().unwrap(),
    );

    wait_for("another agent SVID on disk", seconds(60), || {
        agent.stored_serial().filter(|serial| *serial != stored)
    });

    let left = not_after - now();
    // Half of the life, 10 % to either side; a second for the way and one for whole seconds.
    let (least, most) = (LIFETIME * 45 / 100 - 2, LIFETIME * 55 / 100 + 1);
    assert!(
        (least..=most).contains(&left) || tools::agent_is_the_go_one(),
        "{left} s of the old SVID's life were left"
    );
    assert_eq!(server.attestations(), 2);
    assert_eq!(server.renewals(), 0);
}

#[test]
fn a_rotated_workload_svid_reaches_the_clients_of_every_sdk() {
    let world = World::new();
    let server = world.server(ServerOptions {
        workload_ttl: "30s",
        ..ServerOptions::default()
    });
    let mut agent = world.agent(&server);
    agent.start();
    server.register(&agent.id, "w", &own_selector(), 0);
    agent.wait_served(&["w"]);
    let watchers = Sdk::ALL.map(|sdk| crate::watch(&world, &agent, sdk));

    for watcher in &watchers {
        wait_for(
            &format!("{:?} sees a second SVID", watcher.sdk),
            seconds(40),
            || (watcher.serials("w").len() >= 2).then_some(()),
        );
    }

    for watcher in &watchers {
        assert!(
            watcher.errors().is_empty(),
            "{:?}: {}",
            watcher.sdk,
            watcher.text()
        );
        assert!(
            newest_end(watcher) > now(),
            "{:?}: {}",
            watcher.sdk,
            watcher.text()
        );
        assert!(
            watcher.updates().iter().all(|update| update.bundles == 1),
            "{:?}",
            watcher.sdk
        );
    }
}

fn newest_end(watcher: &Watcher) -> i64 {
    let newest = watcher.updates().pop().unwrap();
    newest.identities[0].not_after
}
