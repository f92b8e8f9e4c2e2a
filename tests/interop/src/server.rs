//! The real `spire-server`, and what the tests ask of its command line and its counters.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::node::NodeAuthority;
use crate::process::{Process, run};
use crate::{TRUST_DOMAIN, seconds, tools, wait_for};

/// Lifetimes that a test chooses, in the server's notation.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// Of agent SVIDs.
    pub agent: &'static str,
    /// Of workload SVIDs whose entry names none.
    pub workload: &'static str,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            agent: "1h",
            workload: "1h",
        }
    }
}

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
    process: Option<Process>,
}

impl Server {
    /// Writes the configuration and starts the server.
    pub fn start(dir: &Path, nodes: &NodeAuthority, lifetimes: Lifetimes) -> Self {
        let mut server = Self {
            dir: dir.to_owned(),
            metrics_port: free_port(),
            port: free_port(),
            process: None,
        };
        server.configure(nodes, lifetimes);
        server.launch();
        server
    }

    /// A second server of the same trust domain on the same port, with keys and data of its own; the first one must be stopped.
    #[must_use]
    pub fn impostor(&self, dir: &Path, nodes: &NodeAuthority) -> Self {
        let mut server = Self {
            dir: dir.to_owned(),
            metrics_port: free_port(),
            port: self.port,
            process: None,
        };
        server.configure(nodes, Lifetimes::default());
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
        let mut command = Command::new(tools::server());
        command
            .args(["run", "-config"])
            .arg(self.dir.join("server.conf"));
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

    /// Forgets an agent; a re-attestable one may come back.
    pub fn evict(&self, agent_id: &str) {
        self.cli(&["agent", "evict", "-spiffeID", agent_id]);
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

    /// How many attestations this process has answered with success.
    pub fn attestations(&self) -> u64 {
        self.calls("agent_v1_agent_attest_agent")
    }

    /// How many agent SVIDs this process has renewed.
    pub fn renewals(&self) -> u64 {
        self.calls("agent_v1_agent_renew_agent")
    }

    fn calls(&self, rpc: &str) -> u64 {
        let name = format!("spire_server_rpc_{rpc}{{");
        let lines = self.metrics();
        let counts = lines
            .lines()
            .filter(|line| line.starts_with(&name) && line.contains("status=\"OK\""));
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

    fn configure(&self, nodes: &NodeAuthority, lifetimes: Lifetimes) {
        fs::create_dir_all(&self.dir).expect("the folder can be made");
        let text = format!(
            r#"server {{
  bind_address = "127.0.0.1"
  bind_port = "{port}"
  socket_path = "{dir}/api.sock"
  trust_domain = "{TRUST_DOMAIN}"
  data_dir = "{dir}"
  log_level = "DEBUG"
  ca_ttl = "24h"
  agent_ttl = "{agent}"
  default_x509_svid_ttl = "{workload}"
  ratelimit {{
    attestation = false
    signing = false
  }}
  experimental {{
    cache_reload_interval = "1s"
  }}
}}
plugins {{
  DataStore "sql" {{
    plugin_data {{
      database_type = "sqlite3"
      connection_string = "{dir}/db.sqlite3"
    }}
  }}
  KeyManager "disk" {{
    plugin_data {{
      keys_path = "{dir}/keys.json"
    }}
  }}
  NodeAttestor "x509pop" {{
    plugin_data {{
      ca_bundle_path = "{ca}"
    }}
  }}
}}
telemetry {{
  Prometheus {{
    host = "127.0.0.1"
    port = {metrics}
  }}
}}
"#,
            port = self.port,
            dir = self.dir.display(),
            agent = lifetimes.agent,
            workload = lifetimes.workload,
            ca = nodes.certificate().display(),
            metrics = self.metrics_port,
        );
        fs::write(self.dir.join("server.conf"), text).expect("the configuration can be written");
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

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener
        .local_addr()
        .expect("a bound socket has an address")
        .port()
}
