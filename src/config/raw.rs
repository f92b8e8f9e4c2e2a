//! The configuration as written: every known key with its value and place, converted to the type it has but not judged. Pure.

use std::cell::RefCell;

use super::ast::{Object, Position, Value, ValueKind};
use super::error::{Origin, Problem, Warning};
use super::model::Secret;
use super::schema;
use super::section::{Notes, Section, Spanned, collect_blocks};

type Text = Option<Spanned<String>>;
type Integer = Option<Spanned<i64>>;
type Flag = Option<Spanned<bool>>;
type Texts = Vec<Spanned<String>>;

/// A whole file.
#[derive(Debug, Default)]
pub(super) struct RawConfig {
    pub(super) agent: RawAgent,
    /// `None` when there is no `plugins` section, not even an empty one.
    pub(super) plugins: Option<Vec<RawPlugin>>,
    pub(super) telemetry: RawTelemetry,
    pub(super) health_checks: RawHealthChecks,
}

/// `agent { }`.
#[derive(Debug, Default)]
pub(super) struct RawAgent {
    pub(super) trust_domain: Text,
    pub(super) server_address: Text,
    pub(super) server_port: Integer,
    pub(super) data_dir: Text,
    pub(super) socket_path: Text,
    pub(super) admin_socket_path: Text,
    pub(super) disable_workload_api: Flag,
    pub(super) disable_sds_api: Flag,
    pub(super) log_level: Text,
    pub(super) log_format: Text,
    pub(super) log_file: Text,
    pub(super) log_source_location: Flag,
    pub(super) log_selectors: Texts,
    pub(super) trust_bundle_path: Text,
    pub(super) trust_bundle_url: Text,
    pub(super) trust_bundle_unix_socket: Text,
    pub(super) trust_bundle_format: Text,
    pub(super) trust_bundle_spiffe_workload_api: Text,
    pub(super) insecure_bootstrap: Flag,
    pub(super) join_token: Option<Spanned<Secret>>,
    pub(super) join_token_file: Text,
    pub(super) rebootstrap_mode: Text,
    pub(super) rebootstrap_delay: Text,
    pub(super) workload_x509_svid_key_type: Text,
    pub(super) availability_target: Text,
    pub(super) x509_svid_cache_max_size: Integer,
    pub(super) jwt_svid_cache_max_size: Integer,
    pub(super) allow_unauthenticated_verifiers: Flag,
    pub(super) allowed_foreign_jwt_claims: Texts,
    pub(super) authorized_delegates: Texts,
    pub(super) sds: RawSds,
    pub(super) profiling_enabled: Flag,
    pub(super) profiling_port: Integer,
    pub(super) profiling_freq: Integer,
    pub(super) profiling_names: Texts,
    pub(super) experimental: RawExperimental,
    pub(super) edge: RawEdge,
}

/// `agent { sds { } }`.
#[derive(Debug, Default)]
pub(super) struct RawSds {
    pub(super) default_svid_name: Text,
    pub(super) default_bundle_name: Text,
    pub(super) default_all_bundles_name: Text,
    pub(super) disable_spiffe_cert_validation: Flag,
}

