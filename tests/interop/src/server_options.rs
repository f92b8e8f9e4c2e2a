//! What a test chooses about its `spire-server`, and the configuration file that comes of it.

use std::path::{Path, PathBuf};

use crate::TRUST_DOMAIN;
use crate::node::NodeAuthority;

/// The ordinary server (long lifetimes, no limits, x509pop and join tokens) unless a field says otherwise. Durations are in the server's notation.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Lifetime of agent SVIDs.
    pub agent_ttl: &'static str,
    /// Lifetime of workload SVIDs whose entry names none.
    pub workload_ttl: &'static str,
    /// Lifetime of X.509 and JWT authorities.
    pub ca_ttl: &'static str,
    /// `ca_key_type`.
    pub ca_key_type: &'static str,
    /// Whether one attestation per second and address is admitted, as is the server's default.
    pub limits_attestations: bool,
    /// `agent_path_template` of x509pop.
    pub agent_path_template: Option<&'static str>,
    /// Further `NodeAttestor` blocks.
    pub node_attestors: String,
    /// Environment variables of the process.
    pub environment: Vec<(&'static str, &'static str)>,
    /// A file that stands in for `/etc/hosts`, for this process alone.
    pub hosts: Option<PathBuf>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            agent_ttl: "1h",
            workload_ttl: "1h",
            ca_ttl: "24h",
            ca_key_type: "ec-p256",
            limits_attestations: false,
            agent_path_template: None,
            node_attestors: String::new(),
            environment: Vec::new(),
            hosts: None,
        }
    }
}

impl ServerOptions {
    /// The configuration file of a server that keeps its data in `dir`.
    pub(crate) fn text(
        &self,
        dir: &Path,
        nodes: &NodeAuthority,
        port: u16,
        metrics_port: u16,
    ) -> String {
        let template = self.agent_path_template.map_or_else(String::new, |path| {
            format!("agent_path_template = \"{path}\"")
        });
        format!(
            r#"server {{
  bind_address = "127.0.0.1"
  bind_port = "{port}"
  socket_path = "{dir}/api.sock"
  trust_domain = "{TRUST_DOMAIN}"
  data_dir = "{dir}"
  log_level = "DEBUG"
  ca_ttl = "{ca_ttl}"
  ca_key_type = "{ca_key_type}"
  agent_ttl = "{agent_ttl}"
  default_x509_svid_ttl = "{workload_ttl}"
  ratelimit {{
    attestation = {limits_attestations}
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
      ca_bundle_path = "{node_authority}"
      {template}
    }}
  }}
  NodeAttestor "join_token" {{
    plugin_data {{}}
  }}
{node_attestors}
}}
telemetry {{
  Prometheus {{
    host = "127.0.0.1"
    port = {metrics_port}
  }}
}}
"#,
            dir = dir.display(),
            ca_ttl = self.ca_ttl,
            ca_key_type = self.ca_key_type,
            agent_ttl = self.agent_ttl,
            workload_ttl = self.workload_ttl,
            limits_attestations = self.limits_attestations,
            node_authority = nodes.certificate().display(),
            node_attestors = self.node_attestors,
        )
    }
}
