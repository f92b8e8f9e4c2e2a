//! How an agent reaches its server: through a proxy, or with a key exchange that outlasts quantum computers.

use interop::agent_options::AgentOptions;
use interop::connect_proxy::ConnectProxy;
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{own_selector, seconds, tools};

#[test]
fn everything_goes_through_the_proxy_of_the_environment_which_gets_the_servers_name() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let proxy = ConnectProxy::start();
    let mut agent = world.agent_with(
        "agent",
        AgentOptions {
            // Nobody but the proxy can resolve it.
            server_address: "server.test".to_owned(),
            environment: vec![(
                "HTTPS_PROXY",
                format!("http://user:s3cret@127.0.0.1:{}", proxy.port),
            )],
            ..AgentOptions::x509pop(&server, &world.node("node"))
        },
    );
    server.register(&agent.id, "w", &own_selector(), 0);

    agent.start();

    agent.wait_served(&["w"]);
    let requests = proxy.requests();
    assert!(!requests.is_empty());
    let first_line = format!("CONNECT server.test:{} HTTP/1.1\r\n", server.port);
    for request in requests {
        assert!(request.starts_with(&first_line), "{request}");
        assert!(
            request.contains("Basic dXNlcjpzM2NyZXQ="),
            "the proxy is told user and password: {request}"
        );
    }
    assert!(!agent.log().contains("s3cret"), "no password in the log");
}

#[test]
fn a_server_named_by_no_proxy_and_one_on_the_loopback_address_are_reached_without_the_proxy() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let proxy = ConnectProxy::start();
    let https_proxy = ("HTTPS_PROXY", format!("127.0.0.1:{}", proxy.port));
    let mut named = world.agent_with(
        "named",
        AgentOptions {
            server_address: "server.test".to_owned(),
            environment: vec![
                https_proxy.clone(),
                (
                    "NO_PROXY",
                    "other.test, .server.test,server.test".to_owned(),
                ),
            ],
            hosts: Some(world.hosts_file("server.test")),
            ..AgentOptions::x509pop(&server, &world.node("named"))
        },
    );
    let mut loopback = world.agent_with(
        "loopback",
        AgentOptions {
            environment: vec![https_proxy],
            ..AgentOptions::x509pop(&server, &world.node("loopback"))
        },
    );
    // Where the agent sees a hosts file of its own, every caller's uid may be 0.
    server.register(&named.id, "named", "unix:uid:0", 0);
    server.register(&loopback.id, "loopback", &own_selector(), 0);

    named.start();
    loopback.start();

    named.wait_served(&["named"]);
    loopback.wait_served(&["loopback"]);
    assert_eq!(proxy.requests(), [""; 0]);
}

#[test]
fn an_agent_that_insists_on_a_post_quantum_key_exchange_is_served_and_turns_other_servers_away() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let old_server = interop::server::Server::start(
        &world.path("old-server"),
        &world.nodes,
        ServerOptions {
            environment: vec![("GODEBUG", "tlsmlkem=0,tlssecpmlkem=0")],
            ..ServerOptions::default()
        },
    );
    let insisting = |server, name: &str| {
        let options = AgentOptions {
            experimental: "require_pq_kem = true".to_owned(),
            ..AgentOptions::x509pop(server, &world.node(name))
        };
        world.agent_with(name, options)
    };
    let mut agent = insisting(&server, "agent");
    let mut turned_away = insisting(&old_server, "turned-away");
    let mut content = world.agent_with(
        "content",
        AgentOptions::x509pop(&old_server, &world.node("content")),
    );
    server.register(&agent.id, "w", &own_selector(), 0);
    old_server.register(&content.id, "w", &own_selector(), 0);

    agent.start();
    content.start();
    turned_away.launch(&tools::agent());

    agent.wait_served(&["w"]);
    content.wait_served(&["w"]);
    turned_away.wait_log("attest", seconds(10));
    turned_away.wait_log("retry_in", seconds(20));
    assert_eq!(old_server.agents(), [content.id.as_str()]);
}
