//! The checked configuration: typed, complete, with defaults filled in and paths made absolute. No value shows a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use actors::attestor::trust::{BundleSource, PinnedSource};

use super::ast::Object;
use super::error::Warning;
pub(crate) use super::plugin::*;
pub(crate) use super::unbuilt::Unbuilt;

/// A text that never appears in `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself; must not reach a log or an error.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Settings whose meaning belongs to whoever uses them; may hold secrets, so `Debug` shows nothing of them.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct OpaqueData(pub(crate) Object);

impl OpaqueData {
    /// The settings as HCL text; empty if there are none.
    #[expect(
        dead_code,
        reason = "external plugins will take their settings as HCL text"
    )]
    pub(crate) fn to_hcl(&self) -> String {
        self.0.to_hcl()
    }
}

impl fmt::Debug for OpaqueData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpaqueData({} keys)", self.0.entries.len())
    }
}

/// A whole configuration, ready to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The file it comes from, absolute.
    pub(crate) file: PathBuf,
    /// The name of the trust domain, without scheme.
    pub(crate) trust_domain: String,
    /// DNS name or IP address.
    pub(crate) server_address: String,
    pub(crate) server_port: u16,
    pub(crate) data_dir: PathBuf,
    /// Always set, also when both public APIs are off.
    pub(crate) socket_path: PathBuf,
    pub(crate) admin_socket_path: Option<PathBuf>,
    pub(crate) disable_workload_api: bool,
    pub(crate) disable_sds_api: bool,
    pub(crate) log: LogConfig,
    /// The source that is asked first; `None`: `edge.trust_bundle_sources` alone are asked.
    pub(crate) trust_bundle: Option<BundleSource>,
    pub(crate) rebootstrap: Rebootstrap,
    /// From `join_token`, `-joinToken` or the token file, trimmed.
    pub(crate) join_token: Option<Secret>,
    pub(crate) workload_key_type: KeyType,
    /// At least 24 h.
    pub(crate) availability_target: Option<Duration>,
    pub(crate) x509_svid_cache_max_size: usize,
    pub(crate) jwt_svid_cache_max_size: usize,
    pub(crate) allow_unauthenticated_verifiers: bool,
    pub(crate) allowed_foreign_jwt_claims: Vec<String>,
    /// SPIFFE IDs of the own trust domain.
    pub(crate) authorized_delegates: Vec<String>,
    /// `agent.experimental.sync_interval`.
    pub(crate) sync_interval: Duration,
    pub(crate) sds: SdsConfig,
    pub(crate) profiling: Option<Profiling>,
    pub(crate) experimental: Experimental,
    pub(crate) edge: EdgeConfig,
    pub(crate) key_manager: KeyManager,
    pub(crate) node_attestor: NodeAttestor,
    /// At least one, in the order of the file.
    pub(crate) workload_attestors: Vec<WorkloadAttestor>,
    pub(crate) svid_stores: Vec<SvidStore>,
    pub(crate) telemetry: TelemetryConfig,
    /// `None` unless `listener_enabled`.
    pub(crate) health_checks: Option<HealthChecks>,
    /// What is odd but does not stop the start.
    pub(crate) warnings: Vec<Warning>,
    pub(super) unbuilt: Vec<Unbuilt>,
}

impl Config {
    /// Settings that are understood but that this build does not act on yet.
    pub(crate) fn unbuilt(&self) -> &[Unbuilt] {
        &self.unbuilt
    }
}

/// `log_*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogConfig {
    pub(crate) level: LogLevel,
    pub(crate) format: LogFormat,
    /// `None`: standard output.
    pub(crate) file: Option<PathBuf>,
    pub(crate) source_location: bool,
    /// A selector `type:value` may be logged if it equals one of these or starts with one and a colon.
    pub(crate) selectors: Vec<String>,
}

/// Levels of the reference, quietest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogLevel {
    Panic,
    Fatal,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// `log_format`; unset is text with times in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Unset,
    Text,
    Json,
}

/// `rebootstrap_mode` and `rebootstrap_delay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rebootstrap {
    pub(crate) mode: RebootstrapMode,
    pub(crate) delay: Duration,
}

/// When the agent may start over from its bootstrap bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RebootstrapMode {
    Never,
    Auto,
    Always,
}

