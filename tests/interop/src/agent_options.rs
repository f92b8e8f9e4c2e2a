//! What a test chooses about an agent, and the configuration file that comes of it.

use std::path::{Path, PathBuf};

use crate::TRUST_DOMAIN;
use crate::node::Node;
use crate::server::Server;

/// An agent's identity, its way to the server and whatever else its file, command line and environment say. Start from [`AgentOptions::x509pop`]
/// or [`AgentOptions::join_token`].
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The SPIFFE ID that the agent will get.
    pub id: String,
    /// The `NodeAttestor` block.
    pub node_attestor: String,
    /// The lines by which the server is trusted at the first start.
    pub trust: String,
    /// Name or address of the server.
    pub server_address: String,
    /// Its port.
    pub server_port: u16,
    /// `sync_interval`.
    pub sync_interval: &'static str,
    /// Further lines of `agent { }`.
    pub settings: String,
    /// Further lines of `agent { experimental { } }`.
    pub experimental: String,
    /// Further flags of `run`.
    pub flags: Vec<String>,
    /// Environment variables of the process.
    pub environment: Vec<(&'static str, String)>,
    /// A file that stands in for `/etc/hosts`, for this process alone.
    pub hosts: Option<PathBuf>,
}

impl AgentOptions {
    /// An agent that proves itself with a node certificate and knows the server's bundle from a file.
    pub fn x509pop(server: &Server, node: &Node) -> Self {
        let settings = format!(
            "private_key_path = \"{}\"\n      certificate_path = \"{}\"",
            node.key.display(),
            node.certificate.display()
        );
        Self::new(server, &node.agent_id, node_attestor("x509pop", &settings))
    }

    /// An agent without a token yet; `token` only tells its ID.
    pub fn join_token(server: &Server, token: &str) -> Self {
        let id = format!("spiffe://{TRUST_DOMAIN}/spire/agent/join_token/{token}");
        Self::new(server, &id, node_attestor("join_token", ""))
    }

    /// An agent with any `NodeAttestor` block.
    pub fn new(server: &Server, id: &str, node_attestor: String) -> Self {
        Self {
            id: id.to_owned(),
            node_attestor,
            trust: bundle_file(&server.bundle()),
            server_address: "127.0.0.1".to_owned(),
            server_port: server.port,
            sync_interval: "1s",
            settings: String::new(),
            experimental: String::new(),
            flags: Vec::new(),
            environment: Vec::new(),
            hosts: None,
        }
    }

    /// The configuration file of an agent that keeps everything in `dir`.
    pub(crate) fn text(&self, dir: &Path) -> String {
        format!(
            r#"agent {{
  data_dir = "{dir}/data"
  log_level = "DEBUG"
  server_address = "{server_address}"
  server_port = "{server_port}"
  socket_path = "{dir}/public/api.sock"
  admin_socket_path = "{dir}/admin/admin.sock"
  trust_domain = "{TRUST_DOMAIN}"
  {trust}
  {settings}
  experimental {{
    sync_interval = "{sync_interval}"
    {experimental}
  }}
}}
plugins {{
  KeyManager "disk" {{
    plugin_data {{
      directory = "{dir}/data"
    }}
  }}
{node_attestor}
  WorkloadAttestor "unix" {{
    plugin_data {{}}
  }}
}}
"#,
            dir = dir.display(),
            server_address = self.server_address,
            server_port = self.server_port,
            trust = self.trust,
            settings = self.settings,
            sync_interval = self.sync_interval,
            experimental = self.experimental,
            node_attestor = self.node_attestor,
        )
    }
}

/// The line by which a bundle file is trusted.
pub fn bundle_file(path: &Path) -> String {
    format!("trust_bundle_path = \"{}\"", path.display())
}

/// A `NodeAttestor` block, for an agent or a server.
pub fn node_attestor(name: &str, settings: &str) -> String {
    format!("  NodeAttestor \"{name}\" {{\n    plugin_data {{\n      {settings}\n    }}\n  }}")
}
