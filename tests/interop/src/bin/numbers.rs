//! Prints what the agent under test costs beside the Go agent: same server, same run, same client. Ratios are what counts; the
//! figures themselves depend on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use interop::agent::Agent;
use interop::agent_options::AgentOptions;
use interop::api::Client;
use interop::server_options::ServerOptions;
use interop::world::World;
use interop::{own_selector, seconds, tools, wait_for};

const STARTS: usize = 5;
const FETCHES: u32 = 3000;
/// Clock ticks per second of `/proc/PID/stat`: fixed on Linux for every architecture that user space can see.
const TICKS_PER_SECOND: f64 = 100.0;

/// A row of the table: what, unit, and how to take it from one agent's figures.
type Row = (&'static str, &'static str, fn(&Figures) -> f64);

const ROWS: [Row; 6] = [
    ("binary", "MB", |figures| figures.binary_mb),
    ("idle RSS", "MB", |figures| figures.resident_mb),
    ("idle PSS", "MB", |figures| figures.proportional_mb),
    ("idle anonymous memory", "MB", |figures| {
        figures.anonymous_mb
    }),
    ("exec to first answered fetch", "ms", |figures| {
        figures.first_fetch_ms
    }),
    ("CPU per X.509 fetch", "us", |figures| figures.fetch_cpu_us),
];

/// What was measured on one agent.
struct Figures {
    binary_mb: f64,
    resident_mb: f64,
    proportional_mb: f64,
    anonymous_mb: f64,
    first_fetch_ms: f64,
    fetch_cpu_us: f64,
}

fn main() {
    let world = World::new();
    let server = world.server(ServerOptions::default());
    let measure = |name: &str, binary: PathBuf| {
        let node = world.node(name);
        let mut agent = world.agent_with(name, AgentOptions::x509pop(&server, &node));
        server.register(&agent.id, name, &own_selector(), 0);
        Figures::of(&mut agent, name, &binary)
    };

    let go = measure("go", tools::go_agent());
    let own = measure("own", tools::agent());

    println!(
        "{:<30} {:>12} {:>12} {:>8}",
        "", "edge-agent", "spire-agent", "ratio"
    );
    for (what, unit, figure) in ROWS {
        let (own, go) = (figure(&own), figure(&go));
        println!(
            "{:<30} {own:>9.2} {unit} {go:>9.2} {unit} {:>8.3}",
            what,
            own / go
        );
    }
}

impl Figures {
    fn of(agent: &mut Agent, entry: &str, binary: &Path) -> Self {
        agent.start_binary(binary);
        agent.wait_served(&[entry]);

        let mut first_fetches: Vec<f64> = (0..STARTS)
            .map(|_| {
                agent.stop();
                first_fetch_ms(agent, binary)
            })
            .collect();
        first_fetches.sort_by(f64::total_cmp);

        let process = agent.process().id();
        // Idle memory is taken when what the start allocated has settled.
        thread::sleep(Duration::from_secs(3));
        let memory = |file: &str, field: &str| memory_mb(process, file, field);
        let (resident_mb, proportional_mb) =
            (memory("status", "VmRSS"), memory("smaps_rollup", "Pss"));
        let anonymous_mb = memory("status", "RssAnon");

        let client = Client::connect(&agent.socket()).expect("the agent serves");
        client.fetch().expect("the agent serves");
        let before = cpu_ticks(process);
        for _ in 0..FETCHES {
            client.fetch().expect("the agent serves");
        }
        let fetch_cpu_us =
            (cpu_ticks(process) - before) * 1e6 / TICKS_PER_SECOND / f64::from(FETCHES);

        let size = fs::metadata(binary).expect("the binary exists").len();
        agent.stop();
        Self {
            binary_mb: megabytes(size),
            resident_mb,
            proportional_mb,
            anonymous_mb,
            first_fetch_ms: first_fetches.get(STARTS / 2).copied().unwrap_or(f64::NAN),
            fetch_cpu_us,
        }
    }
}

/// Starts a stopped agent and measures until the first fetch that gives an identity.
fn first_fetch_ms(agent: &mut Agent, binary: &Path) -> f64 {
    agent.launch(binary);
    let started = agent.process().started;
    let limit = started + seconds(30);
    while agent.fetch().is_err() {
        assert!(
            started.elapsed() < limit - started,
            "nothing served:\n{}",
            agent.log()
        );
        thread::sleep(Duration::from_micros(500));
    }
    started.elapsed().as_secs_f64() * 1e3
}

fn memory_mb(process: u32, file: &str, field: &str) -> f64 {
    let text = wait_for("the kernel's memory figures", seconds(5), || {
        fs::read_to_string(format!("/proc/{process}/{file}")).ok()
    });
    let line = text
        .lines()
        .find(|line| line.split(':').next() == Some(field));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    megabytes(kilobytes.unwrap_or_else(|| panic!("{file} has no {field}")) * 1024)
}

fn cpu_ticks(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).expect("the agent runs");
    let (_, fields) = text.rsplit_once(')').expect("the name ends with a bracket");
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok());
    ticks.sum()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a size in bytes is far below 2^52"
)]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}
