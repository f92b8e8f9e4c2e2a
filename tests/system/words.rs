//! What the agent says: troubles in its health, and a log that keeps its form whatever a server writes.

use devserver::{Code, Fault, FederatedBundle, SignTwist, rpc};
use proto::spire::api::types;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

use crate::harness::{Agent, DOMAIN, SOON, World, eventually, own_entry, seconds};

/// What `healthcheck -verbose` prints while the agent is healthy.
fn health(agent: &Agent) -> Option<String> {
    let output = agent.ask(&["healthcheck", "-verbose"]);
    let text = String::from_utf8(output.stdout).expect("text");
    output.status.success().then_some(text)
}

/// Waits until health names this trouble, or does not.
fn wait_trouble(agent: &Agent, name: &str, is_there: bool) {
    let line = format!("Trouble, see the log: {name}\n");
    eventually(&format!("{name}: {is_there}"), SOON, || {
        let text = health(agent).expect("callers are served, so the agent is healthy");
        (text.contains(&line) == is_there).then_some(())
    });
}

#[test]
fn health_names_an_unknown_authority_until_the_server_is_known_again() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    wait_trouble(&agent, "unknown-authority", false);
    let impostor = world.control.prepare_x509_authority();
    world.control.revoke_x509_authority(impostor);
    let sign_with = |generation| {
        world
            .control
            .configure(|settings| settings.server_generation = generation);
        world.control.close_connections();
    };

    sign_with(Some(impostor));
    wait_trouble(&agent, "unknown-authority", true);
    sign_with(None);

    wait_trouble(&agent, "unknown-authority", false);
}

#[test]
fn health_names_state_that_could_not_be_written_until_it_is() {
    let world = World::with(|settings| settings.agent_ttl = 16);
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    let own = getrlimit(Resource::Fsize);
    let limit = |bytes: Option<u64>| {
        let limits = Rlimit {
            current: bytes.or(own.maximum),
            maximum: own.maximum,
        };
        prlimit(Some(agent.pid()), Resource::Fsize, limits).expect("a child can be limited");
    };

    limit(Some(0));
    wait_trouble(&agent, "unsaved-state", true);
    limit(None);

    wait_trouble(&agent, "unsaved-state", false);
}

/// Line ends, a terminal's colours, title and screen, and what else moves a cursor or turns a line around.
const HOSTILE: &str = "evil\nlevel=error msg=forged\r\u{1b}[31m\u{1b}]0;title\u{7}\u{8}\u{7f}\u{85}\u{9b}2J\u{2028}\0";

/// A server that answers everything in those words at some time.
fn speak_hostile(world: &World) {
    let control = &world.control;
    let refusal = |name| Fault::code(name, Code::Internal).message(HOSTILE).times(1);
    for name in [
        rpc::ATTEST_AGENT,
        rpc::SYNC_AUTHORIZED_ENTRIES,
        rpc::GET_BUNDLE,
        rpc::BATCH_NEW_X509_SVID,
    ] {
        control.add_fault(refusal(name));
    }
    control.add_entry(own_entry("web").with_federation(&["other.test"]));
    let mut hinted = own_entry("hinted");
    HOSTILE.clone_into(&mut hinted.hint);
    control.add_entry(hinted);
    control.set_federated_bundle(
        "other.test",
        Some(FederatedBundle::Fail(Code::Internal, HOSTILE.to_owned())),
    );
    control.add_entry(own_entry("refused"));
    let refused = SignTwist::Fail(Code::Internal, HOSTILE.to_owned());
    control.twist_signing("refused", Some(refused));
    let id = |trust_domain: &str, path: &str| {
        Some(types::Spiffeid {
            trust_domain: trust_domain.to_owned(),
            path: path.to_owned(),
        })
    };
    let parent = id(DOMAIN, "/spire/agent/any");
    let selectors = vec![types::Selector {
        r#type: "unix".to_owned(),
        value: HOSTILE.to_owned(),
    }];
    let raw = |entry: &str, spiffe_id: Option<types::Spiffeid>| types::Entry {
        id: entry.to_owned(),
        spiffe_id,
        parent_id: parent.clone(),
        selectors: selectors.clone(),
        federates_with: vec![HOSTILE.to_owned()],
        hint: HOSTILE.to_owned(),
        ..types::Entry::default()
    };
    control.set_raw_entries(vec![
        raw(HOSTILE, id(DOMAIN, "/path")),
        raw("path", id(DOMAIN, &format!("/{HOSTILE}"))),
        raw("domain", id(HOSTILE, "/path")),
        raw("values", id(DOMAIN, "/values")),
    ]);
}

/// The log lines of an agent that has met all of those words.
fn log_lines(format: &str) -> Vec<String> {
    let world = World::new();
    speak_hostile(&world);
    let mut agent = world.agent();
    agent.options.settings = format!("log_format = \"{format}\"");
    agent.start();
    eventually("the sound entry is served", seconds(60), || {
        assert!(agent.is_running(), "the agent has ended");
        let update = agent.fetch().ok()?;
        (update.paths() == ["/web"]).then_some(())
    });
    for words in [
        "AttestAgent failed",
        "SyncAuthorizedEntries failed",
        "Bundle not fetched after the attestation",
        "BatchNewX509SVID failed",
        "bundle of spiffe://other.test",
        "entry ID has control or invisible characters",
    ] {
        agent.wait_logged(words, 1);
    }
    agent.stop();
    let log = agent.log();
    assert!(log.ends_with('\n'));
    log.split_terminator('\n').map(str::to_owned).collect()
}

fn assert_plain(line: &str) {
    let is_plain = |sign: char| !sign.is_control() && sign != '\u{2028}';
    assert!(line.chars().all(is_plain), "{line:?}");
}

#[test]
fn a_log_of_text_keeps_one_plain_line_for_each_event_whatever_the_server_says() {
    for line in log_lines("text") {
        assert_plain(&line);
        assert!(line.starts_with("time="), "{line:?}");
        assert_eq!(line.matches(" level=").count(), 1, "{line:?}");
    }
}

#[test]
fn a_log_of_json_keeps_one_object_for_each_event_whatever_the_server_says() {
    for line in log_lines("json") {
        assert_plain(&line);
        let event: Value = serde_json::from_str(&line).expect("a JSON object");
        assert!(event.is_object() && event["level"].is_string(), "{line:?}");
    }
}