/// `workload_x509_svid_key_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyType {
    EcP256,
    EcP384,
    Rsa2048,
}

/// `sds { }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SdsConfig {
    pub(crate) default_svid_name: String,
    pub(crate) default_bundle_name: String,
    pub(crate) default_all_bundles_name: String,
    pub(crate) disable_spiffe_cert_validation: bool,
}

/// `profiling_*`, when `profiling_enabled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profiling {
    /// 0: no listener.
    pub(crate) port: u16,
    /// Time between two dumps; zero: none.
    pub(crate) every: Duration,
    pub(crate) names: Vec<String>,
}

/// `experimental { }` but for `sync_interval`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Experimental {
    pub(crate) jwt_svid_cache_hit_timeout: Duration,
    pub(crate) use_sync_authorized_entries: bool,
    pub(crate) require_pq_kem: bool,
    /// Calls per second and caller by method key, such as `fetch_x509_svid`; a method without limit is absent.
    pub(crate) ratelimit: BTreeMap<&'static str, u64>,
    pub(crate) broker: Option<Broker>,
    pub(crate) feature_flags: Vec<String>,
}

/// `experimental { broker { } }`; at least one of socket and address is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broker {
    pub(crate) socket_path: Option<PathBuf>,
    pub(crate) bind_address: Option<String>,
    pub(crate) brokers: Vec<BrokerClient>,
}

/// Who may call the broker API, and about what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokerClient {
    pub(crate) id: String,
    pub(crate) allowed_reference_types: Vec<ReferenceType>,
}

/// One of `allowed_reference_types`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReferenceType {
    /// A type URL, or `*`.
    pub(crate) type_url: String,
    pub(crate) allow_over_tcp: bool,
}

/// `edge { }`: what the reference does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EdgeConfig {
    pub(crate) offline_identities: OfflineIdentities,
    pub(crate) offline_key_path: Option<PathBuf>,
    pub(crate) demand_sync: bool,
    /// `None`: for ever.
    pub(crate) empty_sync_patience: Option<Duration>,
    pub(crate) arrival_spread: Duration,
    pub(crate) min_remaining: Option<Duration>,
    /// Asked in this order, after the classic one.
    pub(crate) trust_bundle_sources: Vec<PinnedSource>,
    pub(crate) files: Vec<OpaqueData>,
    /// `None`: never exit for that.
    pub(crate) exit_if_unreachable_for: Option<Duration>,
    /// Permission bits of the public socket; `None`: 0777.
    pub(crate) socket_mode: Option<u32>,
    /// Group of the public socket, by name or number.
    pub(crate) socket_group: Option<String>,
    pub(crate) log_explain: bool,
}

/// Whether workload identities are kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfflineIdentities {
    Off,
    Sealed,
    Plain,
}

/// `telemetry { }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TelemetryConfig {
    pub(crate) prometheus: Option<Prometheus>,
    /// UDP addresses.
    pub(crate) dog_statsd: Vec<String>,
    /// UDP addresses.
    pub(crate) statsd: Vec<String>,
    pub(crate) m3: Vec<M3>,
    pub(crate) in_mem: bool,
    pub(crate) metric_prefix: String,
    pub(crate) enable_trust_domain_label: bool,
    pub(crate) enable_hostname_label: bool,
    pub(crate) allowed_prefixes: Vec<String>,
    pub(crate) blocked_prefixes: Vec<String>,
    pub(crate) allowed_labels: Vec<String>,
    pub(crate) blocked_labels: Vec<String>,
}

/// `telemetry { M3 { } }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct M3 {
    pub(crate) address: String,
    pub(crate) env: String,
}

/// `telemetry { Prometheus { } }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prometheus {
    pub(crate) host: String,
    /// 0: any free port.
    pub(crate) port: u16,
    pub(crate) tls: Option<PrometheusTls>,
}

/// `telemetry { Prometheus { tls { } } }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrometheusTls {
    /// Certificate and key file; `None`: the agent's own SVID.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) client_ca_file: Option<PathBuf>,
    pub(crate) authorized_spiffe_ids: Vec<String>,
}

/// `health_checks { }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthChecks {
    /// Without brackets.
    pub(crate) bind_address: String,
    pub(crate) bind_port: u16,
    pub(crate) ready_path: String,
    pub(crate) live_path: String,
}
