//! The agent against the real `spire-server`: one server and one data directory per test.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "real_server/attestation.rs"]
mod attestation;
#[path = "real_server/bans.rs"]
mod bans;
#[path = "real_server/bundle_sources.rs"]
mod bundle_sources;
#[path = "real_server/clones.rs"]
mod clones;
#[path = "real_server/connections.rs"]
mod connections;
#[path = "real_server/entries.rs"]
mod entries;
#[path = "real_server/join_token.rs"]
mod join_token;
#[path = "real_server/outages.rs"]
mod outages;
#[path = "real_server/rebootstrap.rs"]
mod rebootstrap;
#[path = "real_server/restarts.rs"]
mod restarts;
#[path = "real_server/restored.rs"]
mod restored;
#[path = "real_server/rotation.rs"]
mod rotation;
#[path = "real_server/spent_tokens.rs"]
mod spent_tokens;
#[path = "real_server/takeover.rs"]
mod takeover;
#[path = "real_server/ways_in.rs"]
mod ways_in;

use std::path::Path;

use interop::agent::Agent;
use interop::watcher::{Sdk, Watcher};
use interop::world::World;

/// Starts a client of this SDK on the agent's socket.
fn watch(world: &World, agent: &Agent, sdk: Sdk) -> Watcher {
    Watcher::start(
        sdk,
        &agent.socket(),
        &world.path(""),
        Path::new(env!("CARGO_BIN_EXE_watch")),
    )
}
