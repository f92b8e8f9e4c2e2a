//! The checked `plugins { }`: typed settings of the plugins that are known, the rest kept as it is.

use std::path::PathBuf;

use actors::workload_api::Address;

use super::model::{OpaqueData, Secret};

/// Where agent keys live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyManager {
    Memory,
    Disk { directory: PathBuf },
    Other(OtherPlugin),
}

/// How the node proves itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeAttestor {
    X509pop(X509pop),
    JoinToken,
    Sshpop {
        host_key_path: PathBuf,
        host_cert_path: PathBuf,
    },
    HttpChallenge(HttpChallenge),
    TpmDevid(TpmDevid),
    Other(OtherPlugin),
}

/// Where the node certificate of `x509pop` comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum X509pop {
    Files {
        private_key_path: PathBuf,
        certificate_path: PathBuf,
        intermediates_path: Option<PathBuf>,
    },
    /// Another agent's Workload API.
    WorkloadApi { spiffe_endpoint_socket: Address },
}

/// `http_challenge`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpChallenge {
    /// `None`: the name of the host.
    pub(crate) hostname: Option<String>,
    pub(crate) agentname: String,
    /// 0: any free port.
    pub(crate) port: u16,
    /// `None`: the port listened on.
    pub(crate) advertised_port: Option<u16>,
}

/// `tpm_devid`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TpmDevid {
    pub(crate) devid_cert_path: PathBuf,
    pub(crate) devid_priv_path: PathBuf,
    pub(crate) devid_pub_path: PathBuf,
    pub(crate) devid_password: Option<Secret>,
    /// `None`: found by itself.
    pub(crate) tpm_device_path: Option<PathBuf>,
    pub(crate) owner_hierarchy_password: Option<Secret>,
    pub(crate) endorsement_hierarchy_password: Option<Secret>,
}

/// What tells selectors of a calling process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkloadAttestor {
    Unix {
        discover_workload_path: bool,
        /// Bytes; 0: no limit; negative: never hash.
        workload_size_limit: i64,
    },
    Docker(Docker),
    Systemd,
    Other(OtherPlugin),
}

/// `docker`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "each mirrors a key of the file")]
pub(crate) struct Docker {
    /// Engine address, such as `unix:///var/run/docker.sock`.
    pub(crate) docker_socket_path: String,
    /// `None`: negotiated.
    pub(crate) docker_version: Option<String>,
    pub(crate) podman_socket_path: String,
    /// With one `%d` for the uid.
    pub(crate) podman_socket_path_template: String,
    pub(crate) container_id_cgroup_matchers: Vec<String>,
    pub(crate) use_new_container_locator: bool,
    pub(crate) verbose_container_locator_logs: bool,
    /// `sigstore` and `experimental`, as written.
    pub(crate) more: Option<OpaqueData>,
}

/// Who stores SVIDs elsewhere; none is built in.
pub(crate) type SvidStore = OtherPlugin;

/// A plugin without typed settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherPlugin {
    pub(crate) name: String,
    /// Command, arguments and checksum of an external plugin; `None`: a built-in of the reference.
    pub(crate) external: Option<External>,
    pub(crate) data: OpaqueData,
}

/// `plugin_cmd`, `plugin_args`, `plugin_checksum`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct External {
    pub(crate) command: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// SHA-256 in hexadecimal.
    pub(crate) checksum: Option<String>,
}