/// `agent { experimental { } }`.
#[derive(Debug, Default)]
pub(super) struct RawExperimental {
    pub(super) sync_interval: Text,
    pub(super) jwt_svid_cache_hit_timeout: Text,
    pub(super) use_sync_authorized_entries: Flag,
    pub(super) require_pq_kem: Flag,
    /// Limits per second by method, in the order of the schema.
    pub(super) ratelimit: Vec<(&'static str, Spanned<i64>)>,
    pub(super) broker: Option<RawBroker>,
    pub(super) feature_flags: Texts,
    pub(super) named_pipe_name: Text,
    pub(super) admin_named_pipe_name: Text,
}

/// `agent { experimental { broker { } } }`.
#[derive(Debug, Default)]
pub(super) struct RawBroker {
    pub(super) place: Origin,
    pub(super) socket_path: Text,
    pub(super) bind_address: Text,
    pub(super) brokers: Vec<RawBrokerClient>,
}

/// One of `brokers`.
#[derive(Debug, Default)]
pub(super) struct RawBrokerClient {
    pub(super) place: Origin,
    pub(super) id: Text,
    /// `type_url` and `allow_over_tcp`.
    pub(super) types: Vec<(Text, Flag)>,
}

/// `agent { edge { } }`.
#[derive(Debug, Default)]
pub(super) struct RawEdge {
    pub(super) offline_identities: Text,
    pub(super) offline_key_path: Text,
    pub(super) demand_sync: Flag,
    pub(super) empty_sync_patience: Text,
    pub(super) arrival_spread: Text,
    pub(super) min_remaining: Text,
    pub(super) trust_bundle_sources: Texts,
    pub(super) files: Vec<Object>,
    pub(super) exit_if_unreachable_for: Text,
    pub(super) socket_mode: Text,
    pub(super) socket_group: Text,
    pub(super) log_explain: Flag,
}

/// `telemetry { }`.
#[derive(Debug, Default)]
pub(super) struct RawTelemetry {
    pub(super) prometheus: Option<RawPrometheus>,
    pub(super) dog_statsd: Vec<Spanned<String>>,
    pub(super) statsd: Vec<Spanned<String>>,
    pub(super) m3: Vec<(Spanned<String>, Text)>,
    pub(super) in_mem: bool,
    pub(super) metric_prefix: Text,
    pub(super) enable_trust_domain_label: Flag,
    pub(super) enable_hostname_label: Flag,
    pub(super) allowed_prefixes: Texts,
    pub(super) blocked_prefixes: Texts,
    pub(super) allowed_labels: Texts,
    pub(super) blocked_labels: Texts,
}

/// `telemetry { Prometheus { } }`.
#[derive(Debug, Default)]
pub(super) struct RawPrometheus {
    pub(super) host: Text,
    pub(super) port: Integer,
    pub(super) tls: Option<RawPrometheusTls>,
}

/// `telemetry { Prometheus { tls { } } }`.
#[derive(Debug, Default)]
pub(super) struct RawPrometheusTls {
    pub(super) place: Origin,
    pub(super) cert_file: Text,
    pub(super) key_file: Text,
    pub(super) client_ca_file: Text,
    pub(super) use_spire_svid: Flag,
    pub(super) authorized_spiffe_ids: Texts,
}

/// `health_checks { }`.
#[derive(Debug, Default)]
pub(super) struct RawHealthChecks {
    pub(super) listener_enabled: Flag,
    pub(super) bind_address: Text,
    pub(super) bind_port: Text,
    pub(super) ready_path: Text,
    pub(super) live_path: Text,
}

/// One block of `plugins { }`.
#[derive(Debug)]
pub(super) struct RawPlugin {
    pub(super) plugin_type: String,
    pub(super) name: String,
    pub(super) position: Position,
    pub(super) plugin_cmd: Text,
    pub(super) plugin_args: Texts,
    pub(super) plugin_checksum: Text,
    pub(super) plugin_data: Option<PluginValue>,
    pub(super) plugin_data_file: Text,
    pub(super) enabled: Flag,
}

/// A `plugin_data` value, which may hold secrets and so is never shown.
#[derive(Clone)]
pub(super) struct PluginValue(pub(super) Value);

impl std::fmt::Debug for PluginValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PluginValue(at {})", self.0.position)
    }
}

impl RawConfig {
    /// Reads the tree; what does not fit goes to `notes`.
    pub(super) fn read(tree: &Object, notes: &RefCell<Notes>) -> Self {
        let top = Section::top(&schema::TOP, tree, notes);
        let agent = top.section("agent", &schema::AGENT);
        let telemetry = top.section("telemetry", &schema::TELEMETRY);
        let health_checks = top.section("health_checks", &schema::HEALTH_CHECKS);
        Self {
            agent: agent.as_ref().map(RawAgent::read).unwrap_or_default(),
            plugins: read_plugins(&top, notes),
            telemetry: telemetry
                .as_ref()
                .map(RawTelemetry::read)
                .unwrap_or_default(),
            health_checks: health_checks
                .as_ref()
                .map(RawHealthChecks::read)
                .unwrap_or_default(),
        }
    }
}

