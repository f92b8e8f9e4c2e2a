//! The real `spire-server`, and what the tests ask of its command line and its counters.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::node::NodeAuthority;
use crate::process::{self, Process, run};
use crate::server_options::ServerOptions;
use crate::{TRUST_DOMAIN, seconds, tools, wait_for};

const ATTEST: &str = "agent_v1_agent_attest_agent";

/// A registration entry to be made; the entry ID is the path.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// Path of the SPIFFE ID, without the leading slash.
    pub path: String,
    /// `type:value`.
    pub selector: String,
    /// Lifetime of its SVIDs in seconds; 0 takes the server's default.
    pub lifetime: u32,
}

/// One `spire-server` with a data directory and ports of its own.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    metrics_port: u16,
    /// Where agents connect.
    pub port: u16,
    options: ServerOptions,
    process: Option<Process>,
}

impl Server {
    /// Writes the configuration and starts the server.
    pub fn start(dir: &Path, nodes: &NodeAuthority, options: ServerOptions) -> Self {
        Self::start_on(free_port(), dir, nodes, options)
    }

    /// A second server of the same trust domain on the same port, with keys and data of its own; the first one must be stopped.
    #[must_use]
    pub fn impostor(&self, dir: &Path, nodes: &NodeAuthority) -> Self {
        Self::start_on(self.port, dir, nodes, ServerOptions::default())
    }

    fn start_on(port: u16, dir: &Path, nodes: &NodeAuthority, options: ServerOptions) -> Self {
        let mut server = Self {
            dir: dir.to_owned(),
            metrics_port: free_port(),
            port,
            options,
            process: None,
        };
        fs::create_dir_all(dir).expect("the folder can be made");
        let text = server.options.text(dir, nodes, port, server.metrics_port);
        fs::write(dir.join("server.conf"), text).expect("the configuration can be written");
        server.launch();
        server
    }

