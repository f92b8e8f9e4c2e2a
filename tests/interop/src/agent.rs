//! An agent: the one under test or the Go one, on the same kind of configuration file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use spiffe::WorkloadApiError;
use x509_parser::pem::parse_x509_pem;

use crate::node::Node;
use crate::process::Process;
use crate::server::Server;
use crate::update::Update;
use crate::{TRUST_DOMAIN, api, seconds, tools, wait_for};

/// How an agent comes to trust its server at the first start.
#[derive(Clone, Copy, Debug)]
pub enum Bootstrap {
    /// From the server's bundle in a file.
    BundleFile,
    /// Not at all: `insecure_bootstrap`.
    Insecure,
}

/// An agent with a data directory and sockets of its own.
#[derive(Debug)]
pub struct Agent {
    dir: PathBuf,
    /// Its SPIFFE ID.
    pub id: String,
    process: Option<Process>,
}

impl Agent {
    /// Writes the configuration of an agent; starts nothing.
    pub fn configure(dir: &Path, server: &Server, node: &Node, bootstrap: Bootstrap) -> Self {
        for folder in ["data", "public", "admin"] {
            fs::create_dir_all(dir.join(folder)).expect("the folder can be made");
        }
        let trust = match bootstrap {
            Bootstrap::BundleFile => {
                format!("trust_bundle_path = \"{}\"", server.bundle().display())
            }
            Bootstrap::Insecure => "insecure_bootstrap = true".to_owned(),
        };
        let text = format!(
            r#"agent {{
  data_dir = "{dir}/data"
  log_level = "DEBUG"
  server_address = "127.0.0.1"
  server_port = "{port}"
  socket_path = "{dir}/public/api.sock"
  admin_socket_path = "{dir}/admin/admin.sock"
  {trust}
  trust_domain = "{TRUST_DOMAIN}"
  experimental {{
    sync_interval = "1s"
  }}
}}
plugins {{
  KeyManager "disk" {{
    plugin_data {{
      directory = "{dir}/data"
    }}
  }}
  NodeAttestor "x509pop" {{
    plugin_data {{
      private_key_path = "{key}"
      certificate_path = "{certificate}"
    }}
  }}
  WorkloadAttestor "unix" {{
    plugin_data {{}}
  }}
}}
"#,
            dir = dir.display(),
            port = server.port,
            key = node.key.display(),
            certificate = node.certificate.display(),
        );
        fs::write(dir.join("agent.conf"), text).expect("the configuration can be written");
        Self {
            dir: dir.to_owned(),
            id: node.agent_id.clone(),
            process: None,
        }
    }

    /// Starts the agent under test and waits until it answers callers.
    pub fn start(&mut self) {
        self.start_binary(&tools::agent());
    }

    /// Starts the Go agent on the same configuration and data, and waits until it answers callers.
    pub fn start_go(&mut self) {
        self.start_binary(&tools::go_agent());
    }

    /// Starts any agent binary and waits until it answers callers, if only with a refusal.
    pub fn start_binary(&mut self, binary: &Path) {
        self.launch(binary);
        wait_for("the agent answers", seconds(30), || {
            assert!(self.alive(), "the agent ended:\n{}", self.log());
            answered(&self.fetch()).then_some(())
        });
    }

    /// Starts any agent binary and waits for nothing.
    pub fn launch(&mut self, binary: &Path) {
        let mut command = Command::new(binary);
        command
            .args(["run", "-config"])
            .arg(self.dir.join("agent.conf"));
        self.process = Some(Process::start(&mut command, &self.dir.join("agent.log")));
    }

    /// Stops the process in order; it must end with exit code 0.
    pub fn stop(&mut self) {
        let mut process = self.process.take().expect("a started agent");
        let status = process.stop();
        assert!(
            status.success(),
            "the agent ended with {status}:\n{}",
            process.text()
        );
    }

    /// The running process.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("a started agent")
    }

    /// Whether the process still runs.
    pub fn alive(&mut self) -> bool {
        self.process
            .as_mut()
            .is_some_and(|process| process.ended().is_none())
    }

    /// What the running process has logged.
    pub fn log(&self) -> String {
        self.process().text()
    }

    /// Path of the Workload API socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("public/api.sock")
    }

    /// What the Workload API gives to this process now.
    pub fn fetch(&self) -> Result<Update, WorkloadApiError> {
        api::fetch(&self.socket())
    }

    /// Waits until this process is served exactly these paths, and gives the identities.
    pub fn wait_served(&self, paths: &[&str]) -> Update {
        let mut expected: Vec<String> = paths
            .iter()
            .map(|path| format!("spiffe://{TRUST_DOMAIN}/{path}"))
            .collect();
        expected.sort();
        wait_for(&format!("{paths:?} are served"), seconds(30), || {
            self.fetch().ok().filter(|update| update.ids() == expected)
        })
    }

    /// Serial number (lower-case hex) of the agent SVID on disk.
    pub fn stored_serial(&self) -> Option<String> {
        let text = fs::read(self.dir.join("data/agent-data.json")).ok()?;
        let stored: Value = serde_json::from_slice(&text).ok()?;
        let pem = STANDARD.decode(stored["svid"][0].as_str()?).ok()?;
        let (_, block) = parse_x509_pem(&pem).ok()?;
        Some(block.parse_x509().ok()?.serial.to_str_radix(16))
    }
}

/// Whether a Workload API answered, be it with a refusal.
pub fn answered(result: &Result<Update, WorkloadApiError>) -> bool {
    matches!(
        result,
        Ok(_) | Err(WorkloadApiError::PermissionDenied(_) | WorkloadApiError::NoIdentityIssued)
    )
}
