//! What the demo sets up: a temporary directory, the server, a node certificate, entries, and the agent's configuration and log.

use std::fmt::{self, Display};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use actors::clock::Clock;
use anyhow::Context as _;
use devserver::{Control, DevServer, Entry, KeyKind, NodeCa, NodeFiles, Settings, rpc};
use tempfile::TempDir;

use super::Options;
use super::narrator::{Narrator, counted};
use crate::cli::Surroundings;
use crate::config::{self, Config};
use crate::telemetry::{self, LogHandle};

const TRUST_DOMAIN: &str = "demo.test";
/// Names of the workloads.
const WORKLOADS: [&str; 2] = ["billing", "web"];
/// Seconds that a workload's SVID lives. With the server's back-dating by 10 s half of its life is left 7 s after its issue.
const SVID_TTL: i64 = 24;

const CONFIG_FILE: &str = "agent.conf";
const LOG_FILE: &str = "agent.log";
const BUNDLE_FILE: &str = "bundle.pem";
const NODE: &str = "node";
const PUBLIC_SOCKET: &str = "public/api.sock";
const ADMIN_SOCKET: &str = "private/admin.sock";

/// All that is gone after the demo.
#[derive(Debug)]
pub(super) struct Stage {
    directory: TempDir,
    server: DevServer,
    /// The agent's configuration, as read from its file.
    pub(super) config: Config,
    pub(super) log: LogHandle,
    /// How a person calls this program.
    pub(super) program: String,
    public_socket: String,
    admin_socket: String,
    pub(super) clock: Clock,
}

impl Stage {
    /// Sets everything up but the agent.
    pub(super) fn set_up(
        options: Options,
        surroundings: &Surroundings<'_>,
        narrator: &mut Narrator<'_>,
    ) -> anyhow::Result<Self> {
        let directory = make_directory(surroundings)?;
        let path = directory.path();
        narrator.step("directory", path.display());
        let node_ca = NodeCa::new();
        let server = start_server(&node_ca)?;
        narrator.step(
            "server",
            format_args!("for trust domain {TRUST_DOMAIN} on {}", server.addr()),
        );
        let node = node_ca
            .leaf(NODE, KeyKind::EcP256)
            .write(path, NODE)
            .context("cannot write the node certificate")?;
        narrator.step("node", "certificate from a node CA that the server trusts");
        narrator.detail(node.certificate.display());
        add_entries(&server.control(), path, narrator)?;
        let config = write_config(&server, path, &node, options)?;
        let log = telemetry::install(&config.log, surroundings.clock.clone())?;
        Ok(Self {
            public_socket: text_of(&config.socket_path)?,
            admin_socket: text_of(&path.join(ADMIN_SOCKET))?,
            program: program(&surroundings.directory),
            clock: surroundings.clock.clone(),
            directory,
            server,
            config,
            log,
        })
    }

    /// The handle of the server.
    pub(super) fn control(&self) -> Control {
        self.server.control()
    }

    /// The path of the Workload API's socket.
    pub(super) fn public_socket(&self) -> &str {
        &self.public_socket
    }

    /// The address of the Workload API, as clients take it.
    pub(super) fn public_socket_url(&self) -> String {
        format!("unix://{}", self.public_socket)
    }

    /// The path of the admin socket.
    pub(super) fn admin_socket(&self) -> &str {
        &self.admin_socket
    }

    /// How many workloads are registered.
    pub(super) fn workloads(&self) -> usize {
        self.control().entries().len()
    }

    /// What the server was asked for so far.
    pub(super) fn tally(&self) -> impl Display {
        let control = self.control();
        let signings = control.calls(rpc::BATCH_NEW_X509_SVID);
        let certificates: usize = signings.iter().map(|call| call.ids.len()).sum();
        let attestations = control.count(rpc::ATTEST_AGENT);
        let syncs = control.count(rpc::SYNC_AUTHORIZED_ENTRIES);
        fmt::from_fn(move |f| {
            write!(
                f,
                "was asked for {}, {}, {} of {}",
                counted(attestations, "attestation"),
                counted(syncs, "entry sync"),
                counted(signings.len(), "signing"),
                counted(certificates, "certificate"),
            )
        })
    }

