//! The state on disk: what a kill at any instant, a full disk, a damaged file and a second agent do to it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use actors::keys::PrivateKey;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use devserver::rpc;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use tokio::time::Instant;

use crate::harness::{Agent, PROGRAM, SOON, World, eventually, own_entry, seconds, throughout};
use crate::ways_in::{TOKEN_TTL, token_agent};

/// How often an agent is killed.
const KILLS: u32 = 50;
/// Go `spire-agent` needs so many attestations for as many kills.
const ATTESTATIONS_OF_GO: usize = 85;
/// The slowest start of Go `spire-agent` between two kills.
const SLOWEST_START_OF_GO: Duration = Duration::from_millis(6500);
/// All that an agent keeps.
const STATE: [&str; 2] = ["agent-data.json", "keys.json"];
/// How often it is looked whether an agent serves already.
const LOOK: Duration = Duration::from_millis(20);

/// Every file of an agent's data directory.
fn files(agent: &Agent) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(agent.data()).expect("the folder is there");
    entries
        .map(|entry| entry.expect("the folder is ours"))
        .map(|entry| {
            let name = entry.file_name().into_string().expect("names are text");
            (name, fs::read(entry.path()).unwrap_or_default())
        })
        .collect()
}

/// The private keys on disk.
fn keys(agent: &Agent) -> Vec<PrivateKey> {
    let text = fs::read(agent.data().join("keys.json")).expect("keys are on disk");
    let file: Value = serde_json::from_slice(&text).expect("the file is JSON at every instant");
    let keys = file["keys"].as_object().expect("an object of keys");
    let texts = keys.values().filter_map(Value::as_str);
    texts
        .map(|text| STANDARD.decode(text).expect("base64"))
        .map(|der| PrivateKey::from_pkcs8(&der).expect("a key"))
        .collect()
}

/// Kills an agent again and again, half of the times before it can have done much, and looks at each other start whether it serves. The
/// agent must have been served once. Gives the slowest of those starts.
fn survive_kills(agent: &mut Agent, path: &str, random: &mut fastrand::Rng) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..KILLS / 2 {
        agent.kill();
        agent.start();
        // Not a wait: the instant of the kill.
        std::thread::sleep(Duration::from_millis(random.u64(0..400)));
        agent.kill();
        let start = Instant::now();
        agent.start();
        while !agent.fetch().is_ok_and(|update| update.paths() == [path]) {
            assert!(agent.is_running(), "the agent has ended");
            assert!(start.elapsed() < SLOWEST_START_OF_GO, "not served in time");
            std::thread::sleep(LOOK);
        }
        slowest = slowest.max(start.elapsed());
        std::thread::sleep(Duration::from_millis(random.u64(0..2000)));
    }
    slowest
}

/// Kills an agent that has been served once, and fails if anything is lost. Gives the number of attestations.
fn nothing_is_lost_by_kills(world: &World, agent: &mut Agent, path: &str) -> usize {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);

    let slowest = survive_kills(agent, path, &mut random);

    let attestations = world.control.count(rpc::ATTEST_AGENT);
    eprintln!("{attestations} attestations, slowest start {slowest:?}");
    agent.stop();
    let names: Vec<String> = files(agent).into_keys().collect();
    assert_eq!(names, STATE);
    assert!(agent.has_stored_svid());
    assert!((1..=2).contains(&keys(agent).len()));
    assert!(!agent.log().contains("set aside"));
    attestations
}

#[test]
fn fifty_kills_at_any_instant_lose_nothing_and_cost_few_attestations() {
    let world = World::with(|settings| settings.agent_ttl = 12);
    world.control.add_entry(own_entry("web").with_ttl(60));
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);

    let attestations = nothing_is_lost_by_kills(&world, &mut agent, "/web");

    assert!(
        attestations < ATTESTATIONS_OF_GO,
        "{attestations} attestations"
    );
}

#[test]
fn fifty_kills_at_any_instant_cost_a_token_agent_no_identity() {
    let world = World::with(|settings| settings.agent_ttl = 12);
    world.control.add_entry(own_entry("web").with_ttl(60));
    let token = world.control.create_join_token(TOKEN_TTL);
    let mut agent = token_agent(&world, "node", &token);
    agent.start_serving(&["/web"]);

    let attestations = nothing_is_lost_by_kills(&world, &mut agent, "/web");

    assert_eq!(attestations, 1);
    assert!(world.control.count(rpc::RENEW_AGENT) >= 2);
}