impl RawAgent {
    fn read(agent: &Section<'_>) -> Self {
        let sds = agent.section("sds", &schema::SDS);
        let experimental = agent.section("experimental", &schema::EXPERIMENTAL);
        let edge = agent.section("edge", &schema::EDGE);
        Self {
            trust_domain: agent.text("trust_domain"),
            server_address: agent.text("server_address"),
            server_port: agent.integer("server_port"),
            data_dir: agent.text("data_dir"),
            socket_path: agent.text("socket_path"),
            admin_socket_path: agent.text("admin_socket_path"),
            disable_workload_api: agent.boolean("disable_workload_api"),
            disable_sds_api: agent.boolean("disable_sds_api"),
            log_level: agent.text("log_level"),
            log_format: agent.text("log_format"),
            log_file: agent.text("log_file"),
            log_source_location: agent.boolean("log_source_location"),
            log_selectors: agent.texts("log_selectors"),
            trust_bundle_path: agent.text("trust_bundle_path"),
            trust_bundle_url: agent.text("trust_bundle_url"),
            trust_bundle_unix_socket: agent.text("trust_bundle_unix_socket"),
            trust_bundle_format: agent.text("trust_bundle_format"),
            trust_bundle_spiffe_workload_api: agent.text("trust_bundle_spiffe_workload_api"),
            insecure_bootstrap: agent.boolean("insecure_bootstrap"),
            join_token: agent.text("join_token").map(|token| token.map(Secret::new)),
            join_token_file: agent.text("join_token_file"),
            rebootstrap_mode: agent.text("rebootstrap_mode"),
            rebootstrap_delay: agent.text("rebootstrap_delay"),
            workload_x509_svid_key_type: agent.text("workload_x509_svid_key_type"),
            availability_target: agent.text("availability_target"),
            x509_svid_cache_max_size: agent.integer("x509_svid_cache_max_size"),
            jwt_svid_cache_max_size: agent.integer("jwt_svid_cache_max_size"),
            allow_unauthenticated_verifiers: agent.boolean("allow_unauthenticated_verifiers"),
            allowed_foreign_jwt_claims: agent.texts("allowed_foreign_jwt_claims"),
            authorized_delegates: agent.texts("authorized_delegates"),
            sds: sds.as_ref().map(RawSds::read).unwrap_or_default(),
            profiling_enabled: agent.boolean("profiling_enabled"),
            profiling_port: agent.integer("profiling_port"),
            profiling_freq: agent.integer("profiling_freq"),
            profiling_names: agent.texts("profiling_names"),
            experimental: experimental
                .as_ref()
                .map(RawExperimental::read)
                .unwrap_or_default(),
            edge: edge.as_ref().map(RawEdge::read).unwrap_or_default(),
        }
    }
}

impl RawSds {
    fn read(sds: &Section<'_>) -> Self {
        Self {
            default_svid_name: sds.text("default_svid_name"),
            default_bundle_name: sds.text("default_bundle_name"),
            default_all_bundles_name: sds.text("default_all_bundles_name"),
            disable_spiffe_cert_validation: sds.boolean("disable_spiffe_cert_validation"),
        }
    }
}

