//! The development server as an agent sees it, over real connections.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

mod attestation;
mod authorization;
mod client;
mod faults;
mod signing;
mod sync;

use devserver::{DevServer, NodeCa, Settings};

/// A server for `example.org` whose settings `change` has changed.
fn start_with(change: impl FnOnce(&mut Settings)) -> DevServer {
    let mut settings = Settings::new("example.org");
    change(&mut settings);
    DevServer::start(settings).unwrap()
}

fn start() -> DevServer {
    start_with(|_| {})
}

/// A server that trusts a new node CA.
fn start_with_node_ca() -> (DevServer, NodeCa) {
    let ca = NodeCa::new();
    let server = start_with(|settings| settings.x509pop.roots_pem = ca.root_pem());
    (server, ca)
}

/// A server with one agent that attested by join token.
async fn start_with_agent() -> (DevServer, client::Identity) {
    let server = start();
    let token = server.control().create_join_token(60);
    let agent = client::attest_by_token(&server, &token).await.unwrap();
    (server, agent)
}
