//! Where an agent gets the bundle from by which it knows its server at the first start.

use std::fs;
use std::path::Path;
use std::process::Command;

use interop::agent::Agent;
use interop::agent_options::{AgentOptions, bundle_file};
use interop::bundle_host::{HttpsHost, SocketHost};
use interop::process::run;
use interop::server::Server;
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{own_selector, seconds, tools};

#[test]
fn a_bundle_comes_by_https_from_a_host_that_the_system_trusts_and_from_no_other() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let host = HttpsHost::start(&world.path("web"));
    fs::copy(server.bundle(), host.file("bundle.pem")).unwrap();
    let trust = format!(
        "trust_bundle_url = \"https://127.0.0.1:{}/bundle.pem?key=s3cret\"",
        host.port
    );
    let mut stranger = agent_that_trusts(&world, &server, "stranger", &trust);
    let mut agent = agent_that_trusts(&world, &server, "agent", &trust);
    let authority = host.authority().display().to_string();
    agent.reconfigure(|options| options.environment = vec![("SSL_CERT_FILE", authority)]);

    agent.start();
    stranger.launch(&tools::agent());

    agent.wait_served(&["agent"]);
    stranger.wait_log("127.0.0.1", seconds(20));
    assert!(host.log().contains("GET /bundle.pem"), "{}", host.log());
    assert_eq!(server.agents(), [agent.id.as_str()]);
    assert!(stranger.alive());
    for log in [agent.log(), stranger.log()] {
        assert!(!log.contains("s3cret"), "no query in a log:\n{log}");
    }
}

#[test]
fn a_bundle_document_comes_over_a_unix_socket_whose_host_is_told_who_asks() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let socket = world.path("bundle.sock");
    let host = SocketHost::start(&socket, &server.bundle_document());
    let trust = format!(
        "trust_bundle_url = \"http://bundles/of?z=1&a=b c\"\n  trust_bundle_unix_socket = \"{}\"\n  trust_bundle_format = \"spiffe\"",
        socket.display()
    )
    .replace("b c", "b%20c");
    let mut agent = agent_that_trusts(&world, &server, "agent", &trust);

    agent.start();

    agent.wait_served(&["agent"]);
    let targets = host.targets();
    let (path, query) = targets[0].split_once('?').unwrap();
    assert_eq!(path, "/of");
    let parameters: Vec<(&str, &str)> = query
        .split('&')
        .map(|parameter| parameter.split_once('=').unwrap())
        .collect();
    let port = server.port.to_string();
    let (started, rest): (Vec<_>, Vec<_>) = parameters
        .into_iter()
        .partition(|(key, _)| *key == "spire-attest-start-time");
    assert_eq!(
        rest,
        [
            ("a", "b+c"),
            ("spiffe-trust-domain", "domain.test"),
            ("spire-attest-mode", "bootstrap"),
            ("spire-connection-attempts", "1"),
            ("spire-server-address", "127.0.0.1"),
            ("spire-server-port", port.as_str()),
            ("z", "1"),
        ]
    );
    assert_eq!(started.len(), 1, "{query}");
    assert!(started[0].1.starts_with("20"), "{query}");
    assert_eq!(targets.len(), 1);
}

#[test]
fn a_bundle_comes_from_the_workload_api_of_another_agent() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let mut other = agent_that_trusts(&world, &server, "other", &bundle_file(&server.bundle()));
    other.start();
    other.wait_served(&["other"]);
    let trust = format!(
        "trust_bundle_spiffe_workload_api = \"unix://{}\"",
        other.socket().display()
    );
    let mut agent = agent_that_trusts(&world, &server, "agent", &trust);

    agent.start();

    agent.wait_served(&["agent"]);
}

#[test]
fn sources_are_asked_in_turn_and_only_pinned_authorities_are_taken() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let (missing, foreign, both) = (
        world.path("missing.pem"),
        world.nodes.certificate(),
        world.path("both.pem"),
    );
    let texts = [&foreign, &server.bundle()].map(|path| fs::read_to_string(path).unwrap());
    fs::write(&both, texts.concat()).unwrap();
    let pin = fingerprint(&server.bundle());
    let sources = |pin: &str| {
        format!(
            "edge {{\n    trust_bundle_sources = [\"{}\", \"{}#sha256:{pin}\", \"{}#sha256:{pin}\"]\n  }}",
            missing.display(),
            foreign.display(),
            both.display()
        )
    };
    let mut agent = agent_that_trusts(&world, &server, "agent", &sources(&pin));
    let mut stranger = agent_that_trusts(
        &world,
        &server,
        "stranger",
        &sources(&fingerprint(&foreign)),
    );

    agent.start();
    stranger.launch(&tools::agent());

    agent.wait_served(&["agent"]);
    stranger.wait_log("unknown authority", seconds(20));
    assert_eq!(server.agents(), [agent.id.as_str()]);
    assert!(
        agent.log().contains(&missing.display().to_string()),
        "a source that has nothing is named:\n{}",
        agent.log()
    );
}

/// An agent with an entry of its own name.
fn agent_that_trusts(world: &World, server: &Server, name: &str, trust: &str) -> Agent {
    let agent = world.agent_with(
        name,
        AgentOptions {
            trust: trust.to_owned(),
            ..AgentOptions::x509pop(server, &world.node(name))
        },
    );
    server.register(&agent.id, name, &own_selector(), 0);
    agent
}

/// SHA-256 of the first certificate of a PEM file, lower-case hex.
fn fingerprint(path: &Path) -> String {
    let printed = run(Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(path));
    let (_, digits) = printed.trim().rsplit_once('=').unwrap();
    digits.replace(':', "").to_lowercase()
}