impl RawExperimental {
    fn read(section: &Section<'_>) -> Self {
        let limits = section.section("ratelimit", &schema::RATELIMIT);
        let ratelimit = limits.as_ref().map(|limits| {
            let methods = schema::RATELIMIT.keys.iter();
            methods
                .filter_map(|method| Some((*method, limits.integer(method)?)))
                .collect()
        });
        let broker = section.section("broker", &schema::BROKER);
        Self {
            sync_interval: section.text("sync_interval"),
            jwt_svid_cache_hit_timeout: section.text("jwt_svid_cache_hit_timeout"),
            use_sync_authorized_entries: section.boolean("use_sync_authorized_entries"),
            require_pq_kem: section.boolean("require_pq_kem"),
            ratelimit: ratelimit.unwrap_or_default(),
            broker: broker.as_ref().map(RawBroker::read),
            feature_flags: section.texts("feature_flags"),
            named_pipe_name: section.text("named_pipe_name"),
            admin_named_pipe_name: section.text("admin_named_pipe_name"),
        }
    }
}

impl RawBroker {
    fn read(section: &Section<'_>) -> Self {
        let clients = section.sections("brokers", &schema::BROKERS);
        Self {
            place: section.place(),
            socket_path: section.text("socket_path"),
            bind_address: section.text("bind_address"),
            brokers: clients.iter().map(RawBrokerClient::read).collect(),
        }
    }
}

impl RawBrokerClient {
    fn read(section: &Section<'_>) -> Self {
        let types = section.sections("allowed_reference_types", &schema::REFERENCE_TYPES);
        Self {
            place: section.place(),
            id: section.text("id"),
            types: types
                .iter()
                .map(|kind| (kind.text("type_url"), kind.boolean("allow_over_tcp")))
                .collect(),
        }
    }
}

impl RawEdge {
    fn read(edge: &Section<'_>) -> Self {
        let files = edge.blocks("files").into_iter();
        Self {
            offline_identities: edge.text("offline_identities"),
            offline_key_path: edge.text("offline_key_path"),
            demand_sync: edge.boolean("demand_sync"),
            empty_sync_patience: edge.text("empty_sync_patience"),
            arrival_spread: edge.text("arrival_spread"),
            min_remaining: edge.text("min_remaining"),
            trust_bundle_sources: edge.texts("trust_bundle_sources"),
            files: files.map(|(object, _)| object.clone()).collect(),
            exit_if_unreachable_for: edge.text("exit_if_unreachable_for"),
            socket_mode: edge.text("socket_mode"),
            socket_group: edge.text("socket_group"),
            log_explain: edge.boolean("log_explain"),
        }
    }
}

impl RawTelemetry {
    fn read(section: &Section<'_>) -> Self {
        let addresses = |key, schema| {
            let sinks = section.sections(key, schema);
            sinks.iter().map(sink_address).collect()
        };
        let prometheus = section.section("Prometheus", &schema::PROMETHEUS);
        let m3 = section.sections("M3", &schema::M3);
        let in_mem = section.section("InMem", &schema::IN_MEM);
        Self {
            prometheus: prometheus.as_ref().map(RawPrometheus::read),
            dog_statsd: addresses("DogStatsd", &schema::DOG_STATSD),
            statsd: addresses("Statsd", &schema::STATSD),
            m3: m3
                .iter()
                .map(|sink| (sink_address(sink), sink.text("env")))
                .collect(),
            in_mem: in_mem.is_some_and(|sink| sink.boolean("enabled").is_none_or(|on| on.value)),
            metric_prefix: section.text("MetricPrefix"),
            enable_trust_domain_label: section.boolean("EnableTrustDomainLabel"),
            enable_hostname_label: section.boolean("EnableHostnameLabel"),
            allowed_prefixes: section.texts("AllowedPrefixes"),
            blocked_prefixes: section.texts("BlockedPrefixes"),
            allowed_labels: section.texts("AllowedLabels"),
            blocked_labels: section.texts("BlockedLabels"),
        }
    }
}

/// The address of a sink; empty, but with the place of the block, if there is none.
fn sink_address(sink: &Section<'_>) -> Spanned<String> {
    let missing = || Spanned {
        value: String::new(),
        origin: sink.place(),
    };
    sink.text("address").unwrap_or_else(missing)
}

