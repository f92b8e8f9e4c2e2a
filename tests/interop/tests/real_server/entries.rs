//! Registration entries as they come, change and go.

use interop::agent::answered;
use interop::server::NewEntry;
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{own_selector, own_uid, seconds, wait_for};
use spiffe::WorkloadApiError;

#[test]
fn entries_are_served_as_they_come_and_go_and_a_caller_without_one_is_denied() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    agent.start();
    server.register(
        &agent.id,
        "someone-else",
        &format!("unix:uid:{}", own_uid() + 1),
        0,
    );
    let before = agent.fetch();

    server.register(&agent.id, "first", &own_selector(), 0);
    agent.wait_served(&["first"]);
    server.register(&agent.id, "second", &own_selector(), 0);
    agent.wait_served(&["first", "second"]);
    server.unregister("first");
    agent.wait_served(&["second"]);
    server.unregister("second");

    assert!(answered(&before) && before.is_err(), "{before:?}");
    wait_for("the caller is denied again", seconds(20), || {
        matches!(
            agent.fetch(),
            Err(WorkloadApiError::NoIdentityIssued | WorkloadApiError::PermissionDenied(_))
        )
        .then_some(())
    });
}

#[test]
fn twelve_hundred_entries_are_all_signed_and_served() {
    const COUNT: usize = 1200;
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut agent = world.agent(&server);
    let paths: Vec<String> = (0..COUNT).map(|number| format!("w{number}")).collect();
    let entry = |path: &String| NewEntry {
        path: path.clone(),
        selector: own_selector(),
        lifetime: 0,
    };
    server.register_all(&agent.id, &paths.iter().map(entry).collect::<Vec<_>>());

    agent.start();

    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let update = agent.wait_served(&paths);
    let mut serials: Vec<&str> = update
        .identities
        .iter()
        .map(|identity| identity.serial.as_str())
        .collect();
    serials.sort_unstable();
    serials.dedup();
    assert_eq!(serials.len(), COUNT);
}