#[test]
fn a_kill_at_any_instant_of_the_first_attestation_costs_one_more_and_leaves_nothing_behind() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);

    for _ in 0..20 {
        agent.kill();
        fs::remove_dir_all(agent.data()).unwrap();
        let before = world.control.count(rpc::ATTEST_AGENT);
        agent.start();
        let start = Instant::now();
        while world.control.count(rpc::ATTEST_AGENT) == before {
            assert!(start.elapsed() < SOON, "no attestation");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Not a wait: the instant of the kill.
        std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        agent.kill();
        let written: Vec<String> = files(&agent).into_keys().collect();
        agent.start_serving(&["/web"]);

        assert!(world.control.count(rpc::ATTEST_AGENT) <= before + 2);
        let names: Vec<String> = files(&agent).into_keys().collect();
        assert_eq!(names, STATE, "after {written:?}");
        assert!((1..=2).contains(&keys(&agent).len()));
    }
}

/// Lets an agent write no file that is longer than so many bytes; without a number, whatever this process may write.
fn limit_files(agent: &Agent, bytes: Option<u64>) {
    let own = getrlimit(Resource::Fsize);
    let limits = Rlimit {
        current: bytes.or(own.maximum),
        maximum: own.maximum,
    };
    prlimit(Some(agent.pid()), Resource::Fsize, limits).expect("an own process can be limited");
}

#[test]
fn a_disk_that_takes_no_more_costs_no_file_and_no_attestation_and_a_restart_serves() {
    let world = World::with(|settings| settings.agent_ttl = 20);
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    limit_files(&agent, Some(0));
    let (stored, attestations) = (files(&agent), world.control.count(rpc::ATTEST_AGENT));

    // Past the instant at which the SVID is replaced.
    throughout(seconds(8), || {
        assert_eq!(agent.fetch().expect("served").paths(), ["/web"]);
    });
    assert!(agent.is_running());
    assert_eq!(files(&agent), stored);
    assert_eq!(world.control.count(rpc::ATTEST_AGENT), attestations);
    agent.kill();
    let mut command = Command::new("sh");
    command.args(["-c", r#"ulimit -S -f 0 && exec "$0" "$@""#, PROGRAM]);
    agent.start_as(command);
    agent.wait_served(&["/web"]);
    assert_eq!(files(&agent), stored);
    limit_files(&agent, None);

    eventually("the next SVID is stored", SOON, || {
        let now = files(&agent);
        (now["agent-data.json"] != stored["agent-data.json"]).then_some(())
    });
    assert_eq!(agent.fetch().expect("served").paths(), ["/web"]);
}

#[test]
fn keys_that_cannot_be_read_are_set_aside_and_the_agent_attests_anew() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    agent.stop();
    let path = agent.data().join("keys.json");
    let text = fs::read(&path).unwrap();
    let damaged = &text[..text.len() / 2];
    fs::write(&path, damaged).unwrap();

    agent.start_serving(&["/web"]);

    assert_eq!(world.control.count(rpc::ATTEST_AGENT), 2);
    let is_kept = |(name, content): (String, Vec<u8>)| {
        name.starts_with("keys.json.corrupt-") && content == damaged
    };
    assert!(files(&agent).into_iter().any(is_kept));
    assert!(agent.log().contains(path.to_str().unwrap()));
    assert_eq!(keys(&agent).len(), 1);
}

#[test]
fn a_second_agent_on_a_data_directory_ends_and_names_it() {
    let world = World::new();
    world.entry("web");
    let mut agent = world.agent();
    agent.start_serving(&["/web"]);
    let stored = files(&agent);
    let mut second = world.agent_of("second", devserver::KeyKind::EcP256);
    let link = second.data();
    std::os::unix::fs::symlink(agent.data(), &link).unwrap();

    second.start();
    let code = second.wait_ended(SOON);

    let named = |path: &Path| format!("{} is in use by another agent", path.display());
    assert_eq!(code, Some(1));
    assert!(second.log().contains(&named(&link)), "{}", second.log());
    assert_eq!(files(&agent), stored);
    assert_eq!(agent.fetch().unwrap().paths(), ["/web"]);
}