    /// Stops the process; the data stays.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.stop();
        }
    }

    /// Starts the process (again) and waits until it serves.
    pub fn launch(&mut self) {
        let mut command = process::command(&tools::server(), self.options.hosts.as_deref());
        command
            .args(["run", "-config"])
            .arg(self.dir.join("server.conf"))
            .envs(self.options.environment.iter().copied());
        let mut process = Process::start(&mut command, &self.dir.join("server.log"));
        let socket = self.socket();
        wait_for("spire-server serves", seconds(60), || {
            assert!(
                process.ended().is_none(),
                "spire-server ended:\n{}",
                process.text()
            );
            let listens = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            (listens && UnixStream::connect(&socket).is_ok()).then_some(())
        });
        self.process = Some(process);
        fs::write(self.bundle(), self.cli(&["bundle", "show"])).expect("the bundle can be written");
    }

    /// PEM file of the trust bundle as of the last start.
    pub fn bundle(&self) -> PathBuf {
        self.dir.join("bundle.pem")
    }

    /// The trust bundle now, as a SPIFFE bundle document.
    pub fn bundle_document(&self) -> String {
        self.cli(&["bundle", "show", "-format", "spiffe"])
    }

    /// Makes one registration entry below an agent.
    pub fn register(&self, parent: &str, path: &str, selector: &str, lifetime: u32) {
        self.register_all(
            parent,
            &[NewEntry {
                path: path.to_owned(),
                selector: selector.to_owned(),
                lifetime,
            }],
        );
    }

    /// Makes many registration entries below an agent.
    pub fn register_all(&self, parent: &str, entries: &[NewEntry]) {
        let entries: Vec<Value> = entries
            .iter()
            .map(|entry| describe(parent, entry))
            .collect();
        let file = self.dir.join("entries.json");
        fs::write(&file, json!({ "entries": entries }).to_string())
            .expect("entries can be written");
        self.cli(&["entry", "create", "-data", &file.display().to_string()]);
    }

    /// Removes an entry by its ID.
    pub fn unregister(&self, id: &str) {
        self.cli(&["entry", "delete", "-entryID", id]);
    }

    /// Makes a join token; with an alias its agent counts as that SPIFFE ID's path, too.
    pub fn token(&self, alias: Option<&str>) -> String {
        let mut arguments = vec!["token", "generate", "-output", "json"];
        let alias = alias.map(|path| format!("spiffe://{TRUST_DOMAIN}/{path}"));
        if let Some(alias) = &alias {
            arguments.extend(["-spiffeID", alias]);
        }
        let printed: Value =
            serde_json::from_str(&self.cli(&arguments)).expect("token generate prints JSON");
        printed["value"].as_str().expect("a token").to_owned()
    }

    /// Refuses an agent for good; [`Self::evict`] ends that.
    pub fn ban(&self, agent_id: &str) {
        self.cli(&["agent", "ban", "-spiffeID", agent_id]);
    }

    /// Forgets an agent; a re-attestable one may come back.
    pub fn evict(&self, agent_id: &str) {
        self.cli(&["agent", "evict", "-spiffeID", agent_id]);
    }

    /// Makes an X.509 authority that is in the bundle and signs nothing yet; gives its ID.
    pub fn prepare_authority(&self) -> String {
        self.authority("prepare", "prepared_authority")
    }

    /// Has a prepared X.509 authority sign from now on, and takes the one before out of the bundle.
    pub fn replace_authority(&self, prepared: &str) {
        let old = self.authority("show", "active");
        for (step, id) in [("activate", prepared), ("taint", &old), ("revoke", &old)] {
            self.cli(&["localauthority", "x509", step, "-authorityID", id]);
        }
    }

    fn authority(&self, command: &str, field: &str) -> String {
        let printed = self.cli(&["localauthority", "x509", command, "-output", "json"]);
        let printed: Value = serde_json::from_str(&printed).expect("localauthority prints JSON");
        printed[field]["authority_id"]
            .as_str()
            .expect("an authority has an ID")
            .to_owned()
    }

    /// Serial number (decimal) of the agent SVID that the server takes for current.
    pub fn agent_serial(&self, agent_id: &str) -> String {
        let shown = self.cli(&["agent", "show", "-output", "json", "-spiffeID", agent_id]);
        let agent: Value = serde_json::from_str(&shown).expect("agent show prints JSON");
        agent["x509svid_serial_number"]
            .as_str()
            .expect("an attested agent has a serial number")
            .to_owned()
    }

    /// SPIFFE IDs of all agents that are attested or banned.
    pub fn agents(&self) -> Vec<String> {
        let printed: Value = serde_json::from_str(&self.cli(&["agent", "list", "-output", "json"]))
            .expect("agent list prints JSON");
        let agents = printed["agents"].as_array().cloned().unwrap_or_default();
        let path = |agent: &Value| Some(agent["id"]["path"].as_str()?.to_owned());
        agents
            .iter()
            .filter_map(path)
            .map(|path| format!("spiffe://{TRUST_DOMAIN}{path}"))
            .collect()
    }

    /// How many attestations this process has answered with success.
    pub fn attestations(&self) -> u64 {
        self.calls(ATTEST, "status=\"OK\"")
    }

    /// How many attestations this process has answered in any way.
    pub fn attestation_calls(&self) -> u64 {
        self.calls(ATTEST, "")
    }

    /// How many agent SVIDs this process has renewed.
    pub fn renewals(&self) -> u64 {
        self.calls("agent_v1_agent_renew_agent", "status=\"OK\"")
    }

    /// Copies data and keys of a stopped server.
    pub fn back_up(&self, to: &Path) {
        fs::create_dir_all(to).expect("the folder can be made");
        copy_state(&self.dir, to);
    }

    /// Puts a copy back in place of the data and keys of a stopped server.
    pub fn restore(&self, from: &Path) {
        for file in state_files(&self.dir) {
            fs::remove_file(self.dir.join(file)).expect("a state file can be removed");
        }
        copy_state(from, &self.dir);
    }

    fn calls(&self, rpc: &str, label: &str) -> u64 {
        let name = format!("spire_server_rpc_{rpc}{{");
        let lines = self.metrics();
        let counts = lines
            .lines()
            .filter(|line| line.starts_with(&name) && line.contains(label));
        counts
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    fn metrics(&self) -> String {
        let mut answer = String::new();
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics_port))
            .expect("the server's metrics can be read");
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
            .expect("the server's metrics can be read");
        stream
            .read_to_string(&mut answer)
            .expect("the server's metrics can be read");
        answer
    }

    fn cli(&self, arguments: &[&str]) -> String {
        run(Command::new(tools::server())
            .args(arguments)
            .arg("-socketPath")
            .arg(self.socket()))
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("api.sock")
    }
}

fn describe(parent: &str, entry: &NewEntry) -> Value {
    let (kind, value) = entry
        .selector
        .split_once(':')
        .expect("a selector is type:value");
    json!({
        "entry_id": entry.path,
        "parent_id": parent,
        "spiffe_id": format!("spiffe://{TRUST_DOMAIN}/{}", entry.path),
        "selectors": [{ "type": kind, "value": value }],
        "x509_svid_ttl": entry.lifetime,
    })
}

fn copy_state(from: &Path, to: &Path) {
    for file in state_files(from) {
        fs::copy(from.join(&file), to.join(&file)).expect("a state file can be copied");
    }
}

/// The files of a server's folder that hold its database and its keys.
fn state_files(dir: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(dir).expect("the server's folder can be read");
    let names = entries.map(|entry| entry.expect("the folder can be read").file_name());
    let is_state = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("db.sqlite3") || name == "keys.json"
    };
    names.filter(is_state).collect()
}

/// A TCP port of the loopback address on which nothing listened just now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener
        .local_addr()
        .expect("a bound socket has an address")
        .port()
}