    /// The last error that the agent logged; unknown if the log is on the screen.
    pub(super) fn last_error_in_log(&self) -> Option<String> {
        let log = std::fs::read_to_string(self.config.log.file.as_ref()?).ok()?;
        let mut errors = log.lines().filter(|line| line.contains("level=error"));
        errors.next_back().map(str::to_owned)
    }

    /// Ends the server and removes the directory.
    pub(super) fn take_down(self) -> anyhow::Result<()> {
        drop(self.server);
        let path = self.directory.path().to_owned();
        self.directory
            .close()
            .with_context(|| format!("cannot remove {}", path.display()))
    }
}

/// A directory that only its owner may enter, so that nobody else meets the sockets either.
fn make_directory(surroundings: &Surroundings<'_>) -> anyhow::Result<TempDir> {
    let parent = (surroundings.variable)("TMPDIR").filter(|parent| !parent.is_empty());
    let parent = surroundings
        .directory
        .join(parent.as_deref().unwrap_or("/tmp"));
    tempfile::Builder::new()
        .prefix("edge-agent-demo-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))
}

fn start_server(node_ca: &NodeCa) -> anyhow::Result<DevServer> {
    let mut settings = Settings::new(TRUST_DOMAIN);
    settings.x509pop.roots_pem = node_ca.root_pem();
    DevServer::start(settings).context("cannot start the server")
}

/// Registers the workloads for the user that this process runs as: the owner of what it makes.
fn add_entries(
    control: &Control,
    directory: &Path,
    narrator: &mut Narrator<'_>,
) -> anyhow::Result<()> {
    let owner = std::fs::metadata(directory).context("cannot tell the user's ID")?;
    let selector = format!("unix:uid:{}", owner.uid());
    narrator.step(
        "entries",
        format_args!("two workloads for {selector}, their SVIDs live {SVID_TTL} s"),
    );
    for name in WORKLOADS {
        let path = format!("/{name}");
        narrator.detail(format_args!("spiffe://{TRUST_DOMAIN}{path}"));
        control.add_entry(Entry::new(name, &path, &[&selector]).with_ttl(SVID_TTL));
    }
    Ok(())
}

/// Writes `agent.conf` and reads it as `run` does. Its paths are relative, so that no directory's name needs quoting.
fn write_config(
    server: &DevServer,
    directory: &Path,
    node: &NodeFiles,
    options: Options,
) -> anyhow::Result<Config> {
    let bundle = server.bundle_pem();
    std::fs::write(directory.join(BUNDLE_FILE), bundle).context("cannot write the bundle")?;
    let [certificate, key] = [&node.certificate, &node.private_key].map(|path| file_name(path));
    let address = server.addr();
    let log_file = if options.is_verbose {
        String::new()
    } else {
        format!("\n  log_file = \"{LOG_FILE}\"")
    };
    let text = format!(
        r#"agent {{
  trust_domain = "{TRUST_DOMAIN}"
  trust_bundle_path = "{BUNDLE_FILE}"
  server_address = "{}"
  server_port = {}
  data_dir = "data"
  socket_path = "{PUBLIC_SOCKET}"
  admin_socket_path = "{ADMIN_SOCKET}"{log_file}
  # Renewals come on time all the same.
  experimental {{ sync_interval = "24h" }}
}}

plugins {{
  NodeAttestor "x509pop" {{
    plugin_data {{
      certificate_path = "{certificate}"
      private_key_path = "{key}"
    }}
  }}
  KeyManager "disk" {{ plugin_data {{ directory = "data" }} }}
  WorkloadAttestor "unix" {{ plugin_data {{}} }}
}}
"#,
        address.ip(),
        address.port(),
    );
    let file = directory.join(CONFIG_FILE);
    std::fs::write(&file, text).context("cannot write the agent's configuration")?;
    let flags = config::Flags::default();
    Ok(config::load(
        Some(CONFIG_FILE),
        &flags,
        false,
        &|_| None,
        directory,
    )?)
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    let text = path
        .to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

/// This program as a shell in the same directory finds it.
fn program(directory: &Path) -> String {
    let path = std::env::current_exe().unwrap_or_else(|_| PathBuf::from(env!("CARGO_PKG_NAME")));
    let short = path.strip_prefix(directory).unwrap_or(&path);
    short.display().to_string()
}
