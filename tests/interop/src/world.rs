//! The folder of one test and what lives in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use tempfile::TempDir;

use crate::agent::Agent;
use crate::agent_options::AgentOptions;
use crate::node::{Encoding, KeyKind, Node, NodeAuthority};
use crate::server::Server;
use crate::server_options::ServerOptions;

/// A temporary folder with a short path (socket paths end at 107 bytes) and an authority for node certificates.
#[derive(Debug)]
pub struct World {
    dir: TempDir,
    /// Signs node certificates.
    pub nodes: NodeAuthority,
}

impl World {
    /// Makes the folder and the authority.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("ea")
            .tempdir_in("/tmp")
            .expect("a temporary folder");
        let nodes = NodeAuthority::new(&dir.path().join("nodes"));
        Self { dir, nodes }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a server.
    pub fn server(&self, options: ServerOptions) -> Server {
        Server::start(&self.path("server"), &self.nodes, options)
    }

    /// A node with the ordinary kind of key.
    pub fn node(&self, name: &str) -> Node {
        self.nodes
            .node(name, KeyKind::Ec("prime256v1"), Encoding::Pkcs8)
    }

    /// Configures an agent with a node certificate of its own; starts nothing.
    pub fn agent(&self, server: &Server) -> Agent {
        let options = AgentOptions::x509pop(server, &self.node("node"));
        self.agent_with("agent", options)
    }

    /// A hosts file in which `name` is this machine.
    pub fn hosts_file(&self, name: &str) -> PathBuf {
        let path = self.path("hosts");
        fs::write(&path, format!("127.0.0.1 localhost {name}\n"))
            .expect("the hosts file can be written");
        path
    }

    /// Configures an agent; starts nothing.
    pub fn agent_with(&self, name: &str, options: AgentOptions) -> Agent {
        Agent::configure(&self.path(name), options)
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            show_logs(self.dir.path());
        }
    }
}

/// Prints the end of every log, so that a failure can be understood after the folder is gone.
fn show_logs(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            show_logs(&path);
        } else if path.extension().is_some_and(|extension| extension == "log") {
            let text = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines
                .get(lines.len().saturating_sub(40)..)
                .unwrap_or_default()
                .join("\n");
            println!("---- the end of {}\n{tail}", path.display());
        }
    }
}