impl RawPrometheus {
    fn read(section: &Section<'_>) -> Self {
        let tls = section.section("tls", &schema::PROMETHEUS_TLS);
        Self {
            host: section.text("host"),
            port: section.integer("port"),
            tls: tls.map(|tls| RawPrometheusTls {
                place: tls.place(),
                cert_file: tls.text("cert_file"),
                key_file: tls.text("key_file"),
                client_ca_file: tls.text("client_ca_file"),
                use_spire_svid: tls.boolean("use_spire_svid"),
                authorized_spiffe_ids: tls.texts("authorized_spiffe_ids"),
            }),
        }
    }
}

impl RawHealthChecks {
    fn read(section: &Section<'_>) -> Self {
        Self {
            listener_enabled: section.boolean("listener_enabled"),
            bind_address: section.text("bind_address"),
            bind_port: section.text("bind_port"),
            ready_path: section.text("ready_path"),
            live_path: section.text("live_path"),
        }
    }
}

/// Reads the first `plugins` section; later ones are ignored, as the reference does, but not silently.
fn read_plugins(top: &Section<'_>, notes: &RefCell<Notes>) -> Option<Vec<RawPlugin>> {
    let mut entries = top.all("plugins");
    let first = entries.next()?;
    for later in entries {
        notes.borrow_mut().warnings.push(Warning {
            message: "only the first plugins section counts, this one is ignored".to_owned(),
            key: "plugins".to_owned(),
            origin: Origin::File(later.key.position),
        });
    }
    let mut plugins = Vec::new();
    for (object, _) in blocks_of("plugins", &first.value, notes) {
        for kind in &object.entries {
            for (named, _) in blocks_of(&format!("plugins.{}", kind.key.text), &kind.value, notes) {
                for name in &named.entries {
                    let path = format!("plugins.{}.{}", kind.key.text, name.key.text);
                    notes
                        .borrow_mut()
                        .seen
                        .insert(path.clone(), name.key.position);
                    for block in blocks_of(&path, &name.value, notes) {
                        let section =
                            Section::open(&schema::PLUGIN, path.clone(), vec![block], notes);
                        plugins.push(RawPlugin::read(
                            &section,
                            &kind.key.text,
                            &name.key.text,
                            kind.key.position,
                        ));
                    }
                }
            }
        }
    }
    Some(plugins)
}

/// The blocks of a value; notes if it is none.
fn blocks_of<'a>(
    path: &str,
    value: &'a Value,
    notes: &RefCell<Notes>,
) -> Vec<(&'a Object, Position)> {
    let mut blocks = Vec::new();
    if !collect_blocks(value, &mut blocks) {
        notes.borrow_mut().types.push(Problem {
            message: format!("{path} must be a block, not {}", value.kind.name()),
            key: path.to_owned(),
            origin: Origin::File(value.position),
        });
    }
    blocks
}

impl RawPlugin {
    fn read(section: &Section<'_>, plugin_type: &str, name: &str, position: Position) -> Self {
        let data = section
            .value("plugin_data")
            .filter(|value| !is_empty(value));
        Self {
            plugin_type: plugin_type.to_owned(),
            name: name.to_owned(),
            position,
            plugin_cmd: section.text("plugin_cmd"),
            plugin_args: section.texts("plugin_args"),
            plugin_checksum: section.text("plugin_checksum"),
            plugin_data: data.map(|value| PluginValue(value.clone())),
            plugin_data_file: section.text("plugin_data_file"),
            enabled: section.boolean("enabled"),
        }
    }
}

/// Whether a `plugin_data` equals none at all.
fn is_empty(value: &Value) -> bool {
    match &value.kind {
        ValueKind::Object(object) => object.entries.is_empty(),
        ValueKind::List(items) => items.iter().all(is_empty),
        ValueKind::Text(text) => text.is_empty(),
        ValueKind::Bool(_) | ValueKind::Number(_) => false,
    }
}
